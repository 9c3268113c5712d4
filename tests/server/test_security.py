"""What a browser, a neighbour on the network and a curious client are kept from."""

from __future__ import annotations

import io
import json
import logging
import socket

import httpx
import pytest

from paceline.config import ServerConfig
from paceline.engine.llm import LLM
from paceline.errors import OptionError
from paceline.server import access
from paceline.server.headers import is_loopback, names_of
from paceline.server.keys import hash_key
from paceline.server.run import bind

from .live import live

KEY = "0123456789abcdef"
ASKED = {"prompt": "a secret prompt", "max_tokens": 12, "seed": 1}


class TestBinding:
    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2", "::1"])
    def test_loopback_needs_no_key(self, host):
        with bind(ServerConfig(host=host, port=0), has_keys=False) as listener:
            assert is_loopback(listener.getsockname()[0])

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org", ""])
    def test_a_network_does(self, host):
        with pytest.raises(OptionError, match="which a network reaches, and there is no API key"):
            bind(ServerConfig(host=host, port=0), has_keys=False)

    def test_a_key_or_a_word_will_do(self):
        bind(ServerConfig(host="0.0.0.0", port=0), has_keys=True).close()
        bind(ServerConfig(host="0.0.0.0", port=0, insecure=True), has_keys=False).close()

    def test_an_address_that_cannot_be_had(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(OptionError, match=f"port {port} cannot be had"):
                bind(ServerConfig(port=port), has_keys=False)

    def test_a_network_without_keys_is_administered_by_nobody(self, kept):
        with live(LLM("toy:ngram"), {"server": {"host": "0.0.0.0", "insecure": True}}) as server, server.client() as c:
            assert c.get("/v1/models").status_code == 200
            refused = c.post("/admin/speculation", json={"mode": "off"})
            assert refused.status_code == 403
            assert "this one has no keys" in refused.json()["error"]["message"]


class TestHeaders:
    @pytest.mark.parametrize(
        ("method", "path"),
        [("GET", "/"), ("GET", "/health"), ("GET", "/nothing"), ("POST", "/v1/completions"), ("PUT", "/v1/models")],
    )
    def test_are_on_every_response(self, toy, method, path):
        with toy.client() as client:
            found = client.request(method, path).headers
        policy = found["content-security-policy"]
        assert policy.startswith("default-src 'self'")
        assert "unsafe" not in policy and "*" not in policy
        assert found["x-content-type-options"] == "nosniff"
        assert found["x-frame-options"] == "DENY"
        assert found["referrer-policy"] == "no-referrer"
        assert "server" not in found

    def test_are_on_what_nobody_expected_as_well(self, toy, monkeypatch, caplog):
        async def broken(*_: object) -> None:
            raise RuntimeError("the inside of the house")

        monkeypatch.setattr(toy.hub.worker, "open", broken)
        with toy.client() as client, caplog.at_level(logging.ERROR):
            response = client.post("/v1/completions", json=ASKED)
        assert response.status_code == 500
        assert response.headers["x-frame-options"] == "DENY"
        told = response.json()["error"]
        assert told["type"] == "server_error"
        assert "inside" not in response.text
        [record] = [r for r in caplog.records if r.exc_info and "error" in r.getMessage()]
        assert record.getMessage().split()[-1] in told["message"], "the log has it under the id that was told"


class TestOtherPages:
    def test_cross_origin_is_off(self, toy):
        with toy.client(headers={"Origin": "https://evil.example"}) as client:
            for method, path in (("OPTIONS", "/v1/completions"), ("GET", "/v1/models"), ("GET", "/api/state")):
                asked = {"Access-Control-Request-Method": "POST"}
                found = client.request(method, path, headers=asked).headers
                assert not [name for name in found if name.startswith("access-control-")]

    @pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost.evil.example"])
    def test_may_not_ask_through_a_visitors_browser(self, toy, origin):
        """A form or a `no-cors` request needs no leave to be sent."""
        body = json.dumps({"mode": "off"})
        with toy.client(headers={"Origin": origin, "Content-Type": "text/plain"}) as client:
            for path in ("/admin/speculation", "/v1/completions"):
                refused = client.post(path, content=body)
                assert (refused.status_code, refused.json()["error"]["code"]) == (403, "wrong_origin")
        assert toy.hub.rollback.switch.ceiling.mode != "off"

    def test_its_own_page_may(self, toy):
        with toy.client(headers={"Origin": toy.url}) as client:
            assert client.post("/v1/completions", json=ASKED).status_code == 200

    @pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
    def test_may_not_point_a_name_of_theirs_here(self, toy, host):
        """DNS rebinding: to the browser it is the same origin, so only the name tells."""
        with toy.client(headers={"Host": host}) as client:
            for path in ("/v1/models", "/api/state", "/"):
                assert client.get(path).json()["error"]["code"] == "wrong_host"

    def test_names_do_not_matter_where_keys_do(self, kept):
        assert names_of("127.0.0.1", has_keys=True) is None
        tables = {"keys": {"a": {"sha256": hash_key(KEY)}}}
        with live(LLM("toy:ngram"), tables) as server:
            headers = {"Host": "models.example", "Authorization": f"Bearer {KEY}"}
            with server.client(headers=headers) as client:
                assert client.get("/v1/models").status_code == 200

    def test_a_page_that_was_allowed_may(self, kept):
        with live(LLM("toy:ngram"), {"server": {"cors_origins": ["https://good.example"]}}) as server:
            with server.client(headers={"Origin": "https://good.example"}) as client:
                found = client.post("/v1/completions", json=ASKED)
                assert found.status_code == 200
                assert found.headers["access-control-allow-origin"] == "https://good.example"
            with server.client(headers={"Origin": "https://evil.example"}) as client:
                assert client.post("/v1/completions", json=ASKED).status_code == 403


class TestFiles:
    @pytest.mark.parametrize(
        "path", ["/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/runbooks/../../README.md"]
    )
    def test_there_is_no_way_out_of_the_folder(self, toy, path):
        url = httpx.URL(toy.url)
        with socket.create_connection((url.host, url.port or 0), timeout=10) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 404 ")

    def test_a_path_that_begins_like_an_open_one_opens_nothing(self, kept):
        with live(LLM("toy:ngram"), {"keys": {"a": {"sha256": hash_key(KEY)}}}) as server:
            url = httpx.URL(server.url)
            for path in ("/static/../metrics", "/static/..%2fmetrics", "/runbooks/../api/state", "/health/../metrics"):
                with socket.create_connection((url.host, url.port or 0), timeout=10) as connection:
                    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
                    assert connection.recv(100).split()[1] in (b"401", b"404")


@pytest.fixture
def logged():
    """All that is logged, in both forms."""
    streams = io.StringIO(), io.StringIO()
    handlers = [logging.StreamHandler(stream) for stream in streams]
    for handler, form in zip(handlers, (access.JsonLines(), access.Short()), strict=True):
        handler.setFormatter(form)
        logging.getLogger().addHandler(handler)
    before = logging.getLogger("paceline").level
    logging.getLogger("paceline").setLevel(logging.DEBUG)
    yield streams
    logging.getLogger("paceline").setLevel(before)
    for handler in handlers:
        logging.getLogger().removeHandler(handler)


class TestLogs:
    def test_have_numbers_and_no_texts(self, toy, logged):
        with toy.client() as client:
            text = client.post("/v1/completions", json=ASKED).json()["choices"][0]["text"]
            client.post("/v1/completions", json=ASKED | {"max_tokens": "a secret number"})
            client.post("/v1/secret-path", headers={"Authorization": "Bearer a-secret-key"})
        toy.settle()
        lines, short = (stream.getvalue() for stream in logged)
        assert not any(word in lines + short for word in ("secret", text.strip()))
        records = [json.loads(line) for line in lines.splitlines()]
        [done] = [r for r in records if r.get("what") == "completions"]
        assert (done["completion_tokens"], done["finish_reason"]) == (12, "length")
        assert done["prompt_tokens"] == 15
        assert [r["status"] for r in records if r.get("what") == "refused"] == [400, 404]
        assert "completions id=cmpl-" in short

    def test_an_error_keeps_its_trace(self):
        form = access.JsonLines()
        try:
            _ = 1 / 0
        except ZeroDivisionError as error:
            info = (type(error), error, error.__traceback__)
        record = logging.LogRecord("paceline", logging.ERROR, "x", 1, "a %s", ("line",), info)
        found = json.loads(form.format(record))
        assert found["message"] == "a line"
        assert "ZeroDivisionError" in found["trace"]
        assert access.Short().format(record).startswith("ERROR: ")


class TestTenants:
    def test_what_one_key_said_drafts_for_no_other(self, kept):
        """The suffix drafter remembers answers; with a control that it would use them for the same key."""
        other = "fedcba9876543210"
        tables = {"keys": {"a": {"sha256": hash_key(KEY)}, "b": {"sha256": hash_key(other)}}}
        asked = {**ASKED, "max_tokens": 60, "speculation": {"mode": "always", "drafters": ["suffix"]}}

        def accepted(client: httpx.Client, key: str) -> int:
            found = client.post("/v1/completions", json=asked, headers={"Authorization": f"Bearer {key}"}).json()
            counts: int = found["usage"]["speculation"]["accepted"]
            return counts

        with live(LLM("toy:chaos"), tables) as server, server.client() as client:
            first = accepted(client, KEY)
            assert accepted(client, other) == first
            assert accepted(client, KEY) > first + 20
