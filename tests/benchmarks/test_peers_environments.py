"""Environments and converted models, made by a pip that is made up."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.benchmarks.scripts import BENCHMARKS, script

environments = script("peers.environments")


class Pip:
    """Stands for running commands: makes what `venv` and `pip` would, and remembers."""

    def __init__(self, fails="", works=True):
        self.ran, self.fails, self.works = [], fails, works

    def __call__(self, command, variables=None):
        said = " ".join(command[1:])
        self.ran.append((said, dict(variables or {})))
        if (self.fails and self.fails in said) or ("import" in said and not self.works):
            raise environments.Unavailable(said)
        if "venv" in said:
            python = Path(command[-1]) / "bin" / "python"
            python.parent.mkdir(parents=True)
            python.touch()
            self.works = True
        if "to_hf" in said or "export" in said:
            Path(command[-1]).mkdir()


RECIPE = environments.Recipe((("install", "a==1"), ("uninstall", "-y", "b")), "import a", (("FLAGS", "-x"),))


def test_an_environment_is_made_once(tmp_path):
    pip = Pip(works=False)
    made = environments.Environments(tmp_path, pip)
    assert made.make("e", RECIPE) == tmp_path / "e" / "bin" / "python"
    said = [each for each, _ in pip.ran]
    assert [each.split()[-1] for each in said] == [str(tmp_path / "e"), "a==1", "b", "a"]
    assert pip.ran[1][1] == {"FLAGS": "-x"}
    made.make("e", RECIPE)
    assert len(pip.ran) == len(said)
    assert (tmp_path / "e" / ".ready").read_text().strip() == RECIPE.digest


def test_what_works_is_adopted_and_another_recipe_is_made_anew(tmp_path):
    pip = Pip()
    (tmp_path / "e" / "bin").mkdir(parents=True)
    (tmp_path / "e" / "bin" / "python").touch()
    made = environments.Environments(tmp_path, pip)
    made.make("e", RECIPE)
    assert [each for each, _ in pip.ran] == ["-c import a"]
    other = environments.Recipe((("install", "a==2"),), "import a")
    assert other.digest != RECIPE.digest
    made.make("e", other)
    assert any("a==2" in each for each, _ in pip.ran)


def test_one_that_fails_is_not_marked(tmp_path):
    made = environments.Environments(tmp_path, Pip(fails="a==1"))
    with pytest.raises(environments.Unavailable, match="a==1"):
        made.make("e", RECIPE)
    made = environments.Environments(tmp_path, Pip(fails="import a"))
    with pytest.raises(environments.Unavailable, match="`import a` fails"):
        made.make("f", RECIPE)
    assert not list(tmp_path.glob("*/.ready"))


def test_a_command_that_fails_is_named():
    with pytest.raises(environments.Unavailable, match=r"-c raise SystemExit\(4\) failed"):
        environments.run([sys.executable, "-c", "raise SystemExit(4)"])
    environments.run([sys.executable, "-c", "import os; assert os.environ['A'] == 'b'"], {"A": "b"})


def test_models_are_converted_once_and_by_content(tmp_path):
    pip, gguf = Pip(), tmp_path / "m.gguf"
    gguf.write_bytes(b"weights")
    made = environments.Environments(tmp_path, pip)
    own = {("openvino", "draft"): tmp_path / "mine"}
    models = environments.Conversions(made, lambda name: tmp_path / name / "python", own)
    assert models.find(gguf, "gguf", "target") == gguf
    assert models.find(gguf, "openvino", "draft") == tmp_path / "mine"
    place = models.find(gguf, "openvino", "target")
    assert place.is_dir() and place.name == f"m-{environments.digest(gguf)}-openvino"
    assert [said.split()[0] for said, _ in pip.ran] == [str(BENCHMARKS / "peers" / "to_hf.py"), "export"]
    assert models.find(gguf, "hf", "draft").is_dir() and models.find(gguf, "openvino", "target") == place
    assert len(pip.ran) == 2
    gguf.write_bytes(b"others")
    pip.fails = "to_hf"
    with pytest.raises(environments.Unavailable):
        models.find(gguf, "hf", "target")
    assert not [each for each in (tmp_path / "models").iterdir() if each.name.startswith(".")]
