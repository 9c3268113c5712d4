"""The figures: what the server says is what is shown, and what goes wrong is seen to."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from .fake import busy, collapsed, fresh

pytestmark = pytest.mark.browser


def test_shows_the_state(page, address, complaints):
    page.goto(address)
    for figure, text in {
        "rate": "52.4",
        "rate-plain": "31.7",
        "rate-ratio": "1.65 ×",
        "rate-saved": "641",
        "busy-share": "97%",
        "busy-wasted": "18%",
        "busy-useful": "82%",
        "length": "2.31",
        "running": "3",
        "waiting": "1",
        "memory-process": "2.18",
        "ttft-95": "640 ms",
        "tpot-50": "19.4 ms",
        "model": "qwen2.5-1.5b-instruct",
        "mode-model": "qwen2.5-0.5b-instruct",
    }.items():
        expect(page.locator(f"#{figure}")).to_have_text(text)
    expect(page.locator("#by-drafter tbody")).to_have_count(4)
    expect(page.locator("#depths tbody tr")).to_have_count(10)
    expect(page.locator("#reason-list")).to_contain_text("no drafter had a guess")
    expect(page.locator("#request-list tbody tr")).to_have_count(1)
    expect(page.locator("#request-list")).to_contain_text("402 / 318 / 171")
    expect(page.locator("#live")).to_have_text("live")
    assert complaints == []


def test_follows_the_state(page, address, world):
    page.goto(address)
    expect(page.locator("#rate")).to_have_text("52.4")
    world.state = busy() | {"rate": {"tokens_per_s": 61.25, "plain_tokens_per_s": 30.0, "saved_ms_per_s": 5.0}}
    expect(page.locator("#rate")).to_have_text("61.3")
    expect(page.locator("#rate-ratio")).to_have_text("2.04 ×")


def test_says_what_will_appear(page, address, world, complaints):
    world.state, world.requests = fresh(), []
    page.goto(address)
    expect(page.locator("#rate-plain")).to_have_text("–")
    expect(page.locator("#rate-ratio")).to_have_text("–")
    expect(page.locator("#busy-says")).to_contain_text("Idle")
    for place in ("#depths", "#by-drafter"):
        expect(page.locator(place)).to_contain_text("appears with the first draft")
    expect(page.locator("#request-list")).to_contain_text("Requests appear here")
    expect(page.locator("#rate-chart svg.chart")).to_contain_text("The line begins")
    assert complaints == []


def test_charts_draw_what_they_are_given(page, address):
    page.goto(address)
    chart = page.locator("#rate-chart svg.chart")
    expect(chart.locator("path.line")).to_have_count(2)
    points = chart.locator("path.line.speed").get_attribute("d").count(",")
    assert points == 300
    assert re.search(r"with speculation: now 51\.2, between \d", chart.get_attribute("aria-label"))
    expect(page.locator("#busy-chart path.area")).to_have_count(2)


def test_a_gap_breaks_the_line(page, address, world):
    del world.state["series"][100:160]
    world.state["series"][200]["plain_tokens_per_s"] = None
    page.goto(address)
    expect(page.locator("#rate-chart path.line.speed")).to_have_count(2)
    expect(page.locator("#rate-chart path.line.plain")).to_have_count(3)


def test_charts_have_tables(page, address):
    page.goto(address)
    expect(page.locator("#rate")).to_have_text("52.4")
    page.locator("#rate-chart summary").click()
    table = page.locator("#rate-chart table")
    expect(table.locator("thead th")).to_have_text(["time", "with speculation", "plain"])
    expect(table.locator("tbody tr")).to_have_count(30)
    expect(table.locator("tbody tr").first).to_contain_text("51.2")


def test_a_pointer_reads_values(page, address):
    page.goto(address)
    legend = page.locator("#rate-chart .legend")
    expect(legend).to_contain_text("now")
    page.locator("#rate-chart svg.chart").hover(position={"x": 200, "y": 60})
    expect(legend).to_contain_text("−")
    expect(page.locator("#rate-chart .cross")).to_have_count(1)
    page.locator("h1").hover()
    expect(legend).to_contain_text("now")


def test_collapse_is_seen_for_what_it_is(page, address, world):
    world.state = collapsed()
    page.goto(address)
    expect(page.locator("#busy-share")).to_have_text("100%")
    expect(page.locator("#busy-says")).to_contain_text("Busy 100% of the time for 2.10 tokens/s")
    expect(page.locator("#busy-says")).to_contain_text("More of it goes into rejected drafts than into text")
    expect(page.locator("#rate-saved-label")).to_have_text("lost")
    expect(page.locator("#alarm-count")).to_have_text("1 alarm")
    alarms = page.locator("#alarm-list")
    expect(alarms).to_contain_text("acceptance_collapse")
    expect(alarms.locator("a")).to_have_attribute("href", "/runbooks/collapse")
    world.state = busy()
    expect(alarms).to_contain_text("No alarm is on")
    expect(page.locator("#alarm-count")).to_be_hidden()


@pytest.mark.parametrize("runbook", [None, "//evil.example/x", "javascript:alert(1)", "../../etc/passwd"])
def test_links_to_runbooks_of_this_server_alone(page, address, world, runbook):
    world.state = collapsed()
    world.state["alarms"][0]["runbook"] = runbook
    page.goto(address)
    expect(page.locator("#alarm-list")).to_contain_text("acceptance_collapse")
    expect(page.locator("#alarm-list a")).to_have_count(0)


def test_switches_off_and_on(page, address, world, complaints):
    page.goto(address)
    mode = page.locator("#mode")
    expect(mode.get_by_label("Auto")).to_be_checked()
    mode.get_by_label("Off").check()
    expect(page.locator("#mode-says")).to_contain_text("Nothing is drafted")
    expect(page.locator("#mode-why")).to_have_text("by the operator")
    expect(mode.get_by_label("Off")).to_be_checked()
    mode.get_by_label("Auto").check()
    expect(page.locator("#mode-says")).to_contain_text("The governor drafts where it pays")
    assert world.posted == [{"mode": "off"}, {"mode": "auto"}]
    assert complaints == []


def test_a_refused_switch_goes_back(page, address, world):
    world.admin = False
    page.goto(address)
    expect(page.locator("#mode").get_by_label("Auto")).to_be_checked()
    page.locator("#mode").get_by_label("Off").click()
    expect(page.locator("#mode-note")).to_contain_text("takes an admin key")
    expect(page.locator("#mode").get_by_label("Auto")).to_be_checked()
    assert world.posted == []


def test_another_hand_at_the_switch_is_seen(page, address, world):
    page.goto(address)
    expect(page.locator("#mode").get_by_label("Auto")).to_be_checked()
    world.state["speculation"] |= {"mode": "off", "ceiling": "off", "why": "an audit found a difference"}
    expect(page.locator("#mode").get_by_label("Off")).to_be_checked()
    expect(page.locator("#mode-why")).to_have_text("an audit found a difference")


def test_a_server_that_is_gone(page, address):
    page.goto(address)
    expect(page.locator("#rate")).to_have_text("52.4")
    page.route("**/api/**", lambda route: route.abort())
    banner = page.get_by_role("alert").filter(has_text="does not answer")
    expect(banner).to_be_visible()
    expect(page.locator("#rate")).to_have_text("52.4")
    expect(page.locator("body")).to_have_class("stale")
    expect(page.locator("#live")).to_have_text("no answer")
    page.unroute("**/api/**")
    expect(banner).to_be_hidden()
    expect(page.locator("body")).not_to_have_class("stale")


def test_a_server_that_refuses(page, address, world):
    world.is_down = True
    page.goto(address)
    expect(page.locator("#banner")).to_have_text("The server refused: the engine has stopped")


def test_requests_that_cannot_be_read(page, address):
    page.route("**/api/requests*", lambda route: route.fulfill(status=500, body="{}"))
    page.goto(address)
    expect(page.locator("#request-list")).to_contain_text("cannot be read: HTTP 500")
    expect(page.locator("#rate")).to_have_text("52.4")
