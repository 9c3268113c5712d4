"""Published layouts of draft heads: read back equal, or refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.errors import CorruptModel, ModelError, ModelNotFound, UnsupportedModel, VocabularyError
from paceline.models import heads_config
from paceline.models.config import RopeScaling
from paceline.models.heads import Heads, HeadsConfig, TargetShape
from paceline.models.heads_layouts import read_heads
from tests.heads import EAGLE3, MEDUSA, TARGET, make, published, write

SMALL = {"draft_vocab_size": 17, "own_embed": True}
SPECULATORS = replace(EAGLE3, layout="speculators")
CASES: dict[str, HeadsConfig] = {
    "eagle3": EAGLE3,
    "eagle3-small": replace(EAGLE3, **SMALL),
    "eagle3-narrow": replace(EAGLE3, width=12, head_dim=4, own_embed=True),
    "eagle3-taps": replace(EAGLE3, taps=(0, 4, 7), input_norm=True),
    "eagle3-two-taps": replace(EAGLE3, taps=(2, 7)),
    "eagle3-biases": replace(EAGLE3, biases=frozenset({*"qkvo", "gate", "up", "down"}), rope_theta=5e5),
    "eagle3-stretched": replace(EAGLE3, rope_scaling=RopeScaling("linear", 4.0)),
    "speculators": SPECULATORS,
    "speculators-small": replace(SPECULATORS, **SMALL, norm_before_residual=True, norm_output=True),
    "speculators-norms": replace(SPECULATORS, tap_norms=True, taps=(2, 3, 7), norm_epsilon=1e-6),
    "speculators-one-norm": replace(SPECULATORS, input_norm=True, width=12, head_dim=4, own_embed=True),
    "medusa": MEDUSA,
    "medusa-plain": replace(MEDUSA, depth=0, count=1),
}


def same(found: Heads, expected: Heads) -> None:
    assert found.config == expected.config
    assert set(found.tensors) == set(expected.tensors) == set(found.config.tensor_shapes())
    for name, values in expected.tensors.items():
        assert found.tensors[name].dtype == np.float32
        np.testing.assert_array_equal(found.tensors[name], values, err_msg=name)
    if expected.draft_to_target is None:
        assert found.draft_to_target is None
    else:
        np.testing.assert_array_equal(found.draft_to_target, expected.draft_to_target)


def stored(directory: Path, case: str = "eagle3", form: str = "model.safetensors", **changed: Any) -> Path:
    """Write a case; `changed` are keys of its config.json, where None leaves one out."""
    config, tensors = published(make(CASES[case]))
    config = {name: value for name, value in (config | changed).items() if value is not None}
    return write(directory, config, tensors, form)


@pytest.mark.parametrize("case", CASES)
def test_every_layout_is_read_back(case: str, tmp_path: Path) -> None:
    heads = make(CASES[case], seed=5)
    same(read_heads(write(tmp_path, *published(heads)), TARGET), heads)


def test_taps_are_layers_after_which_the_target_is_read(tmp_path: Path) -> None:
    """In 28 layers the authors read the inputs of 2, 14 and 25."""
    deep = replace(TARGET, layers=28)
    assert read_heads(stored(tmp_path / "rule"), deep).config.taps == (1, 13, 24)
    inputs = stored(tmp_path / "inputs", "speculators", eagle_aux_hidden_state_layer_ids=[3, 10, 27])
    assert read_heads(inputs, deep).config.taps == (2, 9, 26)
    outputs = stored(tmp_path / "outputs", eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 10, 26]})
    assert read_heads(outputs, deep).config.taps == (0, 10, 26)
    assert read_heads(stored(tmp_path / "medusa", "medusa"), deep).config.taps == (28,)


@pytest.mark.parametrize(
    ("keys", "target", "expected"),
    [
        (  # yuhuili/EAGLE3-LLaMA3.1-Instruct-8B
            {
                "architectures": ["LlamaForCausalLM"],
                "vocab_size": 128256,
                "rms_norm_eps": 1e-05,
                "bos_token_id": 128000,
            },
            TargetShape(4096, 128256, 32),
            {"layout": "SafeAILab", "width": 4096, "head_dim": 128, "taps": (1, 15, 28), "rope_theta": 10000.0},
        ),
        (  # SpecForge's for Qwen3-32B
            {"num_attention_heads": 64, "head_dim": 128, "hidden_size": 5120, "intermediate_size": 25600}
            | {"rope_theta": 1000000, "rope_scaling": None, "sliding_window": None, "use_sliding_window": False}
            | {"vocab_size": 151936, "max_window_layers": 64, "attention_bias": False, "rms_norm_eps": 1e-06},
            TargetShape(5120, 151936, 64),
            {
                "layout": "SafeAILab",
                "heads": 64,
                "kv_heads": 8,
                "taps": (1, 31, 60),
                "rope_theta": 1e6,
                "biases": set(),
            },
        ),
        (  # SpecForge's for gpt-oss-120b
            {"hidden_size": 2880, "intermediate_size": 17280, "num_attention_heads": 64, "head_dim": 64}
            | {"vocab_size": 201088, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 17, 33]}},
            TargetShape(2880, 201088, 36),
            {"layout": "SafeAILab", "taps": (1, 17, 33), "norm_epsilon": 1e-6},
        ),
        (  # RedHatAI's speculators, older and newer: the layer in a section of its own, taps not named
            {"speculators_model_type": "eagle3", "norm_before_residual": True, "eagle_aux_hidden_state_layer_ids": None}
            | {
                "transformer_layer_config": {
                    "num_hidden_layers": 1,
                    "num_key_value_heads": 8,
                    "intermediate_size": 14336,
                }
            }
            | {"target_hidden_size": None, "vocab_size": 7, "torch_dtype": "float32"},
            TargetShape(4096, 32000, 36),
            {"layout": "speculators", "taps": (1, 17, 32), "norm_before_residual": True, "heads": 32, "width": 4096},
        ),
    ],
)
def test_configs_as_they_are_published(keys: dict[str, Any], target: TargetShape, expected: dict[str, Any]) -> None:
    common = {"model_type": "llama", "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336}
    common |= {"num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 1}
    common |= {"max_position_embeddings": 2048, "tie_word_embeddings": False, "draft_vocab_size": 32000}
    found = heads_config.eagle3(Path("heads/config.json"), common | keys, target, False)
    assert heads_config.layout(Path(), common | keys) == expected["layout"]
    assert {name: getattr(found, name) for name in expected} == expected
    assert found.draft_vocab_size == 32000


def test_all_stored_medusa_heads_are_taken(tmp_path: Path) -> None:
    """The authors' configs say 2 heads where 5 are stored; fewer than said are missing."""
    assert read_heads(stored(tmp_path / "more", "medusa", medusa_num_heads=2), TARGET).config.count == 3
    with pytest.raises(CorruptModel, match=r"lacks 3\.0\.linear\.bias, 3\.0\.linear\.weight, .*3\.2\.weight:"):
        read_heads(stored(tmp_path / "fewer", "medusa", medusa_num_heads=4), TARGET)


@pytest.mark.parametrize("case", ["eagle3-small", "speculators-norms", "eagle3-biases", "medusa"])
def test_every_missing_tensor_is_named(case: str, tmp_path: Path) -> None:
    config, tensors = published(make(CASES[case]))
    optional = {"t2d", "embed_tokens.weight"}  # without embeddings, heads of the target's width take its own
    for i, name in enumerate(sorted(tensors.keys() - optional)):
        rest = {other: values for other, values in tensors.items() if other != name}
        with pytest.raises(CorruptModel, match=f"lacks {name.replace('.', '[.]')}[:,]") as caught:
            read_heads(write(tmp_path / str(i), config, rest), TARGET)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", ["eagle3", "speculators", "medusa"])
def test_every_tensor_too_many_is_named(case: str, tmp_path: Path) -> None:
    config, tensors = published(make(CASES[case]))
    more = tensors | {"midlayer.mlp.extra.weight": np.zeros(3), "a.b": np.zeros(2)}
    with pytest.raises(CorruptModel, match=r"also holds a\.b, midlayer\.mlp\.extra\.weight:"):
        read_heads(write(tmp_path, config, more), TARGET)


def test_what_training_left_over_is_no_tensor_too_many(tmp_path: Path) -> None:
    heads = make(SPECULATORS)
    config, tensors = published(heads)
    left = {"verifier_norm.weight": np.zeros(20), "layers.0.self_attn.rotary_emb.inv_freq": np.zeros(3)}
    same(read_heads(write(tmp_path, config, tensors | left), TARGET), heads)


@pytest.mark.parametrize("case", ["eagle3-small", "speculators-norms", "medusa"])
def test_every_wrong_shape_is_named(case: str, tmp_path: Path) -> None:
    config, tensors = published(make(CASES[case]))
    for i, (name, values) in enumerate(tensors.items()):
        longer = tensors | {name: np.concatenate([values, values[:1]])}
        # a Medusa head's output says what the vocabulary is
        said = "a vocabulary of 62" if name == "0.2.weight" else name.replace(".", "[.]")
        with pytest.raises((ModelError, VocabularyError), match=said):
            read_heads(write(tmp_path / str(i), config, longer), TARGET)


@pytest.mark.parametrize("case", ["eagle3-small", "speculators", "medusa"])
@pytest.mark.parametrize(
    ("target", "error", "said"),
    [
        (replace(TARGET, width=24), UnsupportedModel, "for a target of width 20, and tiny is 24 wide"),
        (replace(TARGET, vocab_size=64), VocabularyError, "for a vocabulary of 61, and tiny has 64 tokens"),
    ],
)
def test_heads_of_another_target(
    case: str, target: TargetShape, error: type[Exception], said: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=said) as caught:
        read_heads(stored(tmp_path, case), target)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 5, 6])
def test_a_target_of_too_few_layers(layers: int, tmp_path: Path) -> None:
    """Three different layers are read, and of fewer than seven the rule does not give them."""
    with pytest.raises(UnsupportedModel, match=f"of tiny, which has {layers}; allowed: from 1"):
        read_heads(stored(tmp_path), replace(TARGET, layers=layers))


@pytest.mark.parametrize("ids", [[0, 3, 5], [3, 3, 5], [5, 3, 1], [1, 4, 9], [-1, 2, 3], []])
def test_layers_that_the_target_does_not_have(ids: list[int], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="ascending"):
        read_heads(stored(tmp_path, "speculators", eagle_aux_hidden_state_layer_ids=ids), TARGET)


def test_the_number_of_taps_is_that_of_the_fusion(tmp_path: Path) -> None:
    directory = stored(tmp_path, "eagle3", eagle_config={"eagle_aux_hidden_state_layer_ids": [2, 5]})
    with pytest.raises(CorruptModel, match=r"fc\.weight is \[20, 60\]; \[20, 40\] is needed"):
        read_heads(directory, TARGET)


LAYER = published(make(SPECULATORS))[0]["transformer_layer_config"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"norm_before_residual": None}, "does not say norm_before_residual"),
        ({"norm_before_residual": 1}, "norm_before_residual is 1; allowed: true, false"),
        ({"norm_output": "yes"}, "norm_output is 'yes'"),
        ({"speculators_model_type": "dflash"}, "speculators_model_type is 'dflash'"),
        ({"draft_vocab_size": 0}, "draft_vocab_size is 0"),
        ({"draft_vocab_size": True}, "draft_vocab_size is True"),
        ({"target_hidden_size": "20"}, "target_hidden_size is '20'"),
        ({"eagle_aux_hidden_state_layer_ids": "2,4"}, "a list of layers is needed"),
        ({"transformer_layer_config": []}, "transformer_layer_config is"),
        ({"transformer_layer_config": LAYER | {"num_hidden_layers": 2}}, "2 layers; allowed: heads of one layer"),
        ({"transformer_layer_config": LAYER | {"model_type": "qwen3"}}, "kind 'qwen3'; allowed: 'llama'"),
        ({"transformer_layer_config": LAYER | {"hidden_act": "gelu_new"}}, "activation gelu_new"),
        ({"transformer_layer_config": LAYER | {"layer_types": ["sliding_attention"]}}, "a window over attention"),
        (
            {"transformer_layer_config": LAYER | {"rope_scaling": {"rope_type": "yarn"}}},
            "kind yarn; .* give other heads",
        ),
        ({"transformer_layer_config": LAYER | {"num_key_value_heads": 3}}, "do not divide"),
        ({"transformer_layer_config": LAYER | {"hidden_size": -4}}, "hidden_size is -4"),
        ({"logit_scale": 0.5}, "logit_scale 0.5"),
        ({"parallel_drafting": True}, "parallel_drafting True"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state false"),
    ],
)
def test_what_a_config_cannot_ask_for(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        read_heads(stored(tmp_path, "speculators", **changed), TARGET)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["medusa_num_heads", "medusa_num_layers"])
@pytest.mark.parametrize("value", [-1, 65, 10**9, "2", 1.0, True])
def test_impossible_counts(key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(CorruptModel, match=f"{key} is"):
        read_heads(stored(tmp_path, "medusa", **{key: value}), TARGET)


def test_a_vocabulary_map_must_be_one(tmp_path: Path) -> None:
    heads = make(CASES["eagle3-small"])
    config, tensors = published(heads)
    d2t, t2d = tensors["d2t"], tensors["t2d"]
    twice, outside, below = d2t.copy(), d2t.copy(), d2t.copy()
    twice[1] = d2t[0] - 1
    outside[-1] = 61
    below[0] = -1
    other = t2d.copy()
    other[np.flatnonzero(~t2d)[0]] = True
    for i, (changed, said) in enumerate(
        [
            ({"d2t": twice}, "d2t gives a token twice"),
            ({"d2t": outside}, "one that is not of 0 to 60"),
            ({"d2t": below}, "one that is not of 0 to 60"),
            ({"d2t": d2t.astype(np.float32)}, "d2t is stored as F32"),
            ({"t2d": other}, "t2d does not mark the tokens"),
            ({"t2d": t2d[:-1]}, "t2d does not mark the tokens"),
        ]
    ):
        with pytest.raises(CorruptModel, match=said):
            read_heads(write(tmp_path / str(i), config, tensors | changed), TARGET)
    without = {name: values for name, values in tensors.items() if name != "t2d"}
    same(read_heads(write(tmp_path / "without", config, without), TARGET), heads)
    narrow = tensors | {"d2t": d2t.astype(np.int32)}
    same(read_heads(write(tmp_path / "narrow", config, narrow), TARGET), heads)


def test_a_map_may_be_in_any_order(tmp_path: Path) -> None:
    heads = make(CASES["eagle3-small"])
    shuffled = replace(heads, draft_to_target=np.random.default_rng(1).permutation(heads.draft_to_target))
    same(read_heads(write(tmp_path, *published(shuffled)), TARGET), shuffled)


def test_narrow_heads_need_embeddings_of_their_own(tmp_path: Path) -> None:
    config, tensors = published(make(CASES["eagle3-narrow"]))
    del tensors["embed_tokens.weight"]
    with pytest.raises(CorruptModel, match="the target's embeddings are 20 wide, the heads 12"):
        read_heads(write(tmp_path, config, tensors), TARGET)


def test_no_heads_at_all(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="which is no directory"):
        read_heads(tmp_path / "none", TARGET)
    with pytest.raises(ModelNotFound, match=r"config\.json does not exist"):
        read_heads(tmp_path, TARGET)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CorruptModel, match="not valid JSON"):
        read_heads(tmp_path, TARGET)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(UnsupportedModel, match="describes no draft heads"):
        read_heads(tmp_path, TARGET)
    (tmp_path / "config.json").write_text(json.dumps(published(make(EAGLE3))[0]))
    with pytest.raises(ModelNotFound, match=r"holds no model\.safetensors and no pytorch_model\.bin"):
        read_heads(tmp_path, TARGET)


def test_records_refuse_impossible_sizes() -> None:
    for changed in (
        {"width": 0},
        {"heads": 3},
        {"head_dim": 5},
        {"draft_vocab_size": 2**31},
        {"taps": tuple(range(65))},
    ):
        with pytest.raises(CorruptModel, match="the heads"):
            replace(EAGLE3, **changed)
