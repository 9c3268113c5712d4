from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.cli.account import closing_line
from paceline.cli.render import Attribution, Colours, Printer
from paceline.core.types import (
    Completion,
    Event,
    Request,
    SamplingParams,
    SpeculationParams,
    SpeculationReport,
    Timings,
)
from paceline.engine.text import TextStream
from paceline.models import toy

TOKENIZER = toy.tokenizer()
SOURCES = st.sampled_from([None, "lookup", "model"])


def event(text: str, tokens: str | bytes = "", source: str | None = None, end: bool = False) -> Event:
    data = tokens.encode() if isinstance(tokens, str) else tokens
    ids = tuple(TOKENIZER.encode("".join(map(chr, data)).encode("latin-1").decode())) if data else ()
    return Event(0, ids, text, (source,) * len(ids), finish_reason="stop" if end else None)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(sorted({*b"ab \n", 0xC3, 0xA4, 0xE2, 0x82, 0xAC})), SOURCES), max_size=4)
    ),
    st.sampled_from([(), ("ab",), ("b ", "aba")]),
)
def test_pieces_are_the_text_whatever_is_held_back(steps, stops):
    """Tokens that are parts of characters, and stop strings across events, leave no character out or twice."""
    by_byte = {TOKENIZER.token_bytes(i): i for i in range(256)}
    stream = TextStream(TOKENIZER, Request((1,), SamplingParams(stop=stops)))
    attribution = Attribution(TOKENIZER, (1,))
    for number, step in enumerate(steps):
        text, ended, ids = "", False, []
        for byte, _ in step:
            ids.append(by_byte[bytes([byte])])
            piece, ended = stream.push(ids[-1])
            text += piece
            if ended:
                break
        end = ended or number == len(steps) - 1
        if end and not ended:
            text += stream.flush()
        sources = tuple(source for _, source in step[: len(ids)])
        pieces = attribution.cut(Event(0, tuple(ids), text, sources, finish_reason="stop" if end else None))
        assert "".join(piece for piece, _ in pieces) == text
        if end:
            break


def test_a_character_belongs_to_the_token_that_completes_it():
    attribution = Attribution(TOKENIZER, (1,))
    first, second = TOKENIZER.encode("ä")
    assert attribution.cut(Event(0, (first,), "", ("lookup",))) == []
    assert attribution.cut(Event(0, (second,), "ä", ("model",))) == [("ä", "model")]


def test_held_back_text_keeps_its_source():
    attribution = Attribution(TOKENIZER, (1,))
    a, b, c = TOKENIZER.encode("abc")
    assert attribution.cut(Event(0, (a, b), "a", ("lookup", "model"))) == [("a", "lookup")]
    assert attribution.cut(Event(0, (c,), "bc", (None,))) == [("b", "model"), ("c", None)]


class TestPrinter:
    def test_colours_only_what_was_guessed(self):
        out = io.StringIO()
        a, b = TOKENIZER.encode("ab")
        Printer(Colours(["lookup"]), Attribution(TOKENIZER, (1,)), out).show(Event(0, (a, b), "ab", ("lookup", None)))
        assert out.getvalue() == "\x1b[32ma\x1b[0mb"

    def test_a_model_cannot_steer_the_terminal(self):
        terminal, file = Terminal(), io.StringIO()
        for out in (terminal, file):
            Printer(None, None, out).show(Event(0, (), "a\x1b[2J\x07\x9b\n\tb", ()))
        assert terminal.getvalue() == "a␛[2J␇\n\tb"
        assert file.getvalue() == "a\x1b[2J\x07\x9b\n\tb"

    def test_an_answer_that_breaks_off_ends_its_line_once(self):
        out = io.StringIO()
        printer = Printer(None, None, out)
        printer.break_off()
        printer.show(Event(0, (), "a", ()))
        printer.break_off()
        printer.break_off()
        assert out.getvalue() == "a\n"


def completion(tokens: int = 11, decode_ms: float = 100.0, **report) -> Completion:
    given = SpeculationReport(**{"steps": 5, "drafted": 12, "accepted": 6, **report})
    return Completion(0, "", tuple(range(tokens)), "length", 3, 0, given, Timings(1.0, decode_ms, 1.0))


class TestClosingLine:
    @pytest.mark.parametrize(
        ("plain", "said"),
        [
            (50.0, "100.0 tokens/s, plain 50.0 here: ×2.00, faster"),
            (125.0, "100.0 tokens/s, plain 125.0 here: ×0.80, slower"),
            (101.0, "100.0 tokens/s, plain 101.0 here: ×0.99, as fast"),
            (None, "100.0 tokens/s, plain not measured"),
        ],
    )
    def test_speed_against_plain(self, plain, said):
        assert said in closing_line(completion(), plain)

    def test_what_no_draft_had_a_part_in_is_not_called_faster(self):
        assert "faster" not in closing_line(completion(accepted=0), 50.0)
        assert "slower" in closing_line(completion(accepted=0), 125.0)

    def test_acceptance(self):
        assert "τ 2.20, accepted 6 of 12 drafted" in closing_line(completion(), None)

    def test_reasons_that_did_not_happen_are_left_out(self):
        line = closing_line(completion(reasons={"memory": 0, "probing": 3}), None)
        assert line.endswith("reasons: probing 3")

    def test_one_token_has_no_speed(self):
        assert "too short to measure" in closing_line(completion(tokens=1, decode_ms=0.0), 50.0)

    def test_lossy(self):
        params = SpeculationParams(rule="typical")
        line = closing_line(completion(rule=params.rule, lossless=params.lossless), None)
        assert line.endswith("LOSSY: rule typical changes the text")
