"""What was measured outlives the process, and no file, however bad, does more harm than a profile takes."""

from __future__ import annotations

import errno
import json
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.tree import Draft
from paceline.governor import saved as module
from paceline.governor.acceptance import Acceptance
from paceline.governor.costs import Costs
from paceline.governor.saved import FORMAT, MOST_BYTES, MOST_FILES, Refusal, Saved, place, read, text, write
from tests.core.strategies import examples

IDENTITY = {"machine": {"cpus": 2}, "model": "abc", "weights": "int4", "draft": None}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def learnt(slower: float = 1.0) -> Saved:
    costs, acceptance = Costs(2), Acceptance()
    for rows in (1, 2, 4, 8, 16):
        costs.learn(rows, slower * (0.05 + 0.002 * rows), 65)
        costs.learn(rows, slower * (0.06 + 0.004 * rows), 2049)
    for sequences in (1, 8):
        costs.learn_draft("model", sequences, slower * 0.01 * sequences**0.5, 65)
    costs.observe_rest(1, 0.001)
    costs.switch_s, costs.catch_up_s["model"] = 0.004, 0.0001
    for request in range(20):
        acceptance.observe(request, Draft((1, 2, 3), (-1, 0, 1), (0.9, 0.8, 0.7), ("model",) * 3), (1, 2, 4))
    return Saved(costs, acceptance, {"model": 0.6}, 120)


def kept(identity: dict[str, Any] = IDENTITY, what: Saved | None = None) -> Path:
    path = place(identity)
    write(path, text(identity, what or learnt()))
    return path


def test_everything_comes_back() -> None:
    before, path = learnt(), kept()
    found = read(path, IDENTITY)
    assert isinstance(found, Saved)
    for rows in range(1, 40):
        for context in (0, 65, 5000):
            assert found.costs.forward(rows, context) == pytest.approx(before.costs.forward(rows, context))
    assert found.costs.draft("model", 8, 65) == pytest.approx(before.costs.draft("model", 8, 65))
    assert found.costs.state() == before.costs.state()
    for depth in (1, 2, 3):
        assert found.acceptance.ahead(99, "model", depth)[-1] == pytest.approx(
            before.acceptance.ahead(99, "model", depth)[-1], abs=0.1
        )
    assert (found.history, found.steps) == ({"model": 0.6}, 120)
    assert abs(found.at - time.time()) < 3600


def test_what_comes_back_can_be_kept_again() -> None:
    found = read(kept(), IDENTITY)
    assert isinstance(found, Saved)
    assert isinstance(read(kept(what=found), IDENTITY), Saved)


def test_nothing_was_kept_before_the_first_time(caplog: pytest.LogCaptureFixture) -> None:
    assert read(place(IDENTITY), IDENTITY) is Refusal.ABSENT
    assert caplog.text == "", "which is nothing to tell"


@pytest.mark.parametrize(
    "other", [{"machine": {"cpus": 4}}, {"model": "abd"}, {"weights": "int8"}, {"draft": "abc"}, {"more": 1}]
)
def test_another_identity_has_another_place_and_none_is_taken_for_it(other: dict[str, Any]) -> None:
    path, wanted = kept(), IDENTITY | other
    assert place(wanted) != path
    assert read(place(wanted), wanted) is Refusal.ABSENT
    path.rename(place(wanted))
    assert read(place(wanted), wanted) is Refusal.OTHER_IDENTITY


def test_the_order_of_keys_is_no_identity() -> None:
    assert place(dict(reversed(IDENTITY.items()))) == place(IDENTITY)


def test_another_format_is_refused() -> None:
    path = kept()
    path.write_text(path.read_text().replace(f'"format": {FORMAT}', f'"format": {FORMAT + 1}'))
    assert read(path, IDENTITY) is Refusal.OTHER_FORMAT


def changed(path: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(path.read_bytes())
    change(content)
    path.write_text(json.dumps(content))


def point(values: list[Any]) -> Callable[[Any], None]:
    return lambda content: content["costs"]["target"]["points"].update({"4": values})


def put(*path_and_value: Any) -> Callable[[Any], None]:
    *path, last, value = path_and_value

    def change(content: Any) -> None:
        for key in path:
            content = content[key]
        content[last] = value

    return change


NESTED: Any = 0
for _ in range(40):
    NESTED = [NESTED]


@pytest.mark.parametrize(
    "change",
    [
        point([float("nan"), 0, None, 65]),
        point([float("inf"), 0, None, 65]),
        point([-0.05, 0, None, 65]),
        point([0, 0, None, 65]),
        point([0.0, 1e-9, None, 65]),
        point([1e300, 0, None, 65]),
        point([5e5, 0, None, 65]),
        point([True, 0, None, 65]),
        point(["0.05", 0, None, 65]),
        point([None, 0, None, 65]),
        point([0.05, float("nan"), None, 65]),
        point([0.05]),
        point([]),
        put("costs", "target", "points", {}),
        put("costs", "target", "points", []),
        put("costs", "target", "points", "-1", [0.05, 0, None, 65]),
        put("costs", "target", "points", "9" * 5000, [0.05, 0, None, 65]),
        put("costs", "target", "drift", 0),
        put("costs", "target", "drift", float("nan")),
        put("costs", "target", None),
        put("costs", "drafts", "model", None),
        put("costs", "drafts", "model", "points", "1", [0, 0, None, 65]),
        put("costs", "others", "points", "1", [0, 0, None, 0]),
        put("costs", "profiled_draft", "ghost", 0.1),
        put("costs", "switch_s", -1),
        put("costs", "switch_s", 1e5),
        put("costs", "switch_s", float("inf")),
        put("costs", None),
        put("costs", []),
        put("acceptance", None),
        put("acceptance", "counts", [["model", 1, -1, -1, float("nan"), 1]]),
        put("acceptance", "counts", [["model", 1, -1, -1, 5, 7]]),
        put("acceptance", "counts", [["model", 1, -1, -1, -5, -7]]),
        put("acceptance", "counts", [["model"]]),
        put("acceptance", "counts", [7]),
        put("acceptance", "company", [[7, 1, 1]]),
        put("history", {"model": 2}),
        put("history", {"model": "often"}),
        put("history", []),
        put("history", "x" * 300, 0.5),
        put("history", "model", NESTED),
        put("steps", -1),
        put("steps", 1.5),
        put("steps", True),
        put("steps", 10**4000),
        put("at", None),
        put("at", float("nan")),
        put("more", list(range(200_000))),
        lambda content: content.pop("costs"),
        lambda content: content.pop("identity"),
        lambda content: content.pop("format"),
        lambda content: content.clear(),
    ],
)
def test_content_that_makes_no_sense_is_refused(
    change: Callable[[Any], None], caplog: pytest.LogCaptureFixture
) -> None:
    path = kept()
    changed(path, change)
    refused(path, caplog)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"7",
        b'"text"',
        b"\xff\xfe\x00",
        b"\x80\x04\x95",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"format": 1e999}',
        b"{" + b" " * MOST_BYTES + b"}",
    ],
    ids=lambda content: repr(content[:12]),
)
def test_files_of_another_kind_are_refused(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path = kept()
    path.write_bytes(content)
    refused(path, caplog)


def test_a_file_that_is_too_large_is_not_even_parsed() -> None:
    path = kept()
    path.write_bytes(path.read_bytes().ljust(MOST_BYTES))
    assert isinstance(read(path, IDENTITY), Saved)
    path.write_bytes(path.read_bytes().ljust(MOST_BYTES + 1))
    assert read(path, IDENTITY) is Refusal.TOO_LARGE


def refused(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        found = read(path, IDENTITY)
    assert isinstance(found, Refusal)
    [record] = caplog.records
    assert found.value in record.getMessage()
    assert "\n" not in record.getMessage()
    assert record.exc_info is None


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "file.json"
    write(path, text(IDENTITY, learnt()))
    return path.read_bytes()


@given(data=st.data())
@examples(150)
def test_damage_never_raises_and_never_lets_a_time_be_senseless(data: st.DataObject, whole: bytes) -> None:
    path = place(IDENTITY)
    path.parent.mkdir(parents=True, exist_ok=True)
    at = data.draw(st.integers(0, len(whole) - 1))
    length = data.draw(st.integers(0, 40))
    path.write_bytes(whole[:at] + data.draw(st.binary(max_size=40)) + whole[at + length :])
    found = read(path, IDENTITY)
    if isinstance(found, Saved):
        for rows in (1, 3, 50):
            assert 0 < found.costs.forward(rows, 500) < 1e12
        found.costs.learn(2, 0.05, 500)
        assert found.costs.draft("model", 2, 10) >= 0
        assert 0 < found.acceptance.ahead(0, "model", 1)[-1] < 1


@given(cut=st.integers(0, 2000))
@examples(60)
def test_a_part_of_a_file_is_refused(cut: int, whole: bytes) -> None:
    path = place(IDENTITY)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(whole[: min(cut, len(whole) - 1)])
    assert read(path, IDENTITY) is Refusal.MALFORMED


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    path = place(IDENTITY)
    path.parent.mkdir(parents=True)
    path.mkdir()
    assert read(path, IDENTITY) is Refusal.UNREADABLE
    path.rmdir()
    os.mkfifo(path)  # on which opening would wait
    assert read(path, IDENTITY) is Refusal.UNREADABLE


def test_a_file_that_may_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    path = kept()

    def deny(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", deny)
    assert read(path, IDENTITY) is Refusal.UNREADABLE


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_disk_that_takes_nothing_leaves_what_was_there(call: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kept()
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match=os.strerror(code)):
        write(path, text(IDENTITY, learnt(2.0)))
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_the_files_are_so_many_and_no_more() -> None:
    for i in range(MOST_FILES + 5):
        path = kept(IDENTITY | {"model": str(i)})
        os.utime(path, (1000.0 + i, 1000.0 + i))
    kept(IDENTITY | {"model": "last"})
    left = {p.name for p in path.parent.iterdir()}
    assert len(left) == MOST_FILES
    assert place(IDENTITY | {"model": "last"}).name in left
    assert place(IDENTITY | {"model": str(MOST_FILES + 4)}).name in left
    assert place(IDENTITY | {"model": "3"}).name not in left, "the oldest go first"


def test_what_dead_processes_left_is_removed_and_what_others_write_is_not() -> None:
    path = kept()
    old, new, other = (path.parent / name for name in (f".{path.name}.x", f".{path.name}.y", "notes.txt"))
    for file in (old, new, other):
        file.write_bytes(b"half")
    long_ago = time.time() - 2 * module.ABANDONED_S
    os.utime(old, (long_ago, long_ago))
    os.utime(other, (long_ago, long_ago))
    kept()
    assert not old.exists()
    assert new.exists()
    assert other.exists(), "no file of ours"


def write_often(path: Path, slower: float) -> None:
    content = text(IDENTITY, learnt(slower))
    while True:
        write(path, content)


def test_a_file_is_whole_while_two_processes_write_it_and_when_they_are_killed() -> None:
    path, fresh = kept(), multiprocessing.get_context("spawn")
    writers = [fresh.Process(target=write_often, args=(path, slower)) for slower in (2.0, 3.0)]
    for writer in writers:
        writer.start()
    end = time.monotonic() + 60
    seen: set[int] = set()
    try:
        while not {2, 3} <= seen and time.monotonic() < end:
            found = read(path, IDENTITY)
            assert isinstance(found, Saved)
            seen.add(round(found.costs.forward(2, 65) / learnt().costs.forward(2, 65)))
        for _ in range(300):
            assert isinstance(read(path, IDENTITY), Saved)
    finally:
        for writer in writers:
            assert writer.pid is not None
            os.kill(writer.pid, signal.SIGKILL)
            writer.join()
    assert {2, 3} <= seen <= {1, 2, 3}, "both have written"
    assert isinstance(read(path, IDENTITY), Saved)


def test_a_size_that_fits() -> None:
    """All classes that an engine can count, with the longest names that are read: far from what is refused."""
    saved, names = learnt(), ("prediction", "suffix", "lookup", "recycle", "model", "heads", "own" * 20)
    counts = [
        [n, d, k, r, 199.123456789, 99.123456789]
        for n in names
        for d in range(7)
        for k in range(-1, 8)
        for r in range(-1, 3)
    ]
    company = [[[*names[:i], *names[j:]], 1.23456789, 1.23456789] for i in range(7) for j in range(i, 7)]
    saved.acceptance.__dict__.update(Acceptance.restore({"counts": counts, "company": company}).__dict__)
    for rows in range(1, 200):
        saved.costs.learn(rows, 0.05 + rows * 1e-3, 65)
    path = kept(what=saved)
    assert path.stat().st_size < MOST_BYTES / 2
    assert isinstance(read(path, IDENTITY), Saved)
