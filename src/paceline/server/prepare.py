"""From what a client has sent to requests that an engine can run."""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from paceline.config import ServerConfig
from paceline.core.types import GrammarSpec, Request, SamplingParams, SpeculationParams
from paceline.engine.llm import LLM, Prompt
from paceline.errors import OptionError, RequestError
from paceline.models.chat import ChatTemplate
from paceline.models.detokenize import Detokenizer
from paceline.models.tokenizer import Tokenizer
from paceline.server import tools
from paceline.server.refusals import Refusal
from paceline.server.schemas import Body, ChatBody, CompletionBody, Message, NamedTool, Part, Speculation, ToolCall
from paceline.server.tools import Function, Style

COMPLETION_TOKENS = 16
"""Of a completion that does not say how many; OpenAI's default. A chat's answer may fill the context."""
LONGEST_STOP = 1024
"""Characters of a stop string, and of a bad word: text is held against them at every token."""
SEED_BITS = 53
"""Of a seed that is drawn: one that every JSON reader can read."""


@dataclass(frozen=True, slots=True)
class Calling:
    """How an answer's tool calls are found."""

    style: Style
    names: frozenset[str]
    parallel: bool


@dataclass(frozen=True, slots=True)
class Job:
    """What one HTTP request comes to."""

    requests: tuple[Request, ...]
    """Of each prompt its choices, in order."""
    seed: int
    """Of each prompt's first choice."""
    choices: int
    """Of each prompt."""
    streams: bool
    shows_usage: bool
    """At the end of a stream; otherwise it is always shown."""
    shows_draft: bool
    calling: Calling | None = None
    echoes: tuple[str, ...] = ()
    """What each choice repeats of its prompt before its answer; empty where none does."""

    @property
    def logprobs(self) -> int | None:
        return self.requests[0].sampling.logprobs


@dataclass(frozen=True, slots=True, eq=False)
class Preparer:
    """Makes jobs for one model, under one server's bounds. Costly: not for the event loop; safe on several threads."""

    llm: LLM
    limits: ServerConfig
    served: str
    """The model's name."""

    def chat(self, body: ChatBody, tenant: str) -> Job:
        """Raises RequestError or OptionError: the request cannot be served as asked."""
        calling, functions = self._tools(body)
        grammar = _one_grammar(self._grammar(body), calling, functions, body)
        used = [tool.model_dump(exclude_none=True) for tool in body.tools or ()] if calling else None
        messages = [_message(message) for message in body.messages]
        template = _template(self.llm.tokenizer)
        prompt = template.encode(self.llm.tokenizer, messages, tools=used, options=body.chat_template_kwargs)
        asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        room = max(1, self.llm.engine.context - len(prompt))
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        sampling = self._sampling(body, room if asked is None else asked, logprobs)
        return replace(self._job(body, [prompt], sampling, grammar, tenant), calling=calling)

    def completion(self, body: CompletionBody, tenant: str) -> Job:
        """Raises RequestError or OptionError: the request cannot be served as asked."""
        prompts = body.prompts
        asked = COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
        sampling = self._sampling(body, asked, body.logprobs)
        job = self._job(body, prompts, sampling, self._grammar(body), tenant)
        if not body.echo:
            return job
        texts = [prompt if isinstance(prompt, str) else self._spelled(prompt) for prompt in prompts]
        return replace(job, echoes=tuple(text for text in texts for _ in range(job.choices)))

    def _spelled(self, prompt: Sequence[int]) -> str:
        """Return a prompt's text, but for the beginning of a character at its end, which the answer may complete."""
        text = Detokenizer(self.llm.tokenizer)
        return "".join(map(text.push, prompt))

    def _job(
        self,
        body: Body,
        prompts: Sequence[Prompt],
        sampling: SamplingParams,
        grammar: GrammarSpec | None,
        tenant: str,
    ) -> Job:
        if body.model not in (None, self.served):
            raise unknown_model(body.model or "", self.served)
        self._bounded("n", body.choices, self.limits.max_n)
        self._bounded("the number of prompts times n", len(prompts) * body.choices, self.limits.queue)
        extension = body.speculation or Speculation()
        speculation = self._speculation(extension)
        assert sampling.seed is not None, "drawn before the choices are told apart"
        owner = tenant if extension.history else f"{tenant}/{secrets.token_hex(8)}"
        requests = []
        for prompt in prompts:
            request = self.llm.request(prompt, sampling, speculation, _prediction(body), owner, grammar)
            self._bounded("the prompt's tokens", len(request.prompt), self.limits.max_prompt_tokens)
            self.llm.engine.check(request)
            seeds = (choice_seed(sampling.seed, i) for i in range(body.choices))
            requests += [replace(request, sampling=replace(sampling, seed=seed)) for seed in seeds]
        return Job(
            requests=tuple(requests),
            seed=sampling.seed,
            choices=body.choices,
            streams=bool(body.stream),
            shows_usage=not body.stream or bool(body.stream_options and body.stream_options.include_usage),
            shows_draft=extension.show_draft,
        )

    def _sampling(self, body: Body, max_tokens: int, logprobs: int | None) -> SamplingParams:
        stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
        bad_words = body.bad_words or []
        self._few("stop", stop, self.limits.max_stop)
        self._few("bad_words", bad_words, self.limits.max_logit_bias)
        self._few("stop_token_ids", body.stop_token_ids or (), self.limits.max_logit_bias)
        self._few("logit_bias", body.logit_bias or {}, self.limits.max_logit_bias)
        for name, texts in (("a stop string's length", stop), ("a bad word's length", bad_words)):
            self._bounded(name, max(map(len, texts), default=0), LONGEST_STOP)
        given = {
            "max_tokens": max_tokens,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "top_p": body.top_p,
            "top_k": body.top_k,
            "min_p": body.min_p,
            "seed": secrets.randbits(SEED_BITS) if body.seed is None else body.seed % 2**64,
            "stop": tuple(stop),
            "stop_token_ids": tuple(body.stop_token_ids or ()),
            "ignore_eos": body.ignore_eos,
            "min_tokens": body.min_tokens,
            "repetition_penalty": body.repetition_penalty,
            "presence_penalty": body.presence_penalty,
            "frequency_penalty": body.frequency_penalty,
            "logit_bias": body.logit_bias,
            "bad_words": tuple(bad_words),
            "logprobs": logprobs,
        }
        return SamplingParams(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]

    def _speculation(self, asked: Speculation) -> SpeculationParams:
        there = list(self.llm.engine.desk.drafters)
        unknown = [name for name in asked.drafters or () if name not in there]
        if unknown:
            raise OptionError(
                f"drafters has {_short(unknown[0])!r}; this server's drafters: {', '.join(there) or 'none'}"
            )
        return SpeculationParams(
            mode=asked.mode,
            max_draft=asked.max_draft_tokens,
            drafters=None if asked.drafters is None else tuple(asked.drafters),
            rule=asked.rule,
            show_rejected=asked.show_draft,
        )

    def _grammar(self, body: Body) -> GrammarSpec | None:
        form = body.response_format
        found: list[GrammarSpec] = []
        if form is not None and form.type == "json_object":
            found.append(GrammarSpec("json_object"))
        if form is not None and form.json_schema is not None:
            schema = form.json_schema.schema_ or {}
            self._check_schema("response_format's schema", schema)
            found.append(GrammarSpec("json_schema", json.dumps(schema)))
        if body.regex is not None:
            found.append(GrammarSpec("regex", body.regex))
        if body.grammar is not None:
            found.append(GrammarSpec("lark", body.grammar))
        if len(found) > 1:
            raise RequestError("more than one of response_format, regex and grammar is given; leave one of them")
        return found[0] if found else None

    def _tools(self, body: ChatBody) -> tuple[Calling | None, list[Function]]:
        """Return how calls are found, None where there are none to be, and the functions that may be called."""
        given = body.tools or []
        self._few("tools", given, self.limits.max_tools)
        if not given or body.tool_choice == "none":
            return None, []
        style = tools.style_of(self.llm.tokenizer.chat_template)
        functions = []
        for tool in given:
            self._check_schema(f"the schema of tool {tool.function.name!r}", tool.function.parameters or {})
            schema = tools.schema_of(tool.function.parameters)
            functions.append(Function(tool.function.name, schema, bool(tool.function.strict)))
        if isinstance(body.tool_choice, NamedTool):
            name = body.tool_choice.function.name
            functions = [function for function in functions if function.name == name]
            if not functions:
                raise RequestError(f"tool_choice has {_short(name)!r}, which is not among the tools")
        names = frozenset(function.name for function in functions)
        return Calling(style, names, body.parallel_tool_calls is not False), functions

    def _check_schema(self, what: str, schema: Mapping[str, Any]) -> None:
        self._bounded(f"the depth of {what}", depth(schema, self.limits.max_schema_depth), self.limits.max_schema_depth)
        self._bounded(f"the size in bytes of {what}", len(json.dumps(schema)), self.limits.max_schema_bytes)

    def _few(self, name: str, given: Sized, most: int) -> None:
        if len(given) > most:
            raise OptionError(f"{name} has {len(given)} entries; allowed: {most}")

    def _bounded(self, name: str, given: int, most: int | None) -> None:
        if most is not None and given > most:
            raise OptionError(f"{name} is {given}; allowed: {most}")


def unknown_model(asked: str, served: str) -> Refusal:
    said = f"the model {_short(asked)!r} is not here; this server has {served!r}"
    return Refusal(404, said, param="model", code="model_not_found")


def choice_seed(seed: int, choice: int) -> int:
    """Return the seed of one of several choices: the first has the request's own.

    The others have the first eight bytes, little-endian, of BLAKE2b-64 of "seed/choice" in decimal.
    """
    if choice == 0:
        return seed
    return int.from_bytes(blake2b(f"{seed}/{choice}".encode(), digest_size=8).digest(), "little")


def depth(value: Any, most: int) -> int:
    """Return how deeply lists and objects are nested; beyond `most` it looks no deeper."""
    level, found = [value], 0
    while found <= most and (level := [v for v in level if isinstance(v, dict | list)]):
        found += 1
        level = [part for v in level for part in (v.values() if isinstance(v, dict) else v)]
    return found


def _one_grammar(
    form: GrammarSpec | None, calling: Calling | None, functions: Collection[Function], body: ChatBody
) -> GrammarSpec | None:
    """Return the grammar of an answer: of its form, or of its tool calls."""
    if calling is None:
        return form
    if form is not None:
        raise RequestError("tools are given beside a response_format, regex or grammar; leave one of the two")
    if body.tool_choice in (None, "auto"):
        strict = any(function.strict for function in functions)
        return tools.calling_at_will(calling.style, list(functions)) if strict else None
    many = body.tool_choice == "required" and calling.parallel
    return tools.calling(calling.style, list(functions), many)


@lru_cache(maxsize=4)
def _template(tokenizer: Tokenizer) -> ChatTemplate:
    return ChatTemplate.of(tokenizer)


def _message(message: Message) -> dict[str, Any]:
    """Return a message as chat templates read it."""
    role = "system" if message.role == "developer" else message.role
    content = message.content if message.content is None else joined(message.content, "\n")
    found: dict[str, Any] = {"role": role, "content": content}
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (given := getattr(message, name)) is not None:
            found[name] = given
    if message.tool_calls:
        found["tool_calls"] = [
            {"id": call.id, "type": call.type, "function": {"name": call.function.name, "arguments": _read(call)}}
            for call in message.tool_calls
        ]
    return found


def _read(call: ToolCall) -> Any:
    """Return a call's arguments as an object, which templates write as JSON; as the text they are if they are none."""
    arguments = call.function.arguments
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return found if isinstance(found, dict) else arguments


def _prediction(body: Body) -> str | None:
    return None if body.prediction is None else joined(body.prediction.content, "")


def joined(content: str | Sequence[Part], separator: str) -> str:
    """Return the text of a content, which may come in parts."""
    return content if isinstance(content, str) else separator.join(part.text for part in content)


def _short(text: str) -> str:
    return text[:64]
