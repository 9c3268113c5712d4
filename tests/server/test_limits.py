"""Bodies, connections and requests that are too large, too slow, too deep, or none at all."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.engine.llm import LLM
from paceline.server.limits import DEEPEST, depth

from . import malformed
from .live import Live, live

GOOD = {"model": "toy:ngram", "prompt": "a line of riders", "max_tokens": 24, "seed": 7, "temperature": 0.8}
JSON = st.recursive(
    st.none() | st.booleans() | st.text(alphabet='[]{}"\\x', max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='[{"\\', max_size=3), inner),
    max_leaves=12,
)


def levels(value: object) -> int:
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if below is None else 1 + max(map(levels, below), default=0)


class TestDepth:
    @given(JSON)
    def test_is_that_of_the_value(self, value):
        assert depth(json.dumps(value).encode()) == levels(value)

    @pytest.mark.parametrize("body", [b"", b"]]]", b'"[[[', b'"\\', b'"\\"[[', b"\xff[\xff", b'{"a":"\\u005b["}'])
    def test_of_what_is_no_json(self, body):
        assert depth(body) <= 1

    @pytest.mark.parametrize("part", [b"[", b'"\\', b'\\"', b'""', b'"[', b"[]", b'{"a":['])
    def test_looks_at_no_byte_twice(self, part):
        """Four megabytes of the worst there is; a pattern that tracks back would take hours."""
        depth(part * (2**22 // len(part)))


@pytest.fixture(scope="module")
def strict(kept):
    limits = {
        "max_body_bytes": 20_000,
        "header_timeout_s": 0.5,
        "body_timeout_s": 0.5,
        "idle_timeout_s": 0.5,
        "connections": 40,
    }
    with live(LLM("toy:ngram"), {"server": limits}) as server:
        yield server


def address(server: Live) -> tuple[str, int]:
    url = httpx.URL(server.url)
    return url.host, url.port or 0


def answers_well(server: Live, plain: LLM) -> None:
    """A good request gets what plain decoding gives."""
    from paceline.core.types import SamplingParams

    with server.client() as client:
        found = client.post("/v1/completions", json=GOOD).json()["choices"][0]["text"]
    [expected] = plain.generate(GOOD["prompt"], SamplingParams(max_tokens=24, seed=7, temperature=0.8))
    assert found == expected.text


def storm(server: Live, count: int, seed: int) -> Counter[int | None]:
    """Send so many malformed requests, eight at a time, and count the statuses of their answers."""
    dice = random.Random(seed)
    requests = [malformed.draw(dice) for _ in range(count)]
    found: Counter[int | None] = Counter()
    with ThreadPoolExecutor(8) as pool:
        for data, status in zip(
            requests, pool.map(lambda d: malformed.send(address(server), d), requests), strict=True
        ):
            found[status] += 1
            assert status is None or status < 500, (status, data[:600])
    return found


class TestMalformedRequests:
    def test_do_no_harm(self, toy, plain_toy):
        found = storm(toy, 500, seed=1)
        assert found[400] > 100, "most are refused"
        toy.settle()
        answers_well(toy, plain_toy)

    @pytest.mark.long
    def test_ten_thousand_do_no_harm(self, kept, plain_toy):
        with live(LLM("toy:ngram"), {"server": {"header_timeout_s": 1.0, "body_timeout_s": 1.0}}) as server:
            slow = threading.Thread(target=lambda: [drip(address(server), 2.0) for _ in range(20)])
            slow.start()
            found = storm(server, 10_000, seed=2)
            assert sum(found.values()) == 10_000
            slow.join()
            server.settle()
            answers_well(server, plain_toy)

    def test_nothing_of_the_inside_is_told(self, toy):
        with toy.client() as client:
            for body in ("{", '{"model": 1}', '{"prompt": "\\ud800", "model": "toy:ngram"}', "[" * 70):
                response = client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
                told = response.text
                assert 400 <= response.status_code < 500
                assert set(json.loads(told)["error"]) == {"message", "type", "param", "code"}
                assert not any(word in told for word in ("Traceback", "site-packages", ".py", "0x"))


def drip(to: tuple[str, int], seconds: float) -> bytes:
    """Send a head a byte at a time, for so long, and return what comes back."""
    with socket.create_connection(to, timeout=10) as connection:
        deadline = time.monotonic() + seconds
        try:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
            while time.monotonic() < deadline:
                connection.sendall(b"a")
                time.sleep(0.05)
            return b"still open"
        except OSError:
            return connection.recv(100) if connection.fileno() >= 0 else b""


def rest(connection: socket.socket) -> bytes:
    """Return all that comes until the other end closes."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


class TestSlowness:
    def test_a_head_that_never_ends(self, strict):
        with socket.create_connection(address(strict), timeout=10) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: a")
            assert connection.recv(100).startswith(b"HTTP/1.1 408 ")
            assert connection.recv(100) == b""

    def test_bytes_now_and_then_do_not_help(self, strict):
        assert drip(address(strict), 8.0) != b"still open"

    def test_nor_does_a_connection_that_says_nothing(self, strict):
        with socket.create_connection(address(strict), timeout=10) as connection:
            assert connection.recv(100).startswith(b"HTTP/1.1 408 ")

    def test_nor_a_first_request_that_is_good(self, strict):
        with socket.create_connection(address(strict), timeout=10) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            connection.sendall(b"\r\nGET /hea")
            answers = rest(connection)
            assert answers.startswith(b"HTTP/1.1 200 ")
            assert b"HTTP/1.1 408 " in answers

    def test_a_body_that_never_ends(self, strict):
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        for length in (b"Content-Length: 500\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n2\r\n{ \r\n"):
            with socket.create_connection(address(strict), timeout=10) as connection:
                connection.sendall(head + length)
                answer = rest(connection)
                assert answer.startswith(b"HTTP/1.1 408 ")
                assert b"the body was not there after 0.5 s" in answer

    def test_stray_bytes_do_not_end_an_answer(self, strict):
        body = json.dumps(GOOD | {"max_tokens": 300, "ignore_eos": True, "stream": True}).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
        )
        step = strict.llm.engine.step
        strict.llm.engine.step = lambda: time.sleep(0.005) or step()  # type: ignore[method-assign]
        try:
            with socket.create_connection(address(strict), timeout=10) as connection:
                connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body + b"\r\n")
                answer = rest(connection)
        finally:
            strict.llm.engine.step = step  # type: ignore[method-assign]
        assert b"[DONE]" in answer

    def test_good_requests_pass_meanwhile(self, strict, plain_toy):
        slow = [socket.create_connection(address(strict), timeout=10) for _ in range(20)]
        for connection in slow:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nX: ")
        answers_well(strict, plain_toy)
        for connection in slow:
            connection.close()


class TestSizes:
    @pytest.mark.parametrize("announced", [True, False])
    def test_a_body_that_is_too_large(self, strict, announced):
        body = json.dumps(GOOD | {"user": "x" * 30_000}).encode()

        def chunks():
            for start in range(0, len(body), 5000):
                yield body[start : start + 5000]

        with strict.client() as client:
            given = {"content": body if announced else chunks(), "headers": {"Content-Type": "application/json"}}
            refused = client.post("/v1/completions", **given)
        assert refused.status_code == 413
        assert refused.json()["error"]["message"] == "the body is larger than 20000 bytes"
        assert refused.headers["connection"] == "close"

    def test_a_head_that_is_too_large(self, strict):
        with socket.create_connection(address(strict), timeout=10) as connection:
            answer = b""
            try:
                for _ in range(100):
                    connection.sendall(b"X: " + b"a" * 10_000)
                    time.sleep(0.001)
            except OSError:
                pass
            try:
                answer = connection.recv(100)
            except ConnectionResetError:
                answer = b"reset"
            assert answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 ", b"reset"))

    def test_a_body_that_nests_too_deep(self, strict):
        with strict.client() as client:
            for levels_, status in ((DEEPEST + 1, "body_too_deep"), (DEEPEST - 1, "unknown_parameter")):
                body = '{"x": ' + "[" * (levels_ - 1) + "]" * (levels_ - 1) + "}"
                refused = client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
                assert refused.status_code == 400
                assert refused.json()["error"]["code"] in (status, "invalid_value")
                assert (refused.json()["error"]["code"] == "body_too_deep") == (levels_ > DEEPEST)

    def test_connections_beyond_the_bound(self, strict):
        crowd = [socket.create_connection(address(strict), timeout=10) for _ in range(45)]
        try:
            crowd[-1].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert crowd[-1].recv(100).startswith(b"HTTP/1.1 503 ")
        finally:
            for connection in crowd:
                connection.close()
        with strict.client() as client:
            for _ in range(200):
                if client.get("/health").status_code == 200:
                    return
                time.sleep(0.02)
        pytest.fail("connections that were closed still count")
