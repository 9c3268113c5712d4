"""`paceline.toml`: what a server is told once, at its start. Unknown keys are errors."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from paceline.core.types import SpeculationParams
from paceline.engine.options import Options
from paceline.errors import OptionError

T = TypeVar("T")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}", re.ASCII)
KIB, MIB = 1 << 10, 1 << 20
NO_CEILING = SpeculationParams("always")
"""A mode of `always` lowers no request."""


def _least(record: object, where: str, **bounds: float) -> None:
    for name, low in bounds.items():
        given = getattr(record, name)
        if given is not None and not low <= given < float("inf"):
            raise OptionError(f"{where}.{name} is {given!r}; allowed: {low:g} or more")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Where it listens, and what it bears."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes a free one."""
    queue: int = 256
    """Requests that may wait, beside those that run."""
    connections: int = 1024
    """Open at a time."""
    keys_file: str | None = None
    insecure: bool = False
    """Whether it may listen to a network without asking for a key."""
    request_timeout_s: float = 600.0
    idle_timeout_s: float = 60.0
    """How long a reader may take nothing of what there is."""
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    drain_s: float = 30.0
    """How long requests may go on when it is told to end."""
    max_body_bytes: int = 4 * MIB
    max_prompt_tokens: int | None = None
    """None leaves it to the context."""
    max_n: int = 8
    max_stop: int = 16
    max_logit_bias: int = 1024
    max_schema_bytes: int = 64 * KIB
    max_schema_depth: int = 32
    max_tools: int = 128
    cors_origins: tuple[str, ...] = ()
    """Such as https://example.org: pages from there may call the API from a browser."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise OptionError(f"server.port is {self.port}; allowed: 0 (any free one) to 65535")
        _least(self, "server", queue=1, connections=1, drain_s=0, max_body_bytes=KIB, max_prompt_tokens=1)
        _least(self, "server", request_timeout_s=0.001, idle_timeout_s=0.001, header_timeout_s=0.001)
        _least(self, "server", body_timeout_s=0.001, max_n=1, max_stop=0, max_logit_bias=0)
        _least(self, "server", max_schema_bytes=2, max_schema_depth=1, max_tools=0)
        for origin in self.cors_origins:
            if not re.fullmatch(r"https?://[^/\s*]+", origin):
                raise OptionError(
                    f"server.cors_origins has {origin!r}; allowed: origins such as https://example.org, none for all"
                )


@dataclass(frozen=True, slots=True)
class KeyConfig:
    """What the holder of a key may."""

    sha256: str = ""
    """Of the key, in 64 hexadecimal digits; empty where the key itself is in the keys file."""
    requests_per_minute: int | None = None
    concurrency: int | None = None
    """Requests at a time."""
    admin: bool = False
    """Whether it opens /admin."""

    def __post_init__(self) -> None:
        if self.sha256 and not _SHA256.fullmatch(self.sha256):
            raise OptionError(
                "keys.sha256 is not 64 lower-case hexadecimal digits; `paceline serve --hash-key` makes them"
            )
        _least(self, "keys", requests_per_minute=1, concurrency=1)


@dataclass(frozen=True, slots=True)
class Targets:
    """Beyond which speculation is rolled back; None sets no bound."""

    ttft_p95_ms: float | None = None
    tpot_p95_ms: float | None = None
    slowdown: float = 1.02
    """Time that speculation may take against plain decoding."""
    memory_bytes: int | None = None
    window_s: float = 60.0

    def __post_init__(self) -> None:
        _least(self, "targets", ttft_p95_ms=0, tpot_p95_ms=0, slowdown=1, memory_bytes=1, window_s=1)


@dataclass(frozen=True, slots=True)
class AuditConfig:
    """How much of the traffic is decoded again, plainly, and compared."""

    share: float = 0.002
    """Of finished requests."""
    on_difference: Literal["plain", "alarm"] = "plain"
    tolerance: float = 0.1
    """Gap between the two best logits up to which a difference is a near-tie."""

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise OptionError(f"audit.share is {self.share!r}; allowed: 0 to 1")
        _least(self, "audit", tolerance=0)


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """Where numbers of requests, and events, are kept; bounded by size and age."""

    file: str | None = None
    max_bytes: int = 256 * MIB
    max_age_days: float = 30.0
    record_text: bool = False

    def __post_init__(self) -> None:
        _least(self, "journal", max_bytes=MIB, max_age_days=0.001)
        if self.record_text and self.file is None:
            raise OptionError("journal.record_text is true and there is no journal.file; name one or leave it out")


@dataclass(frozen=True, slots=True)
class Config:
    """A server's whole configuration; the fields are the tables of the file."""

    model: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `paceline.engine.options.Options`."""
    server: ServerConfig = ServerConfig()
    keys: Mapping[str, KeyConfig] = field(default_factory=dict)
    speculation: SpeculationParams = NO_CEILING
    """The ceiling at start."""
    targets: Targets = Targets()
    audit: AuditConfig = AuditConfig()
    journal: JournalConfig = JournalConfig()

    @classmethod
    def load(cls, path: str | Path) -> Config:
        """Raises OptionError: the file cannot be read, is not TOML, or says what is not allowed."""
        try:
            tables = tomllib.loads(Path(path).read_text("utf-8"))
        except OSError as error:
            raise OptionError(f"config {str(path)!r} cannot be read ({error.strerror}); give a TOML file") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise OptionError(f"config {str(path)!r} is not TOML ({error})") from None
        return cls.of(tables)

    @classmethod
    def of(cls, tables: Mapping[str, Any]) -> Config:
        """Raises OptionError: a table, a key or a value is not allowed."""
        _known(tables, [f.name for f in fields(cls)], "the configuration")
        for name, table in tables.items():
            _must(isinstance(table, Mapping), name, table, "a table")
        keys: dict[str, KeyConfig] = {}
        for name, table in tables.get("keys", {}).items():
            _must(isinstance(table, Mapping), f"keys.{name}", table, "a table")
            keys[named(name)] = _record(KeyConfig, table, f"keys.{name}")
        return cls(
            model=_arguments(Options, tables.get("model", {}), "model"),
            server=_record(ServerConfig, tables.get("server", {}), "server"),
            keys=keys,
            speculation=_ceiling(tables.get("speculation", {})),
            targets=_record(Targets, tables.get("targets", {}), "targets"),
            audit=_record(AuditConfig, tables.get("audit", {}), "audit"),
            journal=_record(JournalConfig, tables.get("journal", {}), "journal"),
        )


def named(name: str) -> str:
    """Return the name of a key; it is shown in logs and tables.

    Raises:
        OptionError: it is no short word.
    """
    if not _NAME.fullmatch(name):
        raise OptionError(f"the name of a key is {name!r}; allowed: up to 64 letters, digits, dots, - and _")
    return name


def _ceiling(table: Mapping[str, Any]) -> SpeculationParams:
    allowed = ("mode", "max_draft", "drafters")
    _known(table, allowed, "speculation")
    return SpeculationParams(**{"mode": NO_CEILING.mode, **_arguments(SpeculationParams, table, "speculation")})


def _record(kind: type[T], table: Mapping[str, Any], where: str) -> T:
    return kind(**_arguments(kind, table, where))


def _arguments(kind: type[Any], table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a table's values as a record takes them: the right keys, of the right types."""
    hints = get_type_hints(kind)
    _known(table, [f.name for f in fields(kind)], where)
    return {key: _value(hints[key], value, f"{where}.{key}") for key, value in table.items()}


def _value(hint: Any, value: Any, where: str) -> Any:
    if get_origin(hint) in (Union, UnionType):
        [hint] = [part for part in get_args(hint) if part is not type(None)]
    if get_origin(hint) is Literal:
        _must(value in get_args(hint), where, value, ", ".join(get_args(hint)))
        return value
    if get_origin(hint) is tuple:
        fits = isinstance(value, list) and all(isinstance(item, str) for item in value)
        _must(fits, where, value, "a list of strings")
        return tuple(value)
    if hint is float and type(value) is int:
        return float(value)
    words = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}
    _must(type(value) is hint, where, value, words[hint])
    return value


def _known(given: Collection[str], allowed: Collection[str], where: str) -> None:
    for key in given:
        if key not in allowed:
            near = difflib.get_close_matches(key, allowed, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(allowed)}"
            raise OptionError(f"{where} has no {key!r}; {hint}")


def _must(fits: bool, where: str, given: object, allowed: str) -> None:
    if not fits:
        raise OptionError(f"{where} is {given!r}; allowed: {allowed}")
