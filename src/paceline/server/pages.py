"""The dashboard's files and the runbooks: read once, at start, so that no path from outside ever meets the disk."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

from paceline.server.refusals import Refusal

HERE = Path(__file__).parent / "static"
RUNBOOKS = (HERE / "runbooks", Path(__file__).parents[3] / "docs" / "runbooks")
"""Where runbooks are: in the installed package, and beside its source."""
_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · paceline</title>
<link rel="icon" href="/static/favicon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/static/style.css">
<script src="/static/theme.js"></script>
</head>
<body class="runbook">
<p><a href="/">paceline</a></p>
<main><pre>{text}</pre></main>
</body>
</html>
"""

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Page:
    body: bytes
    media_type: str
    etag: str


def _page(body: bytes, suffix: str) -> Page:
    return Page(body, _TYPES[suffix], f'"{sha256(body).hexdigest()[:32]}"')


def _static() -> Iterator[tuple[str, Page]]:
    for file in HERE.rglob("*"):
        if file.suffix in _TYPES:
            yield file.relative_to(HERE).as_posix(), _page(file.read_bytes(), file.suffix)


def _runbooks() -> Iterator[tuple[str, Page]]:
    folder = next((folder for folder in RUNBOOKS if folder.is_dir()), None)
    for file in folder.glob("*.md") if folder else ():
        text = _PAGE.format(title=html.escape(file.stem), text=html.escape(file.read_text("utf-8")))
        yield file.stem, _page(text.encode(), ".html")


STATIC: Mapping[str, Page] = dict(_static())
BOOKS: Mapping[str, Page] = dict(_runbooks())


@router.get("/")
async def dashboard(request: Request) -> Response:
    return _answer(request, STATIC["index.html"])


@router.get("/favicon.ico")
async def favicon(request: Request) -> Response:
    return _answer(request, STATIC["favicon.svg"])


@router.get("/static/{path:path}")
async def static(request: Request, path: str) -> Response:
    return _answer(request, STATIC.get(path))


@router.get("/runbooks/{name}")
async def runbook(request: Request, name: str) -> Response:
    return _answer(request, BOOKS.get(name.removesuffix(".md")))


def _answer(request: Request, page: Page | None) -> Response:
    if page is None:
        raise Refusal(404, "there is no such page", code="not_found")
    headers = {"ETag": page.etag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == page.etag:
        return Response(status_code=304, headers=headers)
    return Response(page.body, media_type=page.media_type, headers=headers)
