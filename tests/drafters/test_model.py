"""The drafter with a model of its own: what it draws, what it keeps cached, and when it holds back."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paceline.core.noise import Stream, gumbel, stream_key
from paceline.core.sampling import law
from paceline.core.types import Rule, SamplingParams
from paceline.drafters.guesses import APART
from paceline.drafters.model import ModelDrafter
from paceline.drafters.reading import CATCH_UP_ROWS
from paceline.models.toy import ToyLaw
from paceline.runners.kv import Pool
from paceline.runners.toy import ToyRunner

from .views import View

LAW = ToyLaw(vocab_size=18, order=None, seed=4)


class Watched(ToyRunner):
    """Counts its passes and their rows, and keeps trimmed vocabularies."""

    kept: Any = None

    def forward(self, spans: Any, *rest: Any) -> Any:
        self.passes.append([len(span.tokens) for span in spans])
        output = super().forward(spans, *rest)
        return output if self.kept is None else replace(output, answers=output.logits[:, self.kept])

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.passes: list[list[int]] = []


def made(
    blocks: int = 60, context: int = 200, kept: Any = None, least: float = 0.0
) -> tuple[ModelDrafter, Watched, Pool]:
    runner = Watched(LAW, context, 4)
    runner.kept = kept
    runner.allocate(blocks)
    pool = Pool(blocks, 4, runner.move)
    return ModelDrafter(runner, pool, kept, lambda: least), runner, pool


def drawn(seq: View, count: int, kept: Sequence[int] | None = None) -> list[int]:
    """What the drafter's law and the stream of its rule give."""
    tokens = list(seq.tokens)
    for depth in range(count):
        logits = LAW.logits(tokens)
        if kept is not None:
            logits = np.where(np.isin(np.arange(18), kept), logits, -np.inf).astype(np.float32)
        q = law(logits, seq.shaping, tokens[seq.prompt_len :])
        start = len(seq.tokens)
        keyed = (
            stream_key(seq.seed, start + depth, Stream.TARGET)
            if seq.rule in ("coupled", "typical")
            else stream_key(seq.seed, start, Stream.DRAFT, depth)
        )
        tokens.append(q.draw(lambda ids, key=keyed: gumbel(key, ids)))
    return tokens[len(seq.tokens) :]


SHAPES = [
    SamplingParams(),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_k=5, repetition_penalty=1.3, logit_bias={2: 3.0, 17: 1.0}),
]


@pytest.mark.parametrize("kept", [None, np.array([0, 2, 3, 7, 11, 17])])
@pytest.mark.parametrize("params", SHAPES)
@pytest.mark.parametrize("rule", ["coupled", "ratio", "block", "typical"])
def test_it_draws_from_its_shaped_law_with_the_noise_of_the_rule(rule: Rule, params: SamplingParams, kept: Any) -> None:
    drafter, _, pool = made(kept=kept)
    seqs = [View([5, 6, i], id=i, rule=rule, params=params, seed=i) for i in range(4)]
    for seq in seqs:
        drafter.begin(seq)
    drafts = drafter.propose(seqs, [5, 1, 0, 8])
    for seq, draft, limit in zip(seqs, drafts, [5, 1, 0, 8], strict=True):
        assert list(draft.tokens) == drawn(seq, limit, kept)
        assert draft.is_chain
        assert set(draft.source) <= {"model"}
        assert all(0 <= c <= 1 for c in draft.confidence)
        assert draft.is_sampled == (rule in ("ratio", "block") and limit > 0)
        for i, q in enumerate(draft.laws if draft.is_sampled else ()):
            assert q is not None
            assert q.prob(draft.tokens[i]) > 0
            assert q.probabilities.sum() == pytest.approx(1)
            assert kept is None or np.isin(q.ids, kept).all()
    pool.check()


@pytest.mark.parametrize("seed", range(8))
def test_whatever_became_of_its_drafts_it_catches_up(seed: int) -> None:
    """Texts take up any part of a draft, go elsewhere, or grow while it was not asked."""
    dice = random.Random(seed)
    drafter, runner, pool = made()
    seqs = [View([dice.randrange(18) for _ in range(dice.randrange(1, 9))], id=i, seed=i) for i in range(3)]
    for _ in range(12):
        asked = [seq for seq in seqs if dice.random() < 0.7]
        limits = [dice.randrange(7) for _ in asked]
        drafts = drafter.propose(asked, limits) if asked else []
        pool.check()
        for seq, draft, limit in zip(asked, drafts, limits, strict=True):
            assert list(draft.tokens) == drawn(seq, limit)
            seq.tokens += draft.tokens[: dice.randrange(len(draft) + 1)]  # in place, as an engine does
        for seq in seqs:
            seq.tokens += [dice.randrange(18) for _ in range(dice.choice([1, 1, 2, 5]))]
            if dice.random() < 0.1:  # an error has taken some back
                seq.tokens[max(seq.prompt_len, len(seq.tokens) - 3) :] = [dice.randrange(18)]
    for seq in seqs:
        drafter.end(seq)
        drafter.end(seq)
    pool.check()
    assert pool.available == pool.num_blocks
    assert runner.passes


def test_what_the_target_took_is_not_run_again() -> None:
    drafter, runner, _ = made()
    seq = View([1, 2, 3])
    [draft] = drafter.propose([seq], [4])
    assert runner.passes == [[3], [1], [1], [1]], "the last drafted token is not run"
    seq.tokens = [*seq.tokens, *draft.tokens, 7]
    runner.passes.clear()
    drafter.propose([seq], [2])
    assert runner.passes == [[2], [1]], "the last drafted token and the bonus"
    seq.tokens = [*seq.tokens, 9]
    runner.passes.clear()
    drafter.propose([seq], [1])
    assert runner.passes == [[1]]


def test_a_long_way_behind_is_caught_up_in_pieces() -> None:
    drafter, runner, _ = made(blocks=400, context=2000)
    seqs = [View([i] * 700, id=i) for i in range(2)]
    drafts = drafter.propose(seqs, [1, 1])
    assert [list(d.tokens) for d in drafts] == [drawn(seq, 1) for seq in seqs]
    assert [sum(rows) for rows in runner.passes] == [CATCH_UP_ROWS, CATCH_UP_ROWS, 1400 - 2 * CATCH_UP_ROWS]


def test_it_stops_where_its_own_context_ends() -> None:
    drafter, _, _ = made(context=12)
    seqs = [View([1] * n, id=n) for n in (9, 11, 12, 30)]
    assert [len(d) for d in drafter.propose(seqs, [8] * 4)] == [3, 1, 0, 0]


def test_without_room_for_all_some_draft() -> None:
    drafter, _, pool = made(blocks=7)
    seqs = [View([i] * 10, id=i) for i in range(3)]
    drafts = drafter.propose(seqs, [2, 2, 2])
    assert [list(d.tokens) for d in drafts] == [drawn(seqs[0], 2), drawn(seqs[1], 2), []]
    pool.check()
    drafter.end(seqs[0])
    assert list(drafter.propose(seqs[2:], [2])[0].tokens) == drawn(seqs[2], 2)


def test_a_chain_ends_where_the_next_token_would_not_pay() -> None:
    full, _, _ = made()
    [whole] = full.propose([View([1, 2])], [12])
    survival = np.cumprod(whole.confidence)
    for least in (0.9, 0.3, 0.01):
        drafter, _, _ = made(least=least)
        [draft] = drafter.propose([View([1, 2])], [12])
        assert len(draft) == min(12, 1 + int((survival >= least).sum()))
        assert draft.tokens == whole.tokens[: len(draft)]


@pytest.mark.parametrize("rule", ["coupled", "ratio"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_confidence_is_of_the_law_alone_where_drafts_are_sampled(rule: Rule, temperature: float) -> None:
    """Elsewhere it may know the draw: it is how far that stands out."""
    drafter, _, _ = made()
    seq = View([7, 7], rule=rule, params=SamplingParams(temperature=temperature))
    [draft] = drafter.propose([seq], [1])
    scores = LAW.logits([7, 7]).astype(np.float64)
    if rule == "coupled":
        scores = (scores + temperature * gumbel(stream_key(3, 2, Stream.TARGET), np.arange(18))) / APART
    peak = float(1 / np.exp(scores - scores.max()).sum())
    assert draft.confidence[0] == pytest.approx(0.5 + peak / 2 if rule == "ratio" and temperature else peak)


def test_tokens_that_the_target_lacks_are_never_drafted() -> None:
    """A padded table: the law is cut before anything is drawn from it."""
    target = replace(LAW, vocab_size=12)
    for rule in ("coupled", "ratio"):
        _, runner, pool = made()
        cut = ModelDrafter(runner, pool, target=ToyRunner(target).info)
        seqs = [View([1, i], id=i, seed=i, rule=rule, params=SamplingParams(temperature=1.5)) for i in range(6)]
        for seq, draft in zip(seqs, cut.propose(seqs, [6] * 6), strict=True):
            assert max(draft.tokens) < 12
            for i, q in enumerate(draft.laws):
                logits = LAW.logits([*seq.tokens, *draft.tokens[:i]])[:12]
                expected = law(logits, seq.shaping, ())
                assert q is not None
                np.testing.assert_array_equal(q.ids, expected.ids)
                np.testing.assert_allclose(q.log_p, expected.log_p)


def test_a_text_that_it_cannot_read_is_left_alone() -> None:
    """The target's table is the longer one, and the text has a token from its tail."""
    drafter, _, pool = made()
    read, unread = View([1, 2], id=1), View([1, 25], id=2)
    drafts = drafter.propose([read, unread], [3, 3])
    assert [list(d.tokens) for d in drafts] == [drawn(read, 3), []]
    read.tokens = [*read.tokens, 18]
    assert [len(d) for d in drafter.propose([read], [3])] == [0]
    drafter.end(read)
    drafter.end(unread)
    assert pool.available == pool.num_blocks


def test_an_error_leaves_nothing_half_done() -> None:
    drafter, runner, pool = made()
    seqs = [View([1, 2, 3], id=1), View([4, 5], id=2)]
    drafter.propose(seqs, [4, 4])
    forward = runner.forward
    runner.forward = lambda *given: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    for seq in seqs:
        seq.tokens = [*seq.tokens, 9]
    with pytest.raises(ZeroDivisionError):
        drafter.propose(seqs, [4, 4])
    assert pool.available == pool.num_blocks
    runner.forward = forward  # type: ignore[method-assign]
    for seq in seqs:
        assert list(drafter.propose([seq], [4])[0].tokens) == drawn(seq, 4)
    pool.check()
