"""What every response says to a browser, and which pages and names may ask at all."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.server.refusals import Refusal, render

ALWAYS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
"""Cache-Control only where a response has none of its own."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})


class SecurityHeaders:
    """Adds `ALWAYS` to every response, errors included."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in ALWAYS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, sending)


class SameOrigin:
    """Refuses what a page from elsewhere sends through a visitor's browser.

    A server on loopback without keys trusts whoever reaches it, and any page that the user visits can: by a form, or by
    a name of its own that it lets point to 127.0.0.1. So what changes something must come from an origin that is this
    host or allowed, and, where `names` is given, ask for one of these hosts.

    Args:
        origins: other origins that may ask.
        names: hosts that the server is asked by; None for any.
    """

    def __init__(self, app: ASGIApp, origins: Collection[str] = (), names: Collection[str] | None = None) -> None:
        self._app, self._origins, self._names = app, frozenset(origins), names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refusal(scope) if scope["type"] == "http" else None
        await (render(refused) if refused else self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Refusal | None:
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._names is not None and _name(host) not in self._names:
            return Refusal(403, "this server answers to its own name only; ask for localhost", code="wrong_host")
        safe = scope["method"] in ("GET", "HEAD", "OPTIONS")
        if safe or origin is None or origin in self._origins or origin.partition("://")[2] == host:
            return None
        return Refusal(403, "pages of another origin may not ask; see server.cors_origins", code="wrong_origin")


def names_of(bind: str, has_keys: bool) -> Collection[str] | None:
    """Return the hosts that a server may be asked by: its own where nothing but loopback guards it."""
    return None if has_keys or not is_loopback(bind) else LOOPBACK | {bind}


def is_loopback(host: str) -> bool:
    return host in LOOPBACK or host.startswith("127.")


def _name(host: str) -> str:
    """Return a Host header without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]
