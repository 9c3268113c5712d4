"""A running server, asked how it does; what it answers is not trusted."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from paceline.errors import OptionError, PacelineError

TIMEOUT_S = 5.0
LARGEST = 16 << 20
"""Bytes of an answer."""
PARTS: Mapping[str, type] = {
    **dict.fromkeys(("model", "speculation", "rate", "busy", "batch", "acceptance", "memory", "latency"), dict),
    "reasons": dict,
    "alarms": list,
}
"""What a state has at least."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A key goes to the server that was named, and to no other."""

    def redirect_request(self, *given: Any) -> None:
        return None


class Remote:
    """Raises OptionError: the URL is none of a server."""

    def __init__(self, url: str, key: str | None) -> None:
        self.url = _address(url)
        self._headers = {"Accept": "application/json"}
        if key:
            if not key.isascii() or not key.isprintable():
                raise OptionError("the API key has characters that no key has; give it as it was made")
            self._headers["Authorization"] = f"Bearer {key}"
        self._opener = urllib.request.build_opener(_NoRedirect)

    def state(self) -> dict[str, Any]:
        """Raises PacelineError: the server does not answer, wants a key, or is another kind of server."""
        request = urllib.request.Request(f"{self.url}/api/state", headers=self._headers)
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                data = answer.read(LARGEST)
        except urllib.error.HTTPError as error:
            error.close()
            raise PacelineError(self._refused(error.code)) from None
        except (OSError, HTTPException) as error:
            raise PacelineError(self._silent(error)) from None
        return self._checked(data)

    def _refused(self, status: int) -> str:
        if status in (401, 403):
            return f"{self.url} wants an API key ({status}); give one with --api-key, or in PACELINE_API_KEY"
        if status == 503:
            return f"{self.url} takes no requests at present (503); it shuts down, or has failed"
        return f"{self.url}/api/state answers {status}; this is no paceline server, or the path is wrong"

    def _silent(self, error: Exception) -> str:
        reason = getattr(error, "reason", error)
        why = getattr(reason, "strerror", None) or str(reason) or type(error).__name__
        return f"{self.url} does not answer ({why}); see that the server runs there, and the port"

    def _checked(self, data: bytes) -> dict[str, Any]:
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or not all(isinstance(found.get(k), kind) for k, kind in PARTS.items()):
            raise PacelineError(f"{self.url} answers with something else than a state; this is no paceline server")
        return found


def _address(url: str) -> str:
    whole = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(whole)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        fits = False
    if not fits or any(c.isspace() or not c.isprintable() for c in whole) or parts.query or parts.fragment:
        raise OptionError(f"the URL is {url!r}; give one such as http://127.0.0.1:8000")
    return whole.rstrip("/")
