"""The records that cross the boundaries between rooms. All are frozen; counts are stored, ratios derived."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from paceline.errors import OptionError

Rule = Literal["coupled", "ratio", "block", "typical"]
Mode = Literal["auto", "off", "always"]
FinishReason = Literal["stop", "length", "error", "abort"]
GrammarKind = Literal["json_object", "json_schema", "regex", "lark"]

RULES: tuple[Rule, ...] = ("coupled", "ratio", "block", "typical")
MODES: tuple[Mode, ...] = ("auto", "off", "always")
GRAMMARS: tuple[GrammarKind, ...] = ("json_object", "json_schema", "regex", "lark")
_LOWEST_FIRST: tuple[Mode, ...] = ("off", "auto", "always")
ALWAYS = 4
"""Drafted tokens a step of a request that speculates always and does not say how many."""
ROOT = -1
"""The parent of a draft's first nodes: the pending token."""
LARGEST = 1e30
"""Bound of what is added to or multiplied with logits, which are float32 and must stay finite."""


def _require(ok: bool, option: str, given: object, allowed: str) -> None:
    if not ok:
        raise OptionError(f"{option} is {given!r}; allowed: {allowed}")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the target's law is shaped and when a request ends.

    Order of application to the logits of a row, with the history of its path: repetition, presence and frequency
    penalties; logit bias; the grammar; bad words; min tokens; temperature; top-k; top-p; min-p.
    """

    max_tokens: int = 256
    """Most tokens to generate, at least 1."""
    temperature: float = 0.0
    """0 is greedy; otherwise logits are divided by it."""
    top_p: float = 1.0
    """Keep the smallest set of most probable tokens whose mass reaches this; in (0, 1]."""
    top_k: int = 0
    """Keep this many most probable tokens; 0 keeps all."""
    min_p: float = 0.0
    """Drop tokens less probable than this share of the most probable one; in [0, 1]."""
    seed: int | None = None
    """64-bit seed; None draws one, and the completion reports it."""
    stop: tuple[str, ...] = ()
    """Strings that end the text; they are not part of it."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    """End-of-sequence and stop tokens cannot be drawn before this many tokens, unless a grammar allows nothing else."""
    repetition_penalty: float = 1.0
    """Above 1 makes tokens of prompt and output less likely (CTRL, 1909.05858 §4.1)."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to a token's logit; -inf bans it, unless no other token is left."""
    bad_words: tuple[str, ...] = ()
    """Strings whose token sequences are never completed, unless no other token is left."""
    logprobs: int | None = None
    """Report the log-probability of each token and of this many most probable ones (0–20), before any shaping."""

    def __post_init__(self) -> None:
        _require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "1 or more")
        _require(0 <= self.temperature < math.inf, "temperature", self.temperature, "0 (greedy) or a positive number")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "above 0, up to 1")
        _require(self.top_k >= 0, "top_k", self.top_k, "0 (all) or more")
        _require(0 <= self.min_p <= 1, "min_p", self.min_p, "0 to 1")
        _require(self.seed is None or 0 <= self.seed < 2**64, "seed", self.seed, "0 to 2^64-1")
        for name in ("stop", "bad_words"):
            given = getattr(self, name)  # a bare string would pass for a sequence of its characters
            _require(not isinstance(given, str) and all(given), name, given, "a tuple of non-empty strings")
        _require(all(token >= 0 for token in self.stop_token_ids), "stop_token_ids", self.stop_token_ids, "0 or more")
        _require(0 <= self.min_tokens <= self.max_tokens, "min_tokens", self.min_tokens, "0 to max_tokens")
        repetition = self.repetition_penalty
        _require(1 / LARGEST <= repetition <= LARGEST, "repetition_penalty", repetition, "above 0 (1e-30 to 1e30)")
        for name in ("presence_penalty", "frequency_penalty"):
            _require(abs(getattr(self, name)) <= LARGEST, name, getattr(self, name), "a finite number (to ±1e30)")
        biased = all(t >= 0 and (b == -math.inf or abs(b) <= LARGEST) for t, b in self.logit_bias.items())
        _require(biased, "logit_bias", self.logit_bias, "token ids from 0 with finite numbers (to ±1e30) or -inf")
        _require(self.logprobs is None or 0 <= self.logprobs <= 20, "logprobs", self.logprobs, "0 to 20, or none")


@dataclass(frozen=True, slots=True)
class SpeculationParams:
    """What a request asks of speculation; every field can only lower what the engine allows."""

    mode: Mode = "auto"
    max_draft: int | None = None
    """Most drafted tokens a step; None leaves it to the engine."""
    drafters: tuple[str, ...] | None = None
    """Names of the engine's drafters to use; None uses all."""
    rule: Rule = "coupled"
    show_rejected: bool = False
    """Whether events name the drafted tokens that were verified in vain."""

    def __post_init__(self) -> None:
        _require(self.mode in MODES, "speculation mode", self.mode, ", ".join(MODES))
        _require(self.rule in RULES, "rule", self.rule, ", ".join(RULES))
        _require(self.max_draft is None or 0 <= self.max_draft <= 64, "max_draft", self.max_draft, "0 to 64")

    @property
    def lossless(self) -> bool:
        return self.rule != "typical"

    def uses(self, drafter: str) -> bool:
        """Whether a drafter of this name may draft for the request."""
        asked = self.mode != "off" and self.max_draft != 0
        return asked and (self.drafters is None or drafter in self.drafters)

    def under(self, ceiling: SpeculationParams) -> SpeculationParams:
        """Return the lower of both, field by field; the rule stays, for the text depends on it.

        `off` is lower than `auto`, and that lower than `always`: a request that asks for `always` is governed under a
        ceiling of `auto`, and one that asks for `auto` is under a ceiling of `always` as well. Where no drafter is left
        that both allow, it is off.
        """
        mode = min(self.mode, ceiling.mode, key=_LOWEST_FIRST.index)
        asked, drafters = self.max_draft, self.drafters
        if asked is None and mode == "always" and ceiling.max_draft is not None:
            asked = ALWAYS
        most = min((n for n in (asked, ceiling.max_draft) if n is not None), default=None)
        if ceiling.drafters is not None:
            drafters = tuple(d for d in ceiling.drafters if drafters is None or d in drafters)
        return replace(self, mode="off" if drafters == () else mode, max_draft=most, drafters=drafters)


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """What an answer must look like: any JSON object, JSON of a schema, or text of a regular or Lark grammar."""

    kind: GrammarKind
    text: str = ""
    """The schema, expression or grammar; empty for `json_object`."""

    def __post_init__(self) -> None:
        _require(self.kind in GRAMMARS, "grammar kind", self.kind, ", ".join(GRAMMARS))
        size = f"{len(self.text)} characters"
        _require(not self.text or self.kind != "json_object", "the text of a json_object grammar", size, "none")
        _require(bool(self.text) or self.kind == "json_object", f"the text of a {self.kind} grammar", size, "1 or more")


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt in tokens, and what to do with it."""

    prompt: tuple[int, ...]
    sampling: SamplingParams = SamplingParams()
    speculation: SpeculationParams = SpeculationParams()
    bad_token_ids: tuple[tuple[int, ...], ...] = ()
    """The token sequences of `sampling.bad_words`."""
    prediction: tuple[int, ...] = ()
    """Tokens that the answer may repeat, in part or whole; they change no text, only how soon it is there."""
    tenant: str = ""
    """Whose request it is: what one tenant's requests have said drafts for no other's, unless the engine shares it."""
    grammar: GrammarSpec | None = None
    """What the answer must look like; see `LLM.request`, which refuses one that cannot be used."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target confirmed of one draft."""

    path: tuple[int, ...]
    """Indices of the accepted nodes, from the root down."""
    token: int
    """The correction, or the bonus when the path ends in a leaf."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability (natural) of a token under the target before any shaping, and the most probable ones there."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class DrafterCounts:
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    shared: int = 0
    """Accepted nodes that it guessed as well and that are counted for a drafter asked before it."""
    draft_ms: float = 0.0


class StepTrace(NamedTuple):
    """What one step of a request drafted, and what became of it; tokens after a stop are in no count."""

    drafted: int
    verified: int
    accepted: int
    reason: str | None
    """Why it drafted less than it might have: the first reason that was found."""


@dataclass(frozen=True, slots=True)
class SpeculationReport:
    """The account of one request's speculation, or of all; the keys are those of `generate --json`."""

    mode: Mode = "auto"
    rule: Rule = "coupled"
    lossless: bool = True
    steps: int = 0
    plain_steps: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    accepted_at: tuple[int, ...] = ()
    """Accepted nodes by depth; index 0 is the first drafted token of a step."""
    by_drafter: Mapping[str, DrafterCounts] = field(default_factory=dict)
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    other_ms: float = 0.0
    wasted_ms: float = 0.0
    saved_ms: float = 0.0
    reasons: Mapping[str, int] = field(default_factory=dict)
    trace: tuple[StepTrace, ...] = ()
    """Step by step, in order; empty in an account of several requests."""

    @property
    def acceptance_length(self) -> float:
        """Committed tokens per target pass, correction or bonus included; 0 before the first pass."""
        return (self.accepted + self.steps) / self.steps if self.steps else 0.0

    @property
    def coverage(self) -> float:
        """Drafted tokens per committed token."""
        committed = self.accepted + self.steps
        return self.drafted / committed if committed else 0.0


@dataclass(frozen=True, slots=True)
class Event:
    """What one step added to one request."""

    request_id: int
    token_ids: tuple[int, ...]
    text: str
    """Whole characters only; text that may yet turn into a stop string is held back."""
    sources: tuple[str | None, ...]
    """For each token the drafter that guessed it, or None for the target's own."""
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    error: str | None = None
    rejected: tuple[tuple[int, str, int], ...] = ()
    """(token, drafter, depth) of verified tokens that were not accepted, where the request asked for them."""


@dataclass(frozen=True, slots=True)
class Timings:
    prefill_ms: float
    decode_ms: float
    time_to_first_token_ms: float


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request."""

    request_id: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    seed: int
    speculation: SpeculationReport
    timings: Timings
    sources: tuple[str | None, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    error: str | None = None
