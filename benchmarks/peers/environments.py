"""What peers need: an environment each, and the models in the form that each reads. Made once, then found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

HERE = Path(__file__).parent
READY = ".ready"
PIP = ("-m", "pip", "--disable-pip-version-check")
EXPORT = ("--task", "text-generation-with-past", "--weight-format", "int4", "--sym", "--group-size", "128")


class Unavailable(Exception):
    """A peer's environment or model could not be made."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an environment is made: what pip is told, one after another, and a statement that works once it is."""

    steps: tuple[tuple[str, ...], ...]
    works: str
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def digest(self) -> str:
        return blake2b(repr((self.steps, self.works, self.variables)).encode(), digest_size=8).hexdigest()


class Run(Protocol):
    """Runs a command to its end.

    Raises:
        Unavailable: it failed.
    """

    def __call__(self, command: Sequence[str], variables: Mapping[str, str] | None = None) -> None: ...


def run(command: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
    """Run, and show on stderr what it prints."""
    environment = {**os.environ, **(variables or {})}
    try:
        subprocess.run(command, env=environment, stdout=sys.stderr, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Unavailable(f"{Path(command[0]).name} {' '.join(command[1:])[:200]} failed: {error}") from None


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def directory() -> Path:
    """Return where environments are unless told otherwise: beside the cache of paceline."""
    from paceline.models import cache

    return cache.directory().with_name("paceline-peers")


@dataclass(frozen=True, slots=True)
class Environments:
    """Virtual environments below one directory."""

    root: Path
    run: Run = run

    def python(self, name: str) -> Path:
        return self.root / name / "bin" / "python"

    def make(self, name: str, recipe: Recipe) -> Path:
        """Return the environment's Python; what is there and works is adopted, what is of another recipe made anew.

        Raises:
            Unavailable: a step failed, or it does not work when all are done.
        """
        python, mark = self.python(name), self.root / name / READY
        if mark.exists() and mark.read_text(encoding="utf-8").strip() == recipe.digest:
            return python
        if mark.exists() or not self._works(python, recipe):
            self._install(name, python, recipe)
        mark.write_text(recipe.digest + "\n", encoding="utf-8")
        return python

    def _works(self, python: Path, recipe: Recipe) -> bool:
        if not python.exists():
            return False
        try:
            self.run([str(python), "-c", recipe.works])
        except Unavailable:
            return False
        return True

    def _install(self, name: str, python: Path, recipe: Recipe) -> None:
        say(f"{name}: making its environment in {python.parents[1]}; this takes minutes")
        shutil.rmtree(python.parents[1], ignore_errors=True)
        self.run([sys.executable, "-m", "venv", str(python.parents[1])])
        for step in recipe.steps:
            say(f"{name}: pip {' '.join(step)}")
            self.run([str(python), *PIP, step[0], "--quiet", *step[1:]], dict(recipe.variables))
        if not self._works(python, recipe):
            raise Unavailable(f"{name}: all is installed, yet `{recipe.works}` fails; see above")


@dataclass(frozen=True, slots=True)
class Conversions:
    """Models in the forms that peers read, made from a GGUF file and named by its content."""

    environments: Environments
    python: Callable[[str], Path]
    """Returns an environment's Python, making it first: "hf" and "genai" convert. Raises Unavailable."""
    given: Mapping[tuple[str, str], Path]
    """(form, "target" or "draft") -> a directory that is to be used as it is."""

    def find(self, gguf: Path, form: str, role: str) -> Path:
        """Return the model in this form.

        Raises:
            Unavailable: it cannot be converted.
        """
        if form == "gguf":
            return gguf
        if (form, role) in self.given:
            return self.given[form, role]
        place = self.environments.root / "models" / f"{gguf.stem}-{digest(gguf)}-{form}"
        if not place.exists():
            say(f"{gguf.name}: converting it to {form}; this takes minutes")
            self._convert(gguf, form, role, place)
        return place

    def _convert(self, gguf: Path, form: str, role: str, place: Path) -> None:
        partial = place.with_name(f".{place.name}.{os.getpid()}")
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            if form == "hf":
                self.environments.run([str(self.python("hf")), str(HERE / "to_hf.py"), str(gguf), str(partial)])
            else:
                optimum = str(self.python("genai").with_name("optimum-cli"))
                source = str(self.find(gguf, "hf", role))
                self.environments.run(
                    [optimum, "export", "openvino", "-m", source, *EXPORT, "--ratio", "1.0", str(partial)]
                )
            partial.rename(place)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def digest(path: Path) -> str:
    found = blake2b(digest_size=6)
    with path.open("rb") as file:
        while piece := file.read(1 << 24):
            found.update(piece)
    return found.hexdigest()
