"""What is predicted from one run: exact where the world is simple, and what other servers are told."""

from __future__ import annotations

import json
import math
import shlex
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import LLM, SamplingParams
from paceline.bench.modes import Mode, Modes
from paceline.bench.trials import Ask, take
from paceline.bench.tune import emit, write
from paceline.bench.tune.predict import Drafting, Observed, at_batch, cut, over_all, predicted, ratio
from paceline.bench.tune.tune import Advice, Candidate, Choice
from paceline.config import Config

traces = st.lists(
    st.integers(0, 8).flatmap(lambda v: st.tuples(st.just(v), st.integers(0, v))), min_size=1, max_size=30
)


def test_a_long_step_is_cut_into_short_ones() -> None:
    assert cut([(8, 8)], 8) == [(8, 8)]
    assert cut([(8, 8)], 4) == [(4, 4), (4, 3)]
    assert cut([(8, 5)], 2) == [(2, 2), (2, 2)]
    assert cut([(8, 5)], 4) == [(4, 4), (4, 0)]
    assert cut([(8, 0), (0, 0)], 4) == [(4, 0), (0, 0)]
    assert cut([(3, 2)], 0) == [(0, 0)] * 3


@given(traces, st.integers(0, 8))
def test_the_text_stays_as_long_and_no_draft_is_longer(trace: list[tuple[int, int]], length: int) -> None:
    steps = cut(trace, length)
    assert sum(taken + 1 for _, taken in steps) == sum(taken + 1 for _, taken in trace)
    assert all(0 <= taken <= verified <= length for verified, taken in steps)
    assert length < 8 or steps == trace


def linear(rows: int) -> float:
    return 1 + 0.1 * (rows - 1)


def observed(trace: list[tuple[int, int]], draft: float = 0.0) -> Observed:
    verify = sum(linear(1 + verified) for verified, _ in trace)
    return Observed("a", 1.0, 1.0, tuple(trace), draft * sum(v for v, _ in trace), verify, 0.0)


def test_at_the_known_length_it_is_what_was_seen() -> None:
    seen = observed([(4, 4), (4, 0), (4, 2)], draft=0.05)
    took = seen.verify_s + seen.draft_s
    assert ratio(seen, 8, linear, Drafting(0.05, 0.0)) == pytest.approx(9 / took)


def test_a_shorter_length_costs_and_gains_less() -> None:
    seen = observed([(8, 0)] * 10)
    assert ratio(seen, 8, linear, Drafting(0, 0)) == pytest.approx(1 / 1.8)
    assert ratio(seen, 1, linear, Drafting(0, 0)) == pytest.approx(1 / 1.1)


def test_reading_the_prompt_is_paid_once() -> None:
    seen = Observed("a", 1.0, 1.0, ((2, 2),) * 4, 4 * 2 * 0.1 + 3.0, 4 * linear(3), 0.0)
    steps = cut(seen.trace, 1)
    assert steps == [(1, 1), (1, 0)] * 4
    assert ratio(seen, 1, linear, Drafting(0.1, 0.0)) == pytest.approx(12 / (3.0 + 8 * 0.1 + 8 * linear(2)))


def test_categories_stand_alone_and_count_alike() -> None:
    seen = [observed([(1, 1)] * 5), *[Observed("b", 1.0, 1.0, ((1, 0),) * 5, 0.0, 5 * linear(2), 0.0)] * 3]
    found = predicted(seen, 1, linear, Drafting(0, 0))
    assert found["a"].ratio == pytest.approx(2 / 1.1) and found["b"].ratio == pytest.approx(1 / 1.1)
    assert over_all(found) == pytest.approx(math.sqrt(2) / 1.1)
    assert found["b"].low == pytest.approx(found["b"].high)


def test_larger_batches_pay_for_their_rows() -> None:
    seen = [observed([(4, 2)] * 10)]
    ratios = [at_batch(seen, 4, batch, linear, Drafting(0, 0), batch) for batch in (1, 4, 16)]
    assert ratios[0] == pytest.approx(3 / linear(5))
    assert ratios == sorted(ratios, reverse=True)
    level = [Observed("a", 1.0, 1.0, ((4, 2),) * 10, 0.0, 10.0, 0.0)]
    flat = [at_batch(level, 4, batch, lambda rows: 1.0, Drafting(0, 0), batch) for batch in (1, 16)]
    assert flat == pytest.approx([3.0, 3.0])


@pytest.mark.parametrize("length", [1, 2, 4])
def test_a_run_at_one_length_foresees_the_steps_of_another(length: int) -> None:
    llm = LLM("toy:ngram", draft="toy:ngram-draft", drafters=("model",), keep_costs=False)
    modes, sampling = Modes(llm, SamplingParams()), SamplingParams(400, seed=1, ignore_eos=True)
    asks = [Ask("a", (97 + i, 98, 99), sampling) for i in range(6)]

    def steps(mode: str) -> list[tuple[int, int]]:
        done = take(modes, Mode.parse(mode), asks, 1).done
        return [(step.verified, step.accepted) for each in done for step in each.speculation.trace]

    foreseen, real = cut(steps("model:8"), length), steps(f"model:{length}")
    # Shorter drafts begin at other places, some of which are harder.
    assert len(foreseen) == pytest.approx(len(real), rel=0.15)
    assert sum(v for v, _ in foreseen) == pytest.approx(sum(v for v, _ in real), rel=0.15)


def advice(ratio: float, by_batch: tuple[tuple[int, int, float], ...] = ((1, 4, 1.5), (8, 0, 0.9))) -> Advice:
    from paceline.bench.provenance import provenance
    from paceline.bench.stats import Ratio

    choice = Choice("model", "dir/draft", 4, ratio, {"code": Ratio(ratio, ratio - 0.1, ratio + 0.1)})
    return Advice(provenance(), "dir/target", (Candidate("model", "dir/draft", 1 << 20, (choice,), by_batch),), {})


def test_the_file_is_a_configuration(tmp_path) -> None:
    text = write.toml(advice(1.5))
    config = Config.of(tomllib.loads(text))
    assert config.model == {"model": "dir/target", "draft": "dir/draft", "max_draft": 8}
    assert config.speculation.mode == "auto" and "From 8 at a time on" in text


def test_do_not_speculate_is_an_answer() -> None:
    found = advice(1.0)
    assert not found.pays
    config = Config.of(tomllib.loads(write.toml(found)))
    assert config.speculation.mode == "off" and "draft" not in config.model
    assert json.loads(json.dumps(found.as_json()))["pays"] is False


def test_a_schedule_has_no_gaps() -> None:
    assert emit.schedule([(1, 4), (2, 4), (4, 2), (8, 0), (16, 0)]) == [
        (1, 3, 4),
        (4, 7, 2),
        (8, emit.LARGEST_BATCH, 0),
    ]


def test_what_vllm_is_told() -> None:
    flag, config = shlex.split(emit.vllm("d", [(1, 4), (8, 0)]))
    assert flag == "--speculative-config"
    assert json.loads(config) == {
        "method": "draft_model",
        "model": "d",
        "num_speculative_tokens": 4,
        "num_speculative_tokens_per_batch_size": [[1, 7, 4], [8, emit.LARGEST_BATCH, 0]],
    }
    assert json.loads(shlex.split(emit.vllm(None, [(1, 3)]))[1])["method"] == "ngram"
    assert emit.vllm("d", [(1, 0)]) == emit.sglang("d", [(1, 0)]) == ""


def test_what_sglang_is_told() -> None:
    assert shlex.split(emit.sglang("d", [(1, 4)])) == [
        *("--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", "d"),
        *("--speculative-num-steps", "4", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "5"),
    ]
