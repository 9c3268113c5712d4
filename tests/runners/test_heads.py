"""Draft heads on both runners, held against plain numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from paceline.core.tree import Draft, ancestor_mask, depths, path_to
from paceline.errors import OutOfMemory
from paceline.models.config import RopeScaling
from paceline.models.heads import Heads, HeadsConfig
from paceline.runners.base import Span
from paceline.runners.heads import ParallelHead, StepHead
from paceline.runners.openvino.heads import OpenVINOParallelHead, OpenVINOStepHead
from paceline.runners.torch.heads import TorchParallelHead, TorchStepHead
from paceline.runners.torch.runner import TorchRunner
from tests import tiny
from tests.core.strategies import drafts, examples
from tests.runners import heads_reference as reference
from tests.runners.conftest import Rig

KINDS = ("openvino", "torch")
WIDTH, VOCAB = 64, 301
"""Of the target whose embeddings are read."""
PLAIN = HeadsConfig(
    kind="eagle3",
    layout="SafeAILab",
    width=WIDTH,
    target_width=48,
    vocab_size=VOCAB,
    draft_vocab_size=97,
    taps=(0, 2, 3),
    heads=4,
    kv_heads=2,
    head_dim=16,
    ffn_width=112,
)
VARIANTS = {
    "plain": PLAIN,
    "stretched": replace(PLAIN, rope_theta=5e5, rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 64), head_dim=32),
    "normed": replace(PLAIN, tap_norms=True, norm_before_residual=True, own_embed=True, kv_heads=4),
    "biased": replace(
        PLAIN,
        input_norm=True,
        norm_output=True,
        norm_epsilon=1e-2,
        kv_heads=1,
        taps=(1,),
        biases=frozenset({"q", "k", "v", "o", "gate", "up", "down"}),
        rope_scaling=RopeScaling("linear", 4.0),
    ),
}
MEDUSA = HeadsConfig("medusa", "FasterDecoding", WIDTH, WIDTH, VOCAB, 97, (3,), count=3, depth=2)
BLOCKS, SEQUENCES = 18, 3


@cache
def target(dtype: str = "fp32") -> TorchRunner:
    return TorchRunner(tiny.model("llama").to(torch.float32 if dtype == "fp32" else torch.bfloat16), dtype=dtype)  # type: ignore[arg-type]


@cache
def made(variant: str) -> Heads:
    return reference.random_heads(VARIANTS[variant])


@cache
def step_head(kind: str, variant: str) -> StepHead:
    heads = made(variant)
    return OpenVINOStepHead(heads, target().embed, "fp32") if kind == "openvino" else TorchStepHead(heads, target())


def near(found: Any, expected: Any, most: float = 1e-5) -> None:
    assert found.shape == expected.shape
    assert found.dtype == np.float32
    assert found.size == 0 or np.abs(found - expected).max() <= most * np.abs(expected).max()


@dataclass
class Cached:
    """What a sequence has cached: one row a place."""

    blocks: NDArray[np.int32]
    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    features: list[NDArray[np.float32]] = field(default_factory=list)

    def keep(self, places: Sequence[int]) -> None:
        self.tokens = [self.tokens[i] for i in places]
        self.positions = [self.positions[i] for i in places]
        self.features = [self.features[i] for i in places]

    def slots(self, places: Sequence[int]) -> NDArray[np.int64]:
        at = np.asarray(places, np.int64)
        return self.blocks[at // 32].astype(np.int64) * 32 + at % 32


class Bench:
    """A head beside the reference."""

    def __init__(self, kind: str, variant: str, seed: int = 0) -> None:
        self.heads, self.head = made(variant), step_head(kind, variant)
        self.head.allocate(BLOCKS)
        self.rng = np.random.default_rng(seed)
        tables = np.split(self.rng.permutation(BLOCKS).astype(np.int32), SEQUENCES)
        self.sequences = [Cached(table) for table in tables]

    def span(self, number: int, draft: Draft | int, wanted: Sequence[int] | None = None, first: int = 0) -> Span:
        """Rows of a sequence, a chain of so many or the nodes of a tree; they are noted as cached."""
        seq = self.sequences[number]
        cached, start = len(seq.tokens), max(seq.positions, default=first - 1) + 1
        chain = isinstance(draft, int)
        rows = draft if isinstance(draft, int) else len(draft)
        tokens = self.rng.integers(0, VOCAB, rows) if isinstance(draft, int) else np.array(draft.tokens, np.int64)
        below = np.arange(rows) if isinstance(draft, int) else np.array(depths(draft.parents), np.int64) - 1
        seq.tokens += tokens.tolist()
        seq.positions += (start + below).tolist()
        seq.features += list(self.rng.standard_normal((rows, WIDTH)).astype(np.float32))
        mask = None if isinstance(draft, int) else ancestor_mask(draft.parents)[1:, 1:]
        told = None if chain and start == cached else start + below
        answer = np.array(sorted(range(rows) if wanted is None else wanted), np.int32)
        return Span(tokens, cached, seq.blocks, answer, told, mask)

    def check(self, spans: dict[int, Span]) -> None:
        """Run spans of sequences in one pass and compare."""
        parts = [np.array(self.sequences[n].features[span.cached :]) for n, span in spans.items()]
        out = self.head.forward(list(spans.values()), np.concatenate(parts))
        expected = [self.expected(n, span) for n, span in spans.items()]
        near(out.logits, np.concatenate([logits for logits, _ in expected]))
        near(out.hidden, np.concatenate([hidden for _, hidden in expected]))

    def expected(self, number: int, span: Span) -> tuple[reference.Array, reference.Array]:
        seq, cached = self.sequences[number], span.cached
        embeds = self.heads.tensors["embed"] if self.heads.config.own_embed else target().embed(np.arange(VOCAB))
        mask = np.tri(len(seq.tokens), dtype=np.bool_)
        mask[cached:, cached:] = span.row_mask
        logits, hidden = reference.step(
            self.heads, embeds[seq.tokens], np.array(seq.features), np.array(seq.positions), mask
        )
        return logits[cached:][span.wanted], hidden[cached:]

    def accept(self, number: int, span: Span, draft: Draft, node: int) -> None:
        """Move a path of a tree together, and forget the rest of it."""
        seq, cached = self.sequences[number], span.cached
        path = [cached + i for i in path_to(draft.parents, node)]
        self.head.move(seq.slots(path), seq.slots(range(cached, cached + len(path))))
        seq.keep([*range(cached), *path])


@st.composite
def stories(draw: Any) -> list[dict[int, Any]]:
    """Passes over some sequences: chains, cut back afterwards, and trees, of which a path is kept."""
    tree = drafts(max_nodes=9, vocabulary=VOCAB).filter(len)
    part = st.one_of(st.integers(1, 7), st.integers(8, 37), tree)
    after = st.integers(0, 8)
    one = st.tuples(part, after, st.lists(st.integers(0, 6), max_size=3))
    return draw(st.lists(st.dictionaries(st.integers(0, SEQUENCES - 1), one, min_size=1), min_size=1, max_size=4))  # type: ignore[no-any-return]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", KINDS)
def test_passes_of_all_kinds_are_the_reference(kind: str, variant: str) -> None:
    @examples(25)
    @given(story=stories(), seed=st.integers(0, 1000))
    def run(story: list[dict[int, Any]], seed: int) -> None:
        bench = Bench(kind, variant, seed)
        for passed in story:
            rows = {n: part if isinstance(part, int) else len(part) for n, (part, _, _) in passed.items()}
            spans = {
                n: bench.span(n, part, sorted({i % rows[n] for i in wanted}), first=3 * n)
                for n, (part, _, wanted) in passed.items()
            }
            bench.check(spans)
            for n, (part, after, _) in passed.items():
                if isinstance(part, int):
                    seq = bench.sequences[n]
                    seq.keep(range(max(spans[n].cached, len(seq.tokens) - after)))
                else:
                    bench.accept(n, spans[n], part, after % len(part))

    run()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_may_be_run_again(kind: str) -> None:
    """A beam that grows: all of its rows run once more at each level, in their old places."""
    bench = Bench(kind, "plain")
    bench.check({0: bench.span(0, 33), 1: bench.span(1, 4)})
    draft = Draft((5, 6, 7, 8, 9, 5), (-1, -1, 0, 1, 1, 4), (1.0,) * 6, ("test",) * 6)
    for size in (2, 5, 6):
        for number in (0, 1):
            bench.sequences[number].keep(range(33 if number == 0 else 4))
        level = Draft(draft.tokens[:size], draft.parents[:size], (1.0,) * size, ("test",) * size)
        bench.check({n: bench.span(n, level) for n in (0, 1)})


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", KINDS)
def test_fused_taps_are_the_reference(kind: str, variant: str, rows: int) -> None:
    heads = made(variant)
    taps = np.random.default_rng(1).standard_normal((rows, 48 * len(heads.config.taps))).astype(np.float32)
    near(step_head(kind, variant).fuse(taps), reference.fuse(heads, taps))


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_parallel_heads_are_the_reference(kind: str, rows: int) -> None:
    heads = reference.random_heads(MEDUSA)
    head: ParallelHead = (
        OpenVINOParallelHead(heads, "fp32") if kind == "openvino" else TorchParallelHead(heads, target())
    )
    features = np.random.default_rng(1).standard_normal((rows, WIDTH)).astype(np.float32)
    assert head.count == 3
    near(head.forward(features), reference.parallel(heads, features))
    near(head.forward(features[::-1]), reference.parallel(heads, features[::-1]))


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_runners_go_on_alike_from_their_own_output(variant: str) -> None:
    texts = []
    for kind in KINDS:
        head, blocks, text = step_head(kind, variant), np.array([4, 1], np.int32), [7]
        head.allocate(BLOCKS)
        prompt = np.random.default_rng(2).integers(0, VOCAB, 40).tolist()
        taps = np.random.default_rng(3).standard_normal((40, 48 * len(VARIANTS[variant].taps))).astype(np.float32)
        out = head.forward([Span.causal(prompt, 0, blocks, [39])], head.fuse(taps))
        for place in range(40, 52):
            text.append(int(out.logits[-1].argmax()))
            out = head.forward([Span.causal(text[-1:], place, blocks, [0])], out.hidden[-1:])
        texts.append((text, np.array(out.hidden)))
    assert texts[0][0] == texts[1][0]
    near(texts[0][1], texts[1][1], 1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_reads_its_target(rigs: Callable[[str, str], Rig], kind: str) -> None:
    """Row i holds the feature of position i and the token after it; the target's states are those of transformers."""
    rig, text = rigs(kind, "llama"), tiny.tokens(40)
    heads = reference.random_heads(replace(PLAIN, target_width=WIDTH))
    runner, blocks = rig.runner, np.array([4, 1], np.int32)
    head = OpenVINOStepHead(heads, runner.embed, "fp32") if kind == "openvino" else TorchStepHead(heads, runner)
    head.allocate(BLOCKS)
    seen = rig.run(Span.causal(text, 0, rig.table(40), [39]), hidden=heads.config.taps)
    taps = np.concatenate([seen.hidden[layer] for layer in heads.config.taps], -1)
    out = head.forward([Span.causal([*text[1:], 9], 0, blocks, range(40))], head.fuse(taps))
    table = rig.oracle.model.get_input_embeddings().weight.detach().numpy()
    between, last = rig.oracle.hidden(text), seen.hidden[3]  # held to transformers in test_shared
    features = reference.fuse(heads, np.concatenate([between[0], between[2], last], -1))
    expected, _ = reference.step(heads, table[[*text[1:], 9]], features, np.arange(40), np.tri(40, dtype=np.bool_))
    near(out.logits, expected, 1e-4)


@pytest.mark.parametrize(("weights", "most"), [("bf16", 0.02), ("int8", 0.04), ("int4", 0.3)])
def test_rounded_weights_are_near(weights: Any, most: float) -> None:
    """Over a width that groups of int4 divide, and taps that they do not."""
    config = replace(PLAIN, width=256, ffn_width=384, own_embed=True, head_dim=64, target_width=72)
    heads = reference.random_heads(config)
    head = OpenVINOStepHead(heads, target().embed, weights)
    head.allocate(3)
    rng = np.random.default_rng(0)
    tokens, features = rng.integers(0, VOCAB, 50), rng.standard_normal((50, 256)).astype(np.float32)
    embeds, mask = heads.tensors["embed"][tokens], np.tri(50, dtype=np.bool_)
    expected, _ = reference.step(heads, embeds, features, np.arange(50), mask)
    out = head.forward([Span.causal(tokens.tolist(), 0, np.array([2, 0], np.int32), range(50))], features)
    assert 1e-5 < np.abs(out.logits - expected).mean() / expected.std() < most
    taps = rng.standard_normal((4, 3 * 72)).astype(np.float32)
    fused = reference.fuse(heads, taps)
    assert 1e-5 < np.abs(head.fuse(taps) - fused).mean() / fused.std() < most
    medusa = reference.random_heads(replace(MEDUSA, width=256))
    answers = reference.parallel(medusa, features)
    assert 1e-5 < np.abs(OpenVINOParallelHead(medusa, weights).forward(features) - answers).mean() < most


def test_bf16_beside_a_bf16_target_is_near() -> None:
    heads, tokens = made("plain"), np.arange(30)
    head = TorchStepHead(heads, target("bf16"))
    assert head.block_bytes * 2 == TorchStepHead(heads, target()).block_bytes == 32 * 2 * 2 * 16 * 4
    head.allocate(2)
    features = np.random.default_rng(0).standard_normal((30, WIDTH)).astype(np.float32)
    expected, _ = reference.step(heads, target().embed(tokens), features, np.arange(30), np.tri(30, dtype=np.bool_))
    out = head.forward([Span.causal(tokens.tolist(), 0, np.array([1], np.int32), range(30))], features)
    assert 1e-5 < np.abs(out.logits - expected).mean() / expected.std() < 0.05


CHANGES: dict[str, dict[str, Any]] = {
    "norm_before_residual": {"norm_before_residual": True},
    "norm_output": {"norm_output": True},
    "rope_theta": {"rope_theta": 1e3},
    "norm_epsilon": {"norm_epsilon": 1e-2},
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_reference_tells_one_wiring_from_another(change: str) -> None:
    """The control: were these the same, the tests above would not see a mistake in them."""
    heads = made("plain")
    other = replace(heads, config=replace(heads.config, **CHANGES[change]))
    rng = np.random.default_rng(0)
    embeds, features = rng.standard_normal((2, 40, WIDTH))
    rows = (embeds, features, np.arange(40), np.tri(40, dtype=np.bool_))
    differ = [
        np.abs(a - b).max() for a, b in zip(reference.step(heads, *rows), reference.step(other, *rows), strict=True)
    ]
    assert max(differ) > 1e-2


@pytest.mark.parametrize("what", ["place", "mask", "token", "feature"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_mistake_in_a_row_shows(kind: str, what: str) -> None:
    bench = Bench(kind, "plain")
    bench.check({0: bench.span(0, 20)})
    draft = Draft((5, 6, 7), (-1, -1, 0), (1.0,) * 3, ("test",) * 3)
    span = bench.span(0, draft)
    features = np.array(bench.sequences[0].features[20:])
    assert span.mask is not None
    assert span.positions is not None
    wrong = {
        "place": replace(span, positions=span.positions + np.array([0, 0, 1])),
        "mask": replace(span, mask=np.tri(3, dtype=np.bool_)),
        "token": replace(span, tokens=span.tokens[::-1].copy()),
        "feature": span,
    }[what]
    out = bench.head.forward([wrong], features[::-1].copy() if what == "feature" else features)
    expected, _ = bench.expected(0, span)
    assert np.abs(out.logits - expected).max() > 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("kind", KINDS)
def test_more_blocks_than_memory_are_refused(kind: str) -> None:
    with pytest.raises(OutOfMemory, match="1000000000000 KV blocks need"):
        step_head(kind, "plain").allocate(10**12)


def test_weights_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError

    beside = target()
    monkeypatch.setattr(torch, "tensor", full)
    for make in (TorchStepHead, TorchParallelHead):
        with pytest.raises(OutOfMemory, match="draft heads do not fit on cpu"):
            make(made("plain"), beside)
