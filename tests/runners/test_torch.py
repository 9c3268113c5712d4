"""The torch runner beyond what all runners share: other architectures, recurrent models, loading, noise."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

from paceline.core import noise
from paceline.core.tree import Draft, path_to
from paceline.core.types import ROOT
from paceline.errors import CorruptModel, MissingExtra, ModelNotFound, OptionError, OutOfMemory, UnsupportedModel
from paceline.runners.base import Span, Want
from paceline.runners.torch import load
from paceline.runners.torch import noise as tensor_noise
from paceline.runners.torch.runner import TorchRunner
from tests import tiny

VOCAB = 97
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PAGED: dict[str, dict[str, Any]] = {
    "Gemma2Config": SMALL | {"head_dim": 16, "sliding_window": 8, "attn_logit_softcapping": 2.0},
    "GptOssConfig": SMALL
    | {
        "head_dim": 16,
        "sliding_window": 8,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    },
    "DeepseekV3Config": SMALL
    | {
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 12,
        "n_routed_experts": 2,
        "num_experts_per_tok": 1,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 16,
        "first_k_dense_replace": 1,
    },
    "SmolLM3Config": SMALL | {"no_rope_layer_interval": 2},
}
OWN: dict[str, tuple[dict[str, Any], str]] = {
    "MambaConfig": (
        {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
        "linear_attention",
    ),
    "RwkvConfig": ({"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2}, "recurrent state"),
    "FalconH1Config": (
        SMALL | {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_chunk_size": 8},
        "hybrid",
    ),
    "Lfm2Config": (SMALL | {"layer_types": ["conv", "full_attention"]}, "conv"),
    "JambaConfig": (SMALL | {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2}, "linear_attention"),
    "Llama4TextConfig": (SMALL | {"intermediate_size_mlp": 48, "attention_chunk_size": 8}, "chunked_attention"),
    "BloomConfig": ({"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 2, "n_head": 4}, "cannot be replaced"),
}
IDS = tiny.tokens(40, vocab=VOCAB)
TABLE = np.array([3, 1], np.int32)


def build(config: str, **keys: Any) -> Any:
    """Return the same model at every call."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        made = AutoModelForCausalLM.from_config(getattr(transformers, config)(**keys), attn_implementation="eager")
        for name, parameter in made.named_parameters():
            if parameter.ndim > 1:
                parameter.copy_((0.3 if "emb" in name else parameter.shape[-1] ** -0.5) * torch.randn(parameter.shape))
            elif name.endswith("sinks"):
                parameter.copy_(2 + torch.randn(parameter.shape))
    return made.eval()


def says(model: Any, ids: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    with torch.inference_mode():
        return tiny.Oracle(model)(ids)


def close(found: Any, expected: Any) -> None:
    assert np.abs(found - expected).max() <= 2e-4 * expected.std()


@pytest.mark.parametrize("config", PAGED)
def test_other_architectures_run_trees(config: str) -> None:
    expected = says(build(config, **PAGED[config]), IDS)
    runner = TorchRunner(build(config, **PAGED[config]))
    runner.allocate(8)
    assert runner.info.can_rewind and runner.reason is None
    close(runner.forward([Span.causal(IDS[:30], 0, TABLE, range(30))]).logits, expected[:30])
    tree = Draft((5, 6, IDS[31], IDS[32], 7), (ROOT, 0, ROOT, 2, 2), (1.0,) * 5, ("test",) * 5)
    found = runner.forward([Span.drafted(IDS[30], tree, 30, TABLE)]).logits
    model = build(config, **PAGED[config])
    for row, node in enumerate((ROOT, *range(5))):
        chain = [*IDS[:31], *(tree.tokens[i] for i in path_to(tree.parents, node))]
        close(found[row], says(model, chain)[-1])


@pytest.mark.parametrize("config", OWN)
def test_models_that_cannot_be_rewound_decode_plainly(config: str) -> None:
    keys, reason = OWN[config]
    expected = says(build(config, **keys), IDS)
    runner = TorchRunner(build(config, **keys))
    runner.allocate(8)
    assert not runner.info.can_rewind
    assert reason in (runner.reason or "")
    assert runner.info.block_bytes > 0
    other = [*IDS[5:15], *IDS[:5]]
    answers, start, hidden = [], 0, []
    for size in (20, 1, 6, 13):  # a second sequence comes and goes beside the first
        mate = Span.causal(other, 0, np.array([6], np.int32), [14])
        out = runner.forward([Span.causal(IDS[start : start + size], start, TABLE, range(size)), mate], Want((1, 2)))
        answers.append(out.logits[:-1])
        hidden.append((out.hidden[1][:-15], out.hidden[2][:-15]))
        start += size
    close(np.concatenate(answers), expected)
    close(out.logits[-1], says(build(config, **keys), other)[-1])
    between, last = (np.concatenate(states) for states in zip(*hidden, strict=True))
    with torch.inference_mode():
        model = build(config, **keys)
        whole = model(input_ids=torch.tensor([IDS]), output_hidden_states=True, use_cache=False).hidden_states
        close(model.get_output_embeddings()(torch.from_numpy(last)).numpy(), expected)
    close(last, whole[-1][0].numpy())
    assert between.shape == last.shape
    with pytest.raises(UnsupportedModel, match="without speculation"):
        runner.move(np.array([1]), np.array([0]))


def test_what_has_no_layers_or_table_is_told_so() -> None:
    """Only when a draft head asks."""
    runner = TorchRunner(build("Gemma2Config", **PAGED["Gemma2Config"]))
    runner.allocate(8)
    span, model = Span.causal(IDS, 0, TABLE, [39]), runner._model
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.config, "num_hidden_layers", 5)
        runner.forward([span])
        with pytest.raises(UnsupportedModel, match="Gemma2ForCausalLM has no list of 5 layers"):
            runner.forward([span], Want((1,)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "get_input_embeddings", lambda: None)
        with pytest.raises(UnsupportedModel, match="Gemma2ForCausalLM has no table of token embeddings"):
            runner.embed(np.array([1]))


def test_a_new_sequence_in_an_old_block_starts_afresh() -> None:
    runner = TorchRunner(build("MambaConfig", **OWN["MambaConfig"][0]))
    runner.allocate(8)
    first = np.array(runner.forward([Span.causal(IDS, 0, TABLE, [39])]).logits)
    runner.forward([Span.causal(IDS[:7], 0, TABLE, [6])])
    np.testing.assert_array_equal(runner.forward([Span.causal(IDS, 0, TABLE, [39])]).logits, first)
    with pytest.raises(AssertionError, match="does not continue"):
        runner.forward([Span.causal(IDS, 7, TABLE, [39])])


def test_a_state_inside_the_model_is_refused_by_name() -> None:
    keys = SMALL | {"lru_width": 32, "attention_window_size": 8, "head_dim": 8, "num_hidden_layers": 3}
    with pytest.raises(UnsupportedModel, match="RecurrentGemmaForCausalLM keeps its state inside"):
        TorchRunner(build("RecurrentGemmaConfig", **keys))


def test_longrope_stays_within_the_original_context() -> None:
    """Beyond it, one long sequence would change the rotation of all others in the batch."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 4,
        "long_factor": [3.0] * 4,
        "original_max_position_embeddings": 64,
    }
    keys = SMALL | {"rope_parameters": rope, "original_max_position_embeddings": 64}
    runner = TorchRunner(build("Phi3Config", **keys))
    assert runner.info.context == 64
    runner.allocate(8)
    expected = says(build("Phi3Config", **keys), IDS)
    close(runner.forward([Span.causal(IDS, 0, TABLE, range(40))]).logits, expected)


def test_bf16_is_near(tmp_path: Path) -> None:
    directory = tiny.make("qwen2", tmp_path)
    runner, ids = load(directory, dtype="bf16"), tiny.tokens(40)
    runner.allocate(4)
    assert runner.info.weights == "bf16"
    assert runner.info.block_bytes == load(directory).info.block_bytes // 2
    found, expected = runner.forward([Span.causal(ids, 0, TABLE, range(40))]).logits, tiny.oracle(directory)(ids)
    assert found.dtype == np.float32
    assert 0 < np.abs(found - expected).mean() < 0.1 * expected.std()


def test_options_that_cannot_be_met(tmp_path: Path) -> None:
    directory = tiny.make("llama", tmp_path)
    with pytest.raises(OptionError, match="fp32, bf16"):
        load(directory, dtype="fp16")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"torch\.float32"):
        load(tiny.model("llama"), dtype="bf16")
    with pytest.raises(OptionError, match="device='nowhere'"):
        load(directory, device="nowhere")
    with pytest.raises(OutOfMemory, match="are free on cpu"):
        load(directory).allocate(10**9)


def test_what_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="absent"):
        load(tmp_path / "absent")
    directory = tiny.make("llama", tmp_path / "llama")
    config, weights = directory / "config.json", directory / "model.safetensors"
    text, tensors = config.read_text(), load_file(weights)
    config.write_text(json.dumps(json.loads(text) | {"model_type": "unheard_of", "architectures": ["Unheard"]}))
    with pytest.raises(UnsupportedModel, match="unheard_of"):
        load(directory)
    config.write_text(text)
    save_file({k: v for k, v in tensors.items() if "layers.1.mlp" not in k}, weights)
    with pytest.raises(CorruptModel, match=r"layers\.1\.mlp\.down_proj.*3 tensors"):
        load(directory)
    save_file(tensors | {"model.norm.weight": np.ones(63, np.float32)}, weights)
    with pytest.raises(CorruptModel):
        load(directory)
    weights.write_bytes(weights.read_bytes()[:-9])
    with pytest.raises(CorruptModel, match="truncated"):
        load(directory)
    weights.rename(directory / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match="pickle"):
        load(directory)


def test_code_beside_a_model_runs_only_when_told(tmp_path: Path) -> None:
    directory = tiny.make("llama", tmp_path)
    path = directory / "config.json"
    keys = json.loads(path.read_text()) | {"model_type": "own", "auto_map": {"AutoConfig": "code.Config"}}
    path.write_text(json.dumps(keys))
    (directory / "code.py").write_text("raise SystemExit('it ran')\n")
    with pytest.raises(UnsupportedModel):
        load(directory)


@pytest.mark.parametrize("absent", ["torch", "transformers"])
def test_a_missing_extra_is_named(absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else find(name))
    with pytest.raises(MissingExtra, match=rf"{absent} is not installed.*paceline\[torch\]"):
        load(Path("anywhere"))


def test_the_package_is_light() -> None:
    code = "import sys, paceline.runners.torch; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_two_runners_share_a_process(tmp_path: Path) -> None:
    names = ("llama", "gpt2")
    directories = [tiny.make(name, tmp_path / name) for name in names]
    runners, ids = [load(d) for d in directories], tiny.tokens(12)
    for runner in runners:
        runner.allocate(2)
    for runner, directory in zip(runners, directories, strict=True):
        close(
            runner.forward([Span.causal(ids, 0, np.zeros(1, np.int32), range(12))]).logits, tiny.oracle(directory)(ids)
        )


@given(key=st.integers(-(2**63), 2**63 - 1), first=st.integers(-(2**63), 2**63 - 1 - 64))
def test_noise_on_tensors_is_the_noise_of_the_core(key: int, first: int) -> None:
    index = np.arange(first, first + 64, dtype=np.int64)
    tensor = torch.from_numpy(index)
    np.testing.assert_array_equal(noise.hash_bits(key, tensor).numpy(), noise.hash_bits(key, index))
    np.testing.assert_array_equal(tensor_noise.uniform(key, tensor).numpy(), noise.uniform(key, index))
    np.testing.assert_allclose(tensor_noise.gumbel(key, tensor).numpy(), noise.gumbel(key, index), rtol=1e-12)
