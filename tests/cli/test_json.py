"""The object that `generate --json` prints, key by key as it is promised."""

from __future__ import annotations

from typing import Any

import pytest

PROMISED: dict[str, Any] = {
    "text": str,
    "token_ids": list,
    "finish_reason": str,
    "usage": {"prompt_tokens": int, "completion_tokens": int},
    "speculation": {
        "mode": str,
        "rule": str,
        "lossless": bool,
        "steps": int,
        "plain_steps": int,
        "drafted": int,
        "verified": int,
        "accepted": int,
        "accepted_at": list,
        "acceptance_length": float,
        "coverage": float,
        "by_drafter": dict,
        "draft_ms": float,
        "verify_ms": float,
        "other_ms": float,
        "wasted_ms": float,
        "saved_ms": float,
        "reasons": dict,
        "trace": list,
    },
    "timings": {
        "load_s": float,
        "prefill_ms": float,
        "decode_ms": float,
        "decode_tokens_per_s": float,
        "plain_tokens_per_s": (float, type(None)),
        "time_to_first_token_ms": float,
    },
    "model": {"id": str, "runner": str, "weights": str, "context": int},
    "draft_model": (dict, type(None)),
    "alarms": list,
    "version": str,
}
CASES = {
    "plain": ("--model", "toy:ngram", "--no-speculation"),
    "lookup": ("--model", "toy:table"),
    "pair": ("--model", "toy:ngram", "--draft", "toy:ngram-draft"),
    "network": ("--model", "toy:llama", "--draft", "toy:llama-draft"),
    "typical": ("--model", "toy:table", "--draft", "toy:table-draft", "--rule", "typical"),
}


def check(found: Any, promised: Any, where: str = "") -> None:
    if not isinstance(promised, dict):
        assert isinstance(found, promised), where
        assert not (promised is int and isinstance(found, bool)), where
        return
    assert promised.keys() <= found.keys(), where
    for key, kind in promised.items():
        check(found[key], kind, f"{where}.{key}")


@pytest.fixture(params=CASES)
def found(request, run, always):
    result = run("generate", "abcabc", *CASES[request.param], "--max-tokens", "50", "--json", "--temperature", "0.5")
    assert (result.code, result.err) == (0, "")
    assert result.out.count("\n") == 1
    return result.json


def test_every_promised_key_has_its_type(found):
    check(found, PROMISED)
    for counts in found["speculation"]["by_drafter"].values():
        check(counts, {"drafted": int, "verified": int, "accepted": int, "draft_ms": float})
    assert all(isinstance(count, int) and count for count in found["speculation"]["reasons"].values())


def test_the_counts_agree(found):
    spec, usage = found["speculation"], found["usage"]
    assert usage["completion_tokens"] == len(found["token_ids"]) == spec["accepted"] + spec["steps"]
    assert spec["drafted"] >= spec["verified"] >= spec["accepted"] == sum(spec["accepted_at"])
    assert spec["accepted"] == sum(counts["accepted"] for counts in spec["by_drafter"].values())
    assert spec["acceptance_length"] == pytest.approx(usage["completion_tokens"] / spec["steps"])
    assert spec["lossless"] == (spec["rule"] != "typical")


def test_the_trace_has_every_step(found):
    spec = found["speculation"]
    drafted, verified, accepted, reasons = zip(*spec["trace"], strict=True)
    assert len(drafted) == spec["steps"]
    assert (sum(drafted), sum(verified), sum(accepted)) == (spec["drafted"], spec["verified"], spec["accepted"])
    assert {reason for reason in reasons if reason is not None} <= spec["reasons"].keys()


def test_alarms_are_named_with_their_figures(run, alarmed):
    command = ("generate", "abc", "--model", "toy:ngram", "--max-tokens", "3")
    found = run(*command, "--json")
    assert found.json["alarms"] == [{"name": alarm.name, "text": alarm.text} for alarm in alarmed]
    assert found.err == ""


def test_the_models_are_named(run):
    found = run("generate", "abc", *CASES["network"], "--max-tokens", "3", "--json").json
    assert found["model"] == {"id": "toy:llama", "runner": "openvino", "weights": "fp32", "context": 512}
    assert found["draft_model"] == {"id": "toy:llama-draft", "runner": "openvino", "weights": "fp32", "context": 512}
    assert run("generate", "abc", *CASES["lookup"], "--max-tokens", "3", "--json").json["draft_model"] is None


def test_a_drawn_seed_is_reported_and_gives_the_text_again(run):
    command = ("generate", "abc", "--model", "toy:ngram", "--temperature", "1", "--max-tokens", "30", "--json")
    first = run(*command).json
    again = run(*command, "--seed", str(first["seed"])).json
    assert again["token_ids"] == first["token_ids"]


@pytest.mark.parametrize("options", [("--no-speculation",), ("--drafters", "none"), ("--max-draft", "0"), ()])
def test_the_mode_is_off_when_it_was_switched_off(run, options):
    spec = run("generate", "abc", "--model", "toy:ngram", "--json", "--max-tokens", "9", *options).json["speculation"]
    assert spec["mode"] == ("off" if options else "auto")
    if options:
        assert (spec["drafted"], spec["steps"], spec["plain_steps"]) == (0, 9, 9)
