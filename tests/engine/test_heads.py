"""Draft heads through the whole engine: the same text, guesses from the right states, and nothing that does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import LLM, Options, SamplingParams, SpeculationParams
from paceline.core.types import Completion
from paceline.drafters.base import SequenceView
from paceline.engine import heads as module
from paceline.engine.build import choose
from paceline.errors import ModelNotFound, OptionError, UnsupportedModel, VocabularyError
from paceline.models import toy
from paceline.models.heads import Heads, HeadsConfig
from paceline.models.load import load
from paceline.models.source import Source, resolve
from paceline.runners.base import Span, Want
from paceline.runners.openvino.runner import OpenVINORunner
from tests import tiny
from tests.heads import EAGLE3, MEDUSA, make, published, write
from tests.runners import heads_reference as reference

ALWAYS = SpeculationParams(mode="always")
FEW = SamplingParams(max_tokens=20, logit_bias=dict.fromkeys(range(97, 102), 60.0))
"""Of five tokens, random heads guess one now and then."""
_SIZES: dict[str, Any] = {"target_width": 64, "vocab_size": toy.VOCAB_SIZE}
STEP = replace(
    EAGLE3, layout="speculators", width=64, draft_vocab_size=150, taps=(0,), head_dim=16, ffn_width=96, **_SIZES
)
DEEP = replace(STEP, taps=(0, 1), own_embed=True, width=32, norm_before_residual=True, tap_norms=True)
PARALLEL = replace(MEDUSA, width=64, draft_vocab_size=toy.VOCAB_SIZE, taps=(2,), depth=1, **_SIZES)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A tiny checkpoint with the toys' tokenizer beside it."""
    path = tmp_path / "tiny"
    path.mkdir()
    tiny.make("llama", path)
    toy.tokenizer()._backend.save(str(path / "tokenizer.json"))
    return path


def stored(path: Path, config: HeadsConfig, seed: int = 0) -> str:
    return str(write(path / f"{config.kind}-{seed}", *published(make(config, seed))))


def same_text(llm: LLM, drafts: bool = True) -> list[Completion]:
    """Assert that with drafts and without, alone and together, the text is one."""
    prompts = ["abc", "x", "a longer prompt than the others, by far" * 2]
    found: list[Completion] = []
    for params in (FEW, replace(FEW, temperature=0.7, seed=3), replace(FEW, temperature=1.2, top_p=0.9, seed=4)):
        plain = llm.generate(prompts, params, SpeculationParams(mode="off"))
        together = llm.generate(prompts, params, ALWAYS)
        for prompt, expected, got in zip(prompts, plain, together, strict=True):
            assert got.token_ids == expected.token_ids
            [alone] = llm.generate([prompt], params, ALWAYS)
            assert alone.token_ids == expected.token_ids
            found += [got, alone]
    for done in found if drafts else ():
        assert set(done.speculation.by_drafter) == {"heads"} and done.speculation.by_drafter["heads"].drafted
        assert not {"drafter_failed", "draft_invalid"} & {str(reason) for reason in done.speculation.reasons}
    return found


@pytest.mark.parametrize("model", ["toy:llama", "toy:gemma"])
@pytest.mark.parametrize("config", [STEP, DEEP, PARALLEL])
def test_heads_on_the_cpu_change_no_text(model: str, config: HeadsConfig, tmp_path: Path) -> None:
    if config.kind == "eagle3" and model == "toy:llama" and len(config.taps) > 1:
        config = replace(config, taps=(0,))
    config = replace(config, taps=(3,)) if config.kind == "medusa" and model == "toy:gemma" else config
    llm = LLM(model, heads=stored(tmp_path, config), drafters=("heads",), max_draft=5)
    assert llm.chosen.taps == config.taps
    found = same_text(llm)
    assert sum(done.speculation.accepted for done in found)
    drafter: Any = llm.engine.desk.drafters["heads"]
    if config.kind == "eagle3":
        drafter.pool.check()
        assert drafter.pool.available == drafter.pool.num_blocks and not drafter._states
    else:
        assert not drafter._newest


@pytest.mark.parametrize("config", [STEP, PARALLEL])
def test_heads_beside_torch_change_no_text(config: HeadsConfig, tmp_path: Path, directory: Path) -> None:
    config = replace(config, vocab_size=301, draft_vocab_size=301, taps=(1,) if config is STEP else (3,))
    llm = LLM(str(directory), runner="torch", heads=stored(tmp_path, config), drafters=("heads",), max_draft=6)
    assert llm.engine.target.info.tree_context is None, "its drafts are trees"
    found = same_text(llm)
    assert sum(done.speculation.accepted for done in found)


@pytest.mark.parametrize("config", [STEP, PARALLEL])
def test_trees_on_the_cpu_change_no_text(config: HeadsConfig, tmp_path: Path) -> None:
    """With kernels that may round as they like; in fp32 no two tokens are that close here."""
    llm = LLM("toy:llama", heads=stored(tmp_path, config), drafters=("heads",), max_draft=6, numerics="fast")
    drafter: Any = llm.engine.desk.drafters["heads"]
    propose, drafts = drafter.propose, []

    def watched(seqs: Any, limits: Any) -> Any:
        found = propose(seqs, limits)
        drafts.extend(found)
        return found

    drafter.propose = watched
    assert sum(done.speculation.accepted for done in same_text(llm))
    assert not all(draft.is_chain for draft in drafts)


def test_heads_and_the_free_drafters_fill_one_tree(tmp_path: Path) -> None:
    llm = LLM("toy:llama", heads=stored(tmp_path, STEP), max_draft=8)
    assert llm.chosen.drafters == ("grammar", "prediction", "suffix", "lookup", "heads")
    assert llm.engine.governor.costs.draft("heads", 1) > 0
    found = same_text(llm, drafts=False)
    assert sum(done.speculation.by_drafter["heads"].drafted for done in found if done.speculation.by_drafter)


class Watch:
    """Holds every draft against a pass of the target and of the heads over the whole text."""

    def __init__(self, llm: LLM, model: str, heads: Heads) -> None:
        checkpoint = load(resolve(model)).checkpoint
        assert checkpoint is not None
        self._heads, self._target = heads, OpenVINORunner(checkpoint, "fp32", taps=heads.config.taps)
        self._target.allocate(8)
        self._drafter = llm.engine.desk.drafters["heads"]
        llm.engine.desk.drafters["heads"] = self  # type: ignore[assignment]
        self.drafts = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def propose(self, seqs: Sequence[SequenceView], limits: Sequence[int]) -> Any:
        drafts = self._drafter.propose(seqs, limits)
        for seq, draft in zip(seqs, drafts, strict=True):
            assert draft.is_chain
            if draft:
                self.drafts += 1
                assert list(draft.tokens) == self._greedy(list(seq.tokens), len(draft))
        return drafts

    def _greedy(self, tokens: list[int], count: int) -> list[int]:
        taps, found = self._heads.config.taps, []
        span = Span.causal(tokens[:-1], 0, np.arange(8, dtype=np.int32), [])
        hidden = self._target.forward([span], Want(taps)).hidden
        features = reference.fuse(self._heads, np.concatenate([hidden[tap] for tap in taps], 1)).astype(np.float32)
        names = self._heads.draft_to_target
        assert names is not None
        for _ in range(count):
            embeds = self._target.embed(np.array([*tokens[1:], *found], np.int64))
            at, mask = np.arange(len(features)), np.tri(len(features), dtype=bool)
            logits, states = reference.step(self._heads, embeds, features, at, mask)
            found.append(int(names[logits[-1].argmax()]))
            features = np.concatenate([features, states[-1:].astype(np.float32)])
        return found


def test_the_guesses_are_those_of_the_targets_own_states(tmp_path: Path) -> None:
    """In prompts that are read in parts, from a shared start, after rejected and accepted drafts."""
    config = replace(STEP, taps=(0, 1))
    heads = make(config)
    llm = LLM("toy:gemma", heads=stored(tmp_path, config), drafters=("heads",), max_draft=4, prefill_rows=7)
    watch = Watch(llm, "toy:gemma", heads)
    prompts = ["ab", "a text of some length, read in parts", "a text of some length, read in parts, and then more"]
    for mode in (ALWAYS, SpeculationParams()):
        llm.generate(prompts, SamplingParams(max_tokens=16), mode)
    assert watch.drafts > 20


def test_what_the_options_come_to(tmp_path: Path) -> None:
    bare, with_heads = (choose(Options("toy:llama", heads=heads)) for heads in (None, stored(tmp_path, STEP)))
    assert bare.heads is None and bare.taps == ()
    assert with_heads.heads is not None and with_heads.taps == (0,)
    assert "heads" in with_heads.drafters and "heads" not in bare.drafters
    assert bare.memory is not None and with_heads.memory is not None
    assert with_heads.memory.draft_weights > bare.memory.draft_weights
    assert with_heads.memory.draft_kv > bare.memory.draft_kv
    off = choose(Options("toy:llama", heads=stored(tmp_path, STEP), drafters=("lookup",)))
    assert off.taps == (), "a target whose states nobody reads does not hand them out"
    assert module.precision(Options("m"), False) == "int8"
    assert module.precision(Options("m"), True) == "fp32"
    assert module.precision(Options("m", draft_weights="int4"), True) == "int4"


@pytest.mark.parametrize(
    ("config", "error", "said"),
    [
        (replace(STEP, taps=(1,)), UnsupportedModel, "layers \\[2\\] of toy:llama, which has 2"),
        (replace(STEP, target_width=32), UnsupportedModel, "width 32, and toy:llama is 64 wide"),
        (replace(STEP, vocab_size=260), VocabularyError, "vocabulary of 260, and toy:llama has 259 tokens"),
        (replace(PARALLEL, width=32, target_width=32), UnsupportedModel, "width 32, and toy:llama is 64 wide"),
    ],
)
def test_heads_of_another_model(config: HeadsConfig, error: type[Exception], said: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=said):
        choose(Options("toy:llama", heads=stored(tmp_path, config)))


def test_what_cannot_have_heads(tmp_path: Path, directory: Path) -> None:
    with pytest.raises(OptionError, match="toy:ngram is a formula; leave --heads out"):
        choose(Options("toy:ngram", heads=stored(tmp_path, STEP)))
    with pytest.raises(ModelNotFound, match="no directory"):
        choose(Options("toy:llama", heads=str(tmp_path / "none")))
    with pytest.raises(OptionError, match="draft_weights is 'int8'; heads on the torch runner"):
        choose(Options(str(directory), runner="torch", heads=stored(tmp_path, STEP), draft_weights="int8"))
    with pytest.raises(OptionError, match="name their directory with --heads"):
        LLM("toy:llama", drafters=("heads",))


def test_a_model_that_only_transformers_knows_says_its_shape_in_its_config(tmp_path: Path) -> None:
    path = tmp_path / "pigeon"
    path.mkdir()
    model = replace(load(Source("toy:llama", "toy", Path("llama"))), source=Source("p", "directory", path))
    model = replace(model, checkpoint=None)
    options = Options("p", heads=stored(tmp_path, replace(STEP, taps=(4,))), runner="torch")
    sizes = '"hidden_size": 64, "vocab_size": 259, "num_hidden_layers": 9'
    for text in (f"{{{sizes}}}", f'{{"text_config": {{{sizes}}}}}'):
        (path / "config.json").write_text(text)
        found = module.read(options, model, "torch")
        assert found is not None and found.config.taps == (4,)
    for text in ("{}", '{"text_config": 3}', '{"hidden_size": 64.0, "vocab_size": 259, "num_hidden_layers": 9}'):
        (path / "config.json").write_text(text)
        with pytest.raises(OptionError, match="does not say hidden_size, vocab_size, num_hidden_layers"):
            module.read(options, model, "torch")
