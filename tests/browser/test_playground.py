"""The playground: an answer streams in, each token marked by who guessed it."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser
TEXT = "A line of riders took turns in the wind. Everyone went faster for it."


@pytest.fixture
def play(page, address):
    page.goto(address)
    expect(page.locator("#play-legend")).to_contain_text("suffix")
    return page


def run(play) -> None:
    play.get_by_role("button", name="Run").click()
    expect(play.locator("#play-status")).to_contain_text("Done")


def shown(play) -> str:
    """The answer as the eye sees it."""
    return play.locator("#play-text").evaluate("element => element.innerText")


def test_streams_with_attribution(play, world, complaints):
    run(play)
    assert shown(play) == TEXT
    answer = play.locator("#play-text")
    expect(answer.locator("[title='guessed by model']")).to_have_text([" of", " riders"])
    expect(answer.locator("[title='guessed by suffix']")).to_have_text([" in the"])
    expect(answer.locator("[title='guessed by prediction']")).to_have_text([" faster"])
    facts = play.locator("#play-facts")
    expect(facts).to_contain_text("55%")  # 6 of 11 tokens
    expect(facts).to_contain_text("nothing_to_draft 1")
    assert complaints == []
    asked = world.asked[0]
    assert asked["speculation"] == {"mode": "auto", "show_draft": True}
    assert (asked["temperature"], asked["seed"], asked["max_tokens"], asked["stream"]) == (0.7, 7, 160, True)
    assert "prediction" not in asked


def test_drafters_differ_by_more_than_colour(play):
    run(play)
    styles = "e => [getComputedStyle(e).textDecorationStyle, getComputedStyle(e).textDecorationThickness].join()"
    names = ("model", "lookup", "suffix", "recycle", "prediction")
    found = {play.locator(f"#play-text [title='guessed by {name}']").first.evaluate(styles) for name in names}
    assert len(found) == len(names)


def test_rejected_guesses_on_demand(play):
    run(play)
    guesses = play.locator("#play-text s")
    expect(guesses).to_have_count(4)
    expect(guesses.first).to_be_hidden()
    play.get_by_label("Show rejected guesses").check()
    expect(guesses.first).to_be_visible()
    assert shown(play).startswith("A line of riders rode took turns in the front. wind. They Everyone went faster")
    assert "line-through" in guesses.first.evaluate("e => getComputedStyle(e).textDecorationLine")


def test_asks_for_what_the_form_says(play, world):
    play.get_by_label("Prompt", exact=True).fill("Say it twice.")
    play.get_by_label("Temperature").fill("0.25")
    play.get_by_label("Seed").fill("11")
    play.get_by_label("Most tokens").fill("9")
    play.locator("#play-mode").select_option("off")
    play.get_by_text("Expected text").click()
    play.locator("#play-prediction").fill("It, it.")
    play.get_by_label("Prompt", exact=True).press("Control+Enter")
    expect(play.locator("#play-status")).to_contain_text("Done")
    asked = world.asked[0]
    assert asked["messages"] == [{"role": "user", "content": "Say it twice."}]
    assert (asked["temperature"], asked["seed"], asked["max_tokens"]) == (0.25, 11, 9)
    assert asked["speculation"]["mode"] == "off"
    assert asked["prediction"] == {"type": "content", "content": "It, it."}


def test_holds_modes_against_each_other(play, world):
    run(play)
    play.locator("#play-mode").select_option("off")
    run(play)
    expect(play.locator("#play-status")).to_contain_text("The same text, token for token, as with speculation “Auto”")
    world.chunks[-1] = ([(" slower.", None)], [])
    play.locator("#play-mode").select_option("auto")
    run(play)
    expect(play.locator("#play-status")).to_contain_text("Not the text that speculation “Off” gave")


def test_stop_leaves_the_server_in_peace(play, world):
    world.pause_s = 0.3
    world.chunks = [([(f" {i}", None)], []) for i in range(100)]
    play.get_by_role("button", name="Run").click()
    expect(play.locator("#play-text")).to_contain_text("0 1")
    expect(play.locator("#play-text")).to_have_attribute("aria-busy", "true")
    play.get_by_role("button", name="Stop").click()
    expect(play.locator("#play-status")).to_contain_text("Stopped after")
    expect(play.get_by_role("button", name="Run")).to_be_enabled()
    play.wait_for_timeout(600)
    assert world.cancelled == 1


def test_a_refusal_is_told(play, world):
    world.is_down = True
    play.get_by_role("button", name="Run").click()
    expect(play.locator("#play-status")).to_have_text("No answer: the engine has stopped")


def test_an_error_in_mid_stream_is_told(play):
    body = 'data: {"choices":[{"delta":{"content":"Half"}}]}\n\ndata: {"error":{"message":"it broke"}}\n\n'
    play.route("**/v1/**", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    play.get_by_role("button", name="Run").click()
    expect(play.locator("#play-status")).to_have_text("No answer: it broke")
    assert shown(play) == "Half"
    expect(play.get_by_role("button", name="Run")).to_be_enabled()


def test_a_stream_without_attribution_is_shown_all_the_same(play):
    chunks = ("One", " two", " ü½€")
    body = "".join(f'data: {{"choices":[{{"delta":{{"content":"{text}"}}}}]}}\r\n\r\n' for text in chunks)
    play.route("**/v1/**", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    run(play)
    assert shown(play) == "One two ü½€"
