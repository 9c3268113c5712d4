"""Results are written whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from paceline.bench import files
from paceline.errors import DiskFull, OptionError


def names(place: Path) -> list[str]:
    return sorted(os.listdir(place))


def test_what_was_there_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    for text in ("first, and longer", "zweite ü"):
        files.write(path, text)
        assert path.read_text(encoding="utf-8") == text
    assert names(tmp_path) == ["out.json"] and path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")
    inside = Path.open

    def broken(self: Path, *args: Any, **options: Any) -> Any:
        file = inside(self, *args, **options)
        if self.name.startswith(".out.json."):
            file.write("ha")

            def fail(_: str) -> int:
                raise OSError(number, os.strerror(number))

            file.write = fail
        return file

    monkeypatch.setattr(Path, "open", broken)
    with pytest.raises(OptionError if number == errno.EIO else DiskFull, match=r"out\.json"):
        files.write(path, "half of it")
    assert path.read_text() == "old" and names(tmp_path) == ["out.json"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a Linux device")
def test_a_device_is_written_to_and_not_replaced() -> None:
    files.require("/dev/full", "/dev/null")
    files.write(Path("/dev/null"), "a")
    with pytest.raises(DiskFull, match="its disk is full"):
        files.write(Path("/dev/full"), "a")
    assert Path("/dev/null").is_char_device() and Path("/dev/full").is_char_device()


def test_what_is_no_unicode_is_written_as_an_escape(tmp_path: Path) -> None:
    files.write(tmp_path / "a", '"a\udcffb"')
    assert (tmp_path / "a").read_bytes() == b'"a\\udcffb"'


def test_a_place_is_checked_without_leaving_anything(tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text("old")
    files.require(str(tmp_path / "new.json"), None, str(old))
    assert names(tmp_path) == ["old.json"] and old.read_text() == "old"


@pytest.mark.parametrize(("name", "why"), [("no/x", "No such file"), ("", "is a directory"), ("y" * 300, "too long")])
def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path, name: str, why: str) -> None:
    for act in (lambda path: files.require(str(path)), lambda path: files.write(path, "a")):
        with pytest.raises(OptionError, match=f"{why}|Is a directory|busy") as caught:
            act(tmp_path / name)
        assert "\n" not in str(caught.value)
    assert names(tmp_path) == []
