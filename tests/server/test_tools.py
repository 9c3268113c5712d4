"""Tool calls: found in text however it is cut, written by grammars, streamed as OpenAI's deltas."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
import numpy as np
import openai
import pytest
from numpy.typing import NDArray

from paceline import LLM
from paceline.errors import RequestError
from paceline.models import toy as toys
from paceline.server.calls import Reader
from paceline.server.tools import HERMES, LLAMA, Style, schema_of, style_of

from .live import Live, live

NAMES = {"get", "put"}
Found = tuple[str, list[tuple[str, str]]]

HERMES_TEXTS: list[tuple[str, Found]] = [
    ('<tool_call>\n{"name": "get", "arguments": {"a": 1}}\n</tool_call>', ("", [("get", '{"a": 1}')])),
    (
        'Sure.\n<tool_call>\n{"name": "get", "arguments": {"a": "}<\\"", "b": {"c": "{"}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "put", "arguments": {}}\n</tool_call>\n',
        ("Sure.", [("get", '{"a": "}<\\"", "b": {"c": "{"}}'), ("put", "{}")]),
    ),
    ('<tool_call>{"arguments": {"x": "é"}, "name": "get"}</tool_call> bye\n', ("bye", [("get", '{"x": "é"}')])),
    ('<tool_call>{"name": "get"}</tool_call>', ("", [("get", "{}")])),
    ('<tool_call>{"name": "put", "arguments": "{\\"a\\": 1}"}</tool_call>', ("", [("put", '{"a": 1}')])),
    (
        '<tool_call>{"name":"get","arguments":{}}<tool_call>{"name":"put","arguments":{}}',
        ("", [("get", "{}"), ("put", "{}")]),
    ),
    ('<tool_call>\n{"name": "get", "arguments": {"a": [1, ', ("", [("get", '{"a": [1, ')])),
    (
        '<tool_call>\n{"name": "nix", "arguments": {}}\n</tool_call>',
        ('<tool_call>\n{"name": "nix", "arguments": {}}\n</tool_call>', []),
    ),
    ("<tool_call>{bad</tool_call> t", ("<tool_call>{bad</tool_call> t", [])),
    ('a <tool_call> <tool_call>{"name":"get","arguments":{}}</tool_call>', ("a <tool_call>", [("get", "{}")])),
    ('x<tool_call>{"name":"ge', ('x<tool_call>{"name":"ge', [])),
    ("no call at all \n ", ("no call at all \n ", [])),
    ("\n\n <tool_c", ("\n\n <tool_c", [])),
    ("<tool_call>\n", ("<tool_call>\n", [])),
    ("", ("", [])),
]
LLAMA_TEXTS: list[tuple[str, Found]] = [
    ('{"name": "get", "parameters": {"a": 1}}', ("", [("get", '{"a": 1}')])),
    (
        '<|python_tag|>{"name": "get", "parameters": {}}; {"name": "put", "parameters": {}}',
        ("", [("get", "{}"), ("put", "{}")]),
    ),
    (' {"type": "function", "name": "get", "parameters": {"a": 1}}\n', ("", [("get", '{"a": 1}')])),
    ('{"name": "get", "parameters": {}} and then', ("and then", [("get", "{}")])),
    ('{"not": 1} x', ('{"not": 1} x', [])),
    ('{"name": "nix", "parameters": {}}', ('{"name": "nix", "parameters": {}}', [])),
    ('hello {"name": "get", "parameters": {}}', ('hello {"name": "get", "parameters": {}}', [])),
    ("<|py", ("<|py", [])),
    ("  x ", ("  x ", [])),
]
ALL = [(HERMES, *case) for case in HERMES_TEXTS] + [(LLAMA, *case) for case in LLAMA_TEXTS]


def read(style: Style, pieces: Sequence[str], **given: Any) -> Found:
    reader = Reader(style, NAMES, **given)
    found = [piece for text in pieces for piece in reader.push(text)] + reader.flush()
    calls: list[list[str]] = []
    for piece in found:
        if piece.call is None:
            assert piece.text and piece.name is None and not piece.arguments
        elif piece.name is not None:
            assert piece.call == len(calls), "a call begins once, in order"
            calls.append([piece.name, piece.arguments])
        else:
            assert piece.arguments and piece.call == len(calls) - 1
            calls[-1][1] += piece.arguments
    return "".join(piece.text for piece in found), [(name, arguments) for name, arguments in calls]


def cut(text: str, seed: int) -> list[str]:
    draw, pieces = random.Random(seed), []
    while text:
        length = draw.randint(1, 6)
        pieces, text = [*pieces, text[:length]], text[length:]
    return pieces


@pytest.mark.parametrize(("style", "text", "want"), ALL)
def test_calls_are_found_however_a_text_is_cut(style, text, want):
    assert read(style, [text]) == want
    assert read(style, list(text)) == want
    for seed in range(20):
        assert read(style, cut(text, seed)) == want


def test_any_text_of_marks_and_braces_is_cut_alike():
    draw = random.Random(1)
    parts = [
        "<tool_call>",
        "</tool_call>",
        "{",
        "}",
        '"name"',
        ":",
        '"get"',
        ",",
        '"arguments"',
        " ",
        "\n",
        "x",
        "\\",
        '"',
        ";",
    ]
    for _ in range(400):
        text = "".join(draw.choices(parts, k=draw.randint(1, 25)))
        for style in (HERMES, LLAMA):
            assert read(style, [text]) == read(style, list(text)) == read(style, cut(text, 7))


def test_arguments_are_passed_on_as_they_come():
    reader = Reader(HERMES, NAMES)
    reader.push('<tool_call>\n{"name": "get", "arguments": {"a": "b')
    assert [piece.arguments for piece in reader.push("cd")] == ["cd"]


def test_text_is_passed_on_before_a_call_may_begin():
    reader = Reader(HERMES, NAMES)
    assert [piece.text for piece in reader.push("one two<")] == ["one two"]
    assert [piece.text for piece in reader.push("b> three")] == ["<b> three"]


@pytest.mark.parametrize("style", [HERMES, LLAMA])
def test_only_the_first_call_unless_parallel(style):
    key, text = style.arguments, ""
    for name in ("get", "put"):
        text += f'{style.mark}{style.begin}{{"name": "{name}", "{key}": {{}}}}{style.end}{style.between}'
    assert read(style, [text], parallel=False)[1] == [("get", "{}")]
    assert read(style, [text])[1] == [("get", "{}"), ("put", "{}")]


def test_the_style_is_read_off_the_template():
    assert style_of("{% if tools %}<tool_call>{% endif %}") is HERMES
    assert style_of('{% if tools %}{"name": x, "parameters": y}{% endif %}') is LLAMA
    for template, why in (
        (None, "has no place"),
        ("{{ messages }}", "has no place"),
        ("{{ tools }}", "not known here"),
    ):
        with pytest.raises(RequestError, match=why):
            style_of(template)


def test_arguments_are_an_object():
    assert json.loads(schema_of(None)) == {"type": "object", "properties": {}, "additionalProperties": False}
    assert json.loads(schema_of({"properties": {}}))["type"] == "object"
    with pytest.raises(RequestError, match="have the type 'array'"):
        schema_of({"type": "array"})


TEMPLATE = (
    "{% if tools %}{{ tools | map(attribute='function.name') | join(' ') }}KIND{% endif %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}<bot>{% else %}<user>{% endif %}{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}[{{ call.function.name }} {{ call.function.arguments | tojson }}]{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}"
)
MARKS = {"hermes": "<tool_call>", "llama": '"parameters"'}
SCRIPT = {
    "hermes": 'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Çeşme", "days": 3}}\n</tool_call>\n'
    '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call><eos>',
    "llama": '{"name": "weather", "parameters": {"city": "Çeşme", "days": 3}}; {"name": "time", "parameters": {}}<eos>',
}
CITY = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"city": {"type": "string", "maxLength": 6}},
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": CITY}},
    {"type": "function", "function": {"name": "time"}},
]
MESSAGES: Any = [{"role": "user", "content": "hi"}]
BOT = 258


@dataclass(frozen=True)
class Scripted:
    """A model that, after "<bot>", says one text, nearly always."""

    script: tuple[int, ...]
    vocab_size: int = toys.VOCAB_SIZE

    def logits(self, context: Sequence[int]) -> NDArray[np.float32]:
        found = np.zeros(self.vocab_size, np.float32)
        said = len(context) - 1 - max((i for i, token in enumerate(context) if token == BOT), default=0)
        if said < len(self.script):
            found[self.script[said]] = 12.0
        return found


@pytest.fixture(scope="module", params=["hermes", "llama"])
def scripted(request, kept) -> Iterator[tuple[str, Live]]:
    """A model that calls two tools, in the style of one family."""
    style = request.param
    with pytest.MonkeyPatch.context() as patch:
        tokens = toys.tokenizer().encode(SCRIPT[style], allow_special=True)
        patch.setitem(toys.LAWS, "table", Scripted(tuple(tokens)))
        llm = LLM("toy:table")
    llm.tokenizer.chat_template = TEMPLATE.replace("KIND", MARKS[style])
    with live(llm) as server:
        yield style, server


@pytest.fixture
def client(scripted) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{scripted[1].url}/v1", api_key="unused", max_retries=0) as made:
        yield made


def ask(client: openai.OpenAI, **given: Any) -> Any:
    base: dict[str, Any] = {"model": "toy:table", "messages": MESSAGES, "tools": TOOLS, "max_tokens": 300, "seed": 1}
    return client.chat.completions.create(**(base | given))


def calls(answer: Any) -> list[tuple[str, Any]]:
    found = answer.choices[0].message.tool_calls or []
    return [(call.function.name, json.loads(call.function.arguments)) for call in found]


def test_a_model_calls_at_will(scripted, client):
    answer = ask(client, temperature=0)
    assert calls(answer) == [("weather", {"city": "Çeşme", "days": 3}), ("time", {})]
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.choices[0].message.content == ("Let me see." if scripted[0] == "hermes" else None)
    ids = [call.id for call in answer.choices[0].message.tool_calls]
    assert len(set(ids)) == 2 and all(name.startswith("call_") for name in ids)


@pytest.mark.parametrize("given", [{}, {"speculation": {"mode": "always"}}, {"speculation": {"mode": "off"}}])
def test_a_stream_of_calls_adds_up(client, given):
    answer = ask(client, temperature=0, extra_body=given)
    stream = list(ask(client, temperature=0, extra_body=given, stream=True))
    content, found = "", []
    for chunk in stream:
        delta = chunk.choices[0].delta
        content += delta.content or ""
        for part in delta.tool_calls or []:
            if part.id is not None:
                found.append([part.function.name, ""])
                assert part.index == len(found) - 1 and part.type == "function"
            found[part.index][1] += part.function.arguments
    assert content == (answer.choices[0].message.content or "")
    whole = answer.choices[0].message.tool_calls
    assert found == [[call.function.name, call.function.arguments] for call in whole]
    assert stream[-1].choices[0].finish_reason == answer.choices[0].finish_reason == "tool_calls"


def test_the_official_client_collects_a_stream(client):
    with client.chat.completions.stream(model="toy:table", messages=MESSAGES, tools=TOOLS, temperature=0) as stream:
        final = stream.get_final_completion()
    assert [call.function.name for call in final.choices[0].message.tool_calls or []] == ["weather", "time"]


def test_one_call_at_a_time(client):
    answer = ask(client, temperature=0, parallel_tool_calls=False)
    assert [name for name, _ in calls(answer)] == ["weather"]


def test_no_call_is_looked_for_under_none(scripted, client):
    answer = ask(client, temperature=0, tool_choice="none")
    assert not answer.choices[0].message.tool_calls
    assert answer.choices[0].message.content == SCRIPT[scripted[0]].removesuffix("<eos>")
    plain = client.chat.completions.create(model="toy:table", messages=MESSAGES, temperature=0, max_tokens=300)
    assert plain.choices[0].message.content == answer.choices[0].message.content
    assert plain.usage.prompt_tokens == answer.usage.prompt_tokens < ask(client, temperature=0).usage.prompt_tokens


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mode", ["off", "always"])
def test_a_named_tool_is_called(client, seed, mode):
    """At a temperature at which the model's own words are nearly lost."""
    choice = {"type": "function", "function": {"name": "weather"}}
    given = {"seed": seed, "temperature": 6.0, "tool_choice": choice, "extra_body": {"speculation": {"mode": mode}}}
    ((name, arguments),) = calls(ask(client, **given))
    assert name == "weather" and arguments.keys() == {"city", "days"}
    assert len(arguments["city"]) <= 6 and 1 <= arguments["days"] <= 9
    assert calls(ask(client, **given)) == [(name, arguments)]


@pytest.mark.parametrize("parallel", [True, False])
def test_a_call_is_required(client, parallel):
    counts = set()
    for seed in range(6):
        answer = ask(
            client, seed=seed, temperature=5.0, tool_choice="required", parallel_tool_calls=parallel, max_tokens=450
        )
        if answer.choices[0].finish_reason == "length":
            continue
        found = calls(answer)
        counts.add(len(found))
        assert found and {name for name, _ in found} <= {"weather", "time"}
        assert answer.choices[0].message.content is None
    assert counts and (parallel or counts == {1})


def test_strict_arguments_at_will(scripted, client):
    style, _ = scripted
    strict = [tool | {"function": tool["function"] | {"strict": True}} for tool in TOOLS]
    if style == "llama":
        with pytest.raises(openai.BadRequestError, match="leave strict out"):
            ask(client, tools=strict)
        return
    assert calls(ask(client, tools=strict, temperature=0)) == [("weather", {"city": "Çeşme", "days": 3}), ("time", {})]
    narrow = json.loads(json.dumps(strict))
    narrow[0]["function"]["parameters"]["properties"]["days"] = {"const": 7}
    assert calls(ask(client, tools=narrow, temperature=0))[0] == ("weather", {"city": "Çeşme", "days": 7})


def test_a_call_that_is_cut_off(client):
    answer = ask(client, temperature=0, max_tokens=60)
    assert answer.choices[0].finish_reason == "length"
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "weather" and '{"city": "Çeşme"'.startswith(call.function.arguments[:10])


def test_calls_and_results_are_sent_back(client, scripted):
    first = ask(client, temperature=0).choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in first.tool_calls]
    answer = ask(client, messages=[*MESSAGES, first.model_dump(exclude_none=True), *results], temperature=0)
    sent = [call.function for call in first.tool_calls]
    meant = [{"function": {"name": call.name, "arguments": json.loads(call.arguments)}} for call in sent]
    conversation = [
        *MESSAGES,
        {"role": "assistant", "content": first.content, "tool_calls": meant},
        *({"role": "tool", "content": "sunny"} for _ in results),
    ]
    server = scripted[1]
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    template.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    text = template.from_string(server.llm.tokenizer.chat_template or "").render(
        messages=conversation, tools=TOOLS, add_generation_prompt=True
    )
    assert answer.usage.prompt_tokens == len(server.llm.tokenizer.encode(text, allow_special=True))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "nix"}}}, "'nix', which is not among the tools"),
        ({"response_format": {"type": "json_object"}}, "tools are given beside a response_format"),
        ({"tools": TOOLS * 65}, "tools has 130 entries; allowed: 128"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]}, "'string'"),
    ],
)
def test_what_cannot_be_done_with_tools_is_refused(client, given, why):
    with pytest.raises(openai.BadRequestError, match=why):
        ask(client, **given)


def test_a_template_without_tools_refuses_them(toy, demo):
    for server in (toy, demo):
        with server.client() as http:
            answer = http.post("/v1/chat/completions", json={"messages": MESSAGES, "tools": TOOLS})
            assert answer.status_code == 400
            assert "chat template has no place for them" in answer.json()["error"]["message"]
