"""Recorded acceptance: what real drafters guessed at every position of real answers, and how much of it came true.

A file is JSON lines. A line with `costs` says what things took on the machine that recorded (at most one, the first):

    {"costs": {"passes": {"1": 0.0431, "2": 0.0440, "4": 0.0449}, "other": 0.0012, "switch": 0.004,
               "drafts": {"model": 0.0094, "suffix": 0.00003}, "reading": {"model": 0.0006}}}

Seconds: `passes` of a pass of the target by its rows, at least that of one row; `other`, what surrounds it; `switch`,
what a pass takes longer when its number of rows is not that of the pass before; `drafts`, one more drafted token of a
drafter; `reading`, one token that a drafter has to catch up with. All but `passes` may be missing. Without such a line
the times are those of a 1.5B model and a drafter of 0.5B, both int4, on two Zen 4 cores.

Every other line is one prompt and its answer:

    {"category": "summarization", "prompt_tokens": 211, "drafts": {"model": [null, [2, 4, [0.9, 0.81, 0.4, 0.3], 77],
     [1, 1, 0.55], null], "suffix": [...]}}

`drafts` has the drafters in the order in which the engine asks them. A drafter's list has one entry a position of the
answer, all lists are equally long. Entry i is the chain that the drafter proposes when i tokens of the answer are
there (the last of them pending), so its first guess is for token i; entry 0 is not used, for the first token comes with
the prompt. null is no guess; otherwise `[right, length, confidence, wrong]`:

* `length`, 1 to 64: guessed tokens. The drafter is asked for as many as can be useful (16), and does not stop early;
* `right`, 0 to `length`: how many of the first ones came true. Guesses beyond the end of the answer count as wrong;
* `confidence`: the drafter's own, [length] of them, two decimals; one number where all are equal;
* `wrong`: the token id guessed first of those that are not right; it tells whether two drafters were wrong alike. Left
  out where all are right; may be left out.

Of a tree the branch is recorded of which most nodes are expected to be taken by the drafter's own confidences.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.bench.tracks import OTHER, WORD, WRONG, Chain, Text, Track
from paceline.bench.worlds import World
from paceline.errors import HistoryError
from paceline.governor.curve import Curve

PAIR = {
    "passes": {"1": 0.043, "4": 0.045, "8": 0.056, "16": 0.095},
    "other": 0.0012,
    "drafts": {"model": 0.0095},
    "reading": {"model": 0.0006},
}
LARGEST = WORD - 2
"""Of a number in a record."""
LONGEST = 64
"""Of a guess."""


def load(path: Path) -> tuple[World, list[Text]]:
    """Return the world in which traces were recorded, and the texts.

    Raises:
        HistoryError: the file cannot be read, or a line of it is no such record.
    """
    world, texts = _world(PAIR), []
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise HistoryError(f"{path} cannot be read: {error}; give a file of recorded answers") from error
    for number, line in enumerate(lines, 1):
        try:
            record = _mapping(json.loads(line))
            if "costs" in record:
                world = _world(_mapping(record["costs"]))
            else:
                texts.append(_text(record))
        except (ValueError, KeyError, RecursionError) as error:
            raise HistoryError(f"{path}: line {number} is no recorded answer: {error!r}") from error
    if len({tuple(text.tracks) for text in texts}) != 1:
        raise HistoryError(f"{path} has no answers, or of different drafters; record some with the same drafters")
    return world, texts


def _world(costs: Mapping[str, Any]) -> World:
    passes, curve = _numbers(costs["passes"]), Curve()
    for rows in sorted(passes, key=int):
        curve.learn(int(rows), passes[rows])
    if "1" not in passes or not passes["1"]:
        raise ValueError("the time of a pass of one row is missing")
    return World(
        curve.seconds,
        other=_number(costs.get("other", 0.0)),
        drafts=_numbers(costs.get("drafts", {})),
        reading=_numbers(costs.get("reading", {})),
        switch=_number(costs.get("switch", 0.0)),
    )


def _text(record: Mapping[str, Any]) -> Text:
    drafts = {name: _items(entries) for name, entries in _mapping(record["drafts"]).items()}
    lengths = {len(entries) for entries in drafts.values()}
    if len(lengths) != 1 or not min(lengths):
        raise ValueError("the drafters' lists are missing, empty, or not equally long")
    tracks = {name: Track([_chain(entry) for entry in entries]) for name, entries in drafts.items()}
    return Text(lengths.pop(), tracks, _count(record["prompt_tokens"]), category=str(record.get("category", "")))


def _chain(entry: Any) -> Chain | None:
    if entry is None:
        return None
    right, length, confidence, *rest = _items(entry)
    right, length = _count(right), min(_count(length), LONGEST + 1)
    sure = tuple(map(_number, confidence)) if isinstance(confidence, list) else (_number(confidence),) * length
    if not 0 < length == len(sure) <= LONGEST or right > length or max(sure) > 1 or len(rest) > 1:
        raise ValueError(f"{entry!r} is no guess")
    return Chain(right, sure, OTHER + _count(rest[0]) if rest else WRONG)


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.40} is no object")
    return value


def _items(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r:.40} is no list")
    return value


def _numbers(value: Any) -> dict[str, float]:
    return {name: _number(each) for name, each in _mapping(value).items()}


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= LARGEST:
        raise ValueError(f"{value!r:.40} is no number from 0 on")
    return float(value)


def _count(value: Any) -> int:
    if not isinstance(value, int) or _number(value) > LARGEST:
        raise ValueError(f"{value!r:.40} is no count")
    return value
