"""Past outputs: what is forgotten when room is short, and files, whole, damaged and hostile."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.drafters import history as module
from paceline.drafters.history import History
from paceline.errors import DiskFull, HistoryError, OptionError, ResourceError
from tests.core.strategies import examples

SAID = {"a": [[1, 2, 3], [4]], "": [[5, 6]], "käse \ud800": [[7, 151_935, 2**31 - 1]]}


def filled(said: dict[str, list[list[int]]] = SAID, **bounds: int) -> History:
    history = History(**bounds)
    for tenant, outputs in said.items():
        for output in outputs:
            history.add(tenant, output)
    return history


def contents(history: History) -> dict[str, list[list[int]]]:
    return {tenant: corpus.pieces() for tenant, corpus in vars(history)["_past"].items()}


def signed(*rows: object) -> bytes:
    body = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    return body + json.dumps({"sha256": hashlib.sha256(body).hexdigest()}).encode()


HEADER = {"paceline": "history", "version": 1, "shared": False}


def test_the_quiet_are_forgotten_first() -> None:
    history = filled(tenants=2)
    assert list(contents(history)) == ["", "käse \ud800"]
    history.touch("")
    history.add("new", [1])
    assert contents(history) == {"": [[5, 6]], "new": [[1]]}
    history.touch("nobody")
    assert history.of("nobody") is None


def test_the_oldest_text_goes_first() -> None:
    history = filled({"a": [[1, 2], [3, 4, 5], [6]]}, tenant_tokens=5)
    assert contents(history) == {"a": [[4, 5], [6]]}
    history = filled({"a": [[1, 2], [3, 4]], "b": [[5, 6]]}, tokens=7)
    assert contents(history) == {"a": [[3, 4]], "b": [[5, 6]]}, "of whoever was quiet for the longest time"
    assert len(history) == 6
    history.add("b", [7, 8, 9])
    assert contents(history) == {"b": [[5, 6], [7, 8, 9]]}
    history.add("b", range(100))
    assert contents(history) == {"b": [[*range(94, 100)]]}
    history.add("b", [])
    assert len(history) == 7


def test_all_are_one_when_shared() -> None:
    history = History(shared=True)
    history.add("a", [1])
    history.add("b", [2])
    assert contents(history) == {"": [[1], [2]]}
    assert history.of("c") is history.of("a")


@pytest.mark.parametrize("name", ["tenants", "tenant_tokens", "tokens"])
def test_bounds_are_checked(name: str) -> None:
    with pytest.raises(OptionError, match=rf"{name} is 0; allowed: 1 or more"):
        History(**{name: 0})


@given(
    st.dictionaries(st.text(max_size=3), st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=4), max_size=4)),
    st.integers(1, 20),
)
@examples(60)
def test_what_is_saved_is_loaded(said: dict[str, list[list[int]]], fewer: int) -> None:
    """Also into less room than it came from."""
    with TemporaryDirectory() as directory:
        path = Path(directory, "past")
        saved = filled(said)
        saved.save(path)
        for bounds in ({}, {"tokens": fewer}, {"tenants": fewer}):
            loaded = filled(**bounds)
            loaded.load(path)
            plain = filled({t: p for t, p in contents(saved).items() if p}, **bounds)
            assert contents(loaded) == contents(plain)
            assert list(contents(loaded)) == list(contents(plain)), "and who is quiet"


@given(st.data())
@examples(200)
def test_a_damaged_file_is_refused(data: st.DataObject) -> None:
    """One byte changed, or the end lost; what was remembered before is not touched."""
    with TemporaryDirectory() as directory:
        path = Path(directory, "past")
        filled().save(path)
        good = path.read_bytes()
        place = data.draw(st.integers(0, len(good) - 2))  # the last line feed says nothing
        byte = bytes([good[place] ^ data.draw(st.integers(1, 255))])
        path.write_bytes(data.draw(st.sampled_from([good[:place], good[:place] + byte + good[place + 1 :]])))
        history = filled({"kept": [[1]]})
        with pytest.raises(HistoryError, match=r"^[^\n]+$"):
            history.load(path)
        assert contents(history) == {"kept": [[1]]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not JSON"),
        (b"\n\n", "not JSON"),
        (b"[" * 200_000 + b"\n{}", "not JSON"),
        (b"\x80\x04\x95c", "not JSON"),
        (b"1" * 5000 + b"\n{}", "not JSON"),
        (signed([HEADER]), "not a history of version 1"),
        (signed(HEADER | {"version": 2}), "not a history of version 1"),
        (signed(HEADER | {"shared": 0}), "not a history of version 1"),
        (signed(HEADER, {"tenant": "a", "output": [1]})[:-3] + b'0"}', "its checksum differs"),
        (signed(HEADER, {"tenant": "a", "output": [1.0]}), "not a tenant's output"),
        (signed(HEADER, {"tenant": "a", "output": [True]}), "not a tenant's output"),
        (signed(HEADER, {"tenant": "a", "output": [-1]}), "not a tenant's output"),
        (signed(HEADER, {"tenant": "a", "output": [2**31]}), "not a tenant's output"),
        (signed(HEADER, {"tenant": 1, "output": [1]}), "not a tenant's output"),
        (signed(HEADER, {"tenant": "a", "output": "12"}), "not a tenant's output"),
        (signed(HEADER, {"tenant": "a", "output": [1], "more": 1}), "not a tenant's output"),
        (signed(HEADER, 5), "not a tenant's output"),
    ],
)
def test_a_hostile_file_is_refused(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "past").write_bytes(data)
    history = filled({"kept": [[1]]})
    with pytest.raises(HistoryError, match=message):
        history.load(tmp_path / "past")
    assert contents(history) == {"kept": [[1]]}


def test_a_good_file_by_hand_is_read(tmp_path: Path) -> None:
    """Or the hostile ones might be refused for another reason."""
    (tmp_path / "past").write_bytes(signed(HEADER, {"tenant": "a", "output": [0, 2**31 - 1]}))
    history = History()
    history.load(tmp_path / "past")
    assert contents(history) == {"a": [[0, 2**31 - 1]]}


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled().save(tmp_path / "past")
    monkeypatch.setattr(module, "MOST_BYTES", (tmp_path / "past").stat().st_size - 1)
    with pytest.raises(HistoryError, match="larger than"):
        History().load(tmp_path / "past")


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(HistoryError, match="there is no file"):
            History().load(path)


def test_what_was_shared_becomes_no_one_tenants(tmp_path: Path) -> None:
    shared = History(shared=True)
    shared.add("a", [1, 2])
    shared.save(tmp_path / "past")
    with pytest.raises(HistoryError, match="share_history"):
        History().load(tmp_path / "past")
    again = History(shared=True)
    again.load(tmp_path / "past")
    assert contents(again) == {"": [[1, 2]]}
    filled().save(tmp_path / "past")
    again.load(tmp_path / "past")
    assert contents(again) == {"": [[1, 2, 3], [4], [5, 6], [7, 151_935, 2**31 - 1]]}


def test_saving_replaces_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "past"
    filled().save(path)
    before = path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600, "it is somebody's text"

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", full)
        with pytest.raises(DiskFull, match="free some space"):
            filled({"b": [[9]]}).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    filled({"b": [[9]]}).save(path)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() != before
    with pytest.raises(ResourceError, match="name another place"):
        filled().save(tmp_path / "none" / "past")
