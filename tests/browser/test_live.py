"""The dashboard on the real server: what is asked of it is done, and what it shows is true."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from paceline import LLM, SamplingParams
from paceline.core.types import SpeculationParams
from tests.server.live import live

pytestmark = pytest.mark.browser
PROMPT = "Count from 1 to 40."


@pytest.fixture(scope="session", autouse=True)
def kept(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("PACELINE_API_KEY", raising=False)
        yield


@pytest.fixture(scope="module")
def failing(kept):
    """A server with a drafter that is wrong about everything."""
    with live(LLM("toy:ngram", draft="toy:chaos")) as server:
        yield server


@pytest.fixture(scope="module")
def demo(kept):
    with live(LLM("demo", context=1024)) as server:
        yield server


def ask(page, mode: str, tokens: int) -> None:
    page.locator("#play-mode").select_option(mode)
    page.get_by_label("Most tokens").fill(str(tokens))
    page.get_by_role("button", name="Run").click()
    expect(page.locator("#play-status")).to_contain_text("Done", timeout=60_000)


def ceiling(server) -> SpeculationParams:
    return server.call(lambda engine: engine.ceiling)


def test_a_collapse_is_seen(page, failing, complaints):
    page.goto(failing.url)
    expect(page.locator("#alarm-list")).to_contain_text("No alarm is on")
    page.get_by_label("Temperature").fill("1")
    for seed in range(5):
        page.get_by_label("Seed").fill(str(seed))
        ask(page, "always", 200)
    alarms = page.locator("#alarm-list")
    expect(alarms).to_contain_text("acceptance_collapse")
    expect(alarms).to_contain_text("guesses came true since it began")
    expect(page.locator("#alarm-count")).to_be_visible()
    expect(alarms.locator("a")).to_have_attribute("href", "/runbooks/collapse")
    report = failing.hub.worker.snapshot.report.by_drafter["model"]
    assert report.drafted > 0
    row = page.locator("#by-drafter tbody").filter(has_text="model").locator("tr").first
    expect(row).to_contain_text(f"{report.drafted:,}")
    assert complaints == []


def test_the_switch_is_the_engine_s(page, failing):
    page.goto(failing.url)
    mode = page.locator("#mode")
    expect(mode.get_by_label("As asked")).to_be_checked()
    mode.get_by_label("Off").check()
    expect(page.locator("#mode-note")).to_have_text("Switched to Off.")
    assert ceiling(failing).mode == "off"
    before = failing.call(lambda engine: engine.report().drafted)
    ask(page, "always", 60)
    assert failing.call(lambda engine: engine.report().drafted) == before
    expect(page.locator("#play-facts")).to_contain_text("requested_off")
    mode.get_by_label("As asked").check()
    expect(page.locator("#mode-note")).to_have_text("Switched to As asked.")
    assert ceiling(failing).mode == "always"
    ask(page, "always", 60)
    assert failing.call(lambda engine: engine.report().drafted) > before


def test_the_playground_tells_who_guessed(page, demo, complaints):
    page.goto(demo.url)
    expect(page.locator("#model")).to_have_text("demo")
    page.get_by_label("Prompt", exact=True).fill(PROMPT)
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Show rejected guesses").check()
    ask(page, "always", 64)
    shown = page.locator("#play-text")
    report = demo.call(lambda engine: engine.report())
    assert 0 < report.accepted < report.verified
    expect(shown.locator(".token[title^='guessed by']")).to_have_count(report.accepted)
    expect(shown.locator("s.rejected")).to_have_count(report.verified - report.accepted)
    text = "".join(shown.locator(".token").all_text_contents())
    assert text == plainly()
    ask(page, "off", 64)
    expect(page.locator("#play-status")).to_contain_text("The same text, token for token")
    expect(page.locator("#request-list tbody tr")).to_have_count(2)
    assert complaints == []


def plainly() -> str:
    plain = LLM("demo", context=1024, speculate=False)
    return plain.chat([{"role": "user", "content": PROMPT}], SamplingParams(max_tokens=64)).text


def test_a_key_opens_the_page(page, kept):
    key = "sk-0123456789abcdef"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_API_KEY", key)
        with live(LLM("toy:ngram")) as server:
            page.goto(server.url)
            page.get_by_role("dialog").get_by_label("API key").fill(key)
            page.keyboard.press("Enter")
            expect(page.locator("#model")).to_have_text("toy:ngram")
            ask(page, "auto", 20)
            page.locator("#mode").get_by_label("Off").check()
            expect(page.locator("#mode-note")).to_have_text("Switched to Off.")
