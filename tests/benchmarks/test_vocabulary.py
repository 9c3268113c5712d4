"""Coverage of one half by what was counted in the other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paceline.models import toy
from tests.benchmarks.scripts import found, run, script

vocabulary = script("vocabulary")
TOKENIZER = toy.tokenizer()
SPECIAL = 3


def written(tmp_path: Path, *texts: str) -> list[Path]:
    paths = [tmp_path / f"{i}.txt" for i in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


def test_files_are_dealt_by_name() -> None:
    assert vocabulary.deal([Path("c"), Path("a"), Path("b")]) == ([Path("a"), Path("c")], [Path("b")])


def test_tokens_are_counted(tmp_path: Path) -> None:
    counts = vocabulary.count(TOKENIZER, written(tmp_path, "aab", "ba"))
    assert len(counts) == 259 and counts.sum() == 5
    assert [counts[TOKENIZER.encode(letter)[0]] for letter in "abc"] == [3, 2, 0]


def test_coverage_is_of_the_half_that_was_not_counted(tmp_path: Path) -> None:
    """Sizes leave room for 1, 2 and 11 tokens beside the special ones; "!" has the lowest id of all."""
    halves = [vocabulary.count(TOKENIZER, [path]) for path in written(tmp_path, "aaab!", "abc")]
    rows = vocabulary.compare(TOKENIZER, (), halves, [SPECIAL + 1, SPECIAL + 2, SPECIAL + 11, 259])
    assert [row["size"] for row in rows] == [4, 5, 14, 259]
    assert [row["lowest_ids"] for row in rows] == pytest.approx([1 / 8, 1 / 8, 1 / 8, 1])
    # "abc" teaches a, b, c: of "aaab!" 3, 4, 4, with "!" after them 5. "aaab!" teaches a, !, b: of "abc" 1, 1, 2.
    assert [row["said_before"] for row in rows] == pytest.approx([(3 + 1) / 8, (4 + 1) / 8, (5 + 2) / 8, 1])


def test_halves_count_by_their_tokens() -> None:
    halves = [np.array([30, 0]), np.array([0, 10])]
    assert vocabulary.pooled([1.0, 0.0], halves) == pytest.approx(0.75)


def test_the_whole_script(tmp_path: Path) -> None:
    paths = written(tmp_path, "the cat", "the dog", "a cat")
    shown, result = found("vocabulary", tmp_path / "out.json", "--model", "toy:ngram", "--sizes", 40, "--text", *paths)
    assert result["tokens"] == [12, 7] and result["files"] == 3
    [row] = result["sizes"]
    assert row["said_before"] > row["lowest_ids"]
    assert f"{row['said_before']:.1%}" in shown


def test_one_file_has_no_halves(tmp_path: Path) -> None:
    [path] = written(tmp_path, "alone")
    with pytest.raises(AssertionError, match="two halves need two or more"):
        run("vocabulary", "--model", "toy:ngram", "--text", path)
