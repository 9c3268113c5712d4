"""The page of a run: everything is in it, whatever it is called, and it is there whole or not at all."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from paceline.bench import page
from paceline.bench.result import Cell, Comparison, Difference, Pace, Point, Result, Spread, Texts
from paceline.errors import DiskFull, OptionError

HOSTILE = "<img src=x onerror=alert(1)>\"'&</table><script>"


def cell(category: str, mode: str, batch: int = 1) -> Cell:
    return Cell(
        workload="ours",
        category=category,
        batch=batch,
        mode=mode,
        prompts=3,
        tokens=96,
        tokens_per_s=51.5,
        tpot_ms=Spread(19.0, 30.0),
        ttft_ms=Spread(101.0, 140.0),
        acceptance_length=1.75,
        acceptance_rate=0.625,
        peak_memory_bytes=5 << 20,
        wasted_share=0.031,
        coverage=0.9,
        steps=40,
        accepted_at=(20, 12, 8),
        draft_ms=100.0,
        verify_ms=1500.0,
        other_ms=60.0,
    )


def result(category: str = "chat", mode: str = "auto", synthetic: tuple[float, ...] | None = None) -> Result:
    return Result(
        provenance={"model": category, "argv": ["paceline", "bench"], "versions": {"paceline": "1"}, "date": mode},
        cells=tuple(cell(c, m) for c in (category, "all") for m in ("plain", mode)),
        comparisons=(
            Comparison("ours", category, 1, mode, "plain", 1.234, 1.1, 1.4, "faster"),
            Comparison("ours", "all", 1, mode, "plain", 0.876, 0.8, 0.9, "slower"),
        ),
        text_identical=Texts(5, 8, 2, 1),
        noise={"1": 0.013},
        differences=(Difference(category, 1, mode, 2, 7, None), Difference(category, 1, mode, 0, 3, 0.0123)),
        cost_curve=(Point(1, 10.0), Point(4, 12.5)),
        paces=(Pace(1, "plain", 0.5, (40.0, 44.0)), Pace(1, mode, 0.4, (60.0, 70.0))),
        synthetic=synthetic,
    )


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


def test_the_verdict_comes_first():
    text = page.page(result())
    assert text.index("auto, 1 at a time: slower, 0.876 (0.800–0.900)") < text.index("<h2>")
    assert "±1.3%" in text and "5 of 8 identical, 2 parted at a near-tie, 1 different" in text


def test_every_number_is_in_a_table():
    text = page.page(result())
    tables = "".join(re.findall(r"<table>.*?</table>", text, re.DOTALL))
    for number in ("1.234 (1.100–1.400) faster", "51.5", "62.5%", "1.75", "3.1%", "0.500", "12.50", "0.012", "44.0"):
        assert number in tables, number
    assert text.count("<svg") == 5


def test_it_needs_nothing_else():
    text = page.page(result())
    tags = Tags(text).tags
    assert not {tag for tag, _ in tags} & {"script", "link", "img", "iframe", "object"}
    assert not [attributes for _, attributes in tags if {"src", "onload", "onerror"} & set(attributes)]
    links = [value for _, attributes in tags for name, value in attributes.items() if name.endswith("href")]
    assert all((link or "").startswith("#") for link in links)
    assert "default-src 'none'" in text


def test_the_same_run_gives_the_same_page():
    assert page.page(result()) == page.page(result())


def test_names_of_any_kind_are_text():
    calm, hostile = Tags(page.page(result("chat", "auto"))).tags, Tags(page.page(result(HOSTILE, HOSTILE))).tags
    assert [tag for tag, _ in hostile if tag in ("img", "script")] == []
    tables = ("table", "tr", "td", "th", "h2", "p", "dd")
    assert [tag for tag, _ in hostile if tag in tables] == [tag for tag, _ in calm if tag in tables]


def test_synthetic_acceptance_is_marked_on_every_figure_and_table():
    text = page.page(result(synthetic=(0.9, 0.5)))
    assert "Synthetic acceptance (0.9, 0.5 by depth)" in text and "(synthetic acceptance)</title>" in text
    titles = re.findall(r"<h2>(.*?)</h2>", text) + re.findall(r'aria-label="(.*?)"', text)
    marked = [title for title in titles if "synthetic acceptance, no real result" in title]
    assert set(titles) - set(marked) == {"Where these numbers come from"}
    assert "ynthetic" not in page.page(result())


@pytest.mark.parametrize(
    "bare",
    [
        Result({}, (), (), Texts(0, 0, 0, 0)),
        replace(result(), cells=(replace(cell("all", "server"), acceptance_length=None, acceptance_rate=None,
                peak_memory_bytes=None, wasted_share=None, coverage=None, steps=None, accepted_at=(), draft_ms=None,
                verify_ms=None, other_ms=None),), comparisons=(), paces=(), cost_curve=(), noise={}),
    ],
)  # fmt: skip
def test_what_was_not_measured_is_left_out(bare):
    text = page.page(bare)
    assert "nothing to compare" in text and "None" not in text and "nan" not in text and "<svg" not in text


class TestWriting:
    def test_a_file_that_is_there_is_replaced(self, tmp_path):
        path = tmp_path / "out.html"
        path.write_text("old", encoding="utf-8")
        page.write(result(), path)
        assert path.read_text(encoding="utf-8") == page.page(result())
        assert os.listdir(tmp_path) == ["out.html"]

    def test_a_full_disk_leaves_what_was_there(self, tmp_path, monkeypatch):
        path = tmp_path / "out.html"
        path.write_text("old", encoding="utf-8")

        def full(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "replace", full)
        with pytest.raises(DiskFull):
            page.write(result(), path)
        assert path.read_text(encoding="utf-8") == "old" and os.listdir(tmp_path) == ["out.html"]

    def test_no_such_directory(self, tmp_path):
        with pytest.raises(OptionError, match="cannot be written"):
            page.write(result(), tmp_path / "none" / "out.html")
