"""`paceline tune` as a user types it."""

from __future__ import annotations

import json
import tomllib

import pytest

from paceline.cli.run import run
from paceline.config import Config

PAIR = ("tune", "--model", "toy:ngram", "--draft", "toy:ngram-draft", "--workload", "chat", "--prompts", "1")


def test_it_says_what_to_do_and_writes_it_down(tmp_path, capsys) -> None:
    config, numbers = tmp_path / "paceline.toml", tmp_path / "tune.json"
    code = run([*PAIR, "--max-tokens", "24", "--write", str(config), "--json", str(numbers), "--emit", "vllm"])
    shown = capsys.readouterr().out
    assert code == 0 and ("speculate with" in shown or "do not speculate" in shown)
    found = json.loads(numbers.read_text())
    assert {candidate["drafter"] for candidate in found["candidates"]} >= {"model", "suffix", "lookup"}
    assert Config.of(tomllib.loads(config.read_text())).model["model"] == "toy:ngram"
    assert ("--speculative-config" in shown) or ("nothing for vllm" in shown)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--emit", "trtllm"], "emit is 'trtllm'; allowed: vllm, sglang"),
        (["--drafters", "none"], "tune weighs drafters"),
        (["--workload", "nonsense"], "workload is 'nonsense'; allowed: ours"),
        (["--json", "no/such/dir/x"], "its directory is not there"),
    ],
)
def test_what_cannot_be_is_one_line(more, said, capsys) -> None:
    assert run([*PAIR, *more]) == 2
    assert said in capsys.readouterr().err


def test_a_file_that_is_there_is_not_touched(tmp_path, capsys) -> None:
    config = tmp_path / "paceline.toml"
    config.write_text("[model]\n")
    assert run([*PAIR, "--write", str(config)]) == 2
    assert "is there already" in capsys.readouterr().err and config.read_text() == "[model]\n"
