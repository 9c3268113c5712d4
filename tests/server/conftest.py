"""Live servers, one a session for each model; tests that break or configure one make their own with `live`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.engine.llm import LLM

from .live import Live, live


@pytest.fixture(scope="session", autouse=True)
def kept(tmp_path_factory) -> Iterator[Path]:
    """A cache of this session's own, and no key from the environment."""
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("cache")
        patch.setenv("PACELINE_CACHE", str(path))
        patch.delenv("PACELINE_API_KEY", raising=False)
        yield path


@pytest.fixture(scope="session")
def toy(kept) -> Iterator[Live]:
    """toy:ngram behind a server."""
    with live(LLM("toy:ngram")) as server:
        yield server


@pytest.fixture(scope="session")
def demo(kept) -> Iterator[Live]:
    """The demo model behind a server: a real tokenizer and chat template."""
    with live(LLM("demo", context=2048)) as server:
        yield server


@pytest.fixture(scope="session")
def plain_toy(kept) -> LLM:
    """toy:ngram in this process, with no drafters: what texts should be."""
    return LLM("toy:ngram", speculate=False)


@pytest.fixture(scope="session")
def plain_demo(kept) -> LLM:
    """The demo model in this process, with no drafters."""
    return LLM("demo", context=2048, speculate=False)
