"""Answers followed through insertions, deletions, replacements and renames, token by token."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core import tree
from paceline.core.types import ROOT
from paceline.drafters import registry
from paceline.drafters.edits import Edits
from paceline.drafters.prediction import CERTAIN, LINE, REPLACED, START, Prediction, found_again
from paceline.models import toy
from paceline.models.source import resolve
from paceline.models.tokenizer import Tokenizer
from tests.core.strategies import examples

from .views import View

TEXTS = st.lists(st.integers(0, 4), min_size=1, max_size=60)


@dataclass
class Walk:
    """An answer, drafted and verified step by step."""

    steps: list[tuple[int, int, int]] = field(default_factory=list)
    """For each step: how much of the answer there was, drafted tokens, accepted tokens."""

    @property
    def accepted(self) -> int:
        return sum(accepted for _, _, accepted in self.steps)

    @property
    def drafted(self) -> int:
        return sum(drafted for _, drafted, _ in self.steps)

    def wasted(self, begin: int, end: int) -> int:
        """Steps of a part of the answer that did not accept all that a draft can give."""
        return sum(accepted < drafted or not drafted for at, drafted, accepted in self.steps if begin <= at < end)


def follow(
    prediction: list[int], answer: list[int], limit: int = 16, tokenizer: object = None, chain: bool = True
) -> Walk:
    """Draft an answer that the target gives in any case, and verify greedily."""
    drafter, seq, walk = Prediction(tokenizer), View([7, 7]), Walk()  # type: ignore[arg-type]
    seq.prediction = tuple(prediction)
    drafter.begin(seq)
    done = 0
    while done < len(answer):
        [draft] = drafter.propose([seq], [limit])
        check(draft, limit)
        draft = tree.best_chain(draft) if chain else draft
        below, node, accepted = tree.children(draft), ROOT, 0
        while done + accepted < len(answer) - 1 and (node, answer[done + accepted]) in below:
            node, accepted = below[node, answer[done + accepted]], accepted + 1
        walk.steps.append((done, len(draft), accepted))
        seq.tokens += answer[done : done + accepted + 1]
        done += accepted + 1
    drafter.end(seq)
    return walk


def check(draft: tree.Draft, limit: int) -> None:
    assert len(draft) <= limit
    assert set(draft.source) <= {"prediction"}
    assert all(0 < c <= 1 for c in draft.confidence)
    assert all(ROOT <= parent < node for node, parent in enumerate(draft.parents))
    assert len(tree.children(draft)) == len(draft), "twins"


def prose(length: int, seed: int, vocabulary: int = 300) -> list[int]:
    """Tokens of which some are frequent and most are rare, as in any text."""
    dice = random.Random(seed)
    return [int(vocabulary ** dice.random()) for _ in range(length)]


NAME, OTHER = [900, 901], [902, 903, 904]


def with_name(name: list[int], places: int = 6, seed: int = 1) -> tuple[list[int], list[int]]:
    """A text of about 1000 tokens in which a name stands, and where it does."""
    text: list[int] = []
    at: list[int] = []
    for i in range(places + 1):
        text += prose(1000 // (places + 1), 100 * seed + i)
        if i < places:
            at.append(len(text))
            text += name
    return text, at


class TestFollowing:
    @pytest.mark.parametrize("limit", [1, 3, 16, 64])
    def test_an_answer_that_is_the_prediction_takes_the_fewest_steps(self, limit: int) -> None:
        text = prose(1000, seed=1)
        assert len(follow(text, text, limit).steps) == -(-len(text) // (limit + 1))

    @pytest.mark.parametrize(
        ("name", "change"),
        [(NAME, OTHER), (OTHER, NAME), ([900], [902]), ([900], OTHER), (OTHER, [905]), (NAME, [900, 903])],
    )
    def test_a_rename_is_followed_and_after_its_first_place_foreseen(self, name: list[int], change: list[int]) -> None:
        for seed in range(5):
            (text, _), (answer, at) = with_name(name, seed=seed), with_name(change, seed=seed)
            walk = follow(text, answer, limit=64)
            assert walk.accepted >= 0.95 * len(answer)
            assert 0 < walk.wasted(0, at[0] + 60) <= len(change) + 2
            assert walk.wasted(at[0] + 60, len(answer) - 64) == 0
            assert follow(text, answer, limit=16).accepted >= 0.95 * 16 / 17 * len(answer)

    def test_without_learning_every_place_costs_as_much_as_the_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The tests above can fail."""
        monkeypatch.setattr(Edits, "learn", lambda self, *given: None)
        (text, _), (answer, at) = with_name(NAME), with_name(OTHER)
        walk = follow(text, answer, limit=16)
        assert all(walk.wasted(place - 16, place + 40) >= 2 for place in at)
        assert walk.accepted > 0.9 * 16 / 17 * len(answer), "and yet the text is followed"

    def test_a_rename_of_real_code_is_foreseen_however_the_name_is_cut(self) -> None:
        tokenizer = Tokenizer.from_gguf(resolve("demo").path)
        source = Path(registry.__file__).read_text(encoding="utf-8")
        text = source.replace("Surroundings", "billable_weight")
        spans = {tuple(tokenizer.encode(f"{before}billable_weight")) for before in ("", " ", "(", "\n")}
        assert len({span[-4:] for span in spans}) > 1, "its tokens are others behind a blank"
        answer = text.replace("billable_weight", "chargeable_mass")
        walk = follow(tokenizer.encode(text), tokenizer.encode(answer), 16, tokenizer)
        first = len(tokenizer.encode(answer[: answer.index("chargeable_mass") + 60]))
        assert text.count("billable_weight") >= 6
        assert walk.wasted(first, len(tokenizer.encode(answer)) - 16) == 0
        blind = follow(tokenizer.encode(text), tokenizer.encode(answer), 16)
        assert len(blind.steps) > len(walk.steps)

    @pytest.mark.parametrize("length", [1, 2, 5, 40, 300])
    @pytest.mark.parametrize("seed", range(4))
    def test_a_span_that_is_left_out_is_skipped_at_once(self, length: int, seed: int) -> None:
        text = prose(1000, seed)
        answer = text[:500] + text[500 + length :]
        walk = follow(text, answer, limit=16)
        assert walk.wasted(400, 600) <= 4
        assert len(walk.steps) <= len(answer) / 17 + 5

    @pytest.mark.parametrize("length", [1, 2, 5, 40])
    @pytest.mark.parametrize("seed", range(4))
    def test_a_span_that_is_put_in_is_waited_for(self, length: int, seed: int) -> None:
        text, new = prose(1000, seed), [1000 + i for i in range(length)]
        walk = follow(text, text[:500] + new + text[500:], limit=16)
        assert len(walk.steps) <= 1000 / 17 + length + 3
        assert walk.wasted(500 + length + 2, 950) <= 1, "what was put in once may be expected in vain once"

    @pytest.mark.parametrize(("old", "new"), [(1, 1), (1, 4), (3, 1), (2, 2), (4, 4), (10, 8)])
    def test_a_span_that_is_replaced_is_got_over_within_two_tokens(self, old: int, new: int) -> None:
        for seed in range(4):
            text, said = prose(1000, seed), [1000 + i for i in range(new)]
            walk = follow(text, text[:500] + said + text[500 + old :], limit=16)
            assert walk.wasted(500 + new + 2, 900) <= 1
            assert walk.wasted(480, 500 + new + 2) <= new + 3

    def test_spans_of_one_length_are_got_over_at_once(self) -> None:
        text = prose(1000, seed=3)
        for length in (1, 2, 3):
            answer = text[:500] + [1000 + i for i in range(length)] + text[500 + length :]
            last = [step for step in follow(text, answer).steps if 500 < step[0] <= 500 + length][-1]
            assert last[0] == 500 + length
            assert last[2] >= 4

    def test_a_part_that_was_moved_is_found(self) -> None:
        text = prose(1000, seed=5)
        answer = text[:200] + text[600:800] + text[200:600] + text[800:]
        assert len(follow(text, answer).steps) <= 1000 / 17 + 18

    def test_a_single_change_is_not_made_everywhere(self) -> None:
        """A number that was changed once stands in many other places."""
        text: list[int] = []
        for i in range(30):
            text += [*prose(30, i), 950]
        answer = [*text]
        answer[21 * 31 - 1] = 951
        walk = follow(text, answer)
        assert walk.wasted(21 * 31 + 20, 900) == 0

    @pytest.mark.parametrize("front", [[1100], [1100, 1101, 1102], [*range(1100, 1120)]])
    def test_what_is_said_before_the_text_is_waited_for(self, front: list[int]) -> None:
        """A fence around code, or a sentence."""
        text = prose(400, seed=2)
        walk = follow(text, [*front, *text, 1100], limit=16)
        assert len(walk.steps) <= len(front) + 400 / 17 + 4
        assert len(follow([*front, *text, 1100], text).steps) <= 400 / 17 + 4

    @pytest.mark.parametrize("kept", [0, 1, 100, 400])
    def test_the_answer_may_be_longer_or_shorter(self, kept: int) -> None:
        text, more = prose(400, seed=2), [1000 + i for i in range(50)]
        longer = follow(text[:kept], text[:kept] + more)
        assert longer.accepted == pytest.approx(kept * 16 / 17, abs=2)
        assert longer.drafted < kept + 200
        assert len(follow(text, text[:kept]).steps) == -(-kept // 17)

    @pytest.mark.parametrize("limit", [1, 16])
    def test_a_prediction_of_something_else_soon_falls_silent(self, limit: int) -> None:
        walk = follow([2000 + t for t in prose(1000, seed=1)], prose(1000, seed=2), limit)
        assert walk.accepted == 0
        assert sum(drafted for at, drafted, _ in walk.steps if at > 20) == 0

    def test_nothing_is_drafted_without_one(self) -> None:
        drafter, seq = Prediction(), View([1, 2, 1, 2])
        drafter.begin(seq)
        assert [len(d) for d in drafter.propose([seq], [8])] == [0]
        drafter.end(seq)


class TestDrafts:
    @given(TEXTS, st.lists(st.integers(0, 6), max_size=60), st.integers(1, 20), st.booleans())
    @examples(300)
    def test_drafts_are_sound_whatever_is_said(
        self, text: list[int], answer: list[int], limit: int, chain: bool
    ) -> None:
        walk = follow(text, answer, limit, chain=chain)
        assert walk.accepted + len(walk.steps) == len(answer)

    @given(TEXTS, st.lists(st.tuples(st.integers(0, 59), st.integers(0, 4), st.lists(st.integers(0, 6), max_size=4))))
    @examples(200)
    def test_after_any_edits_the_pace_of_asking_changes_nothing(
        self, text: list[int], edits: list[tuple[int, int, list[int]]]
    ) -> None:
        answer = [*text]
        for at, taken, new in edits:
            answer[at : at + taken] = new
        drafter = Prediction()
        often, seldom = View([9], id=1), View([9], id=2)
        for seq in (often, seldom):
            seq.prediction = tuple(text)
            drafter.begin(seq)
        for token in answer:
            often.tokens.append(token)
            [draft] = drafter.propose([often], [9])
        seldom.tokens += answer
        [late] = drafter.propose([seldom], [9])
        if answer:
            assert (late.tokens, late.parents, late.confidence) == (draft.tokens, draft.parents, draft.confidence)

    def test_a_tree_keeps_other_ways_open(self) -> None:
        (text, _), (answer, _) = with_name(NAME), with_name(OTHER)
        whole, chain = follow(text, answer, 32, chain=False), follow(text, answer, 32)
        assert len(whole.steps) <= len(chain.steps)
        drafter, seq = Prediction(), View([7])
        seq.prediction = tuple(prose(400, seed=4))
        drafter.begin(seq)
        seq.tokens += [*seq.prediction[:100], 1000]
        [draft] = drafter.propose([seq], [12])
        roots = {token for token, parent in zip(draft.tokens, draft.parents, strict=True) if parent == ROOT}
        assert {seq.prediction[100], seq.prediction[101]} <= roots, "it may have been put in, or replace a token"
        assert sum(c for c, parent in zip(draft.confidence, draft.parents, strict=True) if parent == ROOT) <= 1
        drafter.end(seq)

    def test_confidence_grows_with_agreement_and_falls_behind_an_edit(self) -> None:
        drafter, seq = Prediction(), View([7])
        seq.prediction = tuple(prose(400, seed=4))
        drafter.begin(seq)
        [start] = drafter.propose([seq], [8])
        assert list(start.confidence) == sorted(start.confidence)
        assert start.confidence[0] == START
        seq.tokens += seq.prediction[:200]
        [sure] = drafter.propose([seq], [8])
        assert set(sure.confidence) == {CERTAIN}
        seq.tokens += [1000]
        [lost] = drafter.propose([seq], [8])
        assert lost.confidence[0] == REPLACED
        assert tree.best_chain(lost).tokens == seq.prediction[201 : 201 + len(tree.best_chain(lost))]
        seq.tokens += [1001, 1002, 1003]
        [later] = drafter.propose([seq], [8])
        assert max(later.confidence[:1]) < lost.confidence[0]

    def test_a_text_is_expected_at_a_new_line(self) -> None:
        tokenizer = toy.tokenizer()
        drafter, seq = Prediction(tokenizer), View([7])
        seq.prediction = tuple(tokenizer.encode("import this\n"))
        drafter.begin(seq)
        found = []
        for piece in ("Sure", ":", "\n"):
            seq.tokens += tokenizer.encode(piece)
            [draft] = drafter.propose([seq], [3])
            found.append((tokenizer.decode(draft.tokens), draft.confidence[:1]))
        assert found == [("", ()), ("", ()), ("imp", (LINE,))]

    def test_places_that_prove_wrong_again_and_again_are_trusted_less(self) -> None:
        """In an answer that only happens to use the same words."""
        drafter, seq = Prediction(), View([7])
        seq.prediction = tuple(prose(1000, seed=1))
        drafter.begin(seq)
        found = []
        for token in prose(300, seed=2):
            seq.tokens.append(token)
            [draft] = drafter.propose([seq], [3])
            found.append(max(draft.confidence, default=0.0))
        assert max(found[:20]) >= found_again(0.0)
        assert sum(found[200:]) < 0.7 * sum(found[:100])

    def test_sequences_do_not_see_each_other(self) -> None:
        drafter = Prediction()
        one, two, three = (View([7], id=i) for i in range(3))
        one.prediction, two.prediction = (1, 2, 3), (4, 5, 6)
        for seq in (one, two, three):
            drafter.begin(seq)
        found = drafter.propose([two, three, one], [2, 2, 3])
        assert [draft.tokens for draft in found] == [(4, 5), (), (1, 2, 3)]
        assert [len(draft) for draft in drafter.propose([one, two], [0, 1])] == [0, 1]
        drafter.end(one)
        drafter.begin(one)
        assert drafter.propose([one], [3])[0].tokens == (1, 2, 3)
