"""What servers publish, brought to our definitions."""

from __future__ import annotations

import pytest

from paceline.bench.published import Published, of_answers, of_metrics, samples, total

VLLM = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {drafts}.0
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="m"}} {verified}.0
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {accepted}.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="0"}} {first}.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="1"}} {second}.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="2"}} 5.0
"""


def vllm(drafts: int, verified: int, accepted: int, first: int, second: int) -> str:
    return VLLM.format(drafts=drafts, verified=verified, accepted=accepted, first=first, second=second)


BEFORE, AFTER = vllm(10, 30, 20, 10, 5), vllm(14, 42, 28, 15, 8)


class TestVllm:
    def test_what_rose_in_between_counts(self):
        found = of_metrics(BEFORE, AFTER, [12], 20)
        assert found == Published("vllm", 12, 8, 12, 20, (5, 3))
        assert found.acceptance_length == 20 / 12 and found.acceptance_rate == 8 / 12

    def test_passes_without_a_draft_are_passes(self):
        """vLLM itself says 1 + 8/4 = 3: of drafts alone."""
        assert of_metrics(BEFORE, AFTER, [12], 20).acceptance_length != pytest.approx(3)

    def test_accepted_tokens_behind_the_end_are_no_text(self):
        """Nine pieces were nine passes or more, so that two of eight accepted tokens were cut off."""
        assert of_metrics(BEFORE, AFTER, [5, 4], 15).passes == 9

    def test_merged_pieces_are_not_believed(self):
        assert of_metrics(BEFORE, AFTER, [1, 1], 20).passes == 12

    def test_a_server_that_began_anew_says_nothing(self):
        assert of_metrics(AFTER, BEFORE, [12], 20) is None

    def test_names_without_total(self):
        old, new = BEFORE.replace("_total", ""), AFTER.replace("_total", "")
        assert of_metrics(old, new, [12], 20) == of_metrics(BEFORE, AFTER, [12], 20)

    def test_engines_are_summed(self):
        both = [page + page.replace('engine="0"', 'engine="1"') for page in (BEFORE, AFTER)]
        found = of_metrics(*both, [24], 40)
        assert (found.verified, found.accepted, found.accepted_at) == (24, 16, (10, 6))


class TestSglang:
    def test_verifying_passes_and_those_of_prompts(self):
        page = 'sglang:spec_verify_calls_total{{tp_rank="0"}} {}\nsglang:spec_accept_length{{tp_rank="0"}} 9.5\n'
        found = of_metrics(page.format(40), page.format(58), [3, 3], 50)
        assert (found.passes, found.acceptance_length) == (20, 2.5)
        assert found.accepted is found.verified is found.acceptance_rate is None

    def test_an_older_one_has_the_length_alone(self):
        page = 'sglang:spec_accept_length{dp_rank="0"} 2.0\nsglang:spec_accept_length{dp_rank="1"} 3.0\n'
        assert of_metrics(page, page, [3], 50).acceptance_length == 2.5

    def test_zero_is_no_length(self):
        page = "sglang:spec_accept_length 0.0\n"
        assert of_metrics(page, page, [3], 50) is None


class TestLlama:
    def test_answers_that_drafted_and_one_that_did_not(self):
        drafted = {"predicted_n": 30, "draft_n": 24, "draft_n_accepted": 18}
        found = of_answers([{}, {}], [drafted, {"predicted_n": 10}])
        assert found == Published("llama.cpp", 24, 18, 22, 40)

    def test_counters_have_the_same_names_and_no_use_for_pieces(self):
        old, new = BEFORE.replace("vllm:", "llamacpp:"), AFTER.replace("vllm:", "llamacpp:")
        assert of_metrics(old, new, [20], 20) == Published("llama.cpp", 12, 8, 12, 20, (5, 3))


SAID = {"drafted": 9, "verified": 8, "accepted": 6, "steps": 4, "accepted_at": [4, 2], "draft_ms": 1.0,
        "verify_ms": 2.0, "other_ms": 0.5, "wasted_ms": 0.25}  # fmt: skip


class TestOurs:
    def test_every_count_is_summed(self):
        found = of_answers([{"speculation": SAID}] * 2, [{}, {}])
        assert found == Published("paceline", 16, 12, 8, 20, (8, 4), None, 18, 2.0, 4.0, 1.0, 0.5)

    def test_an_answer_that_says_nothing_makes_all_unknown(self):
        assert of_answers([{"speculation": SAID}, {}], [{}, {}]) is None

    @pytest.mark.parametrize("nonsense", [{}, {"accepted_at": "xyz", "steps": "9", "verified": True, "draft_ms": []}])
    def test_nonsense_counts_nothing(self, nonsense):
        found = of_answers([{"speculation": nonsense}], [{}])
        assert found.acceptance_length is None and found.acceptance_rate is None


def test_depths_of_several_lengths_are_summed():
    assert total([Published("a", accepted_at=(3, 2)), Published("a", accepted_at=(1,))]).accepted_at == (4, 2)


def test_a_sum_of_what_not_all_say_is_unknown():
    assert total([Published("a", verified=3), Published("a")]).verified is None
    assert total([]).by == ""


@pytest.mark.parametrize("line", ["", "# TYPE a counter", "a{", 'a{b="}"} x', "a", "{} 1", 'a{b="c} 1', "\x00 1"])
def test_lines_that_are_no_samples_are_passed_over(line):
    assert samples(f"{line}\nb 2\n") == {"b": {"": 2.0}}


def test_braces_and_quotes_within_labels():
    assert samples('a{b="}\\"{",c="d"} 1\n') == {"a": {'b="}\\"{",c="d"': 1.0}}
