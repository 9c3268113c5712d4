"""Answers on a device say what the same answers in memory say; the processor stands in for the device."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.core import rows
from paceline.core.rows import HostRow, HostRows
from paceline.runners.base import Output
from paceline.runners.torch.rows import DeviceRows, answers
from tests.core.strategies import examples, narrowed
from tests.engine.rig import CHAOS, RHYME, ask, crew, make
from tests.engine.test_equality import prompts


@st.composite
def batches(draw: st.DrawFn) -> Any:
    """[rows, vocabulary] on a coarse grid, with ties and -inf."""
    count, size = draw(st.integers(1, 4)), draw(st.integers(1, 15))
    value = st.one_of(st.integers(-24, 24).map(lambda n: n / 8), st.just(-math.inf))
    found = np.array(draw(st.lists(st.lists(value, min_size=size, max_size=size), min_size=count, max_size=count)))
    found[np.isneginf(found).all(1), 0] = 0
    return found.astype(np.float32)


def same(found: tuple[Any, Any], expected: tuple[Any, Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@examples(200)
@given(batches(), st.sampled_from([5e-324, 0.3, 1.0, 1e6, 1e308]), st.integers(1, 16), st.booleans())
def test_a_row_on_a_device_is_one_in_memory(batch: Any, temperature: float, n: int, narrow: bool) -> None:
    with narrowed() if narrow else nullcontext():
        found = DeviceRows(torch.from_numpy(batch))
        assert len(found) == len(batch)
        for i, logits in enumerate(batch):
            row, host = found[i], HostRow(logits)
            assert (row.size, row.best()) == (host.size, host.best())
            assert [row.at(t) for t in range(row.size)] == logits.tolist()
            same(row.top(n), host.top(n))
            for margin in (0.0, 0.5, math.inf):
                same(row.within(margin), host.within(margin))
            near, expected = row.near(temperature), host.near(temperature)
            np.testing.assert_array_equal(near.ids, expected.ids)
            np.testing.assert_allclose(np.exp(near.log_p), np.exp(expected.log_p), atol=1e-6)
            assert math.exp(near.tail) == pytest.approx(math.exp(expected.tail), abs=1e-6)
            assert near.norm == pytest.approx(expected.norm, abs=1e-6, rel=1e-12)
            np.testing.assert_array_equal(row.whole(), logits)
        np.testing.assert_array_equal(found.whole(), batch)
        np.testing.assert_array_equal(found[-1].whole(), batch[-1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("spread", [0.0, 0.1, 3.0])
def test_large_rows(dtype: torch.dtype, spread: float) -> None:
    logits = torch.from_numpy(np.random.default_rng(5).normal(scale=spread, size=(3, 20_000))).to(dtype)
    found = DeviceRows(logits)
    for i, host in enumerate(logits.float().numpy()):
        near, expected = found[i].near(0.8), HostRow(host).near(0.8)
        np.testing.assert_array_equal(near.ids, expected.ids)
        assert len(near.ids) <= rows.MOST
        assert math.exp(near.tail) == pytest.approx(math.exp(expected.tail), abs=1e-6)
        same(found[i].top(20), HostRow(host).top(20))


def test_rows_that_are_not_there() -> None:
    found = DeviceRows(torch.zeros(2, 3))
    for index in (2, -3):
        with pytest.raises(IndexError):
            found[index]
    assert len(DeviceRows(torch.zeros(0, 5))) == 0
    assert DeviceRows(torch.zeros(0, 5)).whole().shape == (0, 5)


def test_an_answer_is_computed_once_for_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    found, asked = DeviceRows(torch.arange(8.0).reshape(2, 4)), []
    from_ = DeviceRows._from
    monkeypatch.setattr(DeviceRows, "_from", lambda self, least: asked.append(len(least)) or from_(self, least))
    for row in (found[0], found[1], found[0]):
        row.near(1.0)
        row.top(2)
        row.within(1.0)
    assert asked == [2, 2, 2]


def test_only_what_lies_elsewhere_stays_there() -> None:
    logits = torch.zeros(2, 3)
    assert isinstance(answers(logits), np.ndarray)
    assert isinstance(answers(logits.to("meta")), DeviceRows)


def test_an_output_has_rows_and_logits_either_way() -> None:
    batch = np.arange(6, dtype=np.float32).reshape(2, 3)
    for output in (Output(batch, {}), Output(DeviceRows(torch.from_numpy(batch)), {})):
        assert [output.rows[i].best() for i in range(len(output.rows))] == [2, 2]
        np.testing.assert_array_equal(output.logits, batch)
    assert isinstance(Output(batch, {}).rows, HostRows)


class Elsewhere:
    """A runner whose answers lie on a device."""

    def __init__(self, inner: Any, fetched: list[int]) -> None:
        self._inner, self._fetched = inner, fetched

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def forward(self, spans: Any, *rest: Any) -> Any:
        found = self._inner.forward(spans, *rest)
        fetched = self._fetched

        class Watched(DeviceRows):
            def row(self, index: int) -> Any:
                fetched.append(index)
                return super().row(index)

            def whole(self) -> Any:
                raise AssertionError("nothing asks for all rows")

        return Output(Watched(torch.from_numpy(found.answers)), found.hidden)


@pytest.mark.parametrize("drafters", ["none", "often right", "wrong tree"])
def test_an_engine_fetches_no_row_that_no_parameter_changes(drafters: str) -> None:
    """The same text as over rows in memory; a whole row is fetched for penalties, and for an unlikely token."""
    kinds = (
        {},
        {"temperature": 0.7},
        {"temperature": 1.0, "top_p": 0.9, "logprobs": 3},
        {"temperature": 1.2, "top_k": 5},
    )
    for given_, untouched in ((kinds, True), (({"frequency_penalty": 0.5},), False)):
        fetched: list[int] = []
        rig, plain = (make(crew(RHYME)[drafters](), RHYME, length=5) for _ in range(2))
        rig.engine.target = Elsewhere(rig.engine.target, fetched)
        asked = [ask(p, seed=i, **given_[i % len(given_)]) for i, p in enumerate(prompts(5, 2))]
        found, expected = rig.run(asked), plain.run(asked)
        assert [d.token_ids for d in found] == [d.token_ids for d in expected]
        assert [[x.token_id for x in d.logprobs] for d in found] == [[x.token_id for x in d.logprobs] for d in expected]
        assert (not fetched) is untouched


def test_an_engine_with_heavy_tails_on_a_device() -> None:
    with narrowed():
        fetched: list[int] = []
        rig, plain = (make(crew()["often right"](), CHAOS, length=4) for _ in range(2))
        rig.engine.target = Elsewhere(rig.engine.target, fetched)
        asked = [ask(p, temperature=1.0, seed=i, ignore_eos=True) for i, p in enumerate(prompts(4, 6))]
        assert [d.token_ids for d in rig.run(asked)] == [d.token_ids for d in plain.run(asked)]
        assert fetched, "an unlikely token takes the whole row"
