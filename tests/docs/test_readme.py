"""What the README shows is run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import paceline

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\.venv/bin/(paceline .+)$", README, re.MULTILINE)


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
    assert len(COMMANDS) == 4


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text):
        if not target.startswith("http"):
            assert ((ROOT / page).parent / target).exists(), target


def test_every_reason_is_in_the_glossary():
    from paceline.governor.base import Reason

    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    assert all(f"`{reason}`" in glossary for reason in Reason)


def test_public_names_are_exactly_these():
    assert len(set(paceline.__all__)) == len(paceline.__all__)
    assert all(getattr(paceline, name) is not None for name in paceline.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        paceline.nonsense  # noqa: B018 -- the access is the test
