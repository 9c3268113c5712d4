"""A recording of guesses against guesses made by hand, and read back as the simulator reads it."""

from __future__ import annotations

import json

from hypothesis import given

from paceline import LLM, SamplingParams, SpeculationParams
from paceline.bench import recorded
from paceline.core import tree
from paceline.core.tree import Draft
from paceline.models import toy
from tests.benchmarks.scripts import PAIR, run, script
from tests.core.strategies import drafts, examples

record = script("record")


def test_entries_hold_a_chain_against_what_came():
    chain = Draft.chain([5, 6, 7], "x", [0.901, 0.5, 0.25])
    assert record.entry(chain, [5, 6, 7, 8]) == [3, 3, [0.9, 0.5, 0.25]]
    assert record.entry(chain, [5, 6, 9]) == [2, 3, [0.9, 0.5, 0.25], 7]
    assert record.entry(chain, [5]) == [1, 3, [0.9, 0.5, 0.25], 6], "beyond the end nothing is right"
    assert record.entry(Draft.chain([5], "x"), [6]) == [0, 1, 1.0, 5]
    said = [record.Asked(1, chain, 0.0), record.Asked(2, tree.EMPTY, 0.0)]
    assert record.entries(said, [4, 5, 6]) == [None, [2, 3, [0.9, 0.5, 0.25], 7], None]


@given(drafts(max_nodes=7))
@examples(100)
def test_the_branch_is_the_one_of_which_most_is_expected(draft):
    branch = record.best_branch(draft)
    survivals = tree.survivals(draft)
    hopes = [sum(survivals[n] for n in tree.path_to(draft.parents, node)) for node in range(len(draft))]
    assert branch.is_chain
    if len(draft):
        assert abs(sum(tree.survivals(branch)) - max(hopes)) < 1e-9
        paths = [tree.path_to(draft.parents, node) for node in range(len(draft))]
        assert branch.tokens in [tuple(draft.tokens[node] for node in path) for path in paths]


def test_a_recording_says_what_the_draft_model_guesses_everywhere(tmp_path):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "deep" / "out.jsonl"
    rows = [{"category": "a", "prompt": "abab"}, {"category": "b", "prompt": "cats and dogs"}]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    shown = run("record", *PAIR, "--prompts", prompts, "--max-tokens", 24, "--limit", 1, "--out", out).stdout
    costs, *lines = map(json.loads, out.read_text(encoding="utf-8").splitlines())
    assert {"passes", "other", "switch", "drafts", "reading"} == costs["costs"].keys()
    assert {"suffix", "lookup", "model"} <= lines[0]["drafts"].keys()
    llm, law = LLM("toy:ngram"), toy.law("ngram-draft")
    for row, line in zip(rows, lines, strict=True):
        prompt = llm.chat_prompt([{"role": "user", "content": row["prompt"]}])
        answer = llm.generate(prompt, SamplingParams(max_tokens=24), SpeculationParams(mode="off"))[0].token_ids
        assert (line["category"], line["prompt_tokens"]) == (row["category"], len(prompt))
        guesses = line["drafts"]["model"]
        assert len(guesses) == len(answer) and guesses[0] is None
        for at in range(1, len(answer) - 1):
            guessed = int(law.logits([*prompt, *answer[:at]]).argmax())
            right, length, *_ = guesses[at]
            assert (right, length) == (guessed == answer[at], 1)
            assert guesses[at][3:] == ([] if right else [guessed])
    assert "ms a token" in shown
    world, texts = recorded.load(out)
    assert [text.category for text in texts] == ["a", "b"]
    assert world.drafts["model"] > world.drafts["lookup"] > 0


def test_no_guess_is_verified_and_none_left_out(tmp_path):
    """A drafter that would stop early, or not be asked beside others, is asked for all."""
    out = tmp_path / "out.jsonl"
    run("record", *PAIR, "--drafters", "suffix,model", "--per-category", 1, "--max-tokens", 20, "--out", out)
    _, *lines = map(json.loads, out.read_text(encoding="utf-8").splitlines())
    assert all(all(entry is not None for entry in line["drafts"]["model"][1:-1]) for line in lines)
