"""Runners of tiny checkpoints, each made once a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from paceline.models.hf import read_checkpoint
from paceline.runners.base import Output, Runner, Span, Want
from paceline.runners.openvino.runner import OpenVINORunner
from paceline.runners.torch import load
from tests import tiny

KINDS = ("torch", "openvino")
BLOCKS = 24


def make_runner(kind: str, directory: Path) -> Runner:
    """Return an exact (fp32) runner that can tap every layer."""
    if kind == "torch":
        return load(directory)
    checkpoint = read_checkpoint(directory)
    return OpenVINORunner(checkpoint, "fp32", "fast", taps=range(checkpoint.config.layers + 1))


@dataclass
class Rig:
    """A runner beside what it should say."""

    runner: Runner
    directory: Path

    @cached_property
    def oracle(self) -> tiny.Oracle:
        return tiny.oracle(self.directory)

    @property
    def tree_context(self) -> int:
        return self.runner.info.tree_context or self.runner.info.context

    def table(self, tokens: int, seed: int | None = None, first: int = 0) -> NDArray[np.int32]:
        """Return a block table with room for so many tokens: in order from `first`, or shuffled over all blocks."""
        need = -(-tokens // self.runner.info.block_size)
        order = np.arange(first, BLOCKS) if seed is None else np.random.default_rng(seed).permutation(BLOCKS)
        assert need <= len(order)
        return order[:need].astype(np.int32)

    def run(self, *spans: Span, hidden: tuple[int, ...] = ()) -> Output:
        """Run a pass and keep its answer."""
        out = self.runner.forward(spans, Want(hidden))
        return Output(np.array(out.logits), {layer: np.array(state) for layer, state in out.hidden.items()})

    def fill(self, tokens: list[int], table: NDArray[np.int32]) -> None:
        self.run(Span.causal(tokens, 0, table, [len(tokens) - 1]))


@pytest.fixture(scope="session")
def rigs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, str], Rig]]:
    made: dict[tuple[str, str], Rig] = {}
    saved: dict[str, Path] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_CACHE", str(tmp_path_factory.mktemp("cache")))

        def get(kind: str, case: str) -> Rig:
            if case not in saved:
                saved[case] = tiny.make(case, tmp_path_factory.mktemp(case))
            if (kind, case) not in made:
                made[kind, case] = Rig(make_runner(kind, saved[case]), saved[case])
            rig = made[kind, case]
            rig.runner.allocate(BLOCKS)
            return rig

        yield get


@pytest.fixture(params=[(kind, case) for kind in KINDS for case in tiny.CASES], ids="-".join)
def rig(request: pytest.FixtureRequest, rigs: Callable[[str, str], Rig]) -> Rig:
    return rigs(*request.param)
