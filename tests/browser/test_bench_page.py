"""The page of a small real run, in a browser: light, dark and narrow, with nothing else to load."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from paceline import LLM
from paceline.bench import page as bench_page
from paceline.bench.bench import Bench
from paceline.bench.modes import listed
from paceline.bench.workloads import Item, Workload, asks
from paceline.core.types import SamplingParams

pytestmark = pytest.mark.browser
HOSTILE = "<img src=x onerror=document.title='taken'>"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    items = (Item("chat", "Name three rivers."), Item(HOSTILE, "Say it twice."))
    llm = LLM("toy:ngram", draft="toy:ngram-draft", sequences=2)
    asked = asks(llm, Workload("mine", items), SamplingParams(24, 0.0, seed=1))
    bench = Bench(llm, "mine", asked, listed("plain,off,always"))
    bench.run((1, 2), 1, lambda what, done, whole: None)
    path = tmp_path_factory.mktemp("page") / "out.html"
    bench_page.write(bench.result(), path)
    return path


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 1200), ("light", 360)])
def test_it_is_whole_and_alone(page, written, complaints, scheme, width):
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(written.as_uri())
    expect(page.locator("h1")).to_contain_text("paceline bench: toy:ngram")
    expect(page.locator("p.lead").first).to_contain_text("always, 1 at a time")
    assert page.locator("figure svg").count() >= 5
    assert page.locator("td", has_text=HOSTILE).count() > 0 and page.locator("img").count() == 0
    assert page.title().startswith("paceline bench")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert asked == [written.as_uri()] and complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_figures_have_the_colour_of_the_text(page, written, scheme):
    page.emulate_media(color_scheme=scheme)
    page.goto(written.as_uri())
    colours = "s => getComputedStyle(document.querySelector(s))"
    text = page.evaluate(f"({colours})('body').color")
    figure = page.evaluate(f"({colours})('figure svg text').fill")
    assert figure == text != page.evaluate(f"({colours})('body').backgroundColor")
