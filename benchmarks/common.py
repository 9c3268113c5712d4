"""What the benchmark scripts share: prompts, provenance, intervals."""

from __future__ import annotations

import json
import platform
import sys
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from paceline.engine import identity

DRAWS = 4000


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


def geometric(ratios: Sequence[float]) -> dict[str, float]:
    """Return the geometric mean and its 95 % interval, by bootstrap over the values."""
    logs = np.log(np.asarray(ratios, np.float64))
    draws = np.exp(np.random.default_rng(0).choice(logs, (DRAWS, len(logs))).mean(1))
    low, high = np.quantile(draws, [0.025, 0.975])
    return {"ratio": float(np.exp(logs.mean())), "low": float(low), "high": float(high)}


def provenance() -> dict[str, Any]:
    here = identity.machine()
    return {
        "argv": [Path(arg).name if "/" in arg else arg for arg in sys.argv],
        "versions": {name: version(name) for name in ("paceline", "openvino", "numpy")},
        "python": platform.python_version(),
        "machine": f"{here['processor']}, {here['kind']}",
        "date": datetime.now(UTC).date().isoformat(),
    }


def progress(text: str) -> None:
    """Show one line that the next one overwrites; an empty one clears it."""
    print(f"\r{text:72}", end="\r" if not text else "", file=sys.stderr, flush=True)


def write_json(path: Path | None, result: dict[str, Any]) -> None:
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1), encoding="utf-8")
