"""Which tokens a grammar allows: JSON schemas, regular expressions and Lark grammars over our tokens, by llguidance.

A grammar speaks of bytes, a token may end anywhere in it. Masks go by the bytes alone: where the library also insists
on the tokens that its tokenizer would spell certain bytes with ("forcing"), a mask depends on where the matcher was
before, and drafts would change the text. What is certain is drafted instead, by a matcher that only guesses.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from paceline.core.types import GrammarSpec
from paceline.errors import RequestError
from paceline.models.tokenizer import Tokenizer

MOST_BYTES = 65_536
"""Of a grammar's text."""
MOST_DEPTH = 64
"""Of brackets in a schema: a property's schema lies two deeper than its object's."""
MOST_PARTS = 300
"""Objects and lists in a schema: compiling takes as long as the square of their number, of so many some 7 ms."""
KEPT = 64
"""Compiled grammars that wait for their text, those that were asked for last."""
_REMEMBERED = 64
"""Masks that a matcher remembers, in bits: rows of a draft are asked for by drafters, by the desk and by the walk."""
_PATIENCE = 8
"""How often a matcher that reached a limit is made anew."""
_SHOWN = 200
"""Characters of the library's reason in a refusal."""
_BLANKS = r"[ \t\n\r]{1,32}"
"""Blanks between the parts of JSON: enough for every layout, and not for a model that says nothing else any more."""


def _limits() -> LLParserLimits:
    """Return what a grammar may cost: milliseconds for a mask, and some tens of megabytes while it runs."""
    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=20_000,
        max_items_in_row=1_000,
        max_lexer_states=20_000,
        max_grammar_size=100_000,
        verbose_errors=False,
    )


class Grammars:
    """Compiles grammars for one tokenizer, and makes the matchers of its texts. Safe to use from several threads.

    Every text has a matcher of its own, compiled anew: the library's copies share their lexer, and where one of them
    reaches its limits, the others' masks lose tokens without a word.

    Args:
        size: number of the target's logits; ids without a token are never allowed.
        eos_ids: tokens that end a text; allowed where the grammar is complete.
    """

    def __init__(self, tokenizer: Tokenizer, size: int, eos_ids: Sequence[int]) -> None:
        self._tokenizer, self._size, self._eos = tokenizer, size, tuple(eos_ids)
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._ready: OrderedDict[GrammarSpec, LLMatcher] = OrderedDict()

    def check(self, spec: GrammarSpec) -> None:
        """Compile a grammar ahead of its text, which takes a millisecond, and much more where it is large.

        Raises:
            RequestError: it is malformed, too large, uses what is not supported, or no text fits it.
        """
        with self._lock:
            if spec in self._ready:
                self._ready.move_to_end(spec)
                return
        compiled = self._compile(spec)
        with self._lock:
            self._ready[spec] = compiled
            while len(self._ready) > KEPT:
                self._ready.popitem(last=False)

    def matcher(self, spec: GrammarSpec) -> Matcher:
        """Return a matcher at the beginning of a text; raises what `check` does."""
        with self._lock:
            ready = self._ready.pop(spec, None)
        compiled = self._compile(spec) if ready is None else ready
        again = partial(self._compile, spec)
        return Matcher(compiled, again, partial(self._compile, spec, forcing=True), self._size, self._eos)

    def _compile(self, spec: GrammarSpec, forcing: bool = False) -> LLMatcher:
        if not self._eos:
            raise RequestError("the model names no end-of-sequence token, and a grammar needs one; leave it out")
        made = LLMatcher(self._tokens(), _source(spec, forcing), log_level=0, limits=_limits())
        made.compute_bitmask()  # only then is it seen that no text fits
        if made.is_error():
            raise RequestError(_refusal(spec, made.get_error()))
        return made

    def _tokens(self) -> LLTokenizer:
        with self._making:
            return self._built

    @cached_property
    def _built(self) -> LLTokenizer:
        spelling = _Spelling.of(self._tokenizer, self._size, self._eos)
        return LLTokenizer(TokenizerWrapper(spelling), eos_token=list(self._eos))


class Matcher:
    """One text's place in its grammar; a `core.sampling.Mask`. For one thread at a time.

    Args:
        matcher: at the beginning.
        again: makes another.
        guessing: makes one that knows what is certain.
        size: number of the target's logits.
        eos_ids: at least one.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        again: Callable[[], LLMatcher],
        guessing: Callable[[], LLMatcher],
        size: int,
        eos_ids: Sequence[int],
    ) -> None:
        self._again, self._guessing, self._size = again, guessing, size
        self._eos, self._usual_end = frozenset(eos_ids), eos_ids[0]
        self._place = _Place(matcher, again, self._eos)
        self._ahead: _Place | None = None
        """Of the one that guesses, once it was asked."""
        self._left = _PATIENCE
        ends = np.zeros(size, np.bool_)
        ends[list(eos_ids)] = True
        self._end = np.packbits(ends, bitorder="little").tobytes()
        self._bits = lru_cache(_REMEMBERED)(self._look)

    def allowed(self, output: Sequence[int]) -> NDArray[np.bool_]:
        """Return [size], which tokens may follow; after an end, and where the output itself is not allowed, an end.

        Raises:
            RequestError: the grammar costs more here than it may, or no token fits.
        """
        bits = np.frombuffer(self._bits(tuple(output)), np.uint8)
        return np.unpackbits(bits, count=self._size, bitorder="little").view(np.bool_)

    def forced(self, output: Sequence[int], most: int) -> list[int]:
        """Return up to `most` tokens that spell what must follow; a guess, for other tokens may spell it too."""
        if self._ahead is None:
            self._ahead = _Place(self._guessing(), self._guessing, self._eos)
        place = self._ahead
        if place.matcher.is_error() or not place.go_to(output):
            return []
        found: list[int] = place.matcher.compute_ff_tokens()[:most]
        if len(found) < most and self._only_ends([*output, *found]):
            found.append(self._usual_end)
        return found

    def _only_ends(self, output: Sequence[int]) -> bool:
        try:
            return self._eos.isdisjoint(output[-1:]) and self._eos.issuperset(np.flatnonzero(self.allowed(output)))
        except RequestError:  # raised again where the text gets there
            return False

    def _look(self, output: tuple[int, ...]) -> bytes:
        """Return the mask in bits, the lowest first."""
        why = ""
        for _ in range(2):
            if self._place.matcher.is_error():
                self._renew()
            bits, why = self._try(output)
            if not why:
                return bits
        raise RequestError(f"the grammar leads no further after {len(output)} tokens: {_line(why)}; make it simpler")

    def _renew(self) -> None:
        """Begin again: what was looked at elsewhere counts against the limits, and must not matter."""
        if self._left > 0:
            self._left -= 1
            self._place = _Place(self._again(), self._again, self._eos)

    def _try(self, output: tuple[int, ...]) -> tuple[bytes, str]:
        """Return the mask, and what is wrong; if anything is, the matcher is of no more use."""
        place = self._place
        bits = place.matcher.compute_bitmask() if place.go_to(output) else self._end
        return bits, place.matcher.get_error()


class _Place:
    """A matcher of the library, and the tokens behind which it stands.

    It goes forward only. After the library's `rollback`, and even after its `reset`, masks were seen that lack tokens
    which a new matcher allows, and drafts changed the text. A new one takes a millisecond, and 5 µs a token.
    """

    def __init__(self, matcher: LLMatcher, again: Callable[[], LLMatcher], eos: frozenset[int]) -> None:
        self.matcher, self._again, self._eos = matcher, again, eos
        self._tokens: list[int] = []

    def go_to(self, output: Sequence[int]) -> bool:
        """Move to the end of an output, as far as the grammar allows it; return whether it does."""
        given = list(output)
        kept = min(len(self._tokens), len(given))
        while self._tokens[:kept] != given[:kept]:
            kept -= 1
        if kept < len(self._tokens):
            self.matcher = self._again()
            self._tokens, kept = [], 0
        # The library does not count an end, and could not take it back.
        ahead = next((i for i in range(kept, len(given)) if given[i] in self._eos), len(given))
        self._tokens += given[kept : kept + self.matcher.try_consume_tokens(given[kept:ahead])]
        return len(self._tokens) == len(given)


@dataclass(frozen=True, slots=True, eq=False)
class _Spelling:
    """A tokenizer as the library wants to see it."""

    tokenizer: Tokenizer
    tokens: list[bytes]
    special_token_ids: list[int]
    eos_token_id: int
    bos_token_id: int | None = None

    @classmethod
    def of(cls, tokenizer: Tokenizer, size: int, eos_ids: Sequence[int]) -> _Spelling:
        """Leave out the text of tokens that no text may have: ids without one, and those that only fill the table."""
        unused = [tokenizer.is_unused(i) for i in range(size)]
        special = [i for i in range(size) if tokenizer.is_special(i)]
        tokens = [b"" if unused[i] else tokenizer.token_bytes(i) for i in range(size)]
        return cls(tokenizer, tokens, sorted({*special, *eos_ids}), eos_ids[0])

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a text that goes on in the middle of another."""
        ids = self.tokenizer.encode(text)
        if self.tokenizer.byte_level or self._spells(ids, text):
            return ids
        ids = self.tokenizer.encode("\n" + text)  # SentencePiece puts a blank before a text
        skipped = next((n for n in (1, 2) if self._spells(ids[n:], text)), None)
        return ids if skipped is None else ids[skipped:]

    def _spells(self, ids: Sequence[int], text: str) -> bool:
        return b"".join(self.tokens[i] for i in ids) == text.encode()


@lru_cache(2 * KEPT)
def _source(spec: GrammarSpec, forcing: bool = False) -> str:
    """Return a grammar in Lark, as the library extends it; remembered, for going back compiles it again.

    Raises:
        RequestError: its text is too long, or a schema is not JSON, or nested too deep.
    """
    try:
        size = len(spec.text.encode())
    except UnicodeEncodeError:
        raise RequestError(f"the grammar ({spec.kind}) is not valid Unicode; give a text that is") from None
    if size > MOST_BYTES:
        raise RequestError(f"the grammar ({spec.kind}) has {size} bytes; allowed: up to {MOST_BYTES}; shorten it")
    return f"%llguidance {json.dumps({'no_forcing': not forcing})}\n{_lark(spec)}"


def _lark(spec: GrammarSpec) -> str:
    if spec.kind == "lark":
        if "%llguidance" in spec.text:
            raise RequestError("the grammar (lark) has %llguidance, whose options are set already; leave it out")
        return spec.text
    if spec.kind == "regex":
        made = json.loads(LLMatcher.grammar_from_regex(spec.text))
        return str(made["grammars"][0]["lark_grammar"])
    schema = {"type": "object"} if spec.kind == "json_object" else _schema(spec.text)
    layout = {"whitespace_pattern": _BLANKS}
    return f"start: %json {json.dumps(schema | {'x-guidance': layout})}"


def _schema(text: str) -> dict[str, object]:
    try:
        found = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the json_schema is not JSON ({_line(str(error))}); give a JSON Schema object") from None
    if not isinstance(found, dict):
        raise RequestError(f"the json_schema is a {type(found).__name__}; give a JSON Schema object")
    depth, parts = _measured(found)
    if parts > MOST_PARTS:
        raise RequestError(f"the json_schema has {parts} objects and lists; allowed: up to {MOST_PARTS}; simplify it")
    if depth > MOST_DEPTH:
        raise RequestError(
            f"the json_schema is nested {depth} deep; allowed: up to {MOST_DEPTH}; flatten it with $defs"
        )
    return found


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _measured(value: object) -> tuple[int, int]:
    """Return how deep lists and objects lie in each other, and how many there are."""
    deepest, parts, ahead = 0, 0, [(value, 1)]
    while ahead:
        here, depth = ahead.pop()
        inner = here.values() if isinstance(here, dict) else here if isinstance(here, list) else None
        if inner is not None:
            deepest, parts = max(deepest, depth), parts + 1
            ahead += [(one, depth + 1) for one in inner]
    return deepest, parts


def _refusal(spec: GrammarSpec, why: str) -> str:
    return f"the grammar ({spec.kind}) cannot be used: {_line(why)}; docs/grammars.md says what can"


def _line(why: str) -> str:
    if "NoExtension" in why:
        return "no text fits it"
    text = " ".join(why.replace("<non-verbose/>", "").split())
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
