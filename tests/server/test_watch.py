"""`paceline watch`: against a live server, against what is none, in a terminal and in a pipe."""

from __future__ import annotations

import http.server
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from rich.console import Console

from paceline.cli.panel import panel
from paceline.cli.run import run
from paceline.engine.llm import LLM
from paceline.server.keys import hash_key

from .asking import ask
from .live import live

KEY = "a-key-of-sixteen-or-more"


@pytest.fixture
def watch(capsys):
    def go(*arguments: str) -> tuple[int, str, str]:
        code = run(["watch", *arguments])
        return code, *capsys.readouterr()

    return go


@pytest.fixture
def refused(watch):
    """Run what must be refused, and return the one line that says why."""

    def go(*arguments: str) -> str:
        code, out, err = watch(*arguments)
        assert (code, out) == (2, "")
        [line] = err.splitlines()
        assert line.startswith("paceline: ")
        return line

    return go


@contextmanager
def answering(status: int, body: bytes, **headers: str):
    """A server of another kind; yields its URL and the headers of the requests that it got."""
    got: list[dict[str, str]] = []

    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            got.append(dict(self.headers))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *given: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", got
        server.shutdown()


def test_json_is_the_state(toy, watch) -> None:
    ask(toy, tokens=5)
    code, out, err = watch(toy.url, "--json", "--once")
    assert (code, err) == (0, "")
    [line] = out.splitlines()
    with toy.client() as client:
        assert json.loads(line).keys() == client.get("/api/state").json().keys()


def test_a_pipe_gets_lines_of_json_until_ctrl_c(toy) -> None:
    arguments = [sys.executable, "-m", "paceline", "watch", toy.url, "--every", "0.1"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        states = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and err == ""
    assert states[0]["now"] < states[1]["now"] < states[2]["now"]


def test_a_reader_that_is_gone_ends_it(toy) -> None:
    arguments = [sys.executable, "-m", "paceline", "watch", toy.url, "--every", "0.1"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(30) == 141
        assert process.stderr.read() == b""


def test_a_terminal_gets_a_picture_and_is_left_clean(toy) -> None:
    pid, terminal = pty.fork()
    if not pid:
        environ = os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
        os.execve(sys.executable, [sys.executable, "-m", "paceline", "watch", toy.url, "--every", "0.1"], environ)
    shown, end = b"", time.monotonic() + 30
    while shown.count(b"tokens/s") < 3:  # drawn more than once
        assert time.monotonic() < end, shown
        shown += os.read(terminal, 65536)
    os.kill(pid, signal.SIGINT)
    try:
        while part := os.read(terminal, 65536):
            shown += part
    except OSError:  # how Linux says that the other side is gone
        pass
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert b"toy:ngram" in shown and b"speculation" in shown
    assert shown.rfind(b"\x1b[?25h") > shown.rfind(b"\x1b[?25l"), "the cursor is visible again"
    assert b"Traceback" not in shown


def test_a_key_is_needed_where_there_are_keys(kept, watch, refused, monkeypatch) -> None:
    with live(LLM("toy:ngram"), {"keys": {"ann": {"sha256": hash_key(KEY)}}}) as server:
        assert "wants an API key (401)" in refused(server.url)
        assert "wants an API key (401)" in refused(server.url, "--api-key", KEY + "x")
        assert watch(server.url, "--once", "--api-key", KEY)[0] == 0
        monkeypatch.setenv("PACELINE_API_KEY", KEY)
        code, out, err = watch(server.url, "--once")
        assert (code, err) == (0, "") and KEY not in out


def test_nobody_there() -> None:
    with answering(200, b"") as (url, _):
        pass
    result = subprocess.run([sys.executable, "-m", "paceline", "watch", url], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "")
    assert re.fullmatch(r"paceline: http://\S+ does not answer \(Connection refused\); see .*\n", result.stderr)


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (200, b"<html>hello</html>", "something else than a state"),
        (200, b'{"model": 5}', "something else than a state"),
        (200, b"[" * 100_000, "something else than a state"),
        (404, b"", "answers 404; this is no paceline server"),
        (503, b"", "takes no requests at present"),
    ],
)
def test_another_kind_of_server(refused, status, body, says) -> None:
    with answering(status, body) as (url, _):
        assert says in refused(url)


def test_a_key_is_not_taken_elsewhere(refused) -> None:
    with answering(200, b"{}") as (elsewhere, got), answering(302, b"", Location=f"{elsewhere}/") as (url, first):
        assert "answers 302" in refused(url, "--api-key", KEY)
    assert first[0]["Authorization"] == f"Bearer {KEY}" and got == []


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x", "http://", "http://a b", "http://x:99999", "h://x?y"])
def test_what_is_no_url(refused, url) -> None:
    assert "the URL is" in refused(url)


@pytest.mark.parametrize("every", ["0", "-1", "nan", "inf", "often"])
def test_how_often_is_within_bounds(refused, every) -> None:
    assert "every is" in refused("http://127.0.0.1:1", "--every", every)


def test_what_a_server_says_does_not_steer_the_terminal() -> None:
    state = {
        "model": {"id": "\x1b[2Jevil[bold]", "runner": "toy", "weights": "exact"},
        "speculation": {"mode": "off\x1b]0;x\x07", "why": "\x1b[31mwhy", "drafters": ["\x1b[1m"]},
        "rate": {"tokens_per_s": 2.0, "plain_tokens_per_s": 20.0},
        "busy": {"share": 1.0, "wasted_share": 0.75},
        "batch": {"running": "many"},
        "acceptance": {},
        "memory": {},
        "latency": {},
        "reasons": {"\x1b[5m": 3},
        "alarms": [{"name": "\x1b[H", "text": "[red]text", "runbook": "\x9bx"}],
    }
    console = Console(width=100, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(panel(state, "http://x", gone="\x1b[2K"))
    shown = capture.get()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown)
    assert "evil[bold]" in shown and "[red]text" in shown, "nor is it markup"
    assert "2.0 tokens/s, plain 20.0: ×0.10" in shown
    assert "100% of the time in steps, 75% on rejected drafts" in shown
