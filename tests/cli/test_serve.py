"""`paceline serve`: options, refusals, and what it says when it starts and ends."""

from __future__ import annotations

import hashlib
import io
import json
import signal
import socket
import sys

import pytest

from paceline.cli.serve import ServeFlags
from paceline.errors import OptionError
from tests.server.process import process

KEY = "0123456789abcdef"


@pytest.fixture(autouse=True)
def keyless(monkeypatch) -> None:
    monkeypatch.delenv("PACELINE_API_KEY", raising=False)


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "reason"),
        [
            ((), "there is no model; name one with --model"),
            (("--model", "toy:none"), "there is no model toy:none"),
            (("--model", "toy:ngram", "--host", "0.0.0.0"), "host is '0.0.0.0', which a network reaches"),
            (("--model", "toy:ngram", "--engine", "vllm"), "engine is 'vllm', which cannot be served yet"),
            (("--model", "toy:ngram", "--port", "x"), "port is 'x'; allowed: a whole number"),
            (("--model", "toy:ngram", "--port", "70000"), "server.port is 70000"),
            (("--model", "toy:ngram", "--sequences", "0"), "sequences is 0; allowed: 1 to 1024"),
            (("--model", "toy:ngram", "--config", "/nothing"), "config '/nothing' cannot be read"),
            (("--model", "toy:ngram", "--api-key-file", "/nothing"), "keys file '/nothing' cannot be read"),
            (("--model", "toy:ngram", "--record-text"), "journal.record_text is true and there is no journal.file"),
            (("--model", "toy:ngram", "--journal", "/nothing/x.db"), "/nothing"),
            (("--model", "toy:ngram", "--draft", "demo", "--drafters", "lookup"), "draft is 'demo'"),
            (("--model", "toy:ngram", "--nonsense"), "no such option: --nonsense"),
        ],
    )
    def test_in_one_line(self, refused, arguments, reason):
        assert reason in refused("serve", *arguments, *(() if "--port" in arguments else ("--port", "0")))

    def test_of_a_port_that_is_taken(self, refused):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            assert f"port {port} cannot be had" in refused("serve", "--model", "toy:ngram", "--port", port)

    def test_of_a_ceiling_that_names_nobody(self, refused, tmp_path):
        path = tmp_path / "paceline.toml"
        path.write_text('[speculation]\ndrafters = ["nobody"]\n')
        line = refused("serve", "--model", "toy:ngram", "--port", "0", "--config", str(path))
        assert "a ceiling has drafter 'nobody'" in line


class TestConfiguration:
    def test_what_is_given_here_wins(self, tmp_path):
        path = tmp_path / "paceline.toml"
        path.write_text('[model]\nmodel = "demo"\nsequences = 3\ncontext = 100\n[server]\nport = 1\nqueue = 7\n')
        flags = ServeFlags(config=str(path), model="toy:ngram", port="2", sequences="5", journal="j.db")
        config = flags.configuration()
        options = flags.engine_options(config)
        assert (config.server.port, config.server.queue, config.journal.file) == (2, 7, "j.db")
        assert (options.model, options.sequences, options.context) == ("toy:ngram", 5, 100)

    def test_and_what_is_not_given_stays(self, tmp_path):
        path = tmp_path / "paceline.toml"
        path.write_text('[model]\nmodel = "demo"\nspeculate = false\n[journal]\nfile = "a"\nrecord_text = true\n')
        flags = ServeFlags(config=str(path))
        config = flags.configuration()
        options = flags.engine_options(config)
        assert (options.model, options.speculate, options.sequences) == ("demo", False, 8)
        assert (config.journal.file, config.journal.record_text, config.server.insecure) == ("a", True, False)

    def test_no_drafters_is_no_speculation(self):
        flags = ServeFlags(model="toy:ngram", drafters="none")
        assert not flags.engine_options(flags.configuration()).speculate

    def test_a_wrong_one_is_an_option_error(self, tmp_path):
        path = tmp_path / "paceline.toml"
        path.write_text("[modle]\n")
        with pytest.raises(OptionError, match="did you mean 'model'"):
            ServeFlags(config=str(path)).configuration()


class TestHashing:
    def test_a_key(self, monkeypatch, run):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{KEY}\n".encode())))
        result = run("serve", "--hash-key", stdin=f"{KEY}\n".encode())
        assert result.out == f"sha256:{hashlib.sha256(KEY.encode()).hexdigest()}\n"
        assert result.code == 0

    def test_a_key_that_is_too_short(self, refused):
        assert "has a key of 3 characters" in refused("serve", "--hash-key", stdin=b"abc\n")


class TestServing:
    def test_from_start_to_end(self, tmp_path):
        keys = tmp_path / "keys"
        keys.write_text(f"alice:{KEY}\n")
        journal = tmp_path / "journal.db"
        arguments = ("--model", "toy:ngram", "--api-key-file", str(keys), "--journal", str(journal), "--log-json")
        with process(*arguments) as server:
            with server.client() as client:
                body = {"model": "toy:ngram", "prompt": "ab", "max_tokens": 5}
                assert client.post("/v1/completions", json=body).status_code == 401
                found = client.post("/v1/completions", json=body, headers={"Authorization": f"Bearer {KEY}"})
                assert found.status_code == 200
            server.signal(signal.SIGINT)
            assert server.ended() == 130
        assert journal.exists()
        records = [json.loads(line) for line in server.lines if line.startswith("{")]
        assert [r["what"] for r in records if "what" in r] == ["refused", "completions"]
        assert [r["key"] for r in records if "what" in r] == ["", "alice"]
        assert not any(KEY in line for line in server.lines)

    def test_a_public_address_with_a_key_from_the_environment(self):
        with process("--model", "toy:ngram", "--host", "0.0.0.0", environment={"PACELINE_API_KEY": KEY}) as server:
            server.url = server.url.replace("0.0.0.0", "127.0.0.1")
            with server.client() as client:
                assert client.get("/v1/models").status_code == 401
                assert client.get("/v1/models", headers={"Authorization": f"Bearer {KEY}"}).status_code == 200
            server.signal(signal.SIGTERM)
            assert server.ended() == 0
