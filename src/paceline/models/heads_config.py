"""The config.json of published EAGLE-3 heads, in either layout, as a HeadsConfig.

What would change the mathematics in a way that HeadsConfig cannot say is an error, as in `hf_config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import CorruptModel, UnsupportedModel, VocabularyError
from paceline.models import hf_config
from paceline.models.config import ModelConfig
from paceline.models.heads import HeadsConfig, Layout, TargetShape

_LLAMA: Mapping[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}
"""What an absent key means to transformers' LlamaConfig: speculators leaves out what equals it."""
_TAPS = "eagle_aux_hidden_state_layer_ids"
_SWITCHES = {"tap_norms": "fc_norm", "input_norm": "norm_before_fc", "norm_output": "norm_output"}


def layout(path: Path, keys: Mapping[str, Any]) -> Layout:
    """Return whose layout a config.json is of.

    Raises:
        UnsupportedModel: it is of draft heads that we do not know, or of no heads.
    """
    if "speculators_model_type" in keys:
        if keys["speculators_model_type"] != "eagle3":
            raise UnsupportedModel(
                f"{path}: speculators_model_type is {keys['speculators_model_type']!r}; of speculators' heads only "
                "'eagle3' can be used"
            )
        return "speculators"
    if "medusa_num_heads" in keys:
        return "FasterDecoding"
    named = keys.get("architectures")
    if "draft_vocab_size" in keys or (isinstance(named, list) and any("eagle3" in str(n).lower() for n in named)):
        return "SafeAILab"
    raise UnsupportedModel(
        f"{path} describes no draft heads: it has none of speculators_model_type, draft_vocab_size and "
        "medusa_num_heads; give a directory of EAGLE-3 or Medusa heads"
    )


def eagle3(path: Path, keys: Mapping[str, Any], target: TargetShape, own_embed: bool) -> HeadsConfig:
    """Return the EAGLE-3 heads that `keys` (of config.json at `path`) describe.

    Args:
        own_embed: whether token embeddings come with them, which only the tensors tell.

    Raises:
        UnsupportedModel: they ask for what we do not have, or were trained for a target of another shape.
        VocabularyError: they were trained for a target of another vocabulary.
        CorruptModel: a key is missing or has an impossible value.
    """
    found = _Keys(path, keys)
    decoder = found.decoder()
    target_width = found.whole("target_hidden_size", decoder.width)
    check_target(path, target, target_width, decoder.vocab_size)
    if not own_embed and decoder.width != target.width:
        raise CorruptModel(
            f"{path.parent} holds no embed_tokens.weight, and the target's embeddings are {target.width} wide, the "
            f"heads {decoder.width}; fetch the heads again"
        )
    return HeadsConfig(
        kind="eagle3",
        layout=found.layout,
        width=decoder.width,
        target_width=target_width,
        vocab_size=decoder.vocab_size,
        draft_vocab_size=found.whole("draft_vocab_size", decoder.vocab_size),
        taps=found.taps(target),
        heads=decoder.heads,
        kv_heads=decoder.kv_heads,
        head_dim=decoder.head_dim,
        ffn_width=decoder.ffn_width,
        norm_epsilon=decoder.norm_epsilon,
        rope_theta=decoder.rope_theta or 10000.0,
        rope_scaling=decoder.rope_scaling,
        biases=decoder.biases,
        norm_before_residual=found.norm_before_residual(),
        own_embed=own_embed,
        **{ours: found.switch(theirs) for ours, theirs in _SWITCHES.items()},
    )


def check_target(path: Path, target: TargetShape, width: int, vocab_size: int) -> None:
    """Raise UnsupportedModel or VocabularyError where heads for such a target do not fit this one."""
    if width != target.width:
        raise UnsupportedModel(
            f"{path.parent} holds heads for a target of width {width}, and {target.name} is {target.width} wide; "
            "give heads that were trained for it"
        )
    if vocab_size != target.vocab_size:
        raise VocabularyError(
            f"{path.parent} holds heads for a vocabulary of {vocab_size}, and {target.name} has {target.vocab_size} "
            "tokens; give heads that were trained for it"
        )


@dataclass(frozen=True, slots=True)
class _Keys:
    path: Path
    given: Mapping[str, Any]

    @property
    def layout(self) -> Layout:
        return "speculators" if "speculators_model_type" in self.given else "SafeAILab"

    def section(self, key: str) -> Mapping[str, Any]:
        value = self.given.get(key)
        if value is not None and not isinstance(value, dict):
            raise CorruptModel(f"{self.path}: {key} is {value!r}; an object is needed")
        return value or {}

    def either(self, key: str) -> Any:
        """Return a value that some checkpoints keep in a section of its own."""
        return self.given.get(key, self.section("eagle_config").get(key))

    def decoder(self) -> ModelConfig:
        """Return the head's one layer as a model of that many layers."""
        layer = dict(_LLAMA) | dict(self.given)
        if self.layout == "speculators":
            layer = dict(_LLAMA) | dict(self.section("transformer_layer_config"))
        kind = layer.get("model_type", "llama")
        if kind != "llama":
            raise self.unsupported(f"a layer of the kind {kind!r}", "'llama'")
        self._refuse_windows(layer)
        scale, parallel = self.either("logit_scale"), self.either("parallel_drafting")
        if scale not in (None, 1) or parallel:
            raise self.unsupported(f"logit_scale {scale} or parallel_drafting {parallel}", "neither")
        if self.either("use_aux_hidden_state") is False:
            raise self.unsupported("use_aux_hidden_state false", "heads on several layers of the target")
        found = self._translated(layer | {"architectures": ["LlamaForCausalLM"]})
        if found.layers != 1:
            raise self.unsupported(f"{found.layers} layers", "heads of one layer")
        if found.activation != "silu":
            raise self.unsupported(f"the activation {layer['hidden_act']}", "silu")
        return found

    def _translated(self, layer: Mapping[str, Any]) -> ModelConfig:
        try:
            return hf_config.translate(self.path, layer, {})
        except UnsupportedModel as error:  # its advice, another runner, is no help to heads
            what = str(error).partition("asks for ")[2].partition(", which ")[0]
            raise self.unsupported(what, "what a plain Llama layer has") from None

    def _refuse_windows(self, layer: Mapping[str, Any]) -> None:
        kinds = layer.get("layer_types") or []
        if layer.get("use_sliding_window") or kinds not in ([], ["full_attention"]):
            raise self.unsupported(f"a window over attention (layer_types {kinds})", "full attention")

    def taps(self, target: TargetShape) -> tuple[int, ...]:
        """Return the layers after which the target is read.

        A config names the layers whose input is read, but in `eagle_config` those whose output is. Where it names none
        it is the inputs of 2, half, and 3 from the end, as in the authors' code. The input of no layer, which would be
        the state after the last one, is not allowed: trainers do not agree whether it is normalised.
        """
        outputs = self.section("eagle_config").get(_TAPS)
        inputs = self.given.get(_TAPS)
        if inputs is None:
            inputs = (
                [2, target.layers // 2, target.layers - 3] if outputs is None else [i + 1 for i in self._ids(outputs)]
            )
        found = self._ids(inputs)
        if not found or sorted(set(found)) != found or not 0 < found[0] <= found[-1] < target.layers:
            raise UnsupportedModel(
                f"{self.path}: the heads read what goes into layers {found} of {target.name}, which has "
                f"{target.layers}; allowed: from 1 to {target.layers - 1}, ascending; give heads trained for it"
            )
        return tuple(i - 1 for i in found)

    def norm_before_residual(self) -> bool:
        """In speculators' layout it must be said: its readers do not agree on what an absent key means."""
        if self.layout == "speculators" and self.either("norm_before_residual") is None:
            raise CorruptModel(f"{self.path} does not say norm_before_residual; allowed: true, false; write it down")
        return self.switch("norm_before_residual")

    def switch(self, key: str) -> bool:
        value = self.either(key)
        if value is not None and not isinstance(value, bool):
            raise CorruptModel(f"{self.path}: {key} is {value!r}; allowed: true, false")
        return bool(value)

    def whole(self, key: str, default: int) -> int:
        value = self.given.get(key)
        if value is None:
            return default
        if type(value) is not int or not 0 < value < 2**31:
            raise CorruptModel(f"{self.path}: {key} is {value!r}; an integer from 1 to 2^31 - 1 is needed")
        return value

    def unsupported(self, what: str, allowed: str) -> UnsupportedModel:
        return UnsupportedModel(f"{self.path}: the heads ask for {what}; allowed: {allowed}; give other heads")

    def _ids(self, value: Any) -> list[int]:
        if not isinstance(value, list) or not all(type(i) is int for i in value):
            raise CorruptModel(f"{self.path}: {_TAPS} is {value!r}; a list of layers is needed")
        return value
