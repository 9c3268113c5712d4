"""Keys, languages, themes, keyboards, small screens, and strangers who write markup."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Page, expect

from paceline.server.pages import HERE

from .conftest import watch
from .fake import collapsed, fresh, request

pytestmark = pytest.mark.browser
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def test_asks_for_a_key_and_keeps_it_for_the_tab(page, address, world):
    world.key = "sk-right-0123456789"
    page.goto(address)
    dialog = page.get_by_role("dialog", name="This server asks for a key")
    expect(dialog).to_be_visible()
    expect(dialog.get_by_label("API key")).to_be_focused()
    page.keyboard.type("sk-wrong")
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text("does not know this key")
    dialog.get_by_label("API key").fill(world.key)
    dialog.get_by_role("button", name="Use key").click()
    expect(page.locator("#rate")).to_have_text("52.4")
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("button", name="Change key")).to_be_visible()
    page.get_by_role("button", name="Run").click()
    expect(page.locator("#play-status")).to_contain_text("Done")
    page.reload()
    expect(page.locator("#rate")).to_have_text("52.4")
    assert page.evaluate("JSON.stringify(localStorage)").find(world.key) == -1
    other = page.context.new_page()
    other.goto(address)
    expect(other.get_by_role("dialog")).to_be_visible()


def test_a_key_that_is_withdrawn_is_asked_for_again(page, address, world):
    page.goto(address)
    expect(page.locator("#rate")).to_have_text("52.4")
    world.key = "sk-new-0123456789"
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("dialog")).to_be_visible()


def test_turkish_is_remembered(page, address):
    page.goto(address)
    page.get_by_label("Language").select_option("tr")
    expect(page.get_by_role("heading", name="Saniyede token")).to_be_visible()
    expect(page.locator("#rate")).to_have_text("52,4")
    expect(page.locator("#busy-share")).to_have_text("%97")
    expect(page.locator("#reason-list")).to_contain_text("hiçbir taslakçının tahmini yoktu")
    page.reload()
    expect(page.get_by_role("heading", name="Deneme alanı")).to_be_visible()
    assert page.evaluate("document.documentElement.lang") == "tr"


def test_speaks_the_browser_s_language(browser, address):
    context = browser.new_context(locale="tr-TR")
    page = context.new_page()
    page.goto(address)
    expect(page.get_by_role("heading", name="Bellek")).to_be_visible()
    context.close()


def test_every_string_is_there_and_used():
    strings = {name: json.loads((HERE / "strings" / f"{name}.json").read_text("utf-8")) for name in ("en", "tr")}
    assert strings["en"].keys() == strings["tr"].keys()
    holes = re.compile(r"\{\w+\}")
    for key, english in strings["en"].items():
        assert sorted(holes.findall(english)) == sorted(holes.findall(strings["tr"][key])), key
    source = "".join(file.read_text("utf-8") for file in HERE.glob("*.*"))
    made = ("reason.", "mode.", "spec.says.", "memory.", "requests.", "drafters.", "audit.", "play.")
    unused = {key for key in strings["en"] if f'"{key}"' not in source and not key.startswith(made)}
    named = set(re.findall(r'data-t(?:-label)?="([^"]+)"', source)) | set(re.findall(r'\bt\("([^"]+)"', source))
    assert unused == set()
    assert named - strings["en"].keys() == set()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_follows_the_system_and_the_switch(page, address, scheme):
    ground = "getComputedStyle(document.body).backgroundColor"
    light, dark = "rgb(246, 246, 244)", "rgb(16, 18, 20)"
    page.emulate_media(color_scheme=scheme)
    page.goto(address)
    assert page.evaluate(ground) == (dark if scheme == "dark" else light)
    other = "light" if scheme == "dark" else "dark"
    page.get_by_label("Theme").select_option(other)
    page.reload()
    assert page.evaluate(ground) == (dark if other == "dark" else light)
    page.get_by_label("Theme").select_option("auto")
    assert page.evaluate(ground) == (dark if scheme == "dark" else light)


CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const pixel = (colours) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const grounds = (e) => (e ? [...grounds(e.parentElement), getComputedStyle(e).backgroundColor] : ["white"]);
  const found = [];
  for (const e of document.querySelectorAll("body *")) {
    const text = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!text || !e.checkVisibility() || e.closest("noscript, option, :disabled")) continue;
    const style = getComputedStyle(e), behind = grounds(e);
    const ink = e instanceof SVGElement ? style.fill : style.color;
    const [a, b] = [light(pixel([...behind, ink])), light(pixel(behind))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    found.push([ratio, e.className?.baseVal ?? e.className, e.textContent.trim().slice(0, 30)]);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(page, address, world, scheme):
    """WCAG's AA: 4.5 to 1, which large figures need not have and have all the same."""
    world.state = collapsed()
    page.emulate_media(color_scheme=scheme)
    page.goto(address)
    page.get_by_label("Show rejected guesses").check()
    page.get_by_role("button", name="Run").click()
    expect(page.locator("#play-status")).to_contain_text("Done")
    found = page.evaluate(CONTRAST)
    assert len(found) > 100
    assert [each for each in found if each[0] < 4.5] == []


def test_contrast_is_really_measured(page, address):
    page.goto(address)
    expect(page.locator("#rate")).to_have_text("52.4")
    page.locator("#rate").evaluate("e => { e.style.color = '#999' }")
    assert any(each[0] < 4.5 for each in page.evaluate(CONTRAST))


def test_a_keyboard_is_enough(page, address, world):
    page.goto(address)
    expect(page.locator("#mode").get_by_label("Auto")).to_be_checked()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the figures")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    tab_to(page, "input[name=mode]")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#mode").get_by_label("Off")).to_be_checked()
    expect(page.locator("#mode-note")).to_have_text("Switched to Off.")
    assert world.posted == [{"mode": "off"}]
    tab_to(page, "#rate-chart summary, #busy-chart summary")
    page.keyboard.press("Enter")
    expect(page.locator("#busy-chart table")).to_be_visible()
    tab_to(page, "#play-prompt")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#play-status")).to_contain_text("Done")
    tab_to(page, "#play-rejected")
    page.keyboard.press("Space")
    expect(page.locator("#play-text s").first).to_be_visible()
    tab_to(page, "#request-list")


def tab_to(page: Page, selector: str) -> None:
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            ring = "getComputedStyle(document.activeElement.matches('input[name=mode]') ? document.activeElement"
            ring += ".nextElementSibling : document.activeElement).outlineStyle"
            assert page.evaluate(ring) != "none", f"{selector} has focus, and nobody can see it"
            return
    raise AssertionError(f"{selector} is not reached by tabs")


def test_a_screen_reader_finds_its_way(page, address):
    page.goto(address)
    expect(page.locator("#rate")).to_have_text("52.4")
    for role in ("banner", "navigation", "main", "contentinfo"):
        expect(page.get_by_role(role)).to_have_count(1)
    names = page.get_by_role("region").evaluate_all(
        "all => all.map(e => document.getElementById(e.getAttribute('aria-labelledby')).textContent)"
    )
    assert len(names) >= 12 and all(names)
    for image in page.get_by_role("img").all():
        assert len(image.get_attribute("aria-label")) > 20
    unnamed = page.evaluate(
        "[...document.querySelectorAll('input, select, textarea')].filter("
        "e => !e.labels.length && !e.getAttribute('aria-label')).map(e => e.id)"
    )
    assert unnamed == []


@pytest.mark.parametrize("width", [360, 768, 1024, 1920])
@pytest.mark.parametrize("language", ["en", "tr"])
def test_fits_any_screen(page, address, width, language):
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(address)
    page.locator("#language").select_option(language)
    page.locator("#play-send").click()
    expect(page.locator("#play-facts div").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_markup_from_anyone_stays_text(page, address, world, complaints):
    page.on("dialog", lambda dialog: complaints.append(dialog.message) or dialog.dismiss())
    world.state = collapsed()
    world.state["model"]["id"] = world.state["alarms"][0]["text"] = HOSTILE
    world.state["speculation"] |= {"why": HOSTILE, "drafters": [HOSTILE]}
    world.state["acceptance"]["by_drafter"] = {HOSTILE: {"drafted": 1, "verified": 1, "accepted": 1, "draft_ms": 1.0}}
    world.state["reasons"] = {HOSTILE: 3, "__proto__": 2, "constructor": 1}
    world.requests = [request(key=HOSTILE, id=HOSTILE, reasons={HOSTILE: 1})]
    world.chunks = [([(HOSTILE, HOSTILE), (HOSTILE, None)], [(HOSTILE, HOSTILE, 1)])]
    page.goto(address)
    page.get_by_role("button", name="Run").click()
    expect(page.locator("#play-status")).to_contain_text("Done")
    for place in ("#model", "#alarm-list", "#mode-why", "#by-drafter", "#reason-list", "#request-list", "#play-text"):
        expect(page.locator(place)).to_contain_text(HOSTILE)
    assert page.locator("main img, main script, header img").count() == 0
    assert complaints == []


def test_nothing_comes_from_elsewhere(browser, address, world):
    """Whatever the page loads is this server's: it works without a network."""
    context = browser.new_context()
    page, asked, complaints = context.new_page(), [], []
    watch(page, complaints)
    page.on("request", lambda request: asked.append(request.url))
    world.state = fresh()
    page.goto(address)
    expect(page.locator("#live")).to_have_text("live")
    assert asked and all(url.startswith(address + "/") for url in asked)
    assert complaints == []
    context.close()


def test_motion_is_reduced_where_asked(page, address):
    behaviour = "getComputedStyle(document.documentElement).scrollBehavior"
    page.emulate_media(reduced_motion="reduce")
    page.goto(address)
    assert page.evaluate(behaviour) == "auto"
    page.emulate_media(reduced_motion="no-preference")
    assert page.evaluate(behaviour) == "smooth"
