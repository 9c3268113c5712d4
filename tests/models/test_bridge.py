"""Which tokens of two models mean the same, which way a drafter is to speak, and the spelling of bytes."""

from __future__ import annotations

import codecs

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import VocabularyError
from paceline.models import bridge as bridges
from paceline.models.bridge import connect, runs, whole
from paceline.models.sample import SAMPLE
from tests.core.strategies import examples
from tests.models.tongues import bridge, tongue, trained

NAMES = ("broad", "narrow", "plain", "pieces")
WAYS = {
    ("broad", "narrow"): "intersection",
    ("narrow", "broad"): "intersection",
    ("broad", "plain"): "retokenised",
    ("plain", "broad"): "retokenised",
    ("pieces", "broad"): "retokenised",
    ("broad", "broad"): "native",
}


@pytest.mark.parametrize(("pair", "way"), WAYS.items())
def test_the_way_follows_from_what_shared_tokens_cover(pair: tuple[str, str], way: str) -> None:
    found = bridge(*pair)
    assert found.way == way
    covered = min(found.target_share, found.drafter_share) >= bridges.COVERED
    assert covered == (way != "retokenised")
    if way != "native":
        assert f"{found.target_share:.0%} of common text for the target and {found.drafter_share:.0%}" in found.reason
        assert "95%" in found.reason


@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("drafter", NAMES)
def test_names_mean_the_same_and_none_is_given_twice(target: str, drafter: str) -> None:
    """And no token that both have is left out: against comparing each with each."""
    found, ours, theirs = bridge(target, drafter), tongue(target), tongue(drafter)
    named = [(i, int(name)) for i, name in enumerate(found.names) if name >= 0]
    assert len({name for _, name in named}) == len(named) == found.shared
    for mine, other in named:
        if theirs.is_special(mine):
            assert ours.is_special(other)
            assert found.way == "native" or found.specials[other] == mine
        else:
            assert theirs.token_bytes(mine) == ours.token_bytes(other) != b""
    sayable = {ours.token_bytes(i) for i in range(len(ours.vocabulary)) if not ours.is_special(i)}
    both = {theirs.token_bytes(i) for i in range(len(theirs.vocabulary)) if not theirs.is_special(i)} & sayable - {b""}
    if found.way != "native":
        assert {theirs.token_bytes(mine) for mine, _ in named if not theirs.is_special(mine)} == both


def test_shares_are_counted_in_each_models_tokens() -> None:
    found, broad, narrow = bridge("broad", "narrow"), tongue("broad"), tongue("narrow")
    says = {narrow.token_bytes(i) for i in range(len(narrow.vocabulary)) if not narrow.is_special(i)}
    ours = broad.encode(SAMPLE)
    assert found.target_share == sum(broad.token_bytes(token) in says for token in ours) / len(ours)


def test_special_tokens_are_the_same_by_spelling_or_by_role_alone() -> None:
    """<user> is in both; <eos> and <end> both end a text; <only> is the drafter's alone, and a word is no control."""
    found = bridge("broad", "narrow")
    broad, narrow = tongue("broad").vocabulary, tongue("narrow").vocabulary
    assert {(broad[t], narrow[d]) for t, d in found.specials.items()} == {("<user>", "<user>"), ("<eos>", "<end>")}
    assert -1 in bridge("broad", "plain").names


def test_a_letter_is_itself_and_not_the_spelling_of_its_byte() -> None:
    broad, pieces = tongue("broad").vocabulary, tongue("pieces").vocabulary
    assert pieces[bridge("pieces", "broad").names[broad.index("t")]] == "t"
    assert broad[bridge("broad", "pieces").names[pieces.index("t")]] == "t"
    assert bridge("broad", "pieces").names[pieces.index("<0x74>")] == -1
    assert pieces[bridge("pieces", "broad").names[broad.index("Z")]] == "<0x5A>"


def test_a_role_gives_no_second_name() -> None:
    """What ends the target's text is in the drafter's table as well, as something else than its end."""
    other = trained(280, None, ("<end>", "<eos>"))
    found = connect(tongue("plain"), trained(280, None, ("<end>", "<stop>")))
    assert [*found.specials] == [tongue("plain").eos_ids[0]]
    assert found.names.tolist().count(tongue("plain").eos_ids[0]) == 1
    assert connect(tongue("broad"), other).specials == {0: 1}


def test_columns_of_a_trimmed_or_padded_head_have_their_names() -> None:
    found = bridge("broad", "narrow")
    columns = np.array([3, 0, len(found.names), len(found.names) + 90, 7])
    assert found.names_of(columns).tolist() == [found.names[3], found.names[0], -1, -1, found.names[7]]


def test_a_drafter_without_the_letters_of_common_text_is_refused() -> None:
    """It has no bytes to spell them with, either."""
    mute = tongue("mute")
    for pair in ((tongue("broad"), mute), (mute, tongue("broad"))):
        with pytest.raises(VocabularyError, match="text does not come through both") as caught:
            connect(*pair)
        assert "ids differ" in str(caught.value)
        assert "\n" not in str(caught.value)


BYTES = st.lists(
    st.one_of(st.binary(max_size=3), st.sampled_from([b"the ", "🙂".encode(), "é中".encode(), b"\n", b"  "])),
    max_size=8,
).map(b"".join)


@pytest.mark.parametrize("name", NAMES)
@given(BYTES, st.booleans())
@examples(80)
def test_what_is_spelled_is_what_was_given(name: str, data: bytes, start: bool) -> None:
    speller = bridge(name, "broad").target
    spelled = speller.bytes_of(speller.spell(data, start))
    if start and speller.adds_space:
        assert spelled in (data, b" " + data)
    else:
        assert spelled == data


def test_a_blank_is_put_before_the_first_text_only() -> None:
    speller = bridge("pieces", "broad").target
    assert speller.adds_space
    assert speller.bytes_of(speller.spell(b"the", start=True)) == b" the"
    assert speller.bytes_of(speller.spell(b"the")) == b"the"
    assert not bridge("broad", "narrow").target.adds_space


@given(BYTES)
@examples(200)
def test_runs_and_whole_characters(data: bytes) -> None:
    pieces = list(runs(data))
    assert b"".join(text.encode() + stray for text, stray in pieces) == data
    assert all(stray for _, stray in pieces[:-1])
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    assert whole(data) == data[: len(data) - len(decoder.getstate()[0])]
