"""Who may ask, and how often: API keys, their rates, and how many requests each may have at a time."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from paceline.config import KeyConfig, named
from paceline.errors import OptionError
from paceline.server.refusals import Refusal, render

VARIABLE = "PACELINE_API_KEY"
HASHED = "sha256:"
SHORTEST = 16
"""Characters of a key: a shorter one can be guessed, and its hash be undone."""
OPEN = frozenset({"/", "/health", "/ready", "/favicon.ico"})
OPEN_BELOW = ("/static/", "/runbooks/")
"""What needs no key: signs of life, and the page itself, in which no data is."""
COUNTED = "/v1/"
"""Requests below are counted in a key's rate and concurrency where they ask for something to be done."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose request it is; without keys everyone is the same."""

    name: str = ""
    admin: bool = True


@dataclass(slots=True)
class _Holder:
    """A key and what was done with it."""

    name: str
    config: KeyConfig
    tokens: float = field(init=False)
    """Requests that may be made at once."""
    refilled: float = 0.0
    running: int = 0

    def __post_init__(self) -> None:
        self.tokens = float(self.config.requests_per_minute or 0)

    def spend(self, now: float) -> None:
        """Count a request; raises Refusal where it is one too many."""
        most = self.config.requests_per_minute
        if most is None:
            return
        self.tokens = min(float(most), self.tokens + (now - self.refilled) * most / 60)
        self.refilled = now
        if self.tokens < 1:
            wait = (1 - self.tokens) * 60 / most
            raise Refusal(
                429,
                f"key {self.name!r} may make {most} requests a minute; wait {wait:.0f} s",
                code="rate_limit_exceeded",
                retry_after=wait,
            )
        self.tokens -= 1

    def enter(self) -> None:
        """Count a request that begins; raises Refusal where as many run as may."""
        most = self.config.concurrency
        if most is not None and self.running >= most:
            raise Refusal(
                429,
                f"key {self.name!r} may have {most} requests at a time; wait until one has ended",
                code="concurrency_exceeded",
                retry_after=1.0,
            )
        self.running += 1


class Keyring:
    """The keys of a server; none of them is kept as it is, and all of them are compared, in constant time.

    Args:
        keys: by name; each has its hash.
        trusting: whether everyone may administer the server while there are no keys.
    """

    def __init__(
        self, keys: Mapping[str, KeyConfig], trusting: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._anyone, self._clock = Caller(admin=trusting), clock
        self._holders = [_Holder(named(name), config, refilled=clock()) for name, config in keys.items()]
        for holder in self._holders:
            if not holder.config.sha256:
                raise OptionError(
                    f"keys.{holder.name} has no sha256 and is not in the keys file; `serve --hash-key` makes one"
                )

    @classmethod
    def load(
        cls, keys: Mapping[str, KeyConfig], file: str | None, environ: Mapping[str, str], trusting: bool = True
    ) -> Keyring:
        """Return the keys of the configuration, of a file, and of the environment together.

        Raises:
            OptionError: the file cannot be read, a key is too short, or one is there twice.
        """
        found = dict(keys)
        for name, sha256 in _listed(file):
            config = found.get(name, KeyConfig())
            if config.sha256:
                raise OptionError(f"key {name!r} is there twice; each name has one key")
            found[name] = replace(config, sha256=sha256)
        if VARIABLE in environ:
            if found.get("default", KeyConfig()).sha256:
                raise OptionError(f"{VARIABLE} is set and there is a key named 'default'; give one of the two")
            sha256 = _hash_of(environ[VARIABLE], VARIABLE)
            found["default"] = replace(found.get("default", KeyConfig(admin=True)), sha256=sha256)
        return cls(found, trusting)

    def __bool__(self) -> bool:
        return bool(self._holders)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(holder.name for holder in self._holders)

    def caller(self, request: Request) -> Caller:
        """Return whose request it is; without keys, everyone's."""
        found = request.scope.get("paceline.caller", None if self else self._anyone)
        if found is None:
            raise _unknown("this needs an API key")
        assert isinstance(found, Caller)
        return found

    def identify(self, authorization: str | None) -> Caller:
        """Return who shows this header.

        Raises:
            Refusal: there are keys, and it has none of them.
        """
        if not self:
            return self._anyone
        holder = self._holder(_presented(authorization))
        return Caller(holder.name, holder.config.admin)

    @contextmanager
    def counted(self, caller: Caller) -> Iterator[None]:
        """Count a request while it lasts.

        Raises:
            Refusal: it is one too many in this minute, or at this time.
        """
        holder = next((h for h in self._holders if h.name == caller.name), None)
        if holder is None:
            yield
            return
        holder.enter()
        try:
            holder.spend(self._clock())
            yield
        finally:
            holder.running -= 1

    def _holder(self, key: str) -> _Holder:
        digest = hash_key(key)
        fits = [hmac.compare_digest(digest, holder.config.sha256) for holder in self._holders]
        if not any(fits):
            raise _unknown("the API key is not one of this server's")
        return self._holders[fits.index(True)]


class Gate:
    """Lets in who has a key; what is open to all is listed here, and all else is closed."""

    def __init__(self, app: ASGIApp, keys: Keyring) -> None:
        self._app, self._keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or path in OPEN or path.startswith(OPEN_BELOW):
            await self._app(scope, receive, send)
            return
        try:
            caller = self._keys.identify(Headers(scope=scope).get("authorization"))
            if (path == "/admin" or path.startswith("/admin/")) and not caller.admin:
                raise Refusal(403, _not_admin(caller))
            scope["paceline.caller"] = caller
            await self._counted(caller, scope, receive, send)
        except Refusal as refused:
            await _refuse(refused, scope, receive, send)

    async def _counted(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        if not scope["path"].startswith(COUNTED) or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        with self._keys.counted(caller):
            await self._app(scope, receive, send)


async def _refuse(refused: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    response = render(refused)
    if refused.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    await response(scope, receive, send)


def hash_key(key: str) -> str:
    """Return the SHA-256 of a key, in hexadecimal digits; a key has enough chance in it to need no salt."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def hashed_line(key: str) -> str:
    """Return what a keys file says in place of a key.

    Raises:
        OptionError: the key is too short.
    """
    return HASHED + _hash_of(key, "the key")


def _listed(file: str | None) -> list[tuple[str, str]]:
    """Return (name, hash) of a keys file: a line is NAME:KEY or NAME:sha256:DIGITS."""
    if file is None:
        return []
    try:
        text = Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8 text"
        raise OptionError(f"keys file {file!r} cannot be read ({why}); its lines are NAME:KEY") from None
    lines = enumerate(text.splitlines(), 1)
    return [_entry(line.strip(), f"line {n} of {file!r}") for n, line in lines if line.strip() and line[0] != "#"]


def _entry(line: str, where: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not value:
        raise OptionError(f"{where} is no NAME:KEY, nor NAME:{HASHED}DIGITS")
    return named(name), _hash_of(value.strip(), where)


def _hash_of(value: str, where: str) -> str:
    """Return the hash of a key, or the one that stands in its place; no part of a key is ever in a message."""
    if value.startswith(HASHED):
        return KeyConfig(sha256=value.removeprefix(HASHED)).sha256
    if len(value) < SHORTEST or not value.isprintable() or " " in value:
        raise OptionError(f"{where} has a key of {len(value)} characters; allowed: {SHORTEST} or more, without spaces")
    return hash_key(value)


def _presented(authorization: str | None) -> str:
    if authorization is None:
        raise _unknown("this needs an API key; send it as `Authorization: Bearer KEY`")
    scheme, _, key = authorization.partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise _unknown("the Authorization header is no `Bearer KEY`")
    return key.strip()


def _not_admin(caller: Caller) -> str:
    if caller.name:
        return f"key {caller.name!r} may not administer this server; use an admin key"
    return "a server that listens to a network is administered with an admin key, and this one has no keys"


def _unknown(why: str) -> Refusal:
    return Refusal(401, why, code="invalid_api_key")
