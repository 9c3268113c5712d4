from __future__ import annotations

import time

import pytest

from paceline.cli import progress
from paceline.cli.progress import Shown


def test_what_is_quick_shows_nothing(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Shown() as shown:
        for done in range(3):
            shown("reading", done, 3)
    assert capsys.readouterr().err == ""


def test_what_is_not_shows_a_bar_with_its_latest_words(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(progress, "PATIENCE", 0.01)
    with Shown() as shown:
        shown("reading", 1, 4)
        time.sleep(0.2)
        shown("compiling", 0, 1)
        time.sleep(0.2)
    err = capsys.readouterr().err
    assert "reading" in err
    assert "compiling" in err
    shown.close()
    assert capsys.readouterr().err == ""


def test_it_can_be_closed_and_come_back(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(progress, "PATIENCE", 0.01)
    shown = Shown()
    for what in ("reading", "generating"):
        shown(what, 0, 9)
        time.sleep(0.1)
        shown.close()
        assert what in capsys.readouterr().err


def test_an_error_takes_it_away(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(progress, "PATIENCE", 0.01)
    shown = Shown()

    def work() -> None:
        with shown:
            shown("reading", 0, 9)
            time.sleep(0.1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert shown._bar is None


def test_elsewhere_there_is_a_line_now_and_then(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with Shown() as shown:
        for second in range(35):
            now[0] = float(second)
            shown("converting weights", second, 40)
    assert capsys.readouterr().err.splitlines() == [
        f"paceline: converting weights {percent}% …" for percent in (25, 50, 75)
    ]
