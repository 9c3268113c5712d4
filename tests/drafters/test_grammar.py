"""Forced tokens: all of them, only them, and nothing for requests without a grammar."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from paceline import LLM, SamplingParams, SpeculationParams
from paceline.core.tree import EMPTY, Draft
from paceline.core.types import ROOT, GrammarSpec, Rule
from paceline.drafters.grammar import Forced
from paceline.engine.drafting import allowed
from paceline.models import toy
from paceline.models.grammar import Grammars, Matcher

from .views import View

WORDS = GrammarSpec("regex", "(yes|no), my lord, (I come|I go)")
TEXT = b"my lord, I "


@cache
def grammars() -> Grammars:
    return Grammars(toy.tokenizer(), toy.VOCAB_SIZE, (toy.EOS_ID,))


def encode(text: str) -> list[int]:
    return toy.tokenizer().encode(text)


def view(said: str, spec: GrammarSpec | None = WORDS) -> View:
    seq = View(encode("?"))
    seq.tokens += encode(said)
    if spec is not None:
        seq.shaping = replace(seq.shaping, grammar=grammars().matcher(spec))
    return seq


def test_it_drafts_what_must_come() -> None:
    drafts = Forced().propose([view("y"), view("yes,"), view(""), view("", None), view("yes")], [9, 4, 9, 9, 0])
    texts = [toy.tokenizer().decode(draft.tokens) for draft in drafts]
    assert texts == ["es, my lo", " my ", "", "", ""]
    assert drafts[0].confidence == (1.0,) * 9
    assert drafts[0].source == ("grammar",) * 9 and drafts[0].is_chain and not drafts[0].is_sampled
    assert drafts[3] == EMPTY


def test_it_drafts_up_to_the_end_and_not_beyond() -> None:
    [draft] = Forced().propose([view("no, my lord, I g")], [50])
    assert draft.tokens == (*encode("o"), toy.EOS_ID)


def test_the_desk_drops_what_is_forbidden_with_all_that_follows() -> None:
    y, e, n, o, x = (encode(letter)[0] for letter in "yenox")
    draft = Draft((y, x, n, e, x, o, y), (ROOT, ROOT, ROOT, 0, 1, 2, 5), (0.5,) * 7, ("wild",) * 7)
    kept = allowed(draft, grammars().matcher(WORDS), [])
    assert (kept.tokens, kept.parents) == ((y, n, e, o), (ROOT, ROOT, 0, 1))
    assert allowed(kept, grammars().matcher(WORDS), []) is kept
    assert not allowed(draft, grammars().matcher(WORDS), encode("no"))


@pytest.mark.parametrize("rule", ["coupled", "ratio", "block"])
def test_the_target_takes_every_forced_token(rule: Rule) -> None:
    llm = LLM("toy:chaos", drafters=("grammar",), keep_costs=False)
    sampling = SamplingParams(max_tokens=40, temperature=1.3, seed=5)
    plain = llm.generate("?", sampling, SpeculationParams("off"), grammar=WORDS)[0]
    always = SpeculationParams("always", max_draft=16, rule=rule)
    drafted = llm.generate("?", sampling, always, grammar=WORDS)[0]
    counts = drafted.speculation
    assert drafted.token_ids == plain.token_ids, "nothing is drawn, so all rules agree"
    assert drafted.finish_reason == "stop"
    assert counts.drafted == counts.verified == counts.accepted >= len(TEXT)
    assert counts.steps <= len(drafted.token_ids) - len(TEXT)


def test_others_pay_nothing_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM("toy:ngram", keep_costs=False)
    asked = list[int]()
    monkeypatch.setattr(Matcher, "allowed", lambda self, output: asked.append(1))
    done = llm.generate("abc", SamplingParams(max_tokens=20), SpeculationParams("always"))[0]
    assert asked == []
    assert done.speculation.by_drafter["grammar"].drafted == 0


def test_masks_are_looked_up_once_for_drafters_desk_and_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM("toy:ngram", draft="toy:ngram-draft", keep_costs=False)
    looked = list[tuple[int, ...]]()
    look = Matcher._look
    monkeypatch.setattr(Matcher, "_look", lambda self, output: looked.append(output) or look(self, output))
    done = llm.generate("?", SamplingParams(max_tokens=30), SpeculationParams("always", max_draft=4), grammar=WORDS)[0]
    assert done.speculation.accepted > 0
    assert len(looked) == len(set(looked)), "a place was looked at twice"
    assert len(looked) >= len(done.token_ids)
    assert np.array_equal(done.token_ids, looked[-1][: len(done.token_ids)]) or len(looked[-1]) <= len(done.token_ids)
