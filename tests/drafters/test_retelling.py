"""A text in the drafter's tokens, told bit by bit, against encoding all of it anew."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.drafters.retelling import LONG, TOO_LONG, Retelling
from paceline.models.bridge import Bridge, Speller
from paceline.models.sample import SAMPLE
from tests.core.strategies import examples
from tests.models.tongues import bridge, tongue

PAIRS = [
    ("broad", "narrow"),
    ("narrow", "broad"),
    ("plain", "broad"),
    ("broad", "plain"),
    ("broad", "pieces"),
    ("pieces", "broad"),
    ("pieces", "narrow"),
]
TEXTS = st.lists(
    st.sampled_from(
        [
            "the ",
            "in",
            "'",
            "'re",
            "  ",
            "\n",
            "\n\n",
            " (x",
            "12345",
            "é",
            "中文字",
            "🙂",
            "👩\u200d👧",
            "İ",
            "\u00a0",
            "def f(a):\n    return",
            ".",
            ",",
            "\t",
            "e\u0301",
            " ",
            "word",
            "<eos>",
            "\ufffd",
        ]
    ),
    max_size=12,
).map("".join)


def told(pair: Bridge, tokens: Sequence[int]) -> list[int]:
    """All of it at once: stretches of text between special tokens, each encoded whole."""
    target, drafter = pair.target.tokenizer, pair.drafter.tokenizer
    found = [drafter.bos_id] if drafter.add_bos and drafter.bos_id is not None else []
    stretches: list[tuple[bytes, int | None]] = []
    text = b""
    for token in tokens:
        if target.is_special(token):
            stretches.append((text, token))
            text = b""
        else:
            text += target.token_bytes(token)
    stretches.append((text, None))
    blank = pair.target.adds_space
    for text, special in stretches:
        if text and blank:
            text, blank = text.removeprefix(b" "), False
        found += pair.drafter.spell(text, start=True)
        same = pair.specials.get(special) if special is not None else None
        if same is not None and found != [same]:
            found.append(same)
    return found


@pytest.mark.parametrize(("target", "drafter"), PAIRS)
@given(st.data())
@examples(30)
def test_it_is_in_step_after_every_token(target: str, drafter: str, data: st.DataObject) -> None:
    """Text that the target would write, and tokens in any order: halves of characters, special ones in the middle."""
    pair = bridge(target, drafter)
    ours = tongue(target)
    parts = data.draw(
        st.lists(
            st.one_of(
                TEXTS.map(lambda text: ours.encode(text, allow_special=True)),
                st.lists(st.integers(0, len(ours.vocabulary) + 3), max_size=6),
                st.integers(0, 1900).map(lambda at: ours.encode(SAMPLE[at : at + 60])),
            ),
            max_size=5,
        )
    )
    tokens = [token for part in parts for token in part]
    telling = Retelling(pair)
    done = 0
    while done < len(tokens):
        done = min(len(tokens), done + data.draw(st.sampled_from([1, 2, 5, 40])))
        before = list(telling.tokens)
        same = telling.extend(tokens[:done])
        assert telling.tokens == told(pair, tokens[:done])
        if done > 2 and data.draw(st.integers(0, 5)) == 0:  # an error has taken some back
            done -= data.draw(st.integers(1, 2))
            tokens[done] = data.draw(st.integers(0, len(ours.vocabulary) - 1))
        assert telling.tokens[:same] == before[:same]
        assert same == len(before) or telling.tokens[same : same + 1] != before[same : same + 1]


def test_a_text_that_was_taken_back_is_told_anew() -> None:
    pair, plain = bridge("plain", "broad"), tongue("plain")
    telling = Retelling(pair)
    text = plain.encode("take in the other")
    telling.extend(text)
    before = list(telling.tokens)
    other = plain.encode("take in thy")
    same = telling.extend(other)
    assert telling.tokens == told(pair, other)
    assert 0 < same < len(before)
    assert telling.tokens[:same] == before[:same]


def test_a_merge_across_the_boundary_changes_the_last_tokens_only() -> None:
    telling = Retelling(bridge("plain", "broad"))
    text = tongue("plain").encode("take in the")
    telling.extend(text[:-1])
    before = list(telling.tokens)
    same = telling.extend(text)
    assert 0 < same < len(before)
    assert telling.tokens == tongue("broad").encode("take in the")


def test_half_a_character_is_told_in_bytes_until_the_other_half_comes() -> None:
    telling = Retelling(bridge("plain", "broad"))
    ids = tongue("plain").encode("a 🙂")
    broad = tongue("broad")
    telling.extend(ids[:-1])
    assert b"".join(map(broad.token_bytes, telling.tokens)) == "a 🙂".encode()[:-1]
    telling.extend(ids)
    assert telling.tokens == broad.encode("a 🙂")


def test_special_tokens_are_told_where_the_drafter_has_them() -> None:
    plain, pair = tongue("plain"), bridge("plain", "broad")
    only = plain.encode("<only>", allow_special=True)
    user = plain.encode("<user>", allow_special=True)
    telling = Retelling(pair)
    telling.extend([*user, *plain.encode("in"), *only, *plain.encode("g"), *user])
    broad = tongue("broad")
    assert telling.tokens == [
        *broad.encode("<user>", allow_special=True), *broad.encode("in"), *broad.encode("g"),
        *broad.encode("<user>", allow_special=True),
    ]  # fmt: skip


def test_a_drafter_that_wants_bos_gets_one() -> None:
    telling = Retelling(bridge("broad", "pieces"))
    telling.extend(tongue("broad").encode("the"))
    assert telling.tokens[0] == tongue("pieces").bos_id
    assert telling.tokens == tongue("pieces").encode("the", add_special=True)


def spelled_bytes(monkeypatch: pytest.MonkeyPatch, target: str, drafter: str, text: str) -> list[int]:
    """How many bytes are encoded at each step when a text comes token by token."""
    counts: list[int] = []
    spell = Speller.spell

    def counted(self: Speller, data: bytes, start: bool = False) -> list[int]:
        counts[-1] += len(data)
        return spell(self, data, start)

    monkeypatch.setattr(Speller, "spell", counted)
    telling = Retelling(bridge(target, drafter))
    tokens = tongue(target).encode(text)
    for n in range(1, len(tokens) + 1):
        counts.append(0)
        telling.extend(tokens[:n])
    return counts


@pytest.mark.parametrize(("target", "drafter"), PAIRS)
def test_a_step_costs_what_is_new_however_long_the_text(
    monkeypatch: pytest.MonkeyPatch, target: str, drafter: str
) -> None:
    counts = spelled_bytes(monkeypatch, target, drafter, SAMPLE * 3)
    assert len(counts) > 2000
    assert max(counts) <= 80


@pytest.mark.parametrize("text", ["漢字かな、" * 200, "x" * 2500])
def test_text_without_a_blank_is_cut_all_the_same(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    counts = spelled_bytes(monkeypatch, "plain", "broad", text)
    assert max(counts) <= (3 * LONG + 3 if "、" in text else TOO_LONG + 1)


def test_a_cut_before_punctuation_changes_nothing() -> None:
    pair, text = bridge("plain", "broad"), "漢字かな、" * 300
    telling = Retelling(pair)
    tokens = tongue("plain").encode(text)
    for n in range(0, len(tokens) + 1, 7):
        telling.extend(tokens[:n])
    telling.extend(tokens)
    assert telling.tokens == told(pair, tokens)
