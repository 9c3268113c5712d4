"""paceline.toml: what it may say, and what is told of what it may not."""

from __future__ import annotations

import pytest

from paceline.config import Config, KeyConfig
from paceline.core.types import SpeculationParams
from paceline.errors import OptionError

WHOLE = f"""
[model]
model = "demo"
weights = "int8"
drafters = ["lookup", "suffix"]

[server]
host = "0.0.0.0"
port = 9000
request_timeout_s = 30
cors_origins = ["https://example.org"]

[keys.alice]
sha256 = "{"0" * 64}"
requests_per_minute = 60
concurrency = 4
admin = true

[speculation]
mode = "auto"
max_draft = 8

[targets]
ttft_p95_ms = 500

[audit]
share = 0.01
on_difference = "alarm"

[journal]
file = "journal.db"
max_age_days = 7
"""


def test_a_whole_file(tmp_path):
    path = tmp_path / "paceline.toml"
    path.write_text(WHOLE)
    config = Config.load(path)
    assert config.model == {"model": "demo", "weights": "int8", "drafters": ("lookup", "suffix")}
    assert (config.server.host, config.server.port, config.server.request_timeout_s) == ("0.0.0.0", 9000, 30.0)
    assert config.server.cors_origins == ("https://example.org",)
    assert config.keys == {"alice": KeyConfig("0" * 64, 60, 4, True)}
    assert config.speculation == SpeculationParams("auto", max_draft=8)
    assert config.targets.ttft_p95_ms == 500.0
    assert (config.audit.share, config.audit.on_difference) == (0.01, "alarm")
    assert config.journal.max_age_days == 7.0


def test_an_empty_one_is_the_defaults():
    config = Config.of({})
    assert config == Config()
    assert config.server.host == "127.0.0.1"
    assert config.speculation.mode == "always", "no ceiling"
    assert not config.server.insecure and not config.journal.record_text


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"sever": {}}, "the configuration has no 'sever'; did you mean 'server'?"),
        ({"server": {"prt": 1}}, "server has no 'prt'; did you mean 'port'?"),
        ({"server": {"queue": 0}}, "server.queue is 0; allowed: 1 or more"),
        ({"server": {"queue": True}}, "server.queue is True; allowed: a whole number"),
        ({"server": {"port": 65536}}, "server.port is 65536; allowed: 0 (any free one) to 65535"),
        ({"server": {"drain_s": float("inf")}}, "server.drain_s is inf; allowed: 0 or more"),
        ({"server": {"drain_s": float("nan")}}, "server.drain_s is nan; allowed: 0 or more"),
        ({"server": {"insecure": 1}}, "server.insecure is 1; allowed: true or false"),
        ({"server": {"cors_origins": "https://a.org"}}, "allowed: a list of strings"),
        ({"server": {"cors_origins": ["*"]}}, "allowed: origins such as https://example.org, none for all"),
        ({"server": 5}, "server is 5; allowed: a table"),
        ({"model": {"weihgts": "int4"}}, "model has no 'weihgts'; did you mean 'weights'?"),
        ({"model": {"weights": "int3"}}, "model.weights is 'int3'; allowed: int4, int8, bf16, fp32"),
        ({"speculation": {"mode": "fast"}}, "speculation.mode is 'fast'; allowed: auto, off, always"),
        ({"speculation": {"rule": "ratio"}}, "speculation has no 'rule'; allowed: mode, max_draft, drafters"),
        ({"speculation": {"max_draft": 99}}, "max_draft is 99; allowed: 0 to 64"),
        ({"keys": {"a": 1}}, "keys.a is 1; allowed: a table"),
        ({"keys": {"a b": {}}}, "the name of a key is 'a b'; allowed: up to 64 letters, digits, dots, - and _"),
        ({"keys": {"a": {"sha256": "secret"}}}, "keys.sha256 is not 64 lower-case hexadecimal digits"),
        ({"audit": {"share": 2}}, "audit.share is 2.0; allowed: 0 to 1"),
        ({"audit": {"on_difference": "stop"}}, "audit.on_difference is 'stop'; allowed: plain, alarm"),
        ({"journal": {"record_text": True}}, "journal.record_text is true and there is no journal.file"),
        ({"journal": {"file": "a", "max_bytes": 1}}, "journal.max_bytes is 1; allowed: 1.04858e+06 or more"),
        ({"targets": {"slowdown": 0.5}}, "targets.slowdown is 0.5; allowed: 1 or more"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tables, message):
    with pytest.raises(OptionError) as caught:
        Config.of(tables)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read (No such file or directory)"), (b"a = ", "is not TOML"), (b"\xff", "is not TOML")],
)
def test_a_file_that_is_none(tmp_path, content, message):
    path = tmp_path / "paceline.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(OptionError, match="config ") as caught:
        Config.load(path)
    assert message in str(caught.value)


def test_no_part_of_a_key_is_in_a_message():
    with pytest.raises(OptionError) as caught:
        Config.of({"keys": {"a": {"sha256": "my-secret-key"}}})
    assert "my-secret-key" not in str(caught.value)
