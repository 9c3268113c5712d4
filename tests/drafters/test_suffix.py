"""The suffix drafter against a search through everything that it may know."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paceline.core import tree
from paceline.core.tree import Draft
from paceline.drafters import registry, suffix
from paceline.drafters.corpus import BREAK, LONGEST, SIZES, Corpus
from paceline.drafters.history import History
from paceline.drafters.registry import Surroundings
from paceline.drafters.suffix import Suffix
from paceline.models import toy
from paceline.runners.toy import ToyRunner
from tests.core.strategies import examples

from . import suffix_reference as reference
from .views import View

BOUNDS = {"tenants": 3, "tenant_tokens": 12, "tokens": 16}
TENANTS = "abcd"
TOKENS = st.lists(st.integers(0, 2), max_size=12)


def assert_same(draft: Draft, expected: dict[tuple[int, ...], float]) -> None:
    nodes = list(zip(draft.tokens, draft.parents, draft.confidence, strict=True))
    assert reference.paths(nodes) == list(expected)
    assert list(draft.confidence) == pytest.approx(list(expected.values()))
    assert set(draft.source) <= {"suffix"}


def check(corpus: Corpus) -> None:
    """The index holds each n-gram that something follows at its last place, and links it to the places before."""
    inside = vars(corpus)
    first, text = corpus.end - len(corpus), inside["_tokens"]
    assert text[:1] != [BREAK]
    last: dict[tuple[int, ...], int] = {}
    for i, token in enumerate(text):
        for n, before in zip(SIZES, inside["_before"], strict=True):
            gram = tuple(text[max(0, i - n) : i])
            if token != BREAK and len(gram) == n and BREAK not in gram:
                link = before[i]
                assert link == last[gram] if gram in last else link - n < first
                last[gram] = first + i
    assert inside["_last"] == last
    assert {len(before) for before in inside["_before"]} == {len(text)}


class Machine(RuleBasedStateMachine):
    """Requests of several tenants come, grow and go, beside a model of what is remembered."""

    def __init__(self) -> None:
        super().__init__()
        self.drafter = Suffix(History(**BOUNDS))
        self.past = reference.Past(**BOUNDS)
        self.live: dict[int, View] = {}

    @rule(number=st.integers(0, 3), tenant=st.sampled_from(TENANTS), prompt=TOKENS, last=st.integers(0, 2))
    def begin(self, number: int, tenant: str, prompt: list[int], last: int) -> None:
        """Also with the number of one that has ended, or is forgotten without an end."""
        self.live[number] = View([*prompt, last], id=number, tenant=tenant)
        self.drafter.begin(self.live[number])
        self.past.touch(tenant)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), tokens=TOKENS)
    def grow(self, data: st.DataObject, tokens: list[int]) -> None:
        self.live[data.draw(st.sampled_from(sorted(self.live)))].tokens += tokens

    @precondition(lambda self: self.live)
    @rule(limits=st.lists(st.integers(0, 9), min_size=4, max_size=4))
    def propose(self, limits: list[int]) -> None:
        """For all at once."""
        seqs = list(self.live.values())
        drafts = self.drafter.propose(seqs, limits[: len(seqs)])
        for seq, limit, draft in zip(seqs, limits, drafts, strict=False):
            texts = [seq.tokens, *([self.past.text[seq.tenant]] if seq.tenant in self.past.text else [])]
            assert_same(draft, reference.guess(texts, seq.tokens[-LONGEST:], limit))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        seq = self.live.pop(data.draw(st.sampled_from(sorted(self.live))))
        self.drafter.end(seq)
        self.past.add(seq.tenant, seq.tokens[seq.prompt_len :])

    @rule()
    def save_and_load(self) -> None:
        """A new drafter that reads what the old one wrote goes on as it would have."""
        with TemporaryDirectory() as directory:
            self.drafter.history.save(Path(directory, "past"))
            history = History(**BOUNDS)
            history.add("gone", [1, 1, 1, 2])
            history.load(Path(directory, "past"))
        self.drafter.history = history

    @invariant()
    def holds_the_same(self) -> None:
        held = {t: self.drafter.history.of(t) for t in TENANTS}
        assert {t: corpus.pieces() for t, corpus in held.items() if corpus is not None} == self.past.pieces()
        for corpus in filter(None, held.values()):
            assert len(corpus) <= BOUNDS["tenant_tokens"]
            check(corpus)
        assert len(self.drafter.history) <= BOUNDS["tokens"]
        assert self.drafter.history.of("gone") is None


Machine.TestCase.settings = examples(40)
TestMachine = Machine.TestCase


@given(
    st.lists(st.tuples(TOKENS, st.booleans(), st.integers(-1, 6)), min_size=1),
    st.integers(1, 20),
    TOKENS,
    st.integers(1, 4),
)
@examples(150)
def test_places_of_a_text_that_grows_and_shrinks(
    changes: list[tuple[list[int], bool, int]], bound: int, tail: list[int], most: int
) -> None:
    corpus, text = Corpus(bound), [BREAK]
    for tokens, closes, drops in changes:
        corpus.extend(tokens)
        text += tokens
        if closes:
            corpus.close()
            text += [BREAK] * (text[-1] != BREAK)
        corpus.drop(drops)
        text = [BREAK, *reference.shorten(text, len(corpus))] if len(corpus) else [BREAK]
        assert len(corpus) <= bound
        check(corpus)
        assert corpus.pieces() == reference.pieces(text)
    dropped = corpus.end - len(text)
    found = {place - dropped: n for place, n in corpus.places(tail, most).items()}
    assert found == reference.places(text, tail, most)


def test_of_many_places_the_latest_vote() -> None:
    text = [1, 2] * 50 + [1, 3] * 40 + [1]
    seq, drafter = View(text), Suffix()
    drafter.begin(seq)
    [draft] = drafter.propose([seq], [8])
    assert_same(draft, reference.guess([text], text[-LONGEST:], 8))
    alone = Corpus()
    alone.extend(text)
    assert len(alone.places([1], suffix.VOTERS)) == suffix.VOTERS
    assert set(alone.followed(alone.places([1], suffix.VOTERS))) == {3}


def test_matches_are_told_apart_up_to_the_longest() -> None:
    text = [*range(200), 7, *range(100, 200)]
    corpus = Corpus()
    corpus.extend([*text, 5])
    assert corpus.places(text[-90:], 4) == {200: LONGEST, corpus.end - 1: LONGEST}
    assert corpus.places(text[-9:], 4) == {200: 9, corpus.end - 1: 9}


def test_who_asks_is_not_forgotten() -> None:
    drafter = Suffix(History(tenants=2))
    for tenant in ("a", "b"):
        drafter.history.add(tenant, [1, 2])
    drafter.begin(View([5], tenant="a"))
    drafter.history.add("c", [1, 2])
    assert [drafter.history.of(tenant) is not None for tenant in "abc"] == [True, False, True]


def test_the_likeliest_way_comes_first_and_others_beside_it() -> None:
    seq, drafter = View([5, 1, 2, 5, 1, 3, 5, 1, 2, 5, 1, 2, 9, 5, 1]), Suffix()
    drafter.begin(seq)
    [draft] = drafter.propose([seq], [8])
    assert draft.tokens[0] == 2
    assert not draft.is_chain
    assert tree.best_chain(draft).tokens[:2] == (2, 5)
    survival = tree.survivals(draft)
    assert list(survival) == sorted(survival, reverse=True)
    assert all(0 < sure < 1 for sure in draft.confidence)
    assert min(survival) >= suffix.LEAST


def test_confidence_grows_with_the_match_and_the_votes() -> None:
    def first(length: int, times: int) -> float:
        same = list(range(100, 100 + length))
        seq, drafter = View([t for i in range(times) for t in (i, *same, 99)] + [50, *same]), Suffix()
        drafter.begin(seq)
        return drafter.propose([seq], [1])[0].confidence[0]

    assert first(1, 1) < first(2, 1) < first(5, 1) < first(5, 2) < first(5, 6) < 1


SECRET = list(range(1000, 1040))


def drafted(drafter: registry.Drafter, tenant: str) -> set[int]:
    """All that is drafted to somebody who says each word of a secret, one at a time."""
    found: set[int] = set()
    for i, word in enumerate(SECRET[:-1]):
        seq = View([i, word], id=100 + i, tenant=tenant)
        drafter.begin(seq)
        [draft] = drafter.propose([seq], [16])
        found |= set(draft.tokens)
    return found


@pytest.mark.parametrize("shared", [False, True])
def test_what_one_tenant_said_drafts_for_no_other(shared: bool) -> None:
    runner = ToyRunner(toy.LAWS["table"])
    drafter = registry.make(("suffix",), Surroundings(runner.info, share_history=shared))["suffix"]
    seq = View([1, 2, 3], tenant="mine")
    drafter.begin(seq)
    seq.tokens += SECRET
    drafter.propose([seq], [16])
    drafter.end(seq)
    assert set(SECRET[1:]) <= drafted(drafter, "mine"), "or there would be nothing to find"
    seen = drafted(drafter, "other") | drafted(drafter, "")
    assert bool(seen & set(SECRET)) is shared
    assert not {1, 2, 3} & drafted(drafter, "mine"), "a prompt is no output"


def test_a_second_similar_request_goes_at_least_twice_as_far() -> None:
    """Texts of a form that is filled in; on recorded text: `benchmarks/replay.py`."""
    drafter = Suffix()

    def steps(names: Sequence[int]) -> int:
        form = [t for i, name in enumerate(names) for t in (name, *range(10 * i, 10 * i + 9))]
        seq, count = View([900]), 0
        drafter.begin(seq)
        while len(seq.tokens) - 1 < len(form):
            [draft] = drafter.propose([seq], [16])
            below, node, said = tree.children(draft), tree.ROOT, len(seq.tokens) - 1
            while said < len(form) and (node := below.get((node, form[said]), -2)) != -2:
                said += 1
            seq.tokens = [900, *form[: said + 1]]
            count += 1
        drafter.end(seq)
        return count

    first, second, other = steps(range(600, 612)), steps(range(700, 712)), steps(range(800, 812))
    assert first > 100, "nothing to go by"
    assert second <= first / 2
    assert other <= first / 2
