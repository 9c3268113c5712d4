"""What `inspect` says of a draft model of another tokenizer."""

from __future__ import annotations

import pytest

from tests.models.tongues import save

OTHER = ("inspect", "--model", "toy:llama", "--draft", "demo")


@pytest.fixture(scope="module")
def speakers(tmp_path_factory) -> dict[str, str]:
    """Directories of models that speak in different tokens."""
    root = tmp_path_factory.mktemp("speakers")
    return {name: str(save(name, root / name)) for name in ("broad", "narrow", "mute")}


def test_a_drafter_with_other_tokens_is_shown_with_how_it_drafts_and_why(run):
    """The toy says everything in bytes; most of them the demo has, too, but seldom uses."""
    result = run(*OTHER)
    told = " ".join(result.out.split())
    assert result.code == 0
    assert "different: 49,140 ids differ" in told
    assert "'<|endoftext|>'" in told
    assert "text, put into the target's tokens (SLEM): shared tokens make up 100% of common text for the target" in told
    found = run(*OTHER, "--json", "--drafters", "lookup,model").json
    pair = found["vocabulary"]
    assert pair["kind"] == "different"
    assert pair["first"][0] == {"token_id": 0, "target": "!", "drafter": "<|endoftext|>"}
    assert (pair["way"], pair["shared"]) == ("retokenised", 236)
    assert pair["shares"]["target"] == 1 > 0.9 > pair["shares"]["drafter"]
    assert "for the target and" in pair["reason"]
    assert found["drafters"]["used"] == ["lookup", "model"]
    assert found["usable"] is True


def test_a_drafter_of_shared_tokens_is_shown_with_their_number(run, speakers):
    result = run("inspect", "--model", speakers["broad"], "--draft", speakers["narrow"])
    told = " ".join(result.out.split())
    assert "tokens that both have, 400 (TLI): shared tokens make up 95% of common text for the target" in told
    found = run("inspect", "--model", speakers["broad"], "--draft", speakers["narrow"], "--json").json
    assert found["vocabulary"]["way"] == "intersection"


def test_a_drafter_that_cannot_speak_to_the_target_is_code_1_and_shows_why(run, speakers):
    result = run("inspect", "--model", speakers["broad"], "--draft", speakers["mute"])
    assert result.code == 1
    assert "not usable: the drafter cannot speak to the target: shared tokens make up" in " ".join(result.out.split())
    found = run("inspect", "--model", speakers["broad"], "--draft", speakers["mute"], "--json").json
    assert found["vocabulary"]["way"] is None
    assert "model" not in found["drafters"]["used"]
    assert found["usable"] is False
