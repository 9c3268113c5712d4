"""One browser for all tests; for each a page of its own, which must not complain of anything."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from .fake import World, app, served

CHROMIUM = "/usr/bin/chromium"


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def world():
    return World()


@pytest.fixture
def address(world):
    with served(app(world)) as url:
        yield url


@pytest.fixture
def complaints() -> list[str]:
    """What the browser's console said of errors, and what no one caught."""
    return []


@pytest.fixture
def page(browser: Browser, complaints: list[str]):
    context = browser.new_context(viewport={"width": 1440, "height": 900}, locale="en-GB", timezone_id="UTC")
    made = context.new_page()
    watch(made, complaints)
    expect.set_options(timeout=10_000)
    yield made
    context.close()


def watch(page: Page, complaints: list[str]) -> None:
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
