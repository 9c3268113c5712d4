"""Requests that no client should send, drawn at random, as the bytes that go over the wire."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Callable
from typing import Any

PATHS = ("/v1/completions", "/v1/chat/completions", "/admin/speculation")
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"model": "toy:ngram", "prompt": "ab", "max_tokens": 2, "seed": 1, "stop": ["x"]},
    "/v1/chat/completions": {
        "model": "toy:ngram",
        "messages": [{"role": "user", "content": "ab"}],
        "max_tokens": 2,
        "logit_bias": {"65": 1},
        "speculation": {"mode": "auto"},
        "response_format": {"type": "text"},
    },
    "/admin/speculation": {"mode": "auto"},
}
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 2**63, 2**64, -(2**70), 10**400, 1.5, 1e308, "", "x", "\x00", "\ud800", "é" * 50, [], {},
    [[]], [None], [{}], {"": None}, {"type": "json_schema"}, {"type": "regex", "regex": "("}, ["x"] * 200,
    [{"role": "user"}], [{"role": "wizard", "content": "x"}], [{"role": "user", "content": [{"type": "image_url"}]}],
    {"mode": "always", "max_draft_tokens": -5}, {"65": "x"}, {"x": 1}, "9" * 5000,
)  # fmt: skip
FIELDS = (
    "model", "prompt", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "n",
    "stop", "seed", "stream", "stream_options", "logprobs", "top_logprobs", "presence_penalty", "frequency_penalty",
    "logit_bias", "response_format", "tools", "tool_choice", "parallel_tool_calls", "prediction", "speculation", "echo",
    "suffix", "best_of", "user", "grammar", "regex", "bad_words", "stop_token_ids", "min_tokens", "ignore_eos", "mode",
)  # fmt: skip


def draw(dice: random.Random) -> bytes:
    """Return one request, head and body."""
    return dice.choice(KINDS)(dice)


def send(address: tuple[str, int], data: bytes) -> int | None:
    """Send bytes, end, and return the status of the answer; None where the connection just closes."""
    with socket.create_connection(address, timeout=30) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            head = connection.recv(64)
            while connection.recv(65536):
                pass
        except (ConnectionResetError, BrokenPipeError):
            return None
    return int(head.split(b" ", 2)[1]) if head else None


def _post(path: str, body: bytes, length: int | None = None) -> bytes:
    lines = (
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Connection: close",
        "Content-Type: application/json",
        f"Content-Length: {len(body) if length is None else length}",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def _good(dice: random.Random) -> tuple[str, dict[str, Any]]:
    path = dice.choice(PATHS)
    return path, dict(BODIES[path])


def _wrong_types(dice: random.Random) -> bytes:
    path, body = _good(dice)
    for _ in range(dice.randint(1, 3)):
        body[dice.choice(FIELDS)] = dice.choice(ODD)
    return _post(path, json.dumps(body).encode("utf-8", "surrogatepass"))


def _truncated(dice: random.Random) -> bytes:
    path, body = _good(dice)
    whole = json.dumps(body).encode()
    return _post(path, whole[: dice.randrange(len(whole))])


def _unfinished(dice: random.Random) -> bytes:
    path, body = _good(dice)
    return _post(path, json.dumps(body).encode(), length=dice.choice([10**3, 10**6]))


def _flipped(dice: random.Random) -> bytes:
    path, body = _good(dice)
    data = bytearray(json.dumps(body).encode())
    for _ in range(dice.randint(1, 4)):
        data[dice.randrange(len(data))] = dice.randrange(256)
    return _post(path, bytes(data))


def _numbers(dice: random.Random) -> bytes:
    path, body = _good(dice)
    number = dice.choice(["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5000, "0x10", "1_000", "01", "-"])
    body[dice.choice(FIELDS)] = "HERE"
    return _post(path, json.dumps(body).replace('"HERE"', number).encode())


def _deep(dice: random.Random) -> bytes:
    path, body = _good(dice)
    levels = dice.choice([30, 65, 1000, 100_000])
    opening, closing = dice.choice([("[", "]"), ('{"a":', "}")])
    body[dice.choice(FIELDS)] = "HERE"
    deep = opening * levels + "1" + closing * dice.choice([levels, 0])
    return _post(path, json.dumps(body).replace('"HERE"', deep).encode())


def _twice(dice: random.Random) -> bytes:
    path, body = _good(dice)
    text = json.dumps(body)
    return _post(path, f'{text[:-1]}, "{dice.choice(list(body))}": {json.dumps(dice.choice(ODD[:12]))}}}'.encode())


def _encodings(dice: random.Random) -> bytes:
    path, body = _good(dice)
    text = json.dumps(body | {"user": "é𝄞"}, ensure_ascii=False)
    encoded = text.encode(dice.choice(["utf-16", "utf-32", "latin-1", "cp1252"]), "replace")
    return _post(path, dice.choice([encoded, b"\xff\xfe" + text.encode(), b"\xc3\x28", b"\x00" * 50]))


def _not_objects(dice: random.Random) -> bytes:
    bodies = [b"", b" ", b"null", b"[]", b"1", b'"x"', b"{}", b"{}{}", b"\x1f\x8b\x08", b"a=b&c=d", b"--x\r\n\r\n"]
    return _post(dice.choice(PATHS), dice.choice(bodies))


def _chunks(dice: random.Random) -> bytes:
    path, _ = _good(dice)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n"
    both = dice.choice(["", "Content-Length: 5\r\n", "Transfer-Encoding: identity\r\n"])
    chunks = [
        b"5\r\n{}   \r\n0\r\n\r\n",
        b"zz\r\n{}\r\n0\r\n\r\n",
        b"-1\r\n{}",
        b"ffffffffffffffffff\r\n{}",
        b"5\r\n{}",
    ]
    return (head + both).encode() + b"\r\n" + dice.choice(chunks)


def _no_http(dice: random.Random) -> bytes:
    garbage = bytes(dice.randrange(256) for _ in range(dice.randint(1, 300)))
    fixed = [
        b"GET / HTTP/9.9\r\n\r\n",
        b"BREW /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET " + b"/" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /%00%ff/../.. HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000 + b"\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 2000 + b"Connection: close\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n{}",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999999\r\n\r\n{}",
        b"POST /v1/completions HTTP/1.1\r\nHost: \xff\xfe\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ]
    return dice.choice([garbage, *fixed])


KINDS: tuple[Callable[[random.Random], bytes], ...] = (
    _wrong_types, _wrong_types, _wrong_types, _truncated, _unfinished, _flipped, _numbers, _deep, _twice, _encodings,
    _not_objects, _chunks, _no_http,
)  # fmt: skip
