"""Drafters by name, built in and from elsewhere."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from paceline.drafters import registry
from paceline.drafters.lookup import SHORTEST, Lookup
from paceline.drafters.model import ModelDrafter
from paceline.drafters.registry import DraftModel, Surroundings
from paceline.errors import OptionError
from paceline.models import toy
from paceline.runners.kv import Pool
from paceline.runners.toy import ToyRunner

RUNNER = ToyRunner(toy.LAWS["table"])
BARE = Surroundings(RUNNER.info)


def foreign(given: Surroundings) -> Lookup:
    """A drafter that somebody else has written."""
    return Lookup(longest=given.target.block_size, shortest=1)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    value = f"{__name__}:foreign"
    found = [EntryPoint(name, value, registry.GROUP) for name in ("far", "lookup")]
    monkeypatch.setattr(registry, "entry_points", lambda group: found if group == registry.GROUP else [])


@pytest.mark.parametrize(
    ("names", "has_model", "has_heads", "expected"),
    [
        (None, False, False, tuple(name for name in registry.BUILT_IN if name not in ("heads", "model"))),
        (None, True, False, tuple(name for name in registry.BUILT_IN if name != "heads")),
        (None, False, True, tuple(name for name in registry.BUILT_IN if name != "model")),
        (None, True, True, ("grammar", "prediction", "suffix", "lookup", "recycle", "heads", "model")),
        ((), True, True, ()),
        (("model", "lookup", "model"), True, False, ("model", "lookup")),
    ],
)
def test_choosing(names: tuple[str, ...] | None, has_model: bool, has_heads: bool, expected: tuple[str, ...]) -> None:
    assert registry.choose(names, has_model, has_heads) == expected


def test_unknown_names() -> None:
    with pytest.raises(OptionError, match=r"drafters has 'oracle'; allowed: .*lookup, model, .* or auto or none alone"):
        registry.choose(("lookup", "oracle"), True)


@pytest.mark.usefixtures("elsewhere")
def test_drafters_from_elsewhere() -> None:
    assert registry.choose(("far", "lookup"), False) == ("far", "lookup")
    made = registry.make(("far", "lookup"), BARE)
    assert list(made) == ["far", "lookup"]
    assert vars(made["far"])["_shortest"] == 1
    assert vars(made["lookup"])["_shortest"] == SHORTEST, "built-in names cannot be taken"


def test_a_model_drafter_needs_a_model() -> None:
    with pytest.raises(OptionError, match="name one with --draft"):
        registry.make(("model",), BARE)
    with_model = Surroundings(RUNNER.info, DraftModel(RUNNER, Pool(4, 8, RUNNER.move)))
    assert isinstance(registry.make(("model",), with_model)["model"], ModelDrafter)


def test_draft_heads_need_a_directory() -> None:
    with pytest.raises(OptionError, match="name their directory with --heads"):
        registry.make(("heads",), BARE)
