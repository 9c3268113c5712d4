"""What was measured, kept for the next start: one small JSON file for each machine, model and way of running it.

A file is read with suspicion: whatever is odd about it costs a new profile, never an error. It is written whole or not
at all, beside its place and then moved there, so that several processes may write the same one at any time.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

from paceline.governor.acceptance import Acceptance
from paceline.governor.costs import Costs
from paceline.governor.curve import Curve
from paceline.models import cache

log = logging.getLogger(__name__)

FORMAT = 1
MOST_FILES = 64
"""Kept in all, the latest written."""
MOST_BYTES = 1 << 20
"""Of a file; a full one has a tenth of that."""
ABANDONED_S = 3600.0
"""Age from which on a half-written file was left by a process that died."""
_DEEPEST, _MOST_VALUES, _LONGEST = 12, 100_000, 256
_MOST_SECONDS, _MOST_CHANGE = 3600.0, 10.0
"""Of a pass; and of a change of its number of rows, in passes of one row."""
_FAR = 1e6
"""A longer context than any."""
_ODD = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)

Identity = Mapping[str, Any]
"""All that the measurements depend on, as JSON."""
T = TypeVar("T")


class Refusal(StrEnum):
    """Why a file is not used."""

    ABSENT = "absent"
    UNREADABLE = "unreadable"
    TOO_LARGE = "too_large"
    MALFORMED = "malformed"
    OTHER_FORMAT = "other_format"
    OTHER_IDENTITY = "other_identity"
    """Of another machine, model, version or option, whatever its name says."""


@dataclass(frozen=True, slots=True, eq=False)
class Saved:
    """What is worth keeping."""

    costs: Costs
    acceptance: Acceptance
    history: Mapping[str, float] = field(default_factory=dict)
    """Acceptance of each drafter's guesses, given that their parents were taken."""
    steps: int = 0
    """That taught it, of all processes together."""
    at: float = 0.0
    """Seconds since 1970."""


def place(identity: Identity, what: str = "costs") -> Path:
    """Return where what belongs to this identity is kept."""
    digest = blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=16).hexdigest()
    return cache.directory() / what / f"{digest}.json"


def read(path: Path, identity: Identity) -> Saved | Refusal:
    """Return what a file holds, or why it is not used; that is logged, unless there is none."""
    return restored(path, identity, _restore, "costs")


def restored(path: Path, identity: Identity, restore: Callable[[Mapping[str, Any]], T], what: str) -> T | Refusal:
    """Return what `restore` makes of a file of JSON, or why it is not used, as `read` does.

    Args:
        restore: may raise whatever odd values raise.
        what: what is kept there, in words.
    """
    found = _read(path, identity, restore)
    if isinstance(found, Refusal) and found is not Refusal.ABSENT:
        log.warning("saved %s are not used (%s): %s", what, found.value, path)
    return found


def text(identity: Identity, saved: Saved) -> str:
    """Return what a file says, but for its time."""
    found = {
        "format": FORMAT,
        "identity": identity,
        "steps": saved.steps,
        "costs": saved.costs.state(),
        "acceptance": saved.acceptance.state(),
        "history": dict(saved.history),
    }
    return json.dumps(found, allow_nan=False)


def write(path: Path, content: str) -> None:
    """Put the content of `text` there, with the time, and remove what has become too many.

    Raises:
        OSError: it cannot be written; what was there before still is.
    """
    timed = f'{{"at": {time.time():.0f}, {content[1:]}'
    path.parent.mkdir(parents=True, exist_ok=True)
    cache.write_whole(path, lambda file: file.write(timed.encode()))
    _tidy(path.parent)


def _read(path: Path, identity: Identity, restore: Callable[[Mapping[str, Any]], T]) -> T | Refusal:
    try:
        if not path.is_file():  # nor a pipe, on which reading would wait
            return Refusal.UNREADABLE if path.exists() else Refusal.ABSENT
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError:
        return Refusal.UNREADABLE
    if len(content) > MOST_BYTES:
        return Refusal.TOO_LARGE
    try:
        given = json.loads(content)
        _require_plain(given)
        if given["format"] != FORMAT:
            return Refusal.OTHER_FORMAT
        if given["identity"] != json.loads(json.dumps(identity)):
            return Refusal.OTHER_IDENTITY
        return restore(given)
    except _ODD as error:
        log.debug("%s: %s: %s", path, type(error).__name__, error)
        return Refusal.MALFORMED


def _restore(given: Mapping[str, Any]) -> Saved:
    costs, steps, at = Costs.restore(given["costs"]), given["steps"], given["at"]
    _require_plausible(costs)
    history = {str(name): float(rate) for name, rate in given["history"].items()}
    if type(steps) is not int or steps < 0 or not all(0 <= rate <= 1 for rate in history.values()):
        raise ValueError("steps or history make no sense")
    return Saved(costs, Acceptance.restore(given["acceptance"]), history, steps, float(at))


def _require_plain(given: Any) -> None:
    """Refuse what is deeper, longer or more than was ever written, and numbers that are none."""
    left, level = _MOST_VALUES, [given]
    for _ in range(_DEEPEST):
        left -= len(level)
        if left < 0:
            raise ValueError("there are too many values")
        below: list[Any] = []
        for value in level:
            _require_value(value)
            if isinstance(value, dict):
                below += [*value, *value.values()]
            elif isinstance(value, list):
                below += value
        if not below:
            return
        level = below
    raise ValueError("it is too deep")


def _require_value(value: Any) -> None:
    if isinstance(value, str) and len(value) > _LONGEST:
        raise ValueError("a text is too long")
    if isinstance(value, (int, float)) and not abs(value) <= 1e15:
        raise ValueError("a number is none, or too large")


def _require_plausible(costs: Costs) -> None:
    """Refuse times that no pass can take: the governor divides by them."""
    curves = [costs.target, costs.others, *costs.drafts.values()]
    if not costs.known or not all(_is_plausible(curve) for curve in curves):
        raise ValueError("a pass takes no time, or too much")
    if not 0 <= costs.switch_s <= _MOST_CHANGE * costs.target.seconds(1):
        raise ValueError("a change takes too much time")
    if not costs.profiled_draft.keys() <= costs.drafts.keys():
        raise ValueError("a drafter was profiled of which nothing is known")


def _is_plausible(curve: Curve) -> bool:
    return all(
        0 < curve.seconds(rows) <= _MOST_SECONDS and curve.seconds(rows, _FAR) < math.inf
        for rows in curve.measured_rows
    )


def _tidy(directory: Path) -> None:
    """Remove the oldest files beyond the most that are kept, and what was never finished. Others may do so as well."""
    now, found = time.time(), []
    for path in directory.iterdir():
        try:
            age = now - path.stat().st_mtime
            if path.suffix == ".json" and not path.name.startswith("."):
                found.append((age, path))
            elif path.name.startswith(".") and age > ABANDONED_S:
                path.unlink()
        except OSError:
            continue
    for _, path in sorted(found)[MOST_FILES:]:
        path.unlink(missing_ok=True)
