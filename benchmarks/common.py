"""What the benchmark scripts share: prompts, provenance, intervals."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.bench.provenance import provenance
from paceline.bench.stats import DRAWS, geometric

__all__ = ["DRAWS", "geometric", "progress", "provenance", "read_prompts", "write_json"]


def read_prompts(paths: Sequence[Path], per_category: int | None = None) -> list[dict[str, str]]:
    """Return rows with "category" and "prompt"; of Spec-Bench's files the first turn. Each category's first rows."""
    taken: dict[tuple[Path, str], int] = defaultdict(int)
    rows = []
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            if not line.strip():
                continue
            row = json.loads(line)
            key = path, row["category"]
            if per_category is None or taken[key] < per_category:
                rows.append(
                    {"category": row["category"], "prompt": row["prompt"] if "prompt" in row else row["turns"][0]}
                )
            taken[key] += 1
    return rows


def progress(text: str) -> None:
    """Show one line that the next one overwrites; an empty one clears it."""
    print(f"\r{text:72}", end="\r" if not text else "", file=sys.stderr, flush=True)


def write_json(path: Path | None, result: dict[str, Any]) -> None:
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1), encoding="utf-8")
