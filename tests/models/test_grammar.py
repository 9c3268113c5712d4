"""Matchers against ones that never looked anywhere else, and grammars that mean harm."""

from __future__ import annotations

import json
import random
import threading
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.types import GrammarSpec
from paceline.errors import OptionError, RequestError
from paceline.models import grammar, toy
from paceline.models.grammar import Grammars, Matcher
from paceline.models.tokenizer import Tokenizer
from tests.core.strategies import examples

from .test_gguf_tokenizer import WORDS, demo_tokenizer, piece_tables

PADDING = 40
"""Logits beyond the tokenizer's table."""
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]+ [0-9]*$"},
        "kind": {"enum": ["alpha", "alphabet", "beta"]},
        "marks": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
    },
    "required": ["name", "kind"],
    "additionalProperties": False,
}
NAMES = {
    "type": "object",
    "properties": {'quo"te': {"type": "integer"}, "größe": {"enum": ["ç", "çiğ"]}, "größer": {"type": "boolean"}},
    "required": ['quo"te', "größe"],
    "additionalProperties": False,
}
SPECS = {
    "object": GrammarSpec("json_object"),
    "schema": GrammarSpec("json_schema", json.dumps(PERSON)),
    "names": GrammarSpec("json_schema", json.dumps(NAMES)),
    "regex": GrammarSpec("regex", r"(yes|no|yesterday), because [a-z ]{3,40}\."),
    "unicode": GrammarSpec("regex", "(çiğ|日本語|🙂)+!"),
    "lark": GrammarSpec("lark", 'start: sum\nsum: NUMBER ("+" NUMBER)*\nNUMBER: /[0-9]{1,3}/'),
}


@cache
def tokenizer(name: str) -> Tokenizer:
    return demo_tokenizer() if name == "demo" else toy.tokenizer()


@cache
def grammars(name: str = "demo") -> Grammars:
    found = tokenizer(name)
    return Grammars(found, len(found.vocabulary) + PADDING, found.eos_ids)


@cache
def walks(name: str, kind: str) -> list[list[int]]:
    """Random texts of a grammar, up to their end or forty tokens."""
    dice, eos = random.Random(f"{name} {kind}"), tokenizer(name).eos_ids
    found = []
    for _ in range(12):
        matcher, output = fresh(name, kind), list[int]()
        while len(output) < 40:
            allowed = np.flatnonzero(matcher.allowed(output)).tolist()
            allowed = [t for t in allowed if t not in eos] or allowed
            output.append(dice.choice(allowed))
            if output[-1] in eos:
                break
        found.append(output)
    return found


def fresh(name: str, kind: str) -> Matcher:
    return grammars(name).matcher(SPECS[kind])


def follow(matcher: Matcher) -> list[int]:
    """Sixty tokens, each the highest that is allowed."""
    output = list[int]()
    while len(output) < 60:
        output.append(int(np.flatnonzero(matcher.allowed(output))[-1]))
    return output


def refused(spec: GrammarSpec) -> str:
    with pytest.raises(RequestError) as caught:
        grammars().check(spec)
    said = str(caught.value)
    assert "\n" not in said and len(said) < 400, said
    return said


@pytest.mark.parametrize("name", ["demo", "toy"])
@pytest.mark.parametrize("kind", SPECS)
@examples(25)
@given(data=st.data())
def test_going_back_is_as_never_having_been_there(name: str, kind: str, data) -> None:
    """Ends, other branches, tokens that are not allowed: whatever was asked before, the mask is that of a new one."""
    used, texts = fresh(name, kind), walks(name, kind)
    size = len(tokenizer(name).vocabulary) + PADDING
    for _ in range(8):
        text = data.draw(st.sampled_from(texts))
        output = text[: data.draw(st.integers(0, len(text)))]
        output += data.draw(st.sampled_from([(), (), tokenizer(name).eos_ids[:1], (65,), (size - 1,)]))
        data.draw(st.booleans()) and used.forced(output, 6)
        assert (used.allowed(output) == fresh(name, kind).allowed(output)).all()


def test_negative_control_a_matcher_that_does_not_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    text = walks("demo", "schema")[0]
    used = fresh("demo", "schema")
    used.allowed(text[:9])
    monkeypatch.setattr(used._place, "_tokens", text[:3])
    assert (used.allowed(text[:3]) != fresh("demo", "schema").allowed(text[:3])).any()


@pytest.mark.parametrize("name", ["demo", "toy"])
@pytest.mark.parametrize("kind", SPECS)
def test_texts_end_where_the_grammar_does(name: str, kind: str) -> None:
    eos = list(tokenizer(name).eos_ids)
    for text in walks(name, kind):
        matcher = fresh(name, kind)
        ends = [bool(matcher.allowed(text[:n])[eos].any()) for n in range(len(text) + 1)]
        assert all(matcher.allowed(text[:n])[eos].all() for n, may in enumerate(ends) if may), "all ends, or none"
        assert not ends[0]
        if text[-1] in eos:
            assert ends[-1] and ends[-2]
            whole = tokenizer(name).decode(text)
            assert kind != "schema" or set(json.loads(whole)) >= {"name", "kind"}
            assert kind != "object" or isinstance(json.loads(whole), dict)


@pytest.mark.parametrize("kind", SPECS)
def test_only_tokens_with_text_are_allowed(kind: str) -> None:
    found, size = tokenizer("demo"), len(tokenizer("demo").vocabulary) + PADDING
    textless = [t for t in range(size) if found.is_special(t) or found.is_unused(t)]
    never = sorted({*textless} - {*found.eos_ids})
    assert len(never) > PADDING
    for text in walks("demo", kind):
        matcher = fresh("demo", kind)
        masks = [matcher.allowed(text[:n]) for n in range(len(text))]
        assert all(mask.shape == (size,) and mask.any() and not mask[never].any() for mask in masks)


def test_after_an_end_and_off_the_grammar_there_are_ends_only() -> None:
    eos = list(tokenizer("demo").eos_ids)
    matcher = fresh("demo", "regex")
    whole = tokenizer("demo").encode("no, because it is.")
    for output in (whole, [*whole, eos[0]], [*whole, eos[0], 65], [65]):
        assert np.flatnonzero(matcher.allowed(output)).tolist() == sorted(eos), output
    assert (matcher.allowed(whole[:3]) == fresh("demo", "regex").allowed(whole[:3])).all(), "and no harm is done"


def test_what_is_forced_is_all_that_is_allowed() -> None:
    found = tokenizer("demo")
    matcher = grammars().matcher(GrammarSpec("json_schema", json.dumps({"const": "hello world"})))
    start = found.encode('"')
    assert found.decode(matcher.forced(start, 9)).startswith("hello")
    assert matcher.forced(start, 1) == matcher.forced(start, 9)[:1]
    assert matcher.forced([], 0) == []
    certain = grammars().matcher(GrammarSpec("regex", "one two three"))
    tokens = certain.forced([], 99)
    assert found.decode(tokens, skip_special=False).startswith("one two three")
    assert tokens[-1] == found.eos_ids[0]
    assert certain.forced(tokens[:-1], 99) == tokens[-1:]
    assert certain.forced(tokens, 99) == []


def test_blanks_end() -> None:
    """A model that says nothing but blanks must come to the point."""
    matcher, found = fresh("toy", "schema"), tokenizer("toy")
    blank = found.encode(" ")
    assert matcher.allowed(found.encode("{" + " " * 31))[blank].all()
    assert not matcher.allowed(found.encode("{" + " " * 32))[blank].any()


def test_sentencepiece_has_no_blank_before_forced_text() -> None:
    found = Tokenizer.from_gguf(piece_tables(WORDS))
    made = Grammars(found, len(found.vocabulary), found.eos_ids)
    for text in ("thing", "the thing", " thing", "a\nthing"):
        forced = made.matcher(GrammarSpec("regex", text)).forced([], 20)
        assert b"".join(found.token_bytes(t) for t in forced if t not in found.eos_ids) == text.encode()


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (GrammarSpec("json_schema", "{"), "not JSON"),
        (GrammarSpec("json_schema", "[1]"), "a list"),
        (GrammarSpec("json_schema", "NaN"), "not JSON"),
        (GrammarSpec("json_schema", "[" * 100_000), "bytes"),
        (GrammarSpec("json_schema", "[" * 60_000), "not JSON"),
        (GrammarSpec("json_schema", '{"minimum": 1' + "0" * 5000 + "}"), "not JSON"),
        (GrammarSpec("json_schema", '{"items":' * 80 + "{}" + "}" * 80), "nested 81 deep"),
        (GrammarSpec("json_schema", json.dumps({"enum": [[]] * 2000})), "2002 objects"),
        (GrammarSpec("json_schema", '{"type": "thing"}'), "thing"),
        (GrammarSpec("json_schema", '{"type": "array", "uniqueItems": true}'), "uniqueItems"),
        (GrammarSpec("json_schema", '{"$ref": "http://127.0.0.1:1/x"}'), "does not fetch"),
        (GrammarSpec("json_schema", '{"$ref": "file:///etc/passwd"}'), "does not fetch"),
        (GrammarSpec("json_schema", '{"$ref": "#/$defs/none"}'), "none"),
        (GrammarSpec("json_schema", '{"$ref": "#"}'), "no text fits"),
        (GrammarSpec("json_schema", '{"type": "integer", "minimum": 5, "maximum": 3}'), "minimum"),
        (GrammarSpec("json_schema", '{"type": "string", "pattern": "("}'), "regex"),
        (GrammarSpec("json_schema", '{"pattern": "\\ud800"}'), "json_schema"),
        (GrammarSpec("json_schema", '{"title": "' + "x" * 70_000 + '"}'), "70013 bytes"),
        (GrammarSpec("regex", "("), "unclosed group"),
        (GrammarSpec("regex", "(?=a)b"), "look"),
        (GrammarSpec("regex", r"(a)\1"), "backref"),
        (GrammarSpec("regex", "[^\\s\\S]"), "no text fits"),
        (GrammarSpec("regex", "\ud800"), "Unicode"),
        (GrammarSpec("lark", "start: start"), "no text fits"),
        (GrammarSpec("lark", "start: other"), "other"),
        (GrammarSpec("lark", "%import /etc/passwd"), "lark"),
        (GrammarSpec("lark", "\x00"), "lark"),
    ],
    ids=lambda value: "" if isinstance(value, GrammarSpec) else value,
)
def test_what_cannot_be_used_is_refused_in_one_line(spec: GrammarSpec, says: str) -> None:
    assert says in refused(spec)


@pytest.mark.parametrize(
    "spec",
    [
        GrammarSpec("regex", "((a{1,1000}){1,1000}){1,1000}"),
        GrammarSpec("regex", "(a|aa)+(a|b)*a(a|b){2000}"),
        GrammarSpec("regex", "|".join("".join(random.Random(i).choices("ab", k=30)) for i in range(2000))),
        GrammarSpec("json_schema", json.dumps({"enum": [f"value {i}" for i in range(4000)]})),
        GrammarSpec("json_schema", json.dumps({"properties": {f"p{i}": {"type": "string"} for i in range(900)}})),
        GrammarSpec(
            "json_schema",
            json.dumps({"allOf": [{"anyOf": [{"required": [f"{x}{i}"]} for x in "abcdef"]} for i in range(12)]}),
        ),
        GrammarSpec("json_schema", json.dumps({"type": "array", "minItems": 10**6, "maxItems": 10**7})),
        GrammarSpec("json_schema", json.dumps({"type": "string", "pattern": "^(([a-z])+.)+[A-Z]([a-z])+$"})),
        GrammarSpec("lark", "start: start start | /a/ | /a+/"),
        GrammarSpec("lark", "\n".join(f"r{i}: r{i + 1} r{i + 1} |" for i in range(24)) + '\nr24: "a"\nstart: r0'),
    ],
    ids=range(10),
)
def test_costly_grammars_are_refused_or_cost_little(spec: GrammarSpec) -> None:
    """Bounded by the library's counts, not by a clock: what is asserted is that it comes to an end at all."""

    def outcome() -> object:
        try:
            return follow(grammars().matcher(spec))
        except RequestError as error:
            return str(error)

    found = outcome()
    assert "\n" not in str(found)
    assert outcome() == found, "at another place, the second time"


def test_a_grammar_that_leads_nowhere_says_so_there_and_only_there() -> None:
    spec = GrammarSpec("lark", 'start: "ab" dead | "cd"\ndead: dead "x"')
    matcher = grammars("toy").matcher(spec)
    ab, cd = tokenizer("toy").encode("ab"), tokenizer("toy").encode("cd")
    for _ in range(2):
        assert matcher.allowed([])[[ab[0], cd[0]]].all(), "what the library cannot see coming"
        with pytest.raises(RequestError, match="leads no further after 2 tokens: no text fits"):
            matcher.allowed(ab)
        assert matcher.allowed(cd[:1])[cd[1]]
        assert matcher.allowed(cd).sum() == 1


def test_costs_of_elsewhere_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matcher that the library has given up is made anew, and what is asked next is answered."""
    matcher = fresh("demo", "schema")
    expected = matcher.allowed([]).copy()
    matcher._place.matcher.consume_token(5)
    assert matcher._place.matcher.is_error()
    matcher._bits.cache_clear()
    assert (matcher.allowed([]) == expected).all()


def test_a_model_without_ends_takes_no_grammar() -> None:
    with pytest.raises(RequestError, match="no end-of-sequence"):
        Grammars(toy.tokenizer(), 259, ()).check(SPECS["regex"])


def test_a_spec_is_checked_where_it_is_made() -> None:
    with pytest.raises(OptionError, match="json_object"):
        GrammarSpec("yaml", "x")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="allowed: none"):
        GrammarSpec("json_object", "{}")
    with pytest.raises(OptionError, match="the text of a regex"):
        GrammarSpec("regex")


def test_every_text_has_a_matcher_of_its_own() -> None:
    """One that runs into the library's limits takes nothing from the others."""
    spec = GrammarSpec("regex", "((a{1,1000}){1,1000}){1,1000}")
    one, other = grammars().matcher(spec), grammars().matcher(spec)
    expected = other.allowed([]).copy()
    with pytest.raises(RequestError, match="too many expressions"):
        follow(one)
    for matcher in (one, other, grammars().matcher(spec)):
        assert (matcher.allowed([]) == expected).all()


def test_compiled_grammars_wait_for_their_texts_and_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    made, compiled = Grammars(toy.tokenizer(), 259, (toy.EOS_ID,)), list[GrammarSpec]()
    compile_ = made._compile
    monkeypatch.setattr(made, "_compile", lambda spec: compiled.append(spec) or compile_(spec))
    monkeypatch.setattr(grammar, "KEPT", 3)
    a, b, c, d = (GrammarSpec("regex", letter) for letter in "abcd")
    for spec in (a, b, c, a, d, a, c, b):
        made.check(spec)
    assert compiled == [a, b, c, d, b], "the one that was not asked for longest goes first"
    assert made.matcher(b) is not made.matcher(b)
    assert compiled == [a, b, c, d, b, b], "each is for one text"


def test_many_threads_at_a_time() -> None:
    made, found = Grammars(toy.tokenizer(), 259, (toy.EOS_ID,)), toy.tokenizer()
    wrong: list[object] = []

    def work(n: int) -> None:
        for i in range(20):
            text = f"number {(n + i) % 5}"
            tokens = made.matcher(GrammarSpec("regex", text)).forced([], 30)
            if found.decode(tokens) != text:
                wrong.append((text, found.decode(tokens)))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
