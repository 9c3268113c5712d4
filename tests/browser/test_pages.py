"""The files behind the page: what is served, and what is not."""

from __future__ import annotations

import html
import re

import pytest
from starlette.testclient import TestClient

from paceline.server import pages

from .fake import World, app


@pytest.fixture
def client():
    return TestClient(app(World()))


def test_files_have_types_and_tags(client):
    page = client.get("/")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert page.headers["cache-control"] == "no-cache"
    again = client.get("/", headers={"If-None-Match": page.headers["etag"]})
    assert again.status_code == 304 and again.content == b""
    for path, kind in {
        "app.js": "text/javascript",
        "style.css": "text/css",
        "strings/tr.json": "application/json",
    }.items():
        assert client.get(f"/static/{path}").headers["content-type"].startswith(kind)


@pytest.mark.parametrize(
    "path",
    ["/static/nothing.js", "/static/../pages.py", "/static/%2e%2e/pages.py", "/static//etc/passwd", "/static/",
     "/runbooks/nothing", "/runbooks/..%2f..%2fREADME", "/runbooks/"],
)  # fmt: skip
def test_nothing_else_is_served(client, path):
    answer = client.get(path)
    assert answer.status_code == 404
    assert "import" not in answer.text


def test_every_file_that_the_page_names_is_there(client):
    text = client.get("/").text
    named = re.findall(r'(?:src|href)="(/[^"]*)"', text)
    modules = {path for path in pages.STATIC if path.endswith(".js")}
    for path in modules:
        named += [f"/static/{name}" for name in re.findall(r'from "\./([^"]+)"', pages.STATIC[path].body.decode())]
    assert len(named) > 20
    assert {path: client.get(path).status_code for path in named} == dict.fromkeys(named, 200)


def test_no_markup_is_made_of_strings_and_nothing_is_inline():
    for path, page in pages.STATIC.items():
        text = page.body.decode()
        for banned in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "http://",
            "https://",
        ):
            allowed = banned == "http://" and "http://www.w3.org/2000/svg" in text
            assert banned not in text or allowed, f"{banned} in {path}"
        if path.endswith(".html"):
            assert not re.search(r"\s(style|on\w+)=", text)
            assert not re.search(r"<script(?![^>]*\ssrc=)", text)


def test_files_stay_small():
    for path, page in pages.STATIC.items():
        assert page.body.count(b"\n") < 400, path
    assert sum(len(page.body) for page in pages.STATIC.values()) < 150_000


def test_runbooks_are_text(client, monkeypatch, tmp_path):
    hostile = "# Runbook\n<script>alert(1)</script> & more"
    (tmp_path / "over-load.md").write_text(hostile)
    monkeypatch.setattr(pages, "RUNBOOKS", (tmp_path / "none", tmp_path))
    monkeypatch.setattr(pages, "BOOKS", dict(pages._runbooks()))
    answer = client.get("/runbooks/over-load")
    assert answer.status_code == 200
    assert html.escape(hostile) in answer.text and "<script>" not in answer.text.replace("<script src=", "")
    assert client.get("/runbooks/over-load.md").content == answer.content
