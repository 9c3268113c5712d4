"""What the README shows is run."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import paceline
from tests.server.process import process

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"^\.venv/bin/(paceline .+)$", README, re.MULTILINE)
COMMANDS = [command for command in SHOWN if re.match(r"paceline (generate|chat|inspect)", command)]
"""Those that are quick with the model that they name; test_commands.py has the others."""
ADDRESS = "http://127.0.0.1:8000"
CURLS = re.findall(r"^curl (?:.*\\\n)*.*$", README, re.MULTILINE)


def test_python_example_runs(capsys):
    (code,) = re.findall(r"```python\n(.+?)```", README, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    shown = capsys.readouterr().out
    assert len(shown.split()) > 3


@pytest.mark.parametrize("command", COMMANDS)
def test_command_runs(command):
    import shlex

    _, *arguments = shlex.split(command)
    done = subprocess.run(
        [sys.executable, "-m", "paceline", *arguments], input="Hello.\n", capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_commands_are_found():
    assert (len(COMMANDS), len(CURLS)) == (4, 2)


def test_the_server_answers_what_is_asked_of_it():
    assert "paceline serve --model demo" in SHOWN
    with process("--model", "demo") as server:
        for command in CURLS:
            here = command.replace(ADDRESS, server.url)
            assert here != command
            done = subprocess.run(["bash", "-c", here], capture_output=True, text=True, timeout=60, check=True)
            assert "error" not in json.loads(done.stdout)
        watch = [sys.executable, "-m", "paceline", "watch", server.url]
        with subprocess.Popen(watch, stdout=subprocess.PIPE, text=True) as watching:
            state = json.loads(watching.stdout.readline())
            watching.send_signal(signal.SIGINT)
            watching.stdout.read()
        assert watching.returncode == 130
        assert state["model"]["id"] and state["speculation"]["mode"] == "off", "as the last command has asked"


def test_public_names_are_exactly_these():
    assert len(set(paceline.__all__)) == len(paceline.__all__)
    assert all(getattr(paceline, name) is not None for name in paceline.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        paceline.nonsense  # noqa: B018 -- the access is the test
