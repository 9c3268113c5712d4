"""Past outputs by tenant, in bounded memory, and on disk."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.drafters.corpus import Corpus
from paceline.errors import DiskFull, HistoryError, OptionError, ResourceError

TENANTS, TENANT_TOKENS, TOKENS = 64, 65_536, 262_144
"""A token takes up to 400 bytes, its part of the index included: 26 MB a tenant and 105 MB in all."""
MOST_BYTES = 64 * 2**20
"""Of a file; far more than the largest history needs."""
HEADER = {"paceline": "history", "version": 1}


class History:
    """What each tenant's requests have said.

    When there is no room, the oldest text of the tenant that was quiet for the longest time goes first, and the
    tenant with the last of its text.

    Args:
        tenants: most tenants that are remembered.
        tenant_tokens: most tokens of one tenant, one more counted for each output.
        tokens: most tokens of all tenants together, counted likewise.
        shared: whether all tenants are one.

    Raises:
        OptionError: a bound is below 1.
    """

    def __init__(
        self,
        tenants: int = TENANTS,
        tenant_tokens: int = TENANT_TOKENS,
        tokens: int = TOKENS,
        shared: bool = False,
    ) -> None:
        for name, given in (("tenants", tenants), ("tenant_tokens", tenant_tokens), ("tokens", tokens)):
            if given < 1:
                raise OptionError(f"{name} is {given}; allowed: 1 or more")
        self._tenants, self._tenant_tokens, self._tokens = tenants, min(tenant_tokens, tokens), tokens
        self._shared = shared
        self._past: OrderedDict[str, Corpus] = OrderedDict()

    def __len__(self) -> int:
        """Return how many tokens are kept, one more for each output."""
        return sum(map(len, self._past.values()))

    def of(self, tenant: str) -> Corpus | None:
        """Return the past outputs that may draft for a tenant; None when there are none."""
        return self._past.get(self._key(tenant))

    def touch(self, tenant: str) -> None:
        """Note that a tenant is not quiet."""
        if self._key(tenant) in self._past:
            self._past.move_to_end(self._key(tenant))

    def add(self, tenant: str, output: Sequence[int]) -> None:
        """Remember an output."""
        if not output:
            return
        corpus = self._past.setdefault(self._key(tenant), Corpus(self._tenant_tokens))
        self.touch(tenant)
        corpus.extend(output)
        corpus.close()
        self._make_room()

    def save(self, path: Path) -> None:
        """Write all outputs, whole or not at all; only the owner may read them.

        Raises:
            DiskFull: the file did not fit.
            ResourceError: the directory cannot be written.
        """
        rows: list[object] = [HEADER | {"shared": self._shared}]
        for tenant, corpus in self._past.items():
            rows += ({"tenant": tenant, "output": piece} for piece in corpus.pieces())
        body = b"".join(_line(row) for row in rows)
        try:
            _write_whole(path, body + _line({"sha256": hashlib.sha256(body).hexdigest()}))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"the disk is full while writing {path}; free some space") from None
            raise ResourceError(f"{path} cannot be written ({error.strerror or error}); name another place") from None

    def load(self, path: Path) -> None:
        """Put the outputs of a file in the place of all that is remembered; of more than there is room for, the last.

        Raises:
            HistoryError: the file is missing, damaged, too large, of another kind or version, or was saved with
                tenants shared and would now be one tenant's.
        """
        if not path.is_file():
            raise HistoryError(f"there is no file {path}; name a saved history")
        try:
            with path.open("rb") as file:
                data = file.read(MOST_BYTES + 1)
        except OSError as error:
            raise HistoryError(f"{path} cannot be read ({error.strerror or error}); name a saved history") from None
        shared, outputs = _parse(data, str(path))
        if shared and not self._shared:
            raise HistoryError(
                f"{path} holds the outputs of all tenants as one; load it with share_history on, or start without it"
            )
        self._past.clear()
        for tenant, output in outputs:
            self.add(tenant, output)

    def _key(self, tenant: str) -> str:
        return "" if self._shared else tenant

    def _make_room(self) -> None:
        if len(self._past) > self._tenants:
            self._past.popitem(last=False)
        excess = len(self) - self._tokens
        while excess > 0:
            quiet, corpus = next(iter(self._past.items()))
            before = len(corpus)
            corpus.drop(excess)
            excess -= before - len(corpus)
            if not len(corpus):
                del self._past[quiet]


def _line(row: object) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


def _write_whole(path: Path, data: bytes) -> None:
    handle, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


def _parse(data: bytes, name: str) -> tuple[bool, list[tuple[str, list[int]]]]:
    """Return whether the tenants of a file are one, and its outputs with their tenants, oldest first."""
    if len(data) > MOST_BYTES:
        raise HistoryError(f"{name} is larger than {MOST_BYTES >> 20} MiB; it is not a history that paceline saved")
    body, _, last = data.removesuffix(b"\n").rpartition(b"\n")
    body += b"\n"
    header, *rows = (_json(line, name) for line in body.splitlines())
    if not isinstance(header, dict) or HEADER.items() - header.items() or type(header.get("shared")) is not bool:
        raise HistoryError(f"{name} is not a history of version {HEADER['version']}; save one with this version")
    if _json(last, name) != {"sha256": hashlib.sha256(body).hexdigest()}:
        raise HistoryError(f"{name} is damaged: its checksum differs; delete it, or fetch it again")
    return header["shared"], [_output(row, name) for row in rows]


def _json(line: bytes, name: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise HistoryError(f"{name} is damaged: a line is not JSON; delete it, or fetch it again") from None


def _output(row: Any, name: str) -> tuple[str, list[int]]:
    if isinstance(row, dict) and row.keys() == {"tenant", "output"}:
        tenant, output = row["tenant"], row["output"]
        if isinstance(tenant, str) and isinstance(output, list) and all(map(_is_token, output)):
            return tenant, output
    raise HistoryError(f"{name} has a line that is not a tenant's output; delete it, or fetch it again")


def _is_token(given: object) -> bool:
    return type(given) is int and 0 <= given < 2**31
