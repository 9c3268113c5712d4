from __future__ import annotations

import json
from dataclasses import replace

import pytest

from paceline.engine import memory
from tests.heads import EAGLE3, MEDUSA, make, published, write

PAIR = ("inspect", "--model", "toy:llama", "--draft", "toy:llama-draft")


@pytest.fixture(autouse=True)
def nothing_is_loaded(monkeypatch) -> None:
    from paceline.runners.openvino.runner import OpenVINORunner

    def loaded(self, *args, **kwargs):
        raise AssertionError("inspect loads no model")

    monkeypatch.setattr(OpenVINORunner, "__init__", loaded)


def test_a_pair_that_would_run(run):
    result = run(*PAIR)
    assert (result.code, result.err) == (0, "")
    for part in ("78,336", "llama", "openvino: the default", "native", "512 tokens", "lookup, model", "usable"):
        assert part in result.out
    assert "\x1b" not in result.out


def test_the_same_as_json(run):
    found = run(*PAIR, "--json").json
    model = {
        "id": "toy:llama",
        "architecture": "llama",
        "parameters": 78336,
        "layers": 2,
        "context": 512,
        "trained_context": 512,
        "vocabulary": 259,
        "chat_template": True,
        "runner": "openvino",
        "weights": "fp32",
        "can_rewind": True,
    }
    assert model.items() <= found["model"].items()
    assert found["draft_model"]["id"] == "toy:llama-draft"
    assert found["vocabulary"]["kind"] == "native"
    assert found["drafters"]["used"] == ["grammar", "prediction", "suffix", "lookup", "model"]
    assert (found["usable"], found["problems"], found["unknown"]) == (True, [], [])
    sizes = found["memory"]
    names = ("weights", "kv", "draft_weights", "draft_kv", "logits", "remembered", "program")
    assert sizes["total_bytes"] == sum(sizes[f"{name}_bytes"] for name in names)
    assert sizes["fits"] is True
    assert sizes["kv_tokens"] == 512


def test_more_sequences_need_more_memory(run):
    one, four = (run(*PAIR, "--json", "--sequences", n).json["memory"] for n in ("1", "4"))
    assert four["kv_bytes"] == 4 * one["kv_bytes"]


def test_keys_and_values_in_bytes_need_less(run):
    usual, small = (
        run("inspect", "--model", "toy:llama", "--weights", "int8", "--kv", kv, "--json").json["memory"]
        for kv in ("f16", "u8")
    )
    assert usual["kv_tokens"] == small["kv_tokens"]
    assert small["kv_bytes"] < usual["kv_bytes"]


def test_a_shorter_context_needs_less(run):
    assert run(*PAIR, "--json", "--context", "128").json["memory"]["kv_tokens"] == 128


def test_what_does_not_fit_is_code_1(run, monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda: 1 << 20)
    result = run(*PAIR)
    assert result.code == 1
    assert "no" in next(line for line in result.out.splitlines() if line.startswith("fits"))
    assert "not usable: about" in result.out
    found = run(*PAIR, "--json").json
    assert (found["usable"], found["memory"]["fits"]) == (False, False)


def heads(path, config):
    return str(write(path / config.kind, *published(make(config))))


def test_heads_that_fit(run, tmp_path):
    config = replace(EAGLE3, layout="speculators", width=64, target_width=64, vocab_size=259, draft_vocab_size=99)
    directory = heads(tmp_path, replace(config, taps=(0, 1)))
    result = run("inspect", "--model", "toy:gemma", "--heads", directory)
    assert (result.code, result.err) == (0, "")
    shown = " ".join(result.out.split())
    for part in ("EAGLE-3, in the layout of speculators", "yes: 64 wide, 259 tokens", "after layers 0, 1", "99 of"):
        assert part in shown
    found = run("inspect", "--model", "toy:gemma", "--heads", directory, "--json").json
    assert found["heads"]["kind"] == "eagle3"
    assert found["heads"]["taps"] == [0, 1]
    assert found["drafters"]["used"][-1] == "heads"
    bare = run("inspect", "--model", "toy:gemma", "--json").json
    assert bare["heads"] is None and "heads" not in bare["drafters"]["used"]
    for name in ("draft_weights_bytes", "draft_kv_bytes", "logits_bytes"):
        assert found["memory"][name] > bare["memory"][name]


def test_heads_that_do_not_fit_are_code_1_and_say_why(run, tmp_path):
    directory = heads(tmp_path, MEDUSA)
    result = run("inspect", "--model", "toy:llama", "--heads", directory)
    assert result.code == 1
    assert "heads for a target of width 20, and toy:llama is 64 wide" in " ".join(result.out.split())
    found = run("inspect", "--model", "toy:llama", "--heads", directory, "--drafters", "lookup,heads", "--json").json
    assert (found["usable"], found["heads"], found["drafters"]["used"]) == (False, None, ["lookup"])
    [problem] = found["problems"]
    assert problem.startswith(directory)


def test_a_toy_that_is_a_formula(run):
    result = run("inspect", "--model", "toy:ngram")
    assert result.code == 0
    assert "next to none" in result.out
    found = run("inspect", "--model", "toy:ngram", "--json").json
    assert (found["memory"], found["vocabulary"], found["draft_model"]) == (None, None, None)
    assert found["model"]["runner"] == "toy"


def test_windows_are_told_apart_from_full_attention(run):
    assert "full attention in 1, a window of 16 tokens in 2" in " ".join(
        run("inspect", "--model", "toy:gemma").out.split()
    )


def test_what_only_torch_can_run_says_what_is_unknown(run, directory):
    (directory / "config.json").write_text(json.dumps({"architectures": ["PigeonForCausalLM"]}))
    result = run("inspect", "--model", str(directory))
    assert result.code == 0
    assert "PigeonForCausalLM" in result.out
    assert "unknown until it is loaded: whether it can rewind" in result.out
    found = run("inspect", "--model", str(directory), "--json").json
    assert (found["memory"], found["model"]["runner"], found["model"]["can_rewind"]) == (None, "torch", None)


def test_without_torch_it_would_not_run(run, directory, monkeypatch):
    from paceline.cli import survey

    (directory / "config.json").write_text(json.dumps({"architectures": ["PigeonForCausalLM"]}))
    monkeypatch.setattr(survey.importlib.util, "find_spec", lambda name: None)
    result = run("inspect", "--model", str(directory))
    assert result.code == 1
    assert "pip install 'paceline[torch]'" in result.out


def test_no_chat_template_is_said(run, directory):
    (directory / "config.json").write_text(json.dumps({"architectures": ["PigeonForCausalLM"]}))
    (directory / "tokenizer_config.json").unlink()
    assert "no: use --raw" in run("inspect", "--model", str(directory)).out
