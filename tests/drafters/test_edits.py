"""Places against a search of the whole text, and edits against a replacement of every word."""

from __future__ import annotations

import math
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.drafters.edits import BESIDE, MOST_SITES, Edits
from paceline.drafters.places import BEHIND, LEAST_BITS, LONGEST, MOST, MOST_BITS, Places
from paceline.models import toy
from tests.core.strategies import examples

TEXTS = st.lists(st.integers(0, 4), min_size=1, max_size=60)


def search(text: list[int], said: list[int], expected: int) -> dict[int, float]:
    """What speaks for every place, by the words of `Places`."""
    shares = {token: count / len(text) for token, count in Counter(text).items()}
    found = {}
    for place in range(1, len(text) + 1):
        length = 0
        while length < min(LONGEST, len(said), place) and text[place - 1 - length] == said[-1 - length]:
            length += 1
        if length:
            told = (min(max(-math.log2(shares[t]), LEAST_BITS), MOST_BITS) for t in text[place - length : place])
            away = max(place - length - expected, 0) if place >= expected else expected - place
            found[place] = sum(told) - math.log2(1 + away) - (BEHIND if place < expected else 0)
    return found


class TestPlaces:
    @given(TEXTS, st.lists(st.integers(0, 5), min_size=1, max_size=12), st.integers(0, 60))
    @examples(300)
    def test_the_best_place_is_the_one_a_search_finds(self, text: list[int], said: list[int], expected: int) -> None:
        found, places = Places(text).best(said, min(expected, len(text))), search(text, said, min(expected, len(text)))
        if found is None:
            assert places == {}
            return
        assert found.bits == pytest.approx(places[found.place]) == pytest.approx(max(places.values()))
        assert text[found.place - found.length : found.place] == said[-found.length :]

    @given(TEXTS, st.data())
    @examples(100)
    def test_a_piece_of_the_text_is_found_where_it_stands(self, text: list[int], data: st.DataObject) -> None:
        end = data.draw(st.integers(1, len(text)))
        begin = data.draw(st.integers(max(0, end - LONGEST), end - 1))
        found = Places(text).best(text[begin:end], begin)
        assert found is not None
        assert found.length >= end - begin
        assert found.place <= end

    @given(TEXTS, st.integers(0, 5))
    @examples(100)
    def test_where_a_token_stands(self, text: list[int], token: int) -> None:
        assert Places(text).of(token).tolist() == [i for i, t in enumerate(text) if t == token]

    @pytest.mark.parametrize("expected", [0, 10 * MOST, 20 * MOST - 40])
    def test_of_very_many_places_the_near_ones_are_compared(self, expected: int) -> None:
        text = [1, 2] * (10 * MOST)
        found = Places(text).best([2], expected)
        assert found is not None
        assert 0 <= found.place - expected <= 2
        near = Places(text).best([3, 1], expected)
        assert near is not None
        assert near.length == 1

    def test_rare_tokens_are_found_far_away_and_frequent_ones_only_near(self) -> None:
        text = [1, *[i % 10 for i in range(1000)], 77, 5]
        places = Places(text)
        for token, far in ((77, True), (5, False)):
            found = places.best([token], 0)
            assert found is not None
            assert (found.place > 900) == far
            assert found.bits > 0
        late = places.best([5], 900)
        assert late is not None
        assert 900 < late.place <= 910
        assert late.bits > 0 > max(bits for place, bits in search(text, [5], 0).items() if place > 100)


def applied(text: list[int], edits: Edits) -> list[int]:
    """Return the text with every expected edit made."""
    said: list[int] = []
    place = 0
    while place <= len(text):
        site = edits.sites.get(place)
        said += site.new if site else ()
        kept = site.end if site else place
        if kept == place:
            said += text[place : place + 1]
            kept += 1
        place = kept
    return said


class TestEdits:
    BYTES = toy.tokenizer()
    PIECES = ("area", "areas", "sub_area", "x", "3", " ", "\n", "(", "), ", " = ", ".", "é")

    @given(
        st.lists(st.sampled_from(PIECES), min_size=1, max_size=30),
        st.sampled_from(["size", "areal", "a", "my_area", ""]),
        st.integers(0, 3),
        st.booleans(),
    )
    @examples(300)
    def test_a_word_is_expected_to_change_wherever_it_stands_alone(
        self, pieces: list[str], new: str, skip: int, by_letter: bool
    ) -> None:
        """Whatever of its letters the first edit was seen to touch."""
        text = "".join(pieces)
        whole = list(re.finditer(r"(?<!\w)area(?!\w)", text))
        if skip >= len(whole):
            return
        at, edits = len(text[: whole[skip].start()].encode()), Edits(Places(self.BYTES.encode(text)), self.BYTES)
        same = len(new) - len(new.lstrip("a")) if by_letter else 0
        same = min(same, 1)
        edits.learn(at + same, at + 4, self.BYTES.encode(new[same:]))
        rest = text[whole[skip].end() :]
        expected = text[: whole[skip].end()] + re.sub(r"(?<!\w)area(?!\w)", new, rest)
        assert self.BYTES.decode(applied(self.BYTES.encode(text), edits)) == expected
        assert {(site.edit.hits, site.edit.misses) for site in edits.sites.values()} <= {(1, skip)}

    @given(TEXTS, st.integers(0, 59), st.integers(0, 3), st.lists(st.integers(5, 9), max_size=3))
    @examples(300)
    def test_without_a_tokenizer_tokens_are_expected_to_change(
        self, text: list[int], begin: int, taken: int, new: list[int]
    ) -> None:
        begin = min(begin, len(text))
        end, edits = min(begin + taken, len(text)), Edits(Places(text))
        lead = 0 if end > begin else min(BESIDE, begin)
        span = text[begin - lead : end]
        edits.learn(begin, end, new)
        standing = [i + lead for i in range(len(text)) if span and text[i : i + len(span)] == span]
        assert sorted(edits.sites) == [at for at in standing if at > begin]
        for at, site in edits.sites.items():
            assert (site.end - at, list(site.new)) == (end - begin, new)
            assert site.edit.misses == sum(at < begin for at in standing)

    def test_an_edit_that_was_seen_again_is_likelier(self) -> None:
        edits = Edits(Places([1, 2, 1, 2, 1, 2]))
        edits.learn(0, 1, [5])
        chances = [edits.sites[2].edit.chance]
        edits.learn(2, 3, [5])
        chances.append(edits.sites[4].edit.chance)
        edits.sites[4].edit.misses += 2
        chances.append(edits.sites[4].edit.chance)
        assert chances == [0.75, 2.5 / 3, 0.5]

    @pytest.mark.parametrize("tokenizer", [None, BYTES])
    def test_what_does_not_come_again_is_not_learnt(self, tokenizer: object) -> None:
        text = self.BYTES.encode("a b " * 20)
        for begin, end, new in ((0, 39, "c"), (0, 1, "c" * 39), (0, 0, "+")):
            edits = Edits(Places(text), tokenizer)  # type: ignore[arg-type]
            edits.learn(begin, end, self.BYTES.encode(new))
            assert edits.sites == {}

    def test_an_insertion_between_words_is_not_one_of_words(self) -> None:
        edits = Edits(Places(self.BYTES.encode("f(a) f(a)")), self.BYTES)
        edits.learn(2, 2, self.BYTES.encode("("))
        assert edits.sites == {}

    def test_half_a_character_is_no_word(self) -> None:
        text = self.BYTES.encode("é é é")
        edits = Edits(Places(text), self.BYTES)
        edits.learn(1, 2, [text[0]])
        assert edits.sites == {}

    @pytest.mark.parametrize("tokenizer", [None, BYTES])
    def test_their_number_is_bounded(self, tokenizer: object) -> None:
        edits = Edits(Places(self.BYTES.encode("a b ") * 2 * MOST_SITES), tokenizer)  # type: ignore[arg-type]
        edits.learn(0, 1, self.BYTES.encode("c"))
        assert len(edits.sites) == MOST_SITES
        assert max(edits.sites) == 4 * MOST_SITES
