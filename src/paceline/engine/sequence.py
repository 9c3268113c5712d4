"""One request while it runs: its tokens, its text, its place in the cache, its counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from paceline.core import tree
from paceline.core.rows import Row
from paceline.core.sampling import Mask, Shaping, logprob
from paceline.core.tree import Draft
from paceline.core.types import (
    ROOT,
    Completion,
    Event,
    FinishReason,
    Request,
    Rule,
    SpeculationParams,
    Timings,
    TokenLogprob,
    Verdict,
)
from paceline.core.verify import Randomness
from paceline.engine.tally import Tally
from paceline.runners.kv import Slot


class Text(Protocol):
    """Turns tokens into text as they come, and watches for stop strings."""

    def push(self, token: int) -> tuple[str, bool]:
        """Return the text that is now certain, and whether a stop string ended it."""

    def flush(self) -> str:
        """Return what was held back, at the end."""


@dataclass(slots=True)
class Clocked:
    """When things happened to a sequence, in seconds of one clock; None: not yet."""

    added: float
    started: float | None = None
    first_token: float | None = None
    last_token: float | None = None

    def timings(self) -> Timings:
        started = self.added if self.started is None else self.started
        first = started if self.first_token is None else self.first_token
        last = first if self.last_token is None else self.last_token
        return Timings((first - started) * 1e3, (last - first) * 1e3, (first - self.added) * 1e3)


@dataclass(slots=True, eq=False)
class LiveSequence:
    """Between steps of a sequence that decodes, all its tokens but the last, the pending one, are cached."""

    id: int
    request: Request
    seed: int
    ending: frozenset[int]
    """Tokens that end it."""
    context: int
    """Most tokens, prompt included."""
    text: Text
    clock: Clocked
    tree_context: int | None = None
    """See `RunnerInfo`."""
    grammar: Mask | None = None
    """What the request's grammar allows."""
    tokens: list[int] = field(default_factory=list)
    slot: Slot | None = None
    sources: list[str | None] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    failed_drafters: set[str] = field(default_factory=set)
    finish_reason: FinishReason | None = None
    error: str | None = None
    speculation: SpeculationParams = field(init=False)
    """What it may do now: its own wish, or less."""
    shaping: Shaping = field(init=False)
    noise: Randomness = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)
        self.speculation = self.request.speculation
        self.noise = Randomness(self.seed)
        ending, bad = tuple(sorted(self.ending)), self.request.bad_token_ids
        self.shaping = Shaping(self.request.sampling, self.request.prompt, ending, bad, self.grammar)

    @property
    def prompt_len(self) -> int:
        return len(self.request.prompt)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_len :]

    @property
    def rule(self) -> Rule:
        return self.request.speculation.rule

    @property
    def prediction(self) -> tuple[int, ...]:
        return self.request.prediction

    @property
    def tenant(self) -> str:
        return self.request.tenant

    def keep_under(self, ceiling: SpeculationParams) -> None:
        """Set what it may do from now on: no more than it asked for."""
        self.speculation = self.request.speculation.under(ceiling)

    @property
    def cache_len(self) -> int:
        return self.slot.length if self.slot else 0

    @property
    def missing(self) -> int:
        """Tokens that are not cached; 1 when it decodes, more while its prompt is read."""
        return len(self.tokens) - self.cache_len

    @property
    def remaining(self) -> int:
        """Most tokens that may still be added."""
        left = self.request.sampling.max_tokens - (len(self.tokens) - self.prompt_len)
        return min(left, self.context - len(self.tokens))

    @property
    def room(self) -> int:
        """Most drafted tokens that could be part of the output: each pass adds one of the target's own."""
        return self.remaining - 1

    @property
    def meets_context(self) -> bool:
        return self.remaining == self.context - len(self.tokens)

    @property
    def tree_room(self) -> int:
        """Most nodes of a draft that branches; a longer one can be verified as a chain only."""
        return self.context if self.tree_context is None else self.tree_context - len(self.tokens)

    def commit(self, draft: Draft, verdict: Verdict, rows: Sequence[Row], now: float) -> Event:
        """Add what the target confirmed, up to where the request ends, and count it.

        Args:
            draft: what was verified.
            rows: the target's answers after the pending token and after each node.
        """
        nodes = [*verdict.path, None]
        begin = len(self.tokens)
        pieces: list[str] = []
        row = ROOT + 1
        for node in nodes:
            token = verdict.token if node is None else draft.tokens[node]
            pieces.append(self._append(token, None if node is None else draft.source[node], rows[row]))
            if self.finish_reason:
                break
            row = row if node is None else node + 1
        if self.sources:
            # The pass would have given its last token without the draft as well: it is the target's own.
            self.sources[-1] = None
        if self.finish_reason == "length":
            pieces.append(self.text.flush())
        if self.clock.first_token is None:
            self.clock.first_token = now
        self.clock.last_token = now
        self.pieces += pieces
        count = len(self.tokens) - begin
        logprobs = tuple(self.logprobs[-count:]) if self.logprobs else ()
        return Event(
            self.id,
            tuple(self.tokens[begin:]),
            "".join(pieces),
            tuple(self.sources[-count:]),
            logprobs,
            self.finish_reason,
            rejected=_rejected(draft, verdict, count) if self.speculation.show_rejected else (),
        )

    def retract(self, length: int) -> None:
        """Take back all but the first `length` tokens, which an error has left without an event."""
        del self.tokens[length:], self.sources[length - self.prompt_len :], self.logprobs[length - self.prompt_len :]

    def fail(self, reason: FinishReason, error: str | None = None) -> Event:
        """End it where it stands; held-back text is let out."""
        self.finish_reason, self.error = reason, error
        self.pieces.append(self.text.flush())
        return Event(self.id, (), self.pieces[-1], (), (), reason, error)

    def completion(self) -> Completion:
        assert self.finish_reason is not None, "a sequence that still runs"
        return Completion(
            request_id=self.id,
            text="".join(self.pieces),
            token_ids=tuple(self.output),
            finish_reason=self.finish_reason,
            prompt_tokens=self.prompt_len,
            seed=self.seed,
            speculation=self.tally.report(self.request.speculation),
            timings=self.clock.timings(),
            sources=tuple(self.sources),
            logprobs=tuple(self.logprobs),
            error=self.error,
        )

    def _append(self, token: int, source: str | None, row: Row) -> str:
        self.tokens.append(token)
        self.sources.append(source)
        if self.request.sampling.logprobs is not None:
            self.logprobs.append(logprob(row, token, self.request.sampling.logprobs))
        if token in self.ending:
            self.finish_reason = "stop"
            return self.text.flush()
        piece, stopped = self.text.push(token)
        if stopped:
            self.finish_reason = "stop"
        elif self.remaining <= 0:
            self.finish_reason = "length"
        return piece


def _rejected(draft: Draft, verdict: Verdict, committed: int) -> tuple[tuple[int, str, int], ...]:
    """Return (token, drafter, depth) of nodes that the target did not take; past a stop there are none."""
    accepted, taken = committed - 1, set(verdict.path)
    deepest = accepted if accepted < len(verdict.path) else len(draft)
    return tuple(
        (draft.tokens[node], draft.source[node], depth)
        for node, depth in enumerate(tree.depths(draft.parents))
        if node not in taken and depth <= deepest
    )
