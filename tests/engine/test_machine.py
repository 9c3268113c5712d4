"""Any order of adding, aborting and stepping, on pools that are too small for what is asked of them."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.core.strategies import examples

from .rig import EOS, VOCAB, ask, crew, make

CREW = ("none", "eager lookup", "model", "lookup, model", "often right", "tree", "wrong tree")


class Life(RuleBasedStateMachine):
    """`Rig.step` checks the pool, the memory and every running sequence after each step."""

    @initialize(
        drafters=st.sampled_from(CREW),
        length=st.integers(1, 9),
        blocks=st.integers(10, 30),
        block_size=st.integers(2, 5),
        sequences=st.integers(1, 6),
        prefill_rows=st.integers(4, 20),
        share_output=st.booleans(),
        reuse=st.booleans(),
    )
    def begin(self, drafters: str, **size: int) -> None:
        self.rig = make(crew()[drafters](), context=size["blocks"] * size["block_size"], **size)
        self.aborted: set[int] = set()

    @property
    def live(self) -> list[int]:
        return sorted(self.rig.requests.keys() - self.rig.done.keys() - self.aborted)

    @rule(
        start=st.integers(0, 2),
        more=st.lists(st.integers(0, VOCAB - 1), max_size=7),
        most=st.integers(1, 12),
        temperature=st.sampled_from([0.0, 0.7, 1.5]),
        seed=st.integers(0, 5),
        stops=st.sets(st.integers(0, VOCAB - 1), max_size=3),
    )
    def add(self, start: int, more: list[int], most: int, temperature: float, seed: int, stops: set[int]) -> None:
        """Prompts of three beginnings, so that prefixes are shared."""
        prompt = [start] * (3 * start + 2) + more
        if len(prompt) + most < self.rig.engine.context:
            self.rig.add(
                ask(prompt, max_tokens=most, temperature=temperature, seed=seed, stop_token_ids=tuple(sorted(stops)))
            )

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(self.live))
        self.aborted.add(request_id)
        self.rig.engine.abort(request_id)

    @rule(steps=st.integers(1, 4))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.rig.step()

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "rig"):
            self.rig.check()
            scheduler = self.rig.engine.scheduler
            assert sorted(seq.id for seq in [*scheduler.running, *scheduler.waiting]) == self.live

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        self.rig.drain()
        assert self.rig.done.keys() == self.rig.requests.keys()
        for i, request in self.rig.requests.items():
            tokens, reason = self.rig.expected(request)
            found = self.rig.done[i]
            if i in self.aborted:
                assert found.finish_reason == "abort"
                assert list(found.token_ids) == tokens[: len(found.token_ids)]
            else:
                assert (list(found.token_ids), found.finish_reason) == (tokens, reason)
        assert EOS not in {token for done in self.rig.done.values() for token in done.token_ids[:-1]}


TestLife = Life.TestCase
TestLife.settings = examples(60)


@pytest.mark.long
@pytest.mark.timeout(1200)
class TestLongLife(Life.TestCase):
    settings = examples(1000)
