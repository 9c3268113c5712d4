"""From what an engine says to what a client reads: OpenAI's objects, whole and in chunks.

Both are made of the same deltas, so that a stream adds up to the object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from paceline.core.types import Completion, Event, TokenLogprob
from paceline.drafters import prediction
from paceline.engine import report
from paceline.models.detokenize import Detokenizer
from paceline.models.tokenizer import Tokenizer
from paceline.server.calls import Piece, Reader
from paceline.server.prepare import Job

LEAST = -9999.0
"""OpenAI's log-probability of what cannot be; JSON has no infinity."""


@dataclass(frozen=True, slots=True)
class Head:
    """What all objects of one answer have in common."""

    id: str
    created: int
    model: str
    fingerprint: str

    def object(self, kind: str, choices: Sequence[Any], **more: Any) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
            **more,
        }


class Choice(Protocol):
    """One choice of an answer in the making."""

    def push(self, event: Event) -> list[dict[str, Any]]:
        """Return the chunks' entries that an event comes to."""

    def whole(self) -> dict[str, Any]:
        """Return all there was, as one entry."""


@dataclass(slots=True)
class Draft:
    """Who guessed what: the extension `show_draft`."""

    tokenizer: Tokenizer
    texts: Detokenizer
    tokens: list[dict[str, Any]] = field(default_factory=list)
    rejected: list[dict[str, Any]] = field(default_factory=list)

    def push(self, event: Event) -> dict[str, Any]:
        tokens = [
            {"id": token, "text": self.texts.push(token), "source": source}
            for token, source in zip(event.token_ids, event.sources, strict=True)
        ]
        rejected = [
            {"text": self.tokenizer.decode([token], skip_special=False), "source": source, "depth": depth}
            for token, source, depth in event.rejected
        ]
        self.tokens += tokens
        self.rejected += rejected
        return {"tokens": tokens, "rejected": rejected}

    def whole(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "rejected": self.rejected}


class ChatChoice:
    """One choice of a chat completion.

    Args:
        reader: finds tool calls; None where there can be none.
        call_id: what the ids of its tool calls begin with.
    """

    def __init__(
        self, index: int, tokenizer: Tokenizer, reader: Reader | None, logprobs: bool, draft: Draft | None, call_id: str
    ) -> None:
        self._index, self._tokenizer, self._reader = index, tokenizer, reader
        self._draft, self._call_id = draft, call_id
        self._logprobs: list[dict[str, Any]] | None = [] if logprobs else None
        self._text: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._finish: str | None = None
        self._begun = False

    def push(self, event: Event) -> list[dict[str, Any]]:
        deltas = [self._said(piece) for piece in self._pieces(event)]
        logprobs = self._told(event.logprobs)
        shown = None if self._draft is None else self._draft.push(event)
        if not deltas and (logprobs or (shown and shown["tokens"])):
            deltas = [{}]
        if not self._begun:
            deltas.insert(0, {"role": "assistant", "content": ""})
            self._begun = True
        entries = [self._entry(delta) for delta in deltas]
        if entries and logprobs:
            entries[-1]["logprobs"] = {"content": logprobs}
        if entries and shown:
            entries[-1]["paceline"] = shown
        if event.finish_reason is not None:
            self._finish = "tool_calls" if self._calls and event.finish_reason == "stop" else event.finish_reason
            entries.append(self._entry({}, self._finish))
        return entries

    def whole(self) -> dict[str, Any]:
        text = "".join(self._text)
        message: dict[str, Any] = {"role": "assistant", "content": text or (None if self._calls else "")}
        message["refusal"] = None
        if self._calls:
            message["tool_calls"] = self._calls
        entry = {"index": self._index, "message": message, "finish_reason": self._finish, "logprobs": None}
        if self._logprobs is not None:
            entry["logprobs"] = {"content": self._logprobs, "refusal": None}
        return entry if self._draft is None else entry | {"paceline": self._draft.whole()}

    def _pieces(self, event: Event) -> Iterator[Piece]:
        if self._reader is None:
            if event.text:
                yield Piece(event.text)
            return
        yield from self._reader.push(event.text)
        if event.finish_reason is not None:
            yield from self._reader.flush()

    def _said(self, piece: Piece) -> dict[str, Any]:
        """Add a piece to the whole, and return its delta."""
        if piece.call is None:
            self._text.append(piece.text)
            return {"content": piece.text}
        if piece.name is None:
            self._calls[piece.call]["function"]["arguments"] += piece.arguments
            return {"tool_calls": [{"index": piece.call, "function": {"arguments": piece.arguments}}]}
        function = {"name": piece.name, "arguments": piece.arguments}
        call = {"id": f"{self._call_id}_{piece.call}", "type": "function", "function": function}
        self._calls.append(call)
        return {"tool_calls": [{"index": piece.call, **call, "function": dict(function)}]}

    def _told(self, logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        if self._logprobs is None:
            return []
        told = [
            _logprob(self._tokenizer, p.token_id, p.logprob)
            | {"top_logprobs": [_logprob(self._tokenizer, *top) for top in p.top]}
            for p in logprobs
        ]
        self._logprobs += told
        return told

    def _entry(self, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": finish}


class TextChoice:
    """One choice of a completion.

    Args:
        echo: the prompt, where it is to be repeated.
        texts: reads the tokens for the offsets of log-probabilities.
        logprobs: how many of the most probable tokens are told; None tells nothing.
    """

    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer,
        texts: Detokenizer,
        logprobs: int | None,
        draft: Draft | None,
        echo: str = "",
    ) -> None:
        self._index, self._tokenizer, self._texts, self._most, self._draft = index, tokenizer, texts, logprobs, draft
        self._echo, self._text, self._offset = echo, [echo], len(echo)
        self._finish: str | None = None
        self._logprobs: dict[str, list[Any]] | None = None if logprobs is None else _columns()

    def push(self, event: Event) -> list[dict[str, Any]]:
        logprobs = self._told(event.logprobs) if self._logprobs is not None else None
        shown = None if self._draft is None else self._draft.push(event)
        entries = []
        if event.text or self._echo or (logprobs and logprobs["tokens"]) or (shown and shown["tokens"]):
            entries.append(self._entry(self._echo + event.text))
            self._echo = ""
            entries[0] |= {"logprobs": logprobs} | ({"paceline": shown} if shown else {})
        self._text.append(event.text)
        if event.finish_reason is not None:
            self._finish = event.finish_reason
            entries.append(self._entry("", self._finish))
        return entries

    def whole(self) -> dict[str, Any]:
        entry = self._entry("".join(self._text), self._finish) | {"logprobs": self._logprobs}
        return entry if self._draft is None else entry | {"paceline": self._draft.whole()}

    def _told(self, logprobs: Sequence[TokenLogprob]) -> dict[str, list[Any]]:
        told = _columns()
        for p in logprobs:
            token = _spelled(self._tokenizer, p.token_id)
            top = {_spelled(self._tokenizer, i): _finite(x) for i, x in p.top}
            told["tokens"].append(token)
            told["token_logprobs"].append(_finite(p.logprob))
            told["top_logprobs"].append(top | {token: _finite(p.logprob)} if self._most else None)
            told["text_offset"].append(self._place(p.token_id, token))
        assert self._logprobs is not None
        for name, column in told.items():
            self._logprobs[name] += column
        return told

    def _place(self, token_id: int, token: str) -> int:
        """Read a token, and return where in the text its own begins; a character that it completes begins before it."""
        before, added = self._offset, self._texts.push(token_id)
        self._offset += len(added)
        return self._offset - len(token) if added.endswith(token) else before

    def _entry(self, text: str, finish: str | None = None) -> dict[str, Any]:
        return {"index": self._index, "text": text, "logprobs": None, "finish_reason": finish}


def choices(job: Job, tokenizer: Tokenizer, is_chat: bool, head: Head) -> list[Choice]:
    """Return the empty choices of a job."""
    made: list[Choice] = []
    for index, request in enumerate(job.requests):
        draft = Draft(tokenizer, Detokenizer(tokenizer, request.prompt)) if job.shows_draft else None
        if is_chat:
            how = job.calling
            reader = None if how is None else Reader(how.style, how.names, how.parallel)
            call_id = f"call_{head.id.rpartition('-')[2]}_{index}"
            made.append(ChatChoice(index, tokenizer, reader, job.logprobs is not None, draft, call_id))
        else:
            texts = Detokenizer(tokenizer, request.prompt)
            echo = job.echoes[index] if job.echoes else ""
            made.append(TextChoice(index, tokenizer, texts, job.logprobs, draft, echo))
    return made


def usage(completions: Sequence[Completion], per_prompt: int) -> dict[str, Any]:
    """Return the counts of an answer: of its prompts, each once, and of all its choices."""
    prompts = sum(completion.prompt_tokens for completion in completions[::per_prompt])
    answers = sum(len(completion.token_ids) for completion in completions)
    speculation = report.total([completion.speculation for completion in completions])
    return {
        "prompt_tokens": prompts,
        "completion_tokens": answers,
        "total_tokens": prompts + answers,
        "completion_tokens_details": prediction.counted(speculation),
        "speculation": report.as_json(speculation),
    }


def _logprob(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    data = tokenizer.token_bytes(token)
    return {"token": data.decode("utf-8", "replace"), "logprob": _finite(logprob), "bytes": list(data)}


def _spelled(tokenizer: Tokenizer, token: int) -> str:
    """Return a token's text, or its bytes where they are no text of their own."""
    data = tokenizer.token_bytes(token)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _finite(logprob: float) -> float:
    return max(logprob, LEAST)


def _columns() -> dict[str, list[Any]]:
    return {name: [] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}


def objects(head: Head, kind: str, entries: Iterable[dict[str, Any]], with_usage: bool) -> Iterator[dict[str, Any]]:
    """Return the chunks of a stream; what the extension shows stands beside the choice that it is about."""
    for entry in entries:
        shown = entry.pop("paceline", None)
        more = ({"usage": None} if with_usage else {}) | ({"paceline": shown} if shown else {})
        yield head.object(kind, [entry], **more)
