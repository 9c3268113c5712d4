"""A client of the chat API that reads a stream and looks at the clock; what it is answered is not trusted."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from paceline.errors import OptionError, PacelineError

TIMEOUT_S = 600.0
LARGEST_LINE = 1 << 20
LARGEST = 16 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    tokens: int
    """As the server counts them."""
    arrivals: tuple[float, ...]
    """When each piece of text came, in seconds since the request; never empty."""
    usage: Mapping[str, Any]
    timings: Mapping[str, Any]
    """llama.cpp's; empty elsewhere."""

    @property
    def ttft_s(self) -> float:
        return self.arrivals[0]

    @property
    def decode_s(self) -> float:
        """From the first piece of text to the last."""
        return self.arrivals[-1] - self.arrivals[0]


class Client:
    """Raises OptionError: the address or the key is none."""

    def __init__(self, url: str, key: str | None = None) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or parts.query or parts.fragment:
            raise OptionError(f"the URL is {url!r}; give one such as http://127.0.0.1:8000")
        if key and not (key.isascii() and key.isprintable()):
            raise OptionError("the API key has characters that no key has; give it as it was made")
        self.url = url
        self._kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._host, self._port = parts.hostname, port
        self._root = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def about(self) -> tuple[str, str]:
        """Return the id of the first model that the server has, and who owns it, as servers have it: they themselves.

        Raises:
            PacelineError: it does not answer, or not as the OpenAI API does.
        """
        found = self.json("/v1/models")
        try:
            first = found["data"][0]
            return str(first["id"]), str(first.get("owned_by"))
        except (KeyError, IndexError, TypeError, AttributeError):
            raise PacelineError(f"{self.url}/v1/models names no model; give an OpenAI-compatible server") from None

    def json(self, path: str) -> Any:
        try:
            return json.loads(self.text(path))
        except (ValueError, RecursionError):
            raise PacelineError(f"{self.url}{path} answers with something else than JSON") from None

    def text(self, path: str) -> str:
        """Raises PacelineError: it does not answer, or refuses."""
        connection = self._connect()
        try:
            connection.request("GET", self._root + path, headers=self._headers)
            response = connection.getresponse()
            data = response.read(LARGEST)
            if response.status != 200:
                raise PacelineError(f"{self.url}{path} answers {response.status}; {_hint(response.status)}")
            return data.decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            raise self._silent(error) from None
        finally:
            connection.close()

    def chat(self, model: str, messages: Sequence[Mapping[str, Any]], **parameters: Any) -> Answer:
        """Stream one answer to its end.

        Raises:
            PacelineError: the server refuses, breaks off or answers with something else.
        """
        body = {"model": model, "messages": list(messages), "stream": True, **parameters}
        body["stream_options"] = {"include_usage": True}
        connection = self._connect()
        try:
            begin = time.perf_counter()
            connection.request("POST", f"{self._root}/v1/chat/completions", json.dumps(body), self._headers)
            response = connection.getresponse()
            if response.status != 200:
                said = response.read(2000).decode("utf-8", "replace")
                raise PacelineError(f"{self.url} answers {response.status}: {_said(said)}")
            return _read(begin, _events(response))
        except (OSError, http.client.HTTPException) as error:
            raise self._silent(error) from None
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        return self._kind(self._host, self._port, timeout=TIMEOUT_S)

    def _silent(self, error: Exception) -> PacelineError:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return PacelineError(f"{self.url} does not answer ({why}); see that the server runs there, and the port")


def _read(begin: float, events: Iterator[Mapping[str, Any]]) -> Answer:
    pieces: list[str] = []
    usage: Mapping[str, Any] = {}
    timings: Mapping[str, Any] = {}
    arrivals: list[float] = []
    for event in events:
        if event.get("error"):
            raise PacelineError(f"the server broke off: {_said(json.dumps(event['error']))}")
        usage = found if isinstance(found := event.get("usage"), Mapping) else usage
        timings = found if isinstance(found := event.get("timings"), Mapping) else timings
        if text := _text(event):
            arrivals.append(time.perf_counter() - begin)
            pieces.append(text)
    count = usage.get("completion_tokens")
    if not isinstance(count, int):
        raise PacelineError("the server does not say how many tokens it made (usage.completion_tokens)")
    came = tuple(arrivals) or (time.perf_counter() - begin,)
    return Answer("".join(pieces), count, came, usage, timings)


def _text(event: Mapping[str, Any]) -> str:
    """Return what an event adds to the text; what has another form than that adds nothing."""
    choices = event.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    delta = first.get("delta") if isinstance(first, Mapping) else None
    if not isinstance(delta, Mapping):
        return ""
    found = delta.get("content") or delta.get("reasoning_content")
    return found if isinstance(found, str) else ""


def _events(response: http.client.HTTPResponse) -> Iterator[Mapping[str, Any]]:
    while line := response.readline(LARGEST_LINE):
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            raise PacelineError("the server streams something else than JSON") from None
        if isinstance(event, Mapping):
            yield event
    raise PacelineError("the server broke off in the middle of an answer")


def _said(text: str) -> str:
    """Return what a server said of an error, on one short line."""
    try:
        found = json.loads(text)
        text = found["error"]["message"] if isinstance(found.get("error"), dict) else found.get("message", text)
    except (ValueError, AttributeError, KeyError, RecursionError):
        pass
    return " ".join(str(text).split())[:300]


def _hint(status: int) -> str:
    if status in (401, 403):
        return "it wants an API key: give one with --api-key, or in PACELINE_API_KEY"
    return "give the root of an OpenAI-compatible server"
