"""Grammars on the command line: answers of a form, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline.cli.app import app

SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}


def run(*arguments: str) -> tuple[int, str, str]:
    found = CliRunner().invoke(
        app, ["generate", "?", "--model", "toy:chaos", "--raw", *arguments], standalone_mode=False
    )
    code = found.return_value if isinstance(found.return_value, int) else found.exit_code
    return code, found.stdout, found.stderr


def test_an_answer_fits_the_schema(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA))
    code, text, _ = run(
        "--json-schema", str(file), "--json", "--max-tokens", "400", "--temperature", "1", "--seed", "3"
    )
    assert code == 0
    answer = json.loads(text)
    assert answer["finish_reason"] == "stop"
    assert json.loads(answer["text"]) in ({"a": 1}, {"a": 2})


def test_an_expression_and_a_lark_grammar(tmp_path: Path) -> None:
    file = tmp_path / "g.lark"
    file.write_text('start: "left" | "right"')
    assert json.loads(run("--regex", "(up|down)", "--json")[1])["text"] in ("up", "down")
    assert json.loads(run("--grammar", str(file), "--json")[1])["text"] in ("left", "right")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--regex", "a", "--grammar", "x.lark"], "give one of them"),
        (["--json-schema", "nowhere.json"], "cannot be read"),
        (["--regex", "("], "cannot be used"),
        (["--regex", ""], "1 or more"),
    ],
)
def test_what_cannot_be_used_is_one_line(arguments: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    from paceline.cli.run import run as command

    assert command(["generate", "?", "--model", "toy:chaos", "--raw", *arguments]) == 2
    error = capfd.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert len(error.strip().splitlines()) == 1
