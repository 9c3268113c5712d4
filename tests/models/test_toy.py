"""Toy models: the same in every process, drafters near their targets."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from paceline.errors import ModelNotFound
from paceline.models import toy
from paceline.models.toy import CONFIGS, LAWS, NAMES, VOCAB_SIZE, RandomWeights, ToyLaw


def test_names() -> None:
    assert set(NAMES) == {
        n + end for n in ("table", "ngram", "chaos", "llama", "qwen", "gemma") for end in ("", "-draft")
    }
    for name in ("", "tables", "llama-", "LLAMA", "draft", "llama-draft-draft"):
        with pytest.raises(ModelNotFound, match="there are: table, table-draft") as raised:
            toy.law(name)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("name", "order"), [("table", 1), ("ngram", 3), ("chaos", None)])
def test_a_law_looks_back_so_far_and_no_further(name: str, order: int | None) -> None:
    law, text = LAWS[name], [5, 6, 7, 8, 9]
    logits = law.logits(text)
    assert (logits.shape, logits.dtype) == ((VOCAB_SIZE,), np.float32)
    np.testing.assert_array_equal(law.logits(tuple(text)), logits)
    for back in range(1, len(text) + 1):
        other = [*text]
        other[-back] += 100
        assert np.array_equal(law.logits(other), logits) == (order is not None and back > order)
    assert np.array_equal(law.logits(text[1:]), logits) == (order is not None)


def test_a_law_begins_anywhere() -> None:
    for law in LAWS.values():
        assert np.isfinite(law.logits([])).all()
        assert not np.array_equal(law.logits([]), law.logits([0]))


def test_laws_differ_from_each_other_and_by_seed() -> None:
    found = [ToyLaw(seed=seed).logits([1]).tobytes() for seed in range(5)]
    found += [law.logits([1]).tobytes() for name, law in LAWS.items() if name != "table"]
    assert len(set(found)) == 5 + 2 - 2  # ngram is seed 1 and chaos seed 2, over a single token


def test_spread_scales_logits() -> None:
    np.testing.assert_allclose(ToyLaw(spread=6.0).logits([3]), 3 * ToyLaw(spread=2.0).logits([3]), rtol=1e-6)
    assert 1 < ToyLaw().logits([3]).std() < 4


@pytest.mark.parametrize("name", LAWS)
def test_a_draft_law_is_often_right_and_not_always(name: str) -> None:
    target, drafter = toy.law(name), toy.law(f"{name}-draft")
    assert target is not None and drafter is not None
    assert (drafter.order, drafter.seed) == (target.order, target.seed)
    agree = np.mean([target.logits([i, 2, i]).argmax() == drafter.logits([i, 2, i]).argmax() for i in range(200)])
    assert 0.3 < agree < 0.95


@pytest.mark.parametrize("name", CONFIGS)
def test_weights_have_their_shapes(name: str) -> None:
    assert toy.law(name) is None
    checkpoint = toy.checkpoint(name)
    for tensor, shape in checkpoint.config.tensor_shapes().items():
        values = checkpoint.weights.read(tensor)
        assert (values.shape, values.dtype) == (shape, np.float32)
        assert values.std() > 0
        np.testing.assert_array_equal(np.concatenate(list(checkpoint.weights.rows(tensor, 1000))), values)
    if not checkpoint.config.tied_head:
        assert not np.array_equal(checkpoint.weights.read("head"), checkpoint.weights.read("embed"))


@pytest.mark.parametrize("name", CONFIGS)
def test_weights_are_drawn_once_and_for_all(name: str) -> None:
    first, again, draft = toy.checkpoint(name).weights, toy.checkpoint(name).weights, toy.checkpoint(f"{name}-draft")
    assert draft.config == toy.checkpoint(name).config
    assert first.fingerprint == again.fingerprint != draft.weights.fingerprint
    for tensor in draft.config.tensor_shapes():
        values, near = first.read(tensor), draft.weights.read(tensor)
        np.testing.assert_array_equal(again.read(tensor), values)
        assert 0.1 < np.abs(near - values).mean() / np.abs(values - values.mean()).mean() < 0.5


def test_values_are_pinned() -> None:
    """A cache keeps what was made of them: whoever changes them has to change their fingerprint."""
    weights = RandomWeights(CONFIGS["llama"])
    np.testing.assert_allclose(weights.read("layers.0.q")[0, :3], [-0.02597125, -0.15035255, 0.18718602], rtol=1e-6)
    np.testing.assert_allclose(ToyLaw().logits([1])[:3], [2.6274822, -2.2556188, 1.6058761], rtol=1e-6)


SCRIPT = """
from paceline.models import toy
for name in toy.CONFIGS:
    weights = toy.checkpoint(name).weights
    print(name, weights.fingerprint, weights.read("layers.1.q").sum())
print([law.logits([1, 2, 3])[7] for law in toy.LAWS.values()])
"""


def test_every_process_makes_the_same() -> None:
    said = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True, text=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(said) == 1


def test_the_tokenizer_knows_every_byte() -> None:
    tokenizer = toy.tokenizer()
    assert tokenizer.eos_ids == (toy.EOS_ID,)
    assert len(tokenizer.vocabulary) == VOCAB_SIZE
    text = "héllo 🙂\n\0 <eos>"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(text)) == len(text.encode())
