"""A draft model of another tokenizer, both ways: what it drafts, that the text stays the target's, and its law."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
import pytest
from scipy import stats

from paceline.core.law import Law
from paceline.core.noise import Stream, gumbel, stream_key
from paceline.core.sampling import law
from paceline.core.tree import Draft
from paceline.core.types import Rule, SamplingParams
from paceline.core.verify import verify
from paceline.drafters.beam import WIDTH
from paceline.drafters.model import ModelDrafter
from paceline.drafters.wording import LAST, Wording
from paceline.engine.text import TextStream
from paceline.models.bridge import whole
from paceline.models.sample import SAMPLE
from paceline.runners.kv import Pool
from paceline.runners.toy import ToyRunner
from tests.engine import rig
from tests.models.tongues import bridge, tongue

from .test_retelling import told
from .views import View

SHARED, TEXT = ("broad", "narrow"), ("broad", "plain")
"""Of these two pairs one shares its tokens, one only its text."""
TEMPERATURES = (0.0, 0.7, 1.2)


@lru_cache(100_000)
def digest(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=7).digest(), "little")


@dataclass(frozen=True)
class Saying:
    """Logits that hang on the last bytes of the text and on what a token would add: models of different tokens that
    say much the same."""

    name: str
    noise: float = 0.0
    seed: int = 1
    spread: float = 3.0

    @property
    def vocab_size(self) -> int:
        return len(tongue(self.name).vocabulary)

    def logits(self, context: Sequence[int]) -> Any:
        tokenizer = tongue(self.name)
        return recall(self, b"".join(map(tokenizer.token_bytes, context[-4:]))[-3:]).copy()


@lru_cache(100_000)
def recall(saying: Saying, ending: bytes) -> Any:
    tokenizer, key = tongue(saying.name), digest(ending)
    meanings = np.array([digest(tokenizer.token_bytes(i)) for i in range(saying.vocab_size)], np.int64)
    found = saying.spread * gumbel(stream_key(saying.seed, key, Stream.TARGET), meanings)
    return (found + saying.noise * gumbel(stream_key(saying.seed, key, Stream.DRAFT), meanings)).astype(np.float32)


class Recorded(ToyRunner):
    """Remembers the rows of its passes."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.passes: list[int] = []

    def forward(self, spans: Any, *rest: Any) -> Any:
        self.passes.append(sum(len(span.tokens) for span in spans))
        return super().forward(spans, *rest)


def made(
    pair: tuple[str, str], reach: int | None = 0, noise: float = 0.5, least: float = 0.0, context: int = 600
) -> tuple[ModelDrafter, Recorded, Pool]:
    runner = Recorded(Saying(pair[1], noise), context, 4)
    runner.allocate(800)
    pool = Pool(800, 4, runner.move)
    target = replace(ToyRunner(Saying(pair[0])).info, tree_context=reach)
    return ModelDrafter(runner, pool, None, lambda: least, target, bridge(*pair)), runner, pool


def prompt(at: int = 0, count: int = 12) -> list[int]:
    return list(encoded(at)[:count])


@cache
def encoded(at: int) -> list[int]:
    return tongue("broad").encode(SAMPLE[at:])


def drawn(seq: View, count: int) -> tuple[list[int], list[Law]]:
    """Shared tokens one by one, from text that is told anew each time it begins."""
    found = bridge(*SHARED)
    own_text, drafted, laws = told(found, seq.tokens), [], []
    start = len(seq.tokens)
    for depth in range(count):
        logits = Saying("narrow", 0.5).logits(own_text)
        dense = np.full(Saying("broad").vocab_size, -np.inf, np.float32)
        for own, name in enumerate(found.names):
            if name >= 0:
                dense[name] = logits[own]
        q = law(dense, seq.shaping, [*seq.tokens[seq.prompt_len :], *drafted])
        coupled = seq.rule == "coupled"
        noise = seq.noise.target(start + depth) if coupled else seq.noise.draft(start, depth)
        token = q.draw(noise)
        drafted.append(token)
        laws.append(q)
        own_text = [*own_text, found.names.tolist().index(token)]
    return drafted, laws


def written(seq: View, count: int) -> bytes:
    """The drafter's own likeliest text of so many of its tokens."""
    plain, text = tongue("plain"), told(bridge(*TEXT), seq.tokens)
    begin = len(text)
    for _ in range(count):
        text.append(int(np.argmax(Saying("plain", 0.5).logits(text))))
        if plain.is_special(text[-1]):
            text.pop()
            break
    return b"".join(map(plain.token_bytes, text[begin:]))


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("rule", ["coupled", "ratio", "block"])
def test_shared_tokens_are_drawn_from_the_law_cut_to_them(rule: Rule, temperature: float) -> None:
    """With the target's noise, keyed by its own ids, where the rule is coupled."""
    drafter, _, pool = made(SHARED)
    params = SamplingParams(temperature=temperature, top_p=0.9, repetition_penalty=1.2 if rule == "block" else 1.0)
    seqs = [View(prompt(i * 40), id=i, seed=i, rule=rule, params=params) for i in range(5)]
    for _ in range(3):
        for seq, draft in zip(seqs, drafter.propose(seqs, [5] * 5), strict=True):
            tokens, laws = drawn(seq, 5)
            assert list(draft.tokens) == tokens
            assert draft.is_sampled == (rule != "coupled")
            for q, expected in zip(draft.laws, laws, strict=bool(draft.laws)):
                assert q is not None
                assert q.ids.tolist() == expected.ids.tolist()
                np.testing.assert_allclose(q.log_p, expected.log_p, atol=1e-6)
            seq.tokens = [*seq.tokens, *tokens[: seq.id], *prompt(seq.id, 2)]
        pool.check()


def test_shared_tokens_branch_where_the_target_verifies_trees() -> None:
    drafter, runner, _ = made(SHARED, reach=None)
    seqs = [View(prompt(i * 50), id=i, seed=i, params=SamplingParams(temperature=1.2)) for i in range(4)]
    drafts = drafter.propose(seqs, [9] * 4)
    assert any(not draft.is_chain for draft in drafts)
    for seq, draft in zip(seqs, drafts, strict=True):
        assert draft.tokens[0] == drawn(seq, 1)[0][0]
        assert max(Counter(draft.parents).values()) <= WIDTH
    assert max(runner.passes[1:]) > 4


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_text_is_written_in_own_tokens_and_put_into_the_targets(temperature: float) -> None:
    drafter, _, pool = made(TEXT)
    speller = bridge(*TEXT).target
    params = SamplingParams(temperature=temperature)
    seqs = [View(prompt(i * 40), id=i, params=params, rule="ratio") for i in range(5)]
    for _ in range(3):
        for seq, draft in zip(seqs, drafter.propose(seqs, [4] * 5), strict=True):
            assert draft.is_chain
            assert not draft.is_sampled
            assert all(0 <= sure <= 1 for sure in draft.confidence)
            possible = [speller.spell(whole(written(seq, n)))[:4] for n in range(17)]
            assert list(draft.tokens) in possible
            assert len(draft) == 4 or len(draft) == len(possible[-1]), "it stops early only where it is at an end"
            seq.tokens = [*seq.tokens, *draft.tokens[: seq.id], *prompt(seq.id, 2)]
        pool.check()


def test_a_written_draft_is_as_sure_as_the_own_tokens_in_it_and_less_of_its_end() -> None:
    drafter, _, _ = made(TEXT)
    seq = View(prompt())
    [draft] = drafter.propose([seq], [3])
    own, plain = told(bridge(*TEXT), seq.tokens), tongue("plain")
    chances = []
    for token in draft.tokens:
        left, chance = tongue("broad").token_bytes(token), 1.0
        while left:
            logits = Saying("plain", 0.5).logits(own).astype(np.float64) / 0.75
            best = int(np.argmax(logits))
            own = [*own, best]
            chance *= float(1 / np.exp(logits - logits.max()).sum())
            assert left.startswith(plain.token_bytes(best))
            left = left[len(plain.token_bytes(best)) :]
        chances.append(chance)
    chances[-1] *= LAST
    assert draft.confidence == pytest.approx(chances)


def test_half_a_character_is_not_drafted() -> None:
    pair = bridge(*TEXT)
    writing = Wording(pair, np.arange(len(pair.names)), 0.0, 4, 100)
    for i, byte in enumerate("é".encode()):
        logits = np.zeros(len(pair.names), np.float32)
        logits[pair.drafter.spell(bytes([byte]))] = 9
        writing.grow(i - 1, logits)
        drafted = pair.target.bytes_of(list(writing.draft("x").tokens))
        assert drafted == ["", "é"][i].encode()


class Ending(Saying):
    """Ends its text after the letter e, with the special token of an end that both have."""

    def logits(self, context: Sequence[int]) -> Any:
        found = super().logits(context)
        if tongue(self.name).token_bytes(context[-1]).endswith(b"e"):
            found[tongue(self.name).eos_ids[0]] = 100
        return found


def test_a_written_text_may_end_with_a_special_token_and_goes_no_further() -> None:
    runner = Recorded(Ending("plain"), 600, 4)
    runner.allocate(50)
    drafter = ModelDrafter(runner, Pool(50, 4, runner.move), bridge=bridge(*TEXT))
    seq = View(tongue("broad").encode("the"))
    [draft] = drafter.propose([seq], [4])
    assert draft.tokens == tongue("broad").eos_ids
    assert draft.confidence[0] > 0.99


def test_a_written_draft_stops_where_it_no_longer_pays() -> None:
    long, _, _ = made(TEXT, least=0.0)
    short, runner, _ = made(TEXT, least=0.9999)
    seq = View(prompt())
    assert len(long.propose([seq], [4])[0]) == 4
    short.propose([seq], [4])
    assert 1 <= len(runner.passes) < 4


@pytest.mark.parametrize("pair", [SHARED, TEXT])
@pytest.mark.parametrize("seed", range(4))
def test_whatever_became_of_its_drafts_it_is_in_step(pair: tuple[str, str], seed: int) -> None:
    """Drafts are those of a drafter that reads the whole text anew, and no row of another text stays cached."""
    dice = random.Random(seed)
    drafter, _, pool = made(pair, reach=dice.choice([0, None]))
    ids = Saying("broad").vocab_size
    seqs = [View(prompt(dice.randrange(500)), id=i, seed=i, params=SamplingParams(temperature=0.7)) for i in range(2)]
    for _ in range(6):
        for seq, draft in zip(seqs, drafter.propose(seqs, [4, 3]), strict=True):
            fresh = made(pair, reach=None if not draft.is_chain else drafter_reach(drafter))[0]
            [anew] = fresh.propose([replace_view(seq)], [4 if seq.id == 0 else 3])
            assert (draft.tokens, draft.parents) == (anew.tokens, anew.parents)
            taken = dice.randrange(len(draft) + 1)
            more = dice.choice([prompt(dice.randrange(500), dice.randrange(1, 6)), [dice.randrange(ids)]])
            seq.tokens += [*draft.tokens[:taken], *more]  # in place, as an engine does
        pool.check()
    for seq in seqs:
        drafter.end(seq)
    assert pool.available == pool.num_blocks


def drafter_reach(drafter: ModelDrafter) -> int | None:
    reach: int | None = vars(drafter)["_reaches"][0]
    return reach


def replace_view(seq: View) -> View:
    again = View([*seq.tokens], id=seq.id, rule=seq.rule, params=seq.params, seed=seq.seed)
    again.prompt_len = seq.prompt_len
    return again


def test_what_was_taken_is_not_read_again() -> None:
    drafter, runner, _ = made(SHARED)
    seq = View(prompt(count=200))
    drafter.propose([seq], [4])
    assert runner.passes[0] > 100
    for _ in range(20):
        [draft] = drafter.propose([seq], [4])
        seq.tokens = [*seq.tokens, *draft.tokens]
        runner.passes.clear()
        drafter.propose([seq], [4])
        assert runner.passes[0] < 12


@pytest.mark.parametrize("pair", [SHARED, TEXT])
@pytest.mark.parametrize("reach", [0, None])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_text_is_that_of_plain_decoding(pair: tuple[str, str], reach: int | None, temperature: float) -> None:
    accepted = 0
    for batch, seed in ((1, 3), (4, 4)):
        engine = rig.make(
            {"model": made(pair, reach)[0]},
            Saying("broad"),
            length=4,
            tree_context=reach,
            eos=tongue("broad").eos_ids,
            text=lambda request: TextStream(tongue("broad"), request),
        )
        asked = [
            rig.ask(prompt(i * 30), temperature=temperature, seed=seed + i, max_tokens=20, top_p=0.98)
            for i in range(batch)
        ]
        done = engine.run(asked)
        for request, completion in zip(asked, done, strict=True):
            assert list(completion.token_ids) == engine.expected(request)[0]
        accepted += sum(completion.speculation.accepted for completion in done)
    assert accepted > 5


def first_tokens(rule: Rule, count: int, forget: bool) -> Counter[int]:
    """The token that a step commits first, over so many seeds."""
    drafter, _, _ = made(SHARED, noise=1.5)
    params = SamplingParams(temperature=1.5)
    found: Counter[int] = Counter()
    shaping = View(prompt(), params=params).shaping
    target = lru_cache(None)(lambda tokens: law(Saying("broad").logits([*prompt(), *tokens]), shaping, ()))
    for seed in range(0, count, 50):
        seqs = [View(prompt(), id=i, rule=rule, params=params, seed=i) for i in range(seed, seed + 50)]
        for seq, draft in zip(seqs, drafter.propose(seqs, [2] * 50), strict=True):
            verdict = verify(
                rule, spoilt(draft) if forget else draft, lambda row, t: target(t), seq.noise, len(prompt())
            )
            found[draft.tokens[verdict.path[0]] if verdict.path else verdict.token] += 1
            drafter.end(seq)
    return found


def spoilt(draft: Draft) -> Draft:
    """As if the law had been cut to the shared tokens and not renormalised."""
    return replace(draft, laws=tuple(None if q is None else Law(q.ids, q.log_p - 0.5) for q in draft.laws))


def chance(found: Counter[int]) -> float:
    """Of counts as far from the target's law as these, the rare tokens taken together."""
    p = law(Saying("broad").logits(prompt()), View(prompt(), params=SamplingParams(temperature=1.5)).shaping, ())
    total = sum(found.values())
    often = [(token, total * p.prob(token)) for token in p.ids.tolist() if total * p.prob(token) >= 10]
    counts, expected = [found[token] for token, _ in often], [n for _, n in often]
    return float(stats.chisquare([*counts, total - sum(counts)], [*expected, total - sum(expected)]).pvalue)


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_the_law_of_the_text_is_the_targets(rule: Rule) -> None:
    assert chance(first_tokens(rule, 4000, forget=False)) > 0.01


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_a_law_that_is_not_renormalised_would_be_found(rule: Rule) -> None:
    assert chance(first_tokens(rule, 4000, forget=True)) < 1e-6
