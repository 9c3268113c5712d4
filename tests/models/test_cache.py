"""Cached files are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import errno
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from paceline.errors import DiskFull, ResourceError
from paceline.models import cache
from paceline.models.cache import cached, directory

CONTENT = b"whole" * 1000


def write(file: BinaryIO) -> None:
    file.write(CONTENT)


def good(path: Path) -> bool:
    return path.is_file() and path.read_bytes() == CONTENT


def files(path: Path) -> list[str]:
    """What is in a directory beside locks."""
    return sorted(p.name for p in path.iterdir() if p.suffix != ".lock") if path.is_dir() else []


def failing(error: BaseException) -> Callable[[BinaryIO], None]:
    def write_half(file: BinaryIO) -> None:
        file.write(CONTENT[: len(CONTENT) // 2])
        file.flush()
        raise error

    return write_half


def forbidden(file: BinaryIO) -> None:
    raise AssertionError("the file is there already")


def test_a_file_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "down" / "file"
    assert cached(path, write, good) == path
    assert good(path)
    assert files(path.parent) == ["file"]
    assert cached(path, forbidden, good) == path


def test_a_damaged_file_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for damage in (b"", CONTENT[:-1], CONTENT[:100] + b"?" + CONTENT[101:], CONTENT + b"more"):
        path.write_bytes(damage)
        cached(path, write, good)
        assert good(path)


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt(), SystemExit(3), MemoryError()], ids=repr)
@pytest.mark.parametrize("before", [None, b"old"])
def test_what_is_interrupted_leaves_nothing(error: BaseException, before: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "file"
    if before is not None:
        path.write_bytes(before)
    with pytest.raises(type(error)) as raised:
        cached(path, failing(error), good)
    assert raised.value is error
    assert files(tmp_path) == ([] if before is None else ["file"])
    assert before is None or path.read_bytes() == before
    assert good(cached(path, write, good))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_said_in_one_line(code: int, tmp_path: Path) -> None:
    with pytest.raises(DiskFull, match=r"disk is full while writing file to .*PACELINE_CACHE") as raised:
        cached(tmp_path / "file", failing(OSError(code, os.strerror(code))), good)
    assert "\n" not in str(raised.value)
    assert files(tmp_path) == []


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_fills_up_at_the_end(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(DiskFull):
        cached(tmp_path / "file", write, good)
    assert files(tmp_path) == []


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    def overflow(file: BinaryIO) -> None:
        with Path("/dev/full").open("wb") as full:  # which takes nothing
            os.dup2(full.fileno(), file.fileno())
        write(file)

    with pytest.raises(DiskFull):
        cached(tmp_path / "file", overflow, good)
    assert files(tmp_path) == []


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS, errno.EACCES])
def test_other_troubles_of_the_disk(code: int, tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=rf"{os.strerror(code)}\); set PACELINE_CACHE") as raised:
        cached(tmp_path / "file", failing(OSError(code, os.strerror(code))), good)
    assert not isinstance(raised.value, DiskFull)
    assert files(tmp_path) == []


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file" / "weights", tmp_path / "file" / "deep" / "weights"):
        with pytest.raises(ResourceError, match="cannot be used") as raised:
            cached(path, write, good)
        assert "\n" not in str(raised.value)


def test_a_directory_where_the_file_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(ResourceError, match="cannot be used"):
        cached(tmp_path / "file", write, good)
    assert files(tmp_path) == ["file"]


def test_a_file_that_cannot_be_looked_at(tmp_path: Path) -> None:
    def deny(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied")

    with pytest.raises(ResourceError, match="Permission denied"):
        cached(tmp_path / "file", write, deny)


def contend(path: Path, log: Path, meet: multiprocessing.synchronize.Barrier) -> None:
    """Want a file at the same time as others do, and note whether it had to be made here."""

    def slow(file: BinaryIO) -> None:
        with log.open("a") as notes:
            notes.write(f"{os.getpid()}\n")
        file.write(CONTENT[:10])
        file.flush()
        time.sleep(0.3)
        file.write(CONTENT[10:])

    meet.wait()
    cached(path, slow, good)
    assert good(path)


def test_others_wait_for_whoever_is_first(tmp_path: Path) -> None:
    fresh = multiprocessing.get_context("spawn")
    path, log, meet = tmp_path / "file", tmp_path / "log", fresh.Barrier(3)
    processes = [fresh.Process(target=contend, args=(path, log, meet)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert len(log.read_text().splitlines()) == 1
    assert files(tmp_path) == ["file", "log"]


def test_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", "/somewhere")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("HOME", "/home/me")
    assert directory() == Path("/somewhere")
    monkeypatch.setenv("PACELINE_CACHE", "")
    assert directory() == Path("/xdg/paceline")
    monkeypatch.delenv("PACELINE_CACHE")
    assert directory() == Path("/xdg/paceline")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert directory() == Path("/home/me/.cache/paceline")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert directory() == Path("/home/me/.cache/paceline")


def test_silence(capsys: pytest.CaptureFixture[str]) -> None:
    cache.silent("converting", 1, 2)
    assert capsys.readouterr() == ("", "")
