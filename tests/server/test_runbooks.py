"""The commands of the runbooks, typed as they stand there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.core.types import SpeculationParams
from paceline.engine.llm import LLM
from paceline.server.board import RUNBOOKS
from paceline.server.keys import hash_key

from .asking import ask
from .live import live

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [*sorted((DOCS / "runbooks").glob("*.md")), DOCS / "observability.md"]
KEY = "a-key-of-sixteen-or-more"
SQLITE = """#!{python}
import sqlite3, sys
for row in sqlite3.connect(f"file:{{sys.argv[-2]}}?mode=ro", uri=True).execute(sys.argv[-1]):
    print("|".join(map(str, row)))
"""
"""Stands in where SQLite's own program is not installed."""


@pytest.fixture(scope="module")
def server(kept, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runbooks")
    tables = {
        "keys": {"ann": {"sha256": hash_key(KEY), "admin": True}},
        "journal": {"file": str(folder / "journal.db")},
    }
    with live(LLM("toy:ngram", draft="toy:ngram-draft"), tables) as running:
        ask(running)
        running.hub.journal.audit(running.hub.metrics.recent[-1].id, "different", 3, None)
        assert running.hub.journal.flush()
        yield running


@pytest.fixture(scope="module")
def typed(server, tmp_path_factory):
    """Type something into a shell, beside the journal and with the key at hand."""
    programs = tmp_path_factory.mktemp("programs")
    shim = {"paceline": f'#!/bin/sh\nexec {sys.executable} -m paceline "$@"\n'}
    if shutil.which("sqlite3") is None:
        shim["sqlite3"] = SQLITE.format(python=sys.executable)
    for name, text in shim.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)

    def go(command: str) -> subprocess.CompletedProcess[str]:
        environ = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "PACELINE_API_KEY": KEY}
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command.replace("http://127.0.0.1:8000", server.url)],
            cwd=Path(server.hub.journal.stats.file).parent,
            env=environ,
            capture_output=True,
            text=True,
            timeout=100,
        )

    return go


def commands(page: Path) -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_its_commands_work(server, typed, page) -> None:
    found = commands(page)
    assert found
    for command in found:
        done = typed(command)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert done.stdout, command
        if "/admin/speculation" in command and '"mode": "off"' in command:
            assert ask(server).speculation.verified == 0, "it is off"
    server.wait(server.hub.rollback.operate(SpeculationParams("always"), "the test"))


def test_a_command_that_fails_is_seen(typed) -> None:
    assert typed("curl -sf http://127.0.0.1:8000/nowhere").returncode != 0
    assert typed('sqlite3 -readonly journal.db "SELECT nothing FROM nowhere"').returncode != 0


@pytest.mark.parametrize("name", sorted(set(RUNBOOKS.values())))
def test_every_runbook_that_an_alarm_names_is_there(name) -> None:
    text = (DOCS / "runbooks" / f"{name}.md").read_text()
    for heading in ("## Symptom", "## What the dashboard shows", "## What to type", "## Then"):
        assert heading in text
    for alarm in (alarm for alarm, runbook in RUNBOOKS.items() if runbook == name):
        assert f"`{alarm}`" in text
