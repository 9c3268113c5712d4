"""Figures: text that is the same each time, takes the page's colours, and says what it shows."""

from __future__ import annotations

import builtins
from xml.etree import ElementTree

import pytest

from paceline.bench import plots
from paceline.bench.plots import Bar
from paceline.errors import MissingExtra

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>alert(1)</script> $\\frac{1}$ & \"'\x07\n"


def figures(name: str = "auto") -> list[str]:
    return [
        plots.lines("A line", "x", "y", {name: [(1, 2.0), (2, 3.5)], "plain": [(1, 1.0)]}),
        plots.bars("Bars", "ratio", {"chat": {name: Bar(1.2, 1.1, 1.3)}, name: {"off": Bar(1.0, 0.9, 1.1)}}, line=1.0),
        plots.stacks("Stacks", "ms", {name: {"target": 3.0, name: 1.0}, "plain": {"target": 4.0}}),
    ]


def test_the_same_each_time():
    assert figures() == figures()


@pytest.mark.parametrize("svg", figures())
def test_they_say_what_they_show(svg):
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg" and root.get("role") == "img"
    assert root.get("aria-label") == root.findtext(f"{SVG}title")
    assert " at " in root.findtext(f"{SVG}desc")


@pytest.mark.parametrize("svg", figures())
def test_the_pages_colour_is_taken_and_no_date_is_in_it(svg):
    assert "currentColor" in svg and "#010203" not in svg and "#000000" not in svg
    assert "<metadata" not in svg and "date" not in svg.replace("metadata", "") and '<g id="' not in svg


@pytest.mark.parametrize("svg", figures(HOSTILE))
def test_names_of_any_kind_are_text(svg):
    root = ElementTree.fromstring(svg)
    assert not [element for element in root.iter() if element.tag.endswith("script")]
    assert "frac" in svg  # as it is written: no formula was made of it


def test_a_wild_interval_leaves_the_figure():
    """Else the others would be flat: the axis is the same with it and without."""
    calm = plots.bars("b", "r", {"a": {"auto": Bar(1.0, 0.9, 1.1)}, "b": {"auto": Bar(2.0, 1.9, 2.1)}})
    wild = plots.bars("b", "r", {"a": {"auto": Bar(1.0, 0.1, 99.0)}, "b": {"auto": Bar(2.0, 1.9, 2.1)}})
    assert ticks(calm) == ticks(wild)


def ticks(svg: str) -> list[str]:
    texts = [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    return [text for text in texts if text.replace(".", "").isdigit()]


def test_nothing_to_show_is_an_empty_figure():
    for svg in (plots.lines("a", "x", "y", {}), plots.bars("b", "y", {}), plots.stacks("c", "y", {})):
        ElementTree.fromstring(svg)


def test_without_matplotlib(monkeypatch):
    real = builtins.__import__

    def absent(name, *args, **more):
        if name.split(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingExtra, match=r"pip install 'paceline\[bench\]'"):
        figures()
