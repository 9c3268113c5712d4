"""An engine over toys: a small vocabulary, small blocks, small pools, and drafters of every character."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any

from paceline.core.rows import HostRow
from paceline.core.sampling import RowChoice
from paceline.core.tree import Draft
from paceline.core.types import ROOT, Completion, Event, Request, SamplingParams, SpeculationParams
from paceline.drafters.base import Drafter, Seen, SequenceView
from paceline.drafters.lookup import Lookup
from paceline.drafters.model import ModelDrafter
from paceline.engine.drafting import DraftDesk
from paceline.engine.engine import Engine
from paceline.engine.scheduler import Plan, Scheduler
from paceline.engine.text import TextStream
from paceline.governor.fixed import Fixed
from paceline.models import toy
from paceline.models.tokenizer import Tokenizer
from paceline.models.toy import ToyLaw
from paceline.runners.kv import Pool
from paceline.runners.toy import ToyRunner

from . import reference

VOCAB, EOS = 20, 19


@dataclass(frozen=True, slots=True)
class Known(ToyLaw):
    """Remembers its answers: a test asks for the same ones again and again."""

    def logits(self, context: Sequence[int]) -> Any:
        return _recall(self, tuple(context) if self.order is None else tuple(context[-self.order :]))


@lru_cache(100_000)
def _recall(law: Known, context: tuple[int, ...]) -> Any:
    return ToyLaw.logits(law, context)


CHAOS = Known(VOCAB, order=None, spread=1.5, seed=3)
"""Any token that is wrong, missing or out of place changes all that follow."""
RHYME = Known(VOCAB, order=2, spread=3.0, seed=5)
"""Repeats itself, so that lookup has something to find."""
PLAIN = SpeculationParams(max_draft=0)


@cache
def tokenizer() -> Tokenizer:
    return toy.tokenizer()


@dataclass
class Rig:
    """An engine whose state is checked after every step, and whose events are held against its completions."""

    engine: Engine
    runner: ToyRunner
    law: Any
    eos: tuple[int, ...]
    requests: dict[int, Request] = field(default_factory=dict)
    events: dict[int, list[Event]] = field(default_factory=lambda: defaultdict(list))
    done: dict[int, Completion] = field(default_factory=dict)

    def add(self, request: Request) -> int:
        request_id = self.engine.add(request)
        self.requests[request_id] = request
        return request_id

    def step(self) -> list[Event]:
        events = self.engine.step()
        for event in events:
            self.events[event.request_id].append(event)
            if event.finish_reason:
                self.done[event.request_id] = self.engine.completion(event.request_id)
                self._settle(self.done[event.request_id])
        self.check()
        return events

    def drain(self) -> None:
        while not self.engine.idle:
            self.step()
        assert self.engine.pool.available == self.engine.pool.num_blocks, "blocks were not given back"

    def run(self, requests: Iterable[Request]) -> list[Completion]:
        ids = [self.add(request) for request in requests]
        self.drain()
        return [self.done[i] for i in ids]

    def check(self) -> None:
        """Assert what holds between steps."""
        pool, scheduler = self.engine.pool, self.engine.scheduler
        pool.check()
        for seq in scheduler.waiting:
            assert seq.slot is None
        for seq in scheduler.running:
            assert seq.slot is not None
            assert seq.slot.tokens == seq.tokens[: seq.cache_len]
            assert self.runner.cells(seq.slot.table, seq.cache_len) == seq.slot.tokens, "the cache holds other tokens"
            assert seq.missing >= 1
            assert seq.missing == 1 or seq.cache_len < seq.prompt_len or scheduler.preemptions

    def expected(self, request: Request) -> tuple[list[int], str]:
        return reference.decode(self.law.logits, request, self.eos, self.engine.context)

    def _settle(self, done: Completion) -> None:
        events = self.events[done.request_id]
        assert "".join(event.text for event in events) == done.text
        for name in ("token_ids", "sources", "logprobs"):
            joined = tuple(item for event in events for item in getattr(event, name))
            assert joined == getattr(done, name), name
        assert [e.finish_reason for e in events] == [None] * (len(events) - 1) + [done.finish_reason]
        assert events[-1].error == done.error
        assert all(type(token) is int for token in done.token_ids)
        balance(done)


class CheckedScheduler(Scheduler):
    """Holds every plan against what its rules promise."""

    def next(self) -> Plan:
        plan = super().next()
        assert sum(chunk.rows for chunk in plan.prefill) <= self._prefill_rows
        assert len(self.running) <= self._most
        for chunk in plan.prefill:
            seq, end = chunk.seq, chunk.seq.cache_len + chunk.rows
            assert chunk.is_output or end <= seq.prompt_len, "what was generated runs with the prompt"
            pair = chunk.is_output or chunk.rows > 1 or seq.prompt_len == 1
            assert pair or self._share_output, "a prompt's row runs alone"
        return plan


class CheckedRunner(ToyRunner):
    def cells(self, table: Any, length: int) -> list[int]:
        return [int(self._cells[table[i // self._size] * self._size + i % self._size]) for i in range(length)]


def make(
    drafters: Mapping[str, Drafter] | None = None,
    law: Any = CHAOS,
    *,
    length: int = 8,
    blocks: int = 200,
    block_size: int = 4,
    context: int = 96,
    sequences: int = 8,
    prefill_rows: int = 16,
    share_output: bool = True,
    reuse: bool = True,
    can_rewind: bool = True,
    tree_context: int | None = None,
    taps: Sequence[int] = (),
    eos: Collection[int] = (EOS,),
    clock: Callable[[], float] | None = None,
    text: Callable[[Request], Any] | None = None,
) -> Rig:
    runner = CheckedRunner(law, context, block_size, can_rewind)
    runner.info = replace(runner.info, tree_context=tree_context)
    runner.allocate(blocks)
    pool = Pool(blocks, block_size, runner.move, reuse)
    engine = Engine(
        target=runner,
        pool=pool,
        scheduler=CheckedScheduler(pool, sequences, prefill_rows, share_output),
        desk=DraftDesk(drafters or {}, runner.info),
        governor=Fixed(length),
        text=text or (lambda request: TextStream(tokenizer(), request)),
        eos_ids=tuple(eos),
        taps=taps,
        **({} if clock is None else {"clock": clock}),
    )
    return Rig(engine, runner, law, tuple(eos))


def ask(prompt: Sequence[int], speculation: SpeculationParams = SpeculationParams(), **sampling: Any) -> Request:
    """A request with a seed, and bad words as tokens."""
    bad = tuple(tuple(word) for word in sampling.pop("bad", ()))
    return Request(tuple(prompt), SamplingParams(**{"seed": 0, "max_tokens": 24} | sampling), speculation, bad)


def balance(done: Completion) -> None:
    """Assert that a completion's counts add up."""
    counts, drafters = done.speculation, done.speculation.by_drafter.values()
    assert counts.drafted >= counts.verified >= counts.accepted >= 0
    for name in ("drafted", "verified", "accepted"):
        assert sum(getattr(drafter, name) for drafter in drafters) == getattr(counts, name), name
    assert sum(counts.accepted_at) == counts.accepted
    assert list(counts.accepted_at) == sorted(counts.accepted_at, reverse=True)
    assert len(done.token_ids) == counts.accepted + counts.steps
    assert sum(source is not None for source in done.sources) == counts.accepted
    assert len(done.sources) == len(done.token_ids)
    assert counts.plain_steps <= counts.steps == len(counts.trace)
    for i, name in enumerate(("drafted", "verified", "accepted")):
        assert sum(step[i] for step in counts.trace) == getattr(counts, name), name
    noted = Counter(step.reason for step in counts.trace if step.reason)
    assert all(counts.reasons[reason] >= count for reason, count in noted.items())


class Quiet:
    """The verbs that most drafters here have no use for."""

    def begin(self, seq: SequenceView) -> None:
        pass

    def observe(self, seq: SequenceView, seen: Seen) -> None:
        pass

    def end(self, seq: SequenceView) -> None:
        pass


class Oracle(Quiet):
    """Knows the target, and is wrong as often as it is told to be.

    Args:
        miss: chance that a guess is wrong.
        width: nodes at each depth; the decoys have children, too, and the truth is not always first.
    """

    def __init__(self, target: Any, miss: float = 0.0, width: int = 1, name: str = "oracle") -> None:
        self._target, self._miss, self._width, self.name = target, miss, width, name
        self._dice = random.Random(f"{miss} {width}")

    def propose(self, seqs: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft]:
        return [self._draft(seq, limit) for seq, limit in zip(seqs, limits, strict=True)]

    def truth(self, seq: SequenceView, count: int) -> list[int]:
        """The tokens to come, ends of text disregarded."""
        tokens = list(seq.tokens)
        for _ in range(count):
            choice = RowChoice(HostRow(self._target.logits(tokens)), seq.shaping, tokens[seq.prompt_len :])
            tokens.append(choice.draw(seq.noise.target(len(tokens))))
        return tokens[len(seq.tokens) :]

    def _draft(self, seq: SequenceView, limit: int) -> Draft:
        truth = self.truth(seq, -(-limit // self._width))
        tokens: list[int] = []
        parents: list[int] = []
        main, level = ROOT, [ROOT]
        for right in truth:
            guess = right if self._dice.random() >= self._miss else self._dice.randrange(VOCAB)
            others = [t for t in range(VOCAB) if t != guess]
            row = [(guess, main)] + [(t, self._dice.choice(level)) for t in self._dice.sample(others, self._width - 1)]
            self._dice.shuffle(row)
            begin = len(tokens)
            tokens += [token for token, _ in row]
            parents += [parent for _, parent in row]
            main, level = begin + row.index((guess, main)), list(range(begin, len(tokens)))
        n = min(limit, len(tokens))
        return Draft(tuple(tokens[:n]), tuple(parents[:n]), (0.5,) * n, (self.name,) * n)


class Script(Quiet):
    """Does what it is told, one move a call, then starts again. A move takes the sequences and limits."""

    def __init__(self, *moves: Callable[[Sequence[SequenceView], Sequence[int]], Any]) -> None:
        self._moves, self.calls = moves, 0

    def propose(self, seqs: Sequence[SequenceView], limits: Sequence[int]) -> Any:
        move = self._moves[self.calls % len(self._moves)]
        self.calls += 1
        return move(seqs, limits)


def model(
    target: Any = CHAOS,
    noise: float = 0.7,
    blocks: int = 200,
    block_size: int = 3,
    context: int = 512,
    vocabulary: Any = None,
) -> ModelDrafter:
    """A draft model that is often right; without noise it is `target` itself."""
    law = replace(target, noise=noise) if noise else target
    runner = ToyRunner(law, context, block_size)
    if vocabulary is not None:
        runner = _Trimmed(law, vocabulary, context, block_size)
    runner.allocate(blocks)
    return ModelDrafter(runner, Pool(blocks, block_size, runner.move), vocabulary)


class _Trimmed(ToyRunner):
    """Answers for a part of the vocabulary."""

    def __init__(self, law: Any, vocabulary: Any, context: int, block_size: int) -> None:
        super().__init__(law, context, block_size)
        self._kept = vocabulary

    def forward(self, spans: Any, *rest: Any) -> Any:
        found = super().forward(spans, *rest)
        return replace(found, answers=found.logits[:, self._kept])


def crew(target: Any = CHAOS) -> dict[str, Callable[[], dict[str, Drafter]]]:
    """Drafters by what they are like; made anew for each engine, for they remember."""
    return {
        "none": lambda: {},
        "lookup": lambda: {"lookup": Lookup()},
        "eager lookup": lambda: {"lookup": Lookup(longest=3, shortest=1)},
        "model": lambda: {"model": model(target)},
        "lookup, model": lambda: {"lookup": Lookup(), "model": model(target, noise=0.3)},
        "right": lambda: {"oracle": Oracle(target)},
        "often right": lambda: {"oracle": Oracle(target, miss=0.3)},
        "wrong": lambda: {"oracle": Oracle(target, miss=1.0)},
        "tree": lambda: {"oracle": Oracle(target, width=3)},
        "wrong tree": lambda: {"oracle": Oracle(target, miss=0.4, width=2)},
        "lookup, tree": lambda: {"lookup": Lookup(), "oracle": Oracle(target, miss=0.2, width=2)},
    }
