"""The files that draft heads are kept in: whole, damaged, and hostile."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline.errors import CorruptModel, MissingExtra
from paceline.models.heads_layouts import read_heads
from paceline.runners.torch import pickled
from tests.heads import EAGLE3, MEDUSA, TARGET, make, published, write

from .test_heads import CASES, same, stored


def pickle_name(case: str) -> str:
    return "medusa_lm_head.pt" if case.startswith("medusa") else "pytorch_model.bin"


@pytest.mark.parametrize("case", ["eagle3-small", "speculators-small", "medusa"])
def test_files_of_every_form(case: str, tmp_path: Path) -> None:
    heads = make(CASES[case])
    forms = ["model.safetensors", "sharded", pickle_name(case)]
    if case == "medusa":
        forms.append("medusa_lm_head.safetensors")
    for form in forms:
        same(read_heads(write(tmp_path / form, *published(heads), form), TARGET, pickled.read), heads)


def test_halves_are_widened(tmp_path: Path) -> None:
    config, tensors = published(make(EAGLE3))
    halves = {name: values.astype(np.float16) for name, values in tensors.items()}
    found = read_heads(write(tmp_path, config, halves), TARGET)
    np.testing.assert_array_equal(found.tensors["fc"], halves["fc.weight"].astype(np.float32))
    torch.save({n: torch.from_numpy(v).bfloat16() for n, v in tensors.items()}, tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    found = read_heads(tmp_path, TARGET, pickled.read)
    np.testing.assert_array_equal(found.tensors["fc"], torch.from_numpy(tensors["fc.weight"]).bfloat16().float())


def test_damaged_files(tmp_path: Path) -> None:
    directory = stored(tmp_path)
    whole = (directory / "model.safetensors").read_bytes()
    for cut in (0, 7, 100, len(whole) - 1):
        (directory / "model.safetensors").write_bytes(whole[:cut])
        with pytest.raises(CorruptModel, match="truncated or not a safetensors file"):
            read_heads(directory, TARGET)


def test_a_pickle_needs_a_reader(tmp_path: Path) -> None:
    directory = stored(tmp_path, "medusa", "medusa_lm_head.pt")
    with pytest.raises(MissingExtra, match=r"only torch can read safely: pip install 'paceline\[torch\]'"):
        read_heads(directory, TARGET)


class _Attack:
    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('a pickle ran')",))


def test_a_pickle_runs_nothing(tmp_path: Path) -> None:
    directory = stored(tmp_path, "medusa", "medusa_lm_head.pt")
    path = directory / "medusa_lm_head.pt"
    with pytest.raises(SystemExit, match="ran"):  # it would, if it were unpickled
        pickle.loads(pickle.dumps(_Attack()))
    for attack in (_Attack(), {"0.0.weight": _Attack()}):
        torch.save(attack, path)
        with pytest.raises(CorruptModel, match="cannot be read as tensors"):
            read_heads(directory, TARGET, pickled.read)
        path.write_bytes(pickle.dumps(attack))
        with pytest.raises(CorruptModel, match="cannot be read as tensors"):
            read_heads(directory, TARGET, pickled.read)


def test_damaged_pickles(tmp_path: Path) -> None:
    directory = stored(tmp_path, "medusa", "medusa_lm_head.pt")
    path = directory / "medusa_lm_head.pt"
    whole = path.read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 30):
        path.write_bytes(whole[:cut])
        with pytest.raises(CorruptModel, match="cannot be read as tensors"):
            read_heads(directory, TARGET, pickled.read)
    for other in ([torch.zeros(2)], {"a": 1}, {1: torch.zeros(2)}):
        torch.save(other, path)
        with pytest.raises(CorruptModel, match="something else than tensors by name"):
            read_heads(directory, TARGET, pickled.read)
    config, tensors = published(make(MEDUSA))
    whole_numbers = {name: values.astype(np.int64) for name, values in tensors.items()}
    found = read_heads(write(tmp_path / "ids", config, whole_numbers, "medusa_lm_head.pt"), TARGET, pickled.read)
    with pytest.raises(CorruptModel, match="weights are floats"):
        found.tensors["heads.0.out"]
