"""Draft models of other tokens, and trees, through everything that users touch, on small transformers in fp32."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from paceline import LLM, SamplingParams
from paceline.core.types import Completion, SpeculationParams
from paceline.models.sample import SAMPLE
from tests.models.tongues import bridge, save, tongue

ALWAYS, OFF = SpeculationParams(mode="always", max_draft=4), SpeculationParams(mode="off")
TEMPERATURES = (0.0, 0.7, 1.2)
PROMPTS = [SAMPLE[at : at + 60] for at in (0, 300, 900)]
PADDED = 448
"""Rows of the tables: more than there are tokens."""


@functools.cache
def body() -> LlamaForCausalLM:
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=PADDED,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.25,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config).eval()


def saved(root: Path, name: str, like: str) -> str:
    """A model that says with the tokens of `name` what `like` says with its own, where they mean the same."""
    model = body()
    rows = np.arange(PADDED)
    if name != like:
        names = bridge(like, name).names
        rows = np.where(names >= 0, names, PADDED - 1)
        rows = np.concatenate([rows, np.full(PADDED - len(rows), PADDED - 1)])
    kept = {key: value.clone() for key, value in model.state_dict().items()}
    for key in ("model.embed_tokens.weight", "lm_head.weight"):
        kept[key] = kept[key][torch.from_numpy(rows)]
    copy = LlamaForCausalLM(model.config)
    copy.load_state_dict(kept)
    copy.save_pretrained(root / name)
    save(name, root / f"{name}-tongue")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (root / f"{name}-tongue" / file).rename(root / name / file)
    return str(root / name)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("models")
    return {name: saved(root, name, "broad") for name in ("broad", "narrow", "plain")}


def texts(llm: LLM, temperature: float, speculation: SpeculationParams) -> list[Completion]:
    sampling = SamplingParams(temperature=temperature, seed=7, max_tokens=24, top_p=0.95)
    return llm.generate(PROMPTS, sampling, speculation)


@pytest.fixture(scope="module", params=["narrow", "plain"])
def translated(request: pytest.FixtureRequest, models: dict[str, str]) -> LLM:
    return LLM(
        models["broad"],
        draft=models[request.param],
        drafters=("model",),
        weights="fp32",
        draft_weights="fp32",
        context=256,
        draft_vocabulary=None,
    )


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_text_is_the_same_whatever_tokens_the_drafter_has(translated: LLM, temperature: float) -> None:
    with_drafts, without = texts(translated, temperature, ALWAYS), texts(translated, temperature, OFF)
    assert [c.token_ids for c in with_drafts] == [c.token_ids for c in without]
    assert all(c.speculation.drafted for c in with_drafts)
    assert translated.chosen.bridge is not None
    if translated.chosen.bridge.way == "intersection":  # in bytes, a random model says something else
        assert sum(c.speculation.accepted for c in with_drafts) > 0


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_text_is_the_same_with_trees(temperature: float) -> None:
    llm = LLM("toy:llama", draft="toy:llama-draft", drafters=("model",), numerics="fast", context=256)
    with_drafts, without = texts(llm, temperature, ALWAYS), texts(llm, temperature, OFF)
    assert [c.token_ids for c in with_drafts] == [c.token_ids for c in without]
    assert sum(c.speculation.accepted for c in with_drafts) > 20


def test_a_trimmed_head_says_what_it_can(models: dict[str, str]) -> None:
    """Its columns are not ids, of the drafter or of the target."""
    llm = LLM(
        models["broad"], draft=models["narrow"], drafters=("model",), weights="fp32", draft_weights="fp32", context=256,
        draft_vocabulary=300,
    )  # fmt: skip
    done = texts(llm, 0.7, ALWAYS)
    assert [c.token_ids for c in done] == [c.token_ids for c in texts(llm, 0.7, OFF)]
    assert sum(c.speculation.accepted for c in done) > 0
    assert len(tongue("narrow").vocabulary) > 300
