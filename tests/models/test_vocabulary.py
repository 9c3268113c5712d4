"""Which vocabularies are the same, and what is said of those that are not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.models.tokenizer import Tokenizer
from paceline.models.vocabulary import Comparison, Difference, compare, show_first
from tests.models.test_gguf_tokenizer import WORDS, byte_tables, piece_tables, relaxed


def words(*tail):
    return Tokenizer.from_gguf(piece_tables([*WORDS, *tail]))


BASE = words()
SIZE = len(BASE.vocabulary)


def test_a_vocabulary_is_its_own():
    assert compare(BASE, BASE) == Comparison("native", SIZE, SIZE, SIZE, 0)


@pytest.mark.parametrize("padding", ["[PAD9]", "<unused0>"])
def test_a_padded_tail_is_native(padding):
    padded = words(padding)
    assert compare(padded, BASE) == Comparison("native", SIZE, SIZE + 1, SIZE, 0)
    assert compare(BASE, padded).kind == "native"
    assert compare(BASE, padded).common == SIZE


def test_padding_is_padding_whatever_it_is_called():
    assert compare(words("[PAD1]"), words("<unused7>")).kind == "native"


def test_a_tail_that_means_something_is_different():
    found = compare(words("extra"), BASE)
    assert found.kind == "different"
    assert found.first == (Difference(SIZE, "extra", None),)


def test_a_token_in_the_place_of_padding_is_different():
    assert compare(words("[PAD1]"), words("extra")).first == (Difference(SIZE, "[PAD1]", "extra"),)


def test_tokens_are_compared_by_meaning():
    respelled = Tokenizer.from_gguf(piece_tables([word.replace("▁", " ") for word in WORDS]))
    assert respelled.vocabulary != BASE.vocabulary
    assert compare(BASE, respelled).kind == "native"


def test_byte_level_and_sentencepiece_are_told_apart():
    found = compare(Tokenizer.from_gguf(byte_tables()), BASE)
    assert found.kind == "different"
    assert len(found.first) == 5


@relaxed
@given(st.sets(st.integers(259, SIZE - 1), min_size=1, max_size=8))
def test_every_differing_id_is_counted_and_the_first_five_shown(places):
    tables = piece_tables(WORDS)
    for place in places:
        tables["tokenizer.ggml.tokens"][place] = f"other{place}"
    found = compare(BASE, Tokenizer.from_gguf(tables))
    assert found.different == len(places)
    assert [d.token_id for d in found.first] == sorted(places)[:5]
    assert all(d.drafter == f"other{d.token_id}" for d in found.first)


def test_what_differs_is_shown_with_ids_and_both_tokens():
    tables = piece_tables(WORDS)
    tables["tokenizer.ggml.tokens"][261] = "▁der"
    shown = show_first(compare(BASE, Tokenizer.from_gguf(tables)))
    assert shown == f"1 ids differ (sizes {SIZE} and {SIZE}), first, target's and drafter's: 261: '▁the' and '▁der'"


def test_an_id_beyond_the_table_is_shown_as_nothing():
    assert "'extra' and nothing" in show_first(compare(words("extra"), BASE))
