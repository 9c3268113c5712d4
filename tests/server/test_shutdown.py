"""Signals under load: what runs comes to its end, what comes anew is told so, and nothing is left behind."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from .process import Process, process

ASKED = {"model": "toy:ngram", "max_tokens": 60, "ignore_eos": True, "speculation": {"mode": "off"}}


def ask(server: Process, number: int, **more: Any) -> dict[str, Any]:
    with server.client() as client:
        response = client.post("/v1/completions", json=ASKED | {"prompt": f"prompt {number}", "seed": number} | more)
    return {"status": response.status_code, **response.json()}


def started(server: Process, requests: int = 1) -> None:
    """Wait until so many requests run or wait."""
    with server.client() as client:
        while sum(client.get("/api/state").json()["batch"][name] for name in ("running", "waiting")) < requests:
            time.sleep(0.02)


@pytest.fixture(scope="module", autouse=True)
def quiet(kept):
    """Signals and exit codes are looked at in processes that measure nothing for the next one."""


def test_sigterm_lets_all_that_runs_end(plain_toy):
    from paceline.core.types import SamplingParams

    with process("--model", "toy:ngram", pause=0.02) as server, ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(ask, server, i, max_tokens=150) for i in range(12)]
        started(server, 12)
        server.signal(signal.SIGTERM)
        answers = [future.result() for future in asked]
        assert server.ended() == 0
    assert [answer["status"] for answer in answers] == [200] * 12, "those that waited, too"
    for i, answer in enumerate(answers):
        [expected] = plain_toy.generate(
            f"prompt {i}", SamplingParams(max_tokens=150, seed=i, ignore_eos=True, temperature=1.0)
        )
        assert answer["choices"][0]["text"] == expected.text
    assert not any("Traceback" in line for line in server.lines)
    assert any("finishing what runs" in line for line in server.lines)


def test_newcomers_are_told_while_it_drains():
    with process("--model", "toy:ngram", pause=0.02) as server, ThreadPoolExecutor(4) as pool:
        running = pool.submit(ask, server, 1, max_tokens=100)
        started(server)
        server.signal(signal.SIGTERM)
        with server.client() as client:
            while client.get("/ready").status_code != 503:
                time.sleep(0.01)
            assert client.get("/ready").json()["status"] == "draining"
            assert client.get("/health").status_code == 200, "it lives, until the last answer"
        refused = ask(server, 2)
        assert (refused["status"], refused["error"]["code"]) == (503, "shutting_down")
        assert running.result()["status"] == 200
        assert server.ended() == 0


def test_a_second_signal_cancels_what_is_left():
    with process("--model", "toy:ngram", pause=0.05) as server, ThreadPoolExecutor(10) as pool:
        asked = [pool.submit(ask, server, i, max_tokens=400) for i in range(10)]
        started(server, 10)
        server.signal(signal.SIGINT)
        while not any("once more cancels it" in line for line in server.lines):
            time.sleep(0.01)
        server.signal(signal.SIGINT)
        answers = [future.result() for future in asked]
        assert server.ended() == 130
    assert {answer["status"] for answer in answers} == {503}
    assert all("shutting down" in answer["error"]["message"] for answer in answers)


def test_so_does_the_end_of_its_patience(tmp_path):
    config = tmp_path / "paceline.toml"
    config.write_text("[server]\ndrain_s = 0.2\n")
    with process("--model", "toy:ngram", "--config", str(config), pause=0.05) as server, ThreadPoolExecutor(2) as pool:
        asked = pool.submit(ask, server, 1, max_tokens=400)
        started(server)
        server.signal(signal.SIGTERM)
        assert asked.result()["status"] == 503
        assert server.ended() == 0


def test_a_stream_that_is_cancelled_ends_with_an_error_and_not_in_the_middle():
    with process("--model", "toy:ngram", pause=0.05) as server:
        with server.client() as client:
            body = ASKED | {"prompt": "x", "max_tokens": 400, "stream": True}
            with client.stream("POST", "/v1/completions", json=body) as stream:
                lines = stream.iter_lines()
                next(lines)
                server.signal(signal.SIGINT)
                time.sleep(0.1)
                server.signal(signal.SIGINT)
                rest = [line for line in lines if line]
        assert '"error"' in rest[-1] or '"error"' in rest[-2]
        assert server.ended() == 130


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_with_nothing_to_do_it_ends_at_once(number, code):
    with process("--model", "toy:ngram") as server:
        idle = httpx.Client(base_url=server.url)
        assert idle.get("/health").status_code == 200  # and the connection stays open
        server.signal(number)
        assert server.ended() == code
        idle.close()
        assert not any("finishing" in line or "Traceback" in line for line in server.lines)


def test_a_reader_that_takes_nothing_does_not_keep_it_from_ending(tmp_path):
    config = tmp_path / "paceline.toml"
    config.write_text("[server]\ndrain_s = 0.5\n")
    with process("--model", "toy:ngram", "--config", str(config)) as server, server.client() as client:
        body = ASKED | {"prompt": "x", "max_tokens": 400, "stream": True, "logprobs": 5}
        with client.stream("POST", "/v1/completions", json=body):
            threading.Event().wait(0.5)
            server.signal(signal.SIGTERM)
            assert server.ended() == 0
