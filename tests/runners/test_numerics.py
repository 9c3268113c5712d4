"""Row-count invariance: with numerics="invariant" a row's logits are the same in every bit whatever runs beside it.

Quantised kernels round differently for one row and for many; the control shows that here they do.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from paceline import LLM, SamplingParams, SpeculationParams
from paceline.core.tree import Draft
from paceline.errors import OptionError
from paceline.models.config import ModelConfig
from paceline.models.load import load
from paceline.models.source import resolve
from paceline.models.toy import RandomWeights
from paceline.models.weights import Checkpoint
from paceline.runners.base import Span, Want
from paceline.runners.openvino.quantise import Precision
from paceline.runners.openvino.runner import Numerics, OpenVINORunner

ROWS = (2, 3, 5, 8, 17)
PREFIX, BLOCKS = 20, 40
"""The longest pass crosses the border of a block of 32."""
TINY = ModelConfig(
    family="llama", vocab_size=512, width=256, layers=3, heads=4, kv_heads=2, head_dim=64, ffn_width=384, context=256
)
OFF = SpeculationParams(mode="off")
ALWAYS = SpeculationParams(mode="always", max_draft=8)
LISTS = "Count: one, two, three, four, one, two, three, four, one, two,"
STORY = "Once upon a time there was a small dog. The small dog had a red ball. One day the small dog"


@pytest.fixture(scope="module", autouse=True)
def packed_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Weights are packed once, for all workers."""
    base = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_CACHE", str((base.parent if base.name.startswith("popen-") else base) / "packed"))
        yield


@dataclass(frozen=True, eq=False)
class Bench:
    """A runner, a text, and what each of its tokens answers when decoded one by one."""

    runner: OpenVINORunner
    text: tuple[int, ...]
    alone: NDArray[np.float32]

    @classmethod
    def of(cls, runner: OpenVINORunner) -> Bench:
        dice = random.Random(4)
        text = tuple(dice.randrange(5, runner.info.vocab_size) for _ in range(PREFIX + max(ROWS)))
        runner.allocate(BLOCKS)
        answers = [
            run(runner, step(text, PREFIX + i, 1, table(0)), fill=text if not i else ()) for i in range(max(ROWS))
        ]
        return cls(runner, text, np.concatenate(answers))

    def same(self, found: NDArray[np.float32], first: int = 0) -> bool:
        return np.array_equal(found, self.alone[first : first + len(found)])


def table(first: int) -> NDArray[np.int32]:
    """Blocks that do not follow each other."""
    return np.array([first, BLOCKS - 1 - first], np.int32)


def step(text: Sequence[int], begin: int, rows: int, blocks: NDArray[np.int32]) -> Span:
    return Span.causal(text[begin : begin + rows], begin, blocks, range(rows), stepwise=True)


def run(runner: OpenVINORunner, *spans: Span, fill: Sequence[int] = ()) -> NDArray[np.float32]:
    """Return the first span's answers; `fill` is a text whose prefix is read first, for each span in turn."""
    if fill:
        for span in spans:
            runner.forward([Span.causal(fill[:PREFIX], 0, span.blocks, [])])
    logits = runner.forward(spans).logits
    return np.array(logits[: len(spans[0].wanted)])


@cache
def bench(model: str, numerics: Numerics) -> Bench:
    if model == "demo":
        checkpoint = load(resolve("demo")).checkpoint
        assert checkpoint is not None
        return Bench.of(OpenVINORunner(checkpoint, "int8", numerics))
    return Bench.of(OpenVINORunner(Checkpoint(TINY, RandomWeights(TINY)), "int4", numerics))


@pytest.fixture(params=["tiny int4", "demo"])
def invariant(request: pytest.FixtureRequest) -> Bench:
    return bench(request.param, "invariant")


def test_rows_of_a_pass_are_as_rows_alone(invariant: Bench) -> None:
    for rows in ROWS:
        found = run(invariant.runner, step(invariant.text, PREFIX, rows, table(1)), fill=invariant.text)
        assert invariant.same(found), f"{rows} rows"


@pytest.mark.parametrize("least", [2, 4, 12])
def test_rows_of_a_pass_that_is_filled_up_are_as_rows_alone(invariant: Bench, least: int) -> None:
    """One row, then several; what fills the pass up answers nothing and is cached for nobody."""
    blocks = table(1)
    invariant.runner.forward([Span.causal(invariant.text[:PREFIX], 0, blocks, [])])
    found = [
        invariant.runner.forward([step(invariant.text, PREFIX + begin, rows, blocks)], Want(rows=least)).logits.copy()
        for begin, rows in ((0, 1), (1, 3), (4, 1), (5, 8))
    ]
    assert [len(answers) for answers in found] == [1, 3, 1, 8]
    assert invariant.same(np.concatenate(found))


def test_rows_that_end_apart_are_as_rows_alone(invariant: Bench) -> None:
    """Passes of all sizes, one after the other, over the border of a block."""
    runner, text, begin = invariant.runner, invariant.text, 0
    runner.forward([Span.causal(text[:PREFIX], 0, table(2), [])])
    for rows in (3, 1, 8, 5):
        assert invariant.same(run(runner, step(text, PREFIX + begin, rows, table(2))), begin)
        begin += rows


def test_rows_beside_others_are_as_rows_alone(invariant: Bench) -> None:
    """Beside one that decodes, one that verifies, and prompts."""
    runner, text = invariant.runner, invariant.text
    for rows in (1, 8):
        mine = step(text, PREFIX, rows, table(3))
        others = {
            "one that decodes": step(text, PREFIX, 1, table(4)),
            "one that verifies": step(text[::-1], PREFIX, 12, table(5)),
            "a prompt": Span.causal(text[::-1], 0, table(6), [len(text) - 1]),
            "the end of a prompt": Span.causal(text[10:20], PREFIX, table(7), [9]),
        }
        for name, other in {**others, "nobody": mine}.items():
            spans = [mine] if other is mine else [mine, other]
            assert invariant.same(run(runner, *spans, fill=text)), f"{rows} rows beside {name}"
        assert invariant.same(run(runner, mine, *others.values(), fill=text)), f"{rows} rows beside all"


def test_rows_after_a_path_was_moved_are_as_rows_alone(invariant: Bench) -> None:
    """A draft of which every second token was right, as far as the cache is concerned."""
    runner, text, blocks = invariant.runner, invariant.text, table(8)
    runner.forward([Span.causal(text[:PREFIX], 0, blocks, [])])
    run(runner, step(text, PREFIX, 4, blocks))
    source = np.array([blocks[i // 32] * 32 + i % 32 for i in range(PREFIX, PREFIX + 4)], np.int64)
    target = np.array([9 * 32 + i % 32 for i in range(PREFIX, PREFIX + 4)], np.int64)
    runner.forward([Span.causal(text[:PREFIX], 0, table(9), [])])
    runner.move(source, target)
    assert invariant.same(run(runner, step(text, PREFIX + 4, 13, table(9))), 4)


def test_drafted_chains_are_stepwise(invariant: Bench) -> None:
    draft = Draft.chain(invariant.text[PREFIX + 1 : PREFIX + 8], "test")
    span = Span.drafted(invariant.text[PREFIX], draft, PREFIX, table(10))
    assert invariant.same(run(invariant.runner, span, fill=invariant.text))
    assert invariant.runner.info.tree_context == 0, "trees round differently, and are not verified as trees"


@pytest.mark.parametrize("weights", ["int4", "int8", "fp32"])
def test_taps_change_no_bit(weights: Precision) -> None:
    """Of prompts, of one row (beside the companion, which is no answer) and of many."""
    plain, tapped = (OpenVINORunner(Checkpoint(TINY, RandomWeights(TINY)), weights, taps=t) for t in ((), (3, 0, 1)))
    text = tuple(random.Random(1).randrange(TINY.vocab_size) for _ in range(60))
    for runner in (plain, tapped):
        runner.allocate(BLOCKS)
    for begin, rows in ((0, PREFIX), (PREFIX, 1), (PREFIX + 1, 8), (PREFIX + 9, 3)):
        span = step(text, begin, rows, table(0)) if begin else Span.causal(text[:PREFIX], 0, table(0), [0, PREFIX - 1])
        out = tapped.forward([span], Want((1, 3)))
        np.testing.assert_array_equal(out.logits, plain.forward([span]).logits)
        assert [out.hidden[layer].shape for layer in (1, 3)] == [(rows, TINY.width)] * 2
        answered = out.hidden[3] @ RandomWeights(TINY).read("embed").T
        assert np.abs(answered[span.wanted] - out.logits).mean() < 0.1 * out.logits.std()


@pytest.mark.parametrize("tap", [-1, 4])
def test_only_layers_that_are_there_may_be_tapped(tap: int) -> None:
    with pytest.raises(OptionError, match=rf"taps=\[1, {tap}\]; allowed: 0 to 3"):
        OpenVINORunner(Checkpoint(TINY, RandomWeights(TINY)), "fp32", taps=(1, tap))


def test_without_it_the_demo_rounds_differently() -> None:
    """The control: if this fails, the tests above show nothing on this machine."""
    fast = bench("demo", "fast")
    found = [run(fast.runner, step(fast.text, PREFIX, rows, table(1)), fill=fast.text) for rows in ROWS]
    assert not all(fast.same(logits) for logits in found)
    assert max(np.abs(logits - fast.alone[: len(logits)]).max() for logits in found) < 5, "it is rounding, no more"


@pytest.fixture(scope="module")
def demo(packed_once: None) -> LLM:
    return LLM("demo", numerics="invariant", max_draft=8, context=512)


@pytest.mark.parametrize(("temperature", "most"), [(0.0, 48), (0.8, 32)])
def test_the_demo_says_the_same_with_drafts_and_without(demo: LLM, temperature: float, most: int) -> None:
    """One by one and all at once; prompts that were read before come from the cache."""
    prompts = [LISTS, STORY, LISTS[:40]]
    sampling = SamplingParams(max_tokens=most, temperature=temperature, seed=5, logprobs=1)
    plain = [demo.generate(prompt, sampling, OFF)[0] for prompt in prompts]
    drafted = [demo.generate(prompt, sampling, ALWAYS)[0] for prompt in prompts[:2]]
    for name, found in {"alone": drafted, "in a batch": demo.generate(prompts, sampling, ALWAYS)}.items():
        for one, expected in zip(found, plain, strict=False):
            assert one.token_ids == expected.token_ids, name
            assert one.logprobs == expected.logprobs, name
    assert all(done.speculation.drafted == 0 for done in plain)
    assert sum(done.speculation.accepted for done in drafted) > 0


def test_a_prompt_from_the_cache_gives_the_same(demo: LLM) -> None:
    sampling = SamplingParams(max_tokens=16)
    first, second = (demo.generate(STORY * 3, sampling, ALWAYS)[0] for _ in range(2))
    assert first.token_ids == second.token_ids
    assert first.prompt_tokens > 64
