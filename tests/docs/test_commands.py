"""Every command that a page shows is typed here, or at least read by the program that it names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.engine.llm import LLM
from tests.server import test_runbooks
from tests.server.live import live

from .known import COMMANDS, refusal
from .pages import PAGES, Command, blocks, commands, found_in, name, spoken

SHOWN = [command for page in PAGES for command in commands(page)]
ELSEWHERE = {name(page) for page in test_runbooks.PAGES}
"""Pages whose commands tests/server/test_runbooks.py types, with a journal and a key."""
READ_ONLY = {
    r"python benchmarks/": "takes minutes and models of gigabytes; tests/benchmarks runs scripts with toys",
    r"make ": "builds an environment or runs these very tests",
    r"pip install": "downloads",
    r"paceline serve": "does not end: `running` and test_readme.py have a server",
    r"paceline prove": "decodes for minutes: tests/bench/test_prove.py",
    r"paceline tune": "decodes for minutes: tests/bench/test_tune.py",
    r"paceline lab \w": "decodes for minutes: tests/bench/test_lab.py",
    r"paceline .*--drafters trigram": "needs a package of its own: tests/drafters/test_entry_point.py",
    r"paceline .*--(runner torch|device cuda)": "needs what a plain install has not",
    r'curl .*"model": "qwen3.gguf"': "needs a model that calls tools: tests/server/test_tools.py",
}
"""What is not typed, and why not; its options are checked all the same."""
ADDRESSES = re.compile(r"http://127\.0\.0\.1:800\d")
TOYS = (
    (r"(--model|--draft)[ =]\S*(?:0\.5b|DRAFT)\S*", r"\1 toy:ngram-draft"),
    (r"--model[ =]\S+", "--model toy:ngram"),
    (r"--(?:draft|heads)[ =](?!toy:)\S+", "--draft toy:ngram-draft"),
    (r"--workload \S+", "--workload chat"),
    (r"--cells \d+", "--cells 2"),
    (r"python benchmarks/record.py", f"python {Path('benchmarks/record.py').resolve()} --max-tokens 8"),
)
"""Tiny models and numbers in place of those shown."""
SHORT = {"bench": "--prompts 1 --max-tokens 4 --workload chat"}
"""What makes a command quick, where it does not say so itself."""


def reason(command: Command) -> str | None:
    return next((why for pattern, why in READ_ONLY.items() if re.match(pattern, command.text, re.DOTALL)), None)


def identity(command: Command) -> str:
    return f"{command.page}: {' '.join(command.text.split())[:60]}"


TYPED = [each for each in SHOWN if each.page not in ELSEWHERE and not reason(each)]


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A server, and a folder with what the pages speak of."""
    folder = tmp_path_factory.mktemp("typed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("PACELINE_API_KEY", raising=False)
        tables = {"journal": {"file": str(folder / "journal.db")}}
        with live(LLM("toy:ngram", draft="toy:ngram-draft"), tables) as server:
            (folder / "cat.json").write_text('{"type": "object", "properties": {"name": {"type": "integer"}}}')
            (folder / "before.py").write_text("def f():\n    return 1\n")
            (folder / "out").mkdir()
            (folder / "bin").mkdir()
            for program, rest in (("paceline", "-m paceline"), ("python", "")):
                shim = folder / "bin" / program
                shim.write_text(f'#!/bin/sh\nexec {sys.executable} {rest} "$@"\n')
                shim.chmod(0o755)
            yield server, folder


@pytest.fixture(scope="module")
def typed(running):
    server, folder = running

    def go(text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", ADDRESSES.sub(server.url, text)],
            cwd=folder,
            env=os.environ | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"},
            input="Hello.\n",
            capture_output=True,
            text=True,
            timeout=110,
        )

    return go


def small(text: str) -> str:
    """Return a command with tiny models, and at its shortest."""
    for pattern, instead in TOYS:
        text = re.sub(pattern, instead, text)
    verb = text.split()[1]
    for option in re.findall(r"--\S+ \S+", SHORT.get(verb, "")):
        if option.split()[0] not in text:
            text += f" {option}"
    if text.startswith("paceline watch") and "--once" not in text:
        text += " --once"
    return text


@pytest.mark.parametrize("command", SHOWN, ids=identity)
def test_its_options_are_known(command) -> None:
    for part in command.parts:
        if part[0] in ("paceline", "python", "make", "pip"):
            assert refusal(part) is None


@pytest.mark.parametrize("command", TYPED, ids=identity)
def test_it_works(typed, command) -> None:
    done = typed(small(command.text))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    if command.text.startswith("curl"):
        assert '"error"' not in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_in_sentences_are_known(page) -> None:
    for words in spoken(page.read_text(encoding="utf-8")):
        if words[:2] == ("python", "-m") and not words[2].startswith("paceline"):
            continue
        if words[0] == "python" or len(words) == 2 or words[1] not in COMMANDS:
            assert refusal(words if words[0] == "python" else (*words[:2], "--help")) is None, words
            continue
        named = {word for word in words[2:] if word.startswith("--")}
        assert named <= {o for p in COMMANDS[words[1]].params for o in p.opts} | {"--help"}, words


@pytest.mark.parametrize("page", [page for page in PAGES if name(page).startswith("docs/")], ids=name)
def test_python_works(running, page, monkeypatch, capsys) -> None:
    server, folder = running
    monkeypatch.chdir(folder)
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language == "python":
            code = ADDRESSES.sub(server.url, block.text).replace('model="demo"', 'model="toy:ngram"')
            exec(compile(code, name(page), "exec"), {})
            assert capsys.readouterr().out.strip()


def test_each_reason_is_needed() -> None:
    """Those of the evidence commands may wait for their pages."""
    needed = {pattern for pattern in READ_ONLY if any(re.match(pattern, each.text, re.DOTALL) for each in SHOWN)}
    assert all(re.match(r"paceline (prove|tune|lab|\.\*)|pip", pattern) for pattern in READ_ONLY.keys() - needed)


def test_there_is_much_to_type() -> None:
    assert len(SHOWN) > 60
    assert len(TYPED) > 15
    assert {"README.md", "docs/server.md", "docs/grammars.md", "docs/acceptance.md"} <= {each.page for each in TYPED}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("paceline generate x --model demo --sed 1", "--sed"),
        ("paceline generat x --model demo", "generat"),
        ("paceline generate x", "model"),
        ("paceline serve --model demo --prot 1", "--prot"),
        ("python benchmarks/pair.py --model demo --promts x", "--promts"),
        ("python benchmarks/pairs.py", "pairs.py"),
        ("python -m paceline.bench.simulate --cell x", "--cell"),
        ("make demonstration", "demonstration"),
        ("pip install ./examples/nothing", "nothing"),
        ("pip install 'paceline[nothing]'", "nothing"),
    ],
)
def test_a_wrong_command_is_seen(line, said) -> None:
    (command,) = found_in(f"# Page\n\n```\n{line}\n```\n", "page")
    (part,) = command.parts
    assert said in refusal(part)


def test_a_command_that_fails_is_seen(typed) -> None:
    assert typed("paceline generate x --model toy:nothing").returncode == 2
    assert '"error"' in typed("curl -s http://127.0.0.1:8000/v1/completions -d '{}'").stdout


def test_what_goes_on_in_the_next_line_is_one_command() -> None:
    text = "```sh\ncurl -d '{\n  \"a\": 1\n}' x\n\nmake \\\n  test  # all\n```\n\n    pip install ./x\n"
    assert [each.text for each in found_in(text, "page")] == [
        "curl -d '{\n  \"a\": 1\n}' x",
        "make \\\n  test  # all",
        "pip install ./x",
    ]
    assert [each.parts for each in found_in(text, "page")][1] == (("make", "test"),)
