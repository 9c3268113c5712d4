"""Streamed text is decoded text, and stop strings cut it in the same place however it streams."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from paceline.errors import OptionError
from paceline.models.detokenize import Detokenizer, StopFilter
from paceline.models.tokenizer import Tokenizer
from tests.models.test_gguf_tokenizer import WORDS, byte_tables, demo_tokenizer, piece_tables, relaxed

BYTES = Tokenizer.from_gguf(byte_tables(words=["Ġthe", "ðŁĻĤ"], merges=[]))
PIECES = Tokenizer.from_gguf(piece_tables([*WORDS, "🙂"]))
BARE = Tokenizer.from_gguf(piece_tables(WORDS, add_space_prefix=False))
KINDS = pytest.mark.parametrize("tokenizer", [BYTES, PIECES, BARE], ids=["bytes", "pieces", "bare"])

ids = st.lists(st.integers(0, 299) | st.sampled_from([1, 2, 259, 260, 261, 10**6]), max_size=30)


@pytest.fixture(scope="module")
def demo():
    return demo_tokenizer()


def stream(tokenizer, output, prompt=()):
    detokenizer = Detokenizer(tokenizer, prompt)
    return [*(detokenizer.push(i) for i in output), detokenizer.flush()]


@KINDS
@relaxed
@given(output=ids)
def test_streamed_text_is_decoded_text(tokenizer, output):
    assert "".join(stream(tokenizer, output)) == tokenizer.decode(output)


@KINDS
@relaxed
@given(prompt=ids, output=ids)
def test_streamed_text_continues_the_prompt(tokenizer, prompt, output):
    before = tokenizer.decode(prompt)
    assume(not before.endswith("\ufffd"))  # a character left half-written belongs to the output; see below
    assert before + "".join(stream(tokenizer, output, prompt)) == tokenizer.decode(prompt + output)


@KINDS
@relaxed
@given(text=st.text())
def test_text_streams_back_whole(tokenizer, text):
    pushed = stream(tokenizer, tokenizer.encode(text))
    assert "".join(pushed) == text
    assert not any("\ufffd" in piece for piece in pushed) or "\ufffd" in text


@relaxed
@given(st.text(st.sampled_from("the ğ🙂👨‍👩‍👧\n42")))
def test_the_demo_streams_back_what_it_encodes(demo, text):
    encoded = demo.encode(text)
    assert "".join(stream(demo, encoded)) == demo.decode(encoded) == text


def test_no_character_is_emitted_before_it_is_complete():
    assert stream(BYTES, BYTES.encode("é🙂")) == ["", "é", "", "", "", "🙂", ""]


def test_a_character_begun_by_the_prompt_is_completed():
    first, *rest = BYTES.encode("€")
    assert "".join(stream(BYTES, rest, [*BYTES.encode("price "), first])) == "€"


def test_a_broken_end_is_replaced_once():
    assert stream(BYTES, BYTES.encode("a🙂")[:-1]) == ["a", "", "", "", "\ufffd"]


def test_the_leading_blank_belongs_to_the_prompt_only_at_the_very_beginning():
    word = PIECES.encode("the")
    assert "".join(stream(PIECES, word)) == "the"
    assert "".join(stream(PIECES, word, [1])) == "the"
    assert "".join(stream(PIECES, word, PIECES.encode("a"))) == " the"
    assert "".join(stream(BARE, BARE.encode(" the"))) == " the"


def test_special_tokens_add_nothing():
    assert stream(PIECES, [*PIECES.encode("the"), 2, 1]) == ["the", "", "", ""]


def test_cost_does_not_grow_with_the_prompt():
    class Counting:
        strips_space, reads = True, 0

        def is_special(self, token_id):
            return False

        def token_bytes(self, token_id):
            self.reads += 1
            return b"ab"

    tokenizer = Counting()
    stream(tokenizer, range(100), range(100_000))
    assert tokenizer.reads <= 102


def filtered(stops, chunks):
    stop = StopFilter(stops)
    emitted, hit = [], False
    for chunk in chunks:
        text, hit = stop.push(chunk)
        emitted.append(text)
    return "".join(emitted) + stop.flush(), hit


def chunked(text, sizes):
    chunks, at = [], 0
    for size in sizes:
        chunks.append(text[at : at + size])
        at += size
    return [*chunks, text[at:]]


def cut(stops, text):
    """Where the text must end, found the slow way: at the first place where any stop string is complete."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


stop_strings = st.lists(st.text("ab", min_size=1, max_size=4), max_size=4).map(tuple)


@relaxed
@given(stop_strings, st.text("abc", max_size=30), st.lists(st.integers(0, 5), max_size=20))
def test_stops_cut_the_same_place_for_any_chunking(stops, text, sizes):
    assert filtered(stops, chunked(text, sizes)) == cut(stops, text)


@relaxed
@given(stop_strings, st.text("ab", max_size=30))
def test_only_what_may_become_a_stop_is_held_back(stops, text):
    stop, emitted = StopFilter(stops), ""
    for seen in range(1, len(text) + 1):
        piece, hit = stop.push(text[seen - 1])
        emitted += piece
        if hit:
            break
        held = text[len(emitted) : seen]
        assert not held or any(s.startswith(held) and s != held for s in stops)


@relaxed
@given(st.lists(st.text()))
def test_without_stops_everything_passes_at_once(chunks):
    stop = StopFilter()
    assert [stop.push(chunk) for chunk in chunks] == [(chunk, False) for chunk in chunks]
    assert stop.flush() == ""


def test_text_that_may_become_a_stop_is_held_back():
    stop = StopFilter(("STOP",))
    assert stop.push("a ST") == ("a ", False)
    assert stop.push("ILL ") == ("STILL ", False)
    assert stop.push("STO") == ("", False)
    assert stop.push("P rest") == ("", True)
    assert stop.push("more") == ("", True)
    assert stop.flush() == ""


def test_what_was_held_back_comes_at_the_end():
    stop = StopFilter(("\n\n",))
    assert stop.push("end\n") == ("end", False)
    assert stop.flush() == "\n"


@pytest.mark.parametrize(
    ("stops", "text", "kept"),
    [(("b", "abc"), "xabc", "xa"), (("bc", "abc"), "xabc", "x"), (("a",), "a", ""), (("ab", "b"), "aab", "a")],
)
def test_the_stop_that_is_complete_first_counts(stops, text, kept):
    assert filtered(stops, [text]) == filtered(stops, text) == (kept, True)


def test_an_empty_stop_is_refused():
    with pytest.raises(OptionError, match="non-empty"):
        StopFilter(("a", ""))
