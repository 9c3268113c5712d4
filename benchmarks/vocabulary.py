"""How much of a text a draft model can name whose head is cut to N tokens: the lowest ids, or those said before.

    python benchmarks/vocabulary.py --model MODEL.gguf --json out/vocabulary.json
    python benchmarks/vocabulary.py --model demo --text docs/*.md --sizes 4096 8192

The files are dealt into two halves, every other one by name. Each half is read in turn with what was counted in the
other: its tokens, most frequent first, then the lowest ids, as `paceline.drafters.trim` chooses them. It is the same
project in both halves: what was said before is as near to what is said now as for a user who stays with one subject.
Needs the tokenizer alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import provenance, write_json

from paceline.drafters.trim import Counts, frequent
from paceline.models.load import load
from paceline.models.source import resolve
from paceline.models.tokenizer import Tokenizer

ROOT = Path(__file__).parents[1]
CORPUS = ("docs/*.md", "src/paceline/**/*.py")
SIZES = (8192, 16384, 32768)


def main() -> None:
    given = parse()
    model = load(resolve(given.model))
    paths = given.text or sorted(path for pattern in CORPUS for path in ROOT.glob(pattern))
    halves = [count(model.tokenizer, half) for half in deal(paths)]
    result = {
        "model": Path(given.model).name,
        "vocabulary": len(model.tokenizer.vocabulary),
        "files": len(paths),
        "tokens": [int(half.sum()) for half in halves],
        "different": [int(np.count_nonzero(half)) for half in halves],
        "sizes": compare(model.tokenizer, model.tokenizer.eos_ids, halves, given.sizes),
    }
    show(result)
    write_json(given.json, result | {"provenance": provenance()})


def parse() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="whose tokenizer it is")
    parser.add_argument(
        "--text", nargs="+", type=Path, help="two files or more; by default this project's docs and code"
    )
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.text and len(given.text) < 2:
        parser.error(f"there is one file, {given.text[0]}; two halves need two or more")
    return given


def deal(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    ordered = sorted(paths)
    return ordered[::2], ordered[1::2]


def count(tokenizer: Tokenizer, paths: Sequence[Path]) -> Counts:
    counts = np.zeros(len(tokenizer.vocabulary), np.int64)
    for path in paths:
        np.add.at(counts, tokenizer.encode(path.read_text(encoding="utf-8")), 1)
    return counts


def compare(tokenizer: Tokenizer, ends: Sequence[int], halves: Sequence[Counts], sizes: Sequence[int]) -> list[Any]:
    """Return a row for each size: the shares of all tokens, each half's in turn, that are covered either way."""
    first, second = halves
    rows = []
    for size in sizes:
        by_ids = frequent(tokenizer, size, ends)
        lowest = [share_of(half, by_ids) for half in (first, second)]
        said = [
            share_of(half, frequent(tokenizer, size, ends, before))
            for half, before in ((first, second), (second, first))
        ]
        rows.append({"size": size, "lowest_ids": pooled(lowest, halves), "said_before": pooled(said, halves)})
    return rows


def share_of(counts: Counts, vocabulary: Counts | None) -> float:
    """Return the share of the counted tokens that are in a vocabulary; None is all of it."""
    return 1.0 if vocabulary is None else float(counts[vocabulary].sum() / counts.sum())


def pooled(shares: Sequence[float], halves: Sequence[Counts]) -> float:
    return float(np.average(shares, weights=[half.sum() for half in halves]))


def show(result: dict[str, Any]) -> None:
    tokens, different = (" and ".join(f"{n:,}" for n in result[name]) for name in ("tokens", "different"))
    print(f"{result['model']}: {result['vocabulary']:,} tokens in the vocabulary")
    print(f"{result['files']} files in two halves: {tokens} tokens, {different} different ones")
    print(f"{'size':>7} {'lowest ids':>11} {'said before':>12}")
    for row in result["sizes"]:
        print(f"{row['size']:7,} {row['lowest_ids']:11.1%} {row['said_before']:12.1%}")


if __name__ == "__main__":
    main()
