"""Tiny random checkpoints in every family, as Hugging Face directories, and `transformers` as their oracle.

A case is a family or a variant of one (`CASES`). Widths are small, vocabularies odd, norms not one, biases not zero,
and windows (16) much shorter than the context (256), so that a missing term shows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, PreTrainedConfig
from transformers.utils.logging import disable_progress_bar

disable_progress_bar()
torch.set_num_threads(1)  # models this small only lose by sharing work

CONTEXT, WINDOW = 256, 16

_COMMON: dict[str, Any] = {
    "vocab_size": 301,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GPT2 = {
    "vocab_size": 303,
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": CONTEXT,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _COMMON),
    "llama-tied": ("LlamaConfig", _COMMON | {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama-llama3": ("LlamaConfig", _COMMON | {"rope_parameters": _LLAMA3}),
    "llama-linear": ("LlamaConfig", _COMMON | {"rope_parameters": _ROPE | {"rope_type": "linear", "factor": 4.0}}),
    "mistral": ("MistralConfig", _COMMON | {"sliding_window": WINDOW, "head_dim": 48, "num_key_value_heads": 1}),
    "qwen2": ("Qwen2Config", _COMMON | {"tie_word_embeddings": True, "rope_parameters": _ROPE | {"rope_theta": 1e6}}),
    "qwen2-window": (
        "Qwen2Config",
        _COMMON | {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3Config", _COMMON | {"head_dim": 32, "tie_word_embeddings": True, "vocab_size": 307}),
    "gemma3": (
        "Gemma3TextConfig",
        _COMMON
        | {
            "head_dim": 32,
            "num_hidden_layers": 4,
            "sliding_window": WINDOW,
            "sliding_window_pattern": 3,
            "query_pre_attn_scalar": 24,
            "vocab_size": 305,
        },
    ),
    "gemma3-linear": (
        "Gemma3TextConfig",
        _COMMON
        | {
            "head_dim": 32,
            "sliding_window": WINDOW,
            "sliding_window_pattern": 2,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "phi3": ("Phi3Config", _COMMON | {"sliding_window": WINDOW, "vocab_size": 300}),
    "phi3-partial": ("Phi3Config", _COMMON | {"rope_parameters": _ROPE | {"partial_rotary_factor": 0.5}}),
    "gpt2": ("GPT2Config", _GPT2),
}
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3", "phi3", "gpt2")


def config(case: str, **overrides: Any) -> PreTrainedConfig:
    name, keys = CASES[case]
    return getattr(transformers, name)(**{**keys, **overrides})


def model(case: str, seed: int = 0, **overrides: Any) -> Any:
    """Return the model itself; the same seed gives the same weights."""
    made = AutoModelForCausalLM.from_config(config(case, **overrides), attn_implementation="eager")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.copy_(_weights(name, parameter.shape, generator, one_norms="Gemma" not in type(made).__name__))
    return made.eval()


def make(
    case: str, directory: Path, seed: int = 0, *, dtype: str = "float32", sharded: bool = False, **overrides: Any
) -> Path:
    """Write a checkpoint of the case (`overrides` are config keys) and return its directory."""
    made: Any = model(case, seed, **overrides).to(getattr(torch, dtype))
    made.config.dtype = dtype
    made.save_pretrained(directory, max_shard_size="100KB" if sharded else "1GB")
    return directory


def _weights(name: str, shape: Sequence[int], generator: torch.Generator, one_norms: bool) -> torch.Tensor:
    noise = torch.randn(*shape, generator=generator)
    if "norm" in name or ".ln_" in name:
        centre = 1.0 if one_norms and name.endswith("weight") else 0.0
        return centre + 0.3 * noise
    if name.endswith("bias"):
        return 0.3 * noise
    if any(part in name for part in ("embed_tokens", "wte", "wpe", "lm_head")):
        return 0.25 * noise
    fan_in = shape[0] if ".c_" in name else shape[1]
    gain = 1.6 if any(part in name for part in ("q_proj", "k_proj", "qkv_proj", "c_attn")) else 1.0
    return gain / math.sqrt(fan_in) * noise


@dataclass(frozen=True, slots=True)
class Oracle:
    """Plain `transformers`, eager attention, fp32, no cache."""

    model: Any

    def __call__(
        self,
        ids: Sequence[int],
        positions: NDArray[np.int64] | None = None,
        mask: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.float32]:
        """Return logits [n, vocabulary]; `mask` [n, n] says which row sees which, windows come on top of it."""
        logits: NDArray[np.float32] = self._run(ids, positions, mask).logits[0].numpy()
        return logits

    def hidden(self, ids: Sequence[int]) -> list[NDArray[np.float32]]:
        """Return each layer's hidden state [n, width], before the final norm."""
        found: list[NDArray[np.float32]] = []

        def keep(_module: Any, _inputs: Any, output: Any) -> None:
            found.append((output[0] if isinstance(output, tuple) else output)[0].numpy())

        hooks = [layer.register_forward_hook(keep) for layer in _layers(self.model)]
        self._run(ids, None, None)
        for hook in hooks:
            hook.remove()
        return found

    def _run(self, ids: Sequence[int], positions: NDArray[np.int64] | None, mask: NDArray[np.bool_] | None) -> Any:
        at = np.arange(len(ids)) if positions is None else positions
        with torch.inference_mode():
            return self.model(
                input_ids=torch.tensor([list(ids)]),
                position_ids=None if positions is None else torch.tensor(positions)[None],
                attention_mask=None if mask is None else self._masks(mask, at),
                use_cache=False,
            )

    def _masks(self, mask: NDArray[np.bool_], at: NDArray[np.int64]) -> Any:
        """Ready-made masks pass through transformers as they are, so the window has to be in them."""
        window = getattr(self.model.config, "sliding_window", None)
        near = mask if window is None else mask & (at[:, None] - at[None, :] < window)
        if self.model.config.model_type in ("qwen2", "qwen3", "gemma3_text"):
            return {"full_attention": _additive(mask), "sliding_attention": _additive(near)}
        return _additive(near)


def oracle(directory: Path) -> Oracle:
    return Oracle(
        AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    )


def _layers(whole: Any) -> Any:
    return whole.transformer.h if hasattr(whole, "transformer") else whole.model.layers


def _additive(mask: NDArray[np.bool_]) -> torch.Tensor:
    hidden = torch.finfo(torch.float32).min
    return torch.where(torch.tensor(mask), 0.0, hidden)[None, None]


def tokens(count: int, seed: int = 0, vocab: int = 300) -> list[int]:
    """Return random token ids that every case knows."""
    return [int(i) for i in np.random.default_rng(seed).integers(3, vocab, count)]
