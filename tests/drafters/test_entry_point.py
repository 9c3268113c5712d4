"""A drafter of another package, installed for real: found by its entry point, and counted under its name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PACKAGE = Path(__file__).parents[2] / "examples" / "ngram_drafter"
SCRIPT = """
import json
from paceline import LLM, SamplingParams, SpeculationParams
llm = LLM("toy:table", drafters=("trigram",))
found = []
for mode in ("off", "always"):
    sampling = SamplingParams(max_tokens=200, temperature=0.6, seed=2, ignore_eos=True)
    done = llm.generate("abcabc", sampling, SpeculationParams(mode=mode, max_draft=5))[0]
    counts = {name: [c.drafted, c.verified, c.accepted] for name, c in done.speculation.by_drafter.items()}
    found.append([list(done.token_ids), counts, done.speculation.reasons])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Install the package beside this environment, and return one in which it is found."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    shutil.copytree(PACKAGE, source, dirs_exist_ok=True)  # a build leaves files in its source
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    alone = ["--no-deps", "--no-index", "--no-build-isolation", "--target", str(target)]
    done = subprocess.run([*pip, *alone, str(source)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    cache = tmp_path_factory.mktemp("cache")
    path = os.pathsep.join(filter(None, (str(target), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path, "PACELINE_CACHE": str(cache)}


def python(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=100)


def found(environment: dict[str, str], *arguments: str) -> Any:
    done = python(environment, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_drafts_and_changes_no_text(installed: dict[str, str]) -> None:
    (plain, nothing, _), (tokens, counts, reasons) = found(installed, "-c", SCRIPT)
    assert tokens == plain
    assert nothing == {}
    [(name, (drafted, verified, accepted))] = counts.items()
    assert name == "trigram"
    assert drafted >= verified > accepted > 10
    assert "drafter_failed" not in reasons
    assert "draft_invalid" not in reasons


@pytest.mark.parametrize("drafters", ["trigram", "lookup,trigram"])
def test_on_the_command_line(installed: dict[str, str], drafters: str) -> None:
    command = ("-m", "paceline", "generate", "abcabc", "--model", "toy:ngram", "--max-tokens", "90", "--json")
    text = found(installed, *command, "--no-speculation")["text"]
    assert found(installed, *command, "--drafters", drafters)["text"] == text
    shown = python(installed, "-m", "paceline", "inspect", "--model", "toy:ngram", "--drafters", drafters).stdout
    assert "trigram" in shown


def test_where_it_is_not_installed_it_is_not_known(installed: dict[str, str]) -> None:
    bare = installed | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    done = python(bare, "-m", "paceline", "generate", "a", "--model", "toy:ngram", "--drafters", "trigram")
    assert done.returncode == 2
    assert "drafters has 'trigram'; allowed: " in done.stderr
