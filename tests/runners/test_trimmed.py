"""A draft model's runner: fast kernels, a trimmed vocabulary, and trees of its own guesses to grow a beam on."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from paceline.core.tree import Draft, path_to
from paceline.core.types import ROOT
from paceline.models.config import ModelConfig
from paceline.models.toy import RandomWeights
from paceline.models.weights import Checkpoint
from paceline.runners.base import Span
from paceline.runners.openvino.quantise import Precision
from paceline.runners.openvino.runner import OpenVINORunner

CONFIG = ModelConfig(
    family="llama", vocab_size=512, width=256, layers=2, heads=4, kv_heads=2, head_dim=64, ffn_width=384, context=256
)
IDS = np.arange(3, 512, 5)
"""What the head answers."""
LEVELS = ((ROOT, ROOT, ROOT), (0, 0, 2), (3, 3, 5, 4))
"""Parents of a beam's nodes, level by level."""
PREFIX = np.random.default_rng(0).integers(0, 512, 45).tolist()
TABLES = (np.array([3, 0, 5], np.int32), np.array([1, 4, 2], np.int32))


@pytest.fixture(params=["fp32", "int8", "int4"])
def weights(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> Precision:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    return request.param


def near(found: NDArray[np.float32], expected: NDArray[np.float32], weights: Precision) -> None:
    """Quantised activations round with the rows beside them."""
    assert found.shape == expected.shape
    most = np.abs(found - expected).max() / expected.std()
    assert most < (1e-4 if weights == "fp32" else 0.15)


def runner(weights: Precision, vocabulary: NDArray[np.int64] | None) -> OpenVINORunner:
    made = OpenVINORunner(Checkpoint(CONFIG, RandomWeights(CONFIG)), weights, "fast", vocabulary)
    made.allocate(6)
    return made


def test_the_head_answers_its_ids_alone(weights: Precision) -> None:
    span = Span.causal(PREFIX, 0, TABLES[0], [0, 30, 44])
    whole, cut = (runner(weights, ids).forward([span]).logits for ids in (None, IDS))
    assert cut.shape == (3, len(IDS))
    near(cut, whole[:, IDS], weights)


def test_a_beam_grows_as_its_chains_would(weights: Precision) -> None:
    """Two sequences of different length; at each level all nodes run again, in their old places."""
    drafter, alone = runner(weights, IDS), runner(weights, IDS)
    lengths = (45, 31)
    for length, blocks in zip(lengths, TABLES, strict=True):
        drafter.forward([Span.causal(PREFIX[:length], 0, blocks, [])])
    parents: tuple[int, ...] = ()
    for level in LEVELS:
        parents += level
        n = len(parents)
        tokens = np.random.default_rng(1).integers(0, 512, 20)[:n]
        draft = Draft(tuple(tokens.tolist()), parents, (1.0,) * n, ("model",) * n)
        spans = [Span.drafted(7, draft, length, blocks) for length, blocks in zip(lengths, TABLES, strict=True)]
        found = np.array(drafter.forward(spans).logits)
        for at, length in enumerate(lengths):
            for row, node in enumerate((ROOT, *range(n))):
                path = [draft.tokens[i] for i in path_to(parents, node)]
                chain = [*PREFIX[:length], 7, *path]
                expected = alone.forward([Span.causal(chain, 0, TABLES[0], [len(chain) - 1])]).logits
                near(found[at * (n + 1) + row], expected[0], weights)


def test_a_branch_that_saw_its_sibling_shows(weights: Precision) -> None:
    """The control."""
    drafter = runner(weights, IDS)
    draft = Draft((8, 9), (ROOT, ROOT), (1.0, 1.0), ("model",) * 2)
    drafter.forward([Span.causal(PREFIX, 0, TABLES[0], [])])
    span = Span.drafted(7, draft, 45, TABLES[0])
    tree = np.array(drafter.forward([span]).logits)
    chain = drafter.forward([Span.causal([7, 8, 9], 45, TABLES[0], range(3))]).logits
    near(tree[:2], chain[:2], weights)
    assert np.abs(tree[2] - chain[2]).max() > 0.3 * chain[2].std()
