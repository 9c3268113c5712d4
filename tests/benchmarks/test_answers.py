"""Bad drafters, a shift inside an answer, domains and long contexts: their books, and each script on a toy."""

from __future__ import annotations

import json

import numpy as np
import pytest

from paceline.core.tree import Draft
from paceline.models import toy
from paceline.runners.base import Span
from paceline.runners.toy import ToyRunner
from tests.benchmarks.scripts import PAIR, found, run, script
from tests.benchmarks.test_loads import step
from tests.benchmarks.test_trials import done, trial

bad, shift, domains, context = map(script, ("bad_drafters", "shift", "domains", "context"))


def answered(spoil=None):
    runner = ToyRunner(toy.LAWS["ngram"])
    runner.allocate(4)
    spoilt = bad.Spoilt(runner, spoil) if spoil else runner
    span = Span.causal([4, 5, 6], 0, np.arange(4, dtype=np.int32), [1, 2])
    return spoilt.forward([span]).logits


def test_a_shuffled_head_is_as_sure_and_says_other_tokens():
    plain, shuffled = answered(), answered(bad.shuffled(toy.VOCAB_SIZE))
    assert (np.sort(plain, 1) == np.sort(shuffled, 1)).all()
    assert (plain.argmax(1) != shuffled.argmax(1)).all()
    assert (shuffled == answered(bad.shuffled(toy.VOCAB_SIZE))).all(), "always in the same way"


def test_random_weights_say_the_same_twice_and_another_thing_elsewhere():
    noise = answered(bad.random(toy.VOCAB_SIZE))
    assert (noise == answered(bad.random(toy.VOCAB_SIZE))).all()
    assert (noise[0] != noise[1]).any()


class Told:
    """Drafts four tokens, whatever they are, and is very sure."""

    def propose(self, seqs, limits):
        return [Draft.chain([1, 1, 1, 1], "model", [0.9] * 4) for _ in seqs]


class View:
    prompt_len = 2

    def __init__(self, position):
        self.tokens = [0] * (self.prompt_len + position)


def test_once_is_right_once_in_twenty_and_never_further():
    text = tuple(range(10, 4010))
    once = bad.Once(Told(), 5000, text)
    drafts = [once.propose([View(at)], [4])[0] for at in range(3900)]
    right = [draft.tokens[0] == text[at] for at, draft in enumerate(drafts)]
    assert np.mean(right) == pytest.approx(1 / 20, abs=0.012)
    assert not any(d.tokens[1] == text[at + 1] for at, d in enumerate(drafts))
    assert all(d.confidence == (0.9,) * 4 and len(d) == 4 for d in drafts)
    assert [once.propose([View(at)], [4])[0].tokens for at in range(9)] == [d.tokens for d in drafts[:9]]


def test_bad_drafters_on_a_toy(tmp_path):
    shown, result = found("bad_drafters", tmp_path / "out.json", *PAIR, "--max-tokens", 40, "--count", 2)
    cells = {c["mode"]: c for c in result["cells"]}
    assert cells.keys() == {"plain", *bad.SPOILT}
    assert all(c["text_identical"] == 2 for c in cells.values())
    assert all(cells[name]["reasons"] for name in bad.SPOILT)
    assert len(result["by_prompt"]) == 2
    assert "never below 0.98" in shown


def pieces(text):
    return [character.encode() for character in text]


def test_phases_are_found_in_the_text():
    text = "So é:\n```python\na\nb\n```\nend"
    found_ = shift.find_phases(pieces(text))
    assert text[found_.begin : found_.end] == "a\nb\n"
    assert found_.bounds("before") == (0, found_.begin)
    assert found_.bounds("after") == (found_.end, len(text))
    whole = shift.find_phases([b"So:\n``", b"`py\nx = 1\n", b"```", b" end"])
    assert (whole.begin, whole.end) == (1, 2), "fences inside tokens"
    none, open_ = shift.find_phases(pieces("no code")), shift.find_phases(pieces("```py\na"))
    assert none.bounds("copy") == none.bounds("after") == (7, 7)
    assert open_.bounds("copy") == (6, 7) and open_.bounds("after") == (7, 7)


def test_steps_until_the_most_and_until_calm():
    lengths = [step(verified=n) for n in (0, 3, 8, 15, 16, 2, 9, 1, 0, 2, 0)]
    assert shift.until_most(lengths, 16) == 4
    assert shift.until_most(lengths[:3], 16) is None
    assert shift.until_calm(lengths) == 7
    assert shift.until_calm(lengths[:9]) is None


def test_the_file_is_one_of_200_lines_and_the_prompt_shows_it():
    source = shift.FILE.read_text(encoding="utf-8")
    compile(source, "ferry.py", "exec")
    assert len(source.splitlines()) == 200
    assert source in shift.ASK.format(file=source)


@pytest.mark.parametrize("draft", [(), PAIR[2:]])
def test_an_answer_is_led_and_is_the_same_however_it_is_drafted(tmp_path, draft):
    """The file is longer than a toy's context: a shorter one stands in for it."""
    short, out = tmp_path / "short.py", tmp_path / "out.json"
    short.write_text("alpha = 1\nbeta = alpha + 2\n", encoding="utf-8")
    plot = tmp_path / "shift.svg"
    shown, result = found("shift", out, *PAIR[:2], *draft, "--free", 20, "--file", short, "--plot", plot)
    assert result["text_identical"] is result["whole_file"] is True
    before, copy, after = ((row["begin"], row["end"]) for row in result["phases"])
    assert copy[1] - copy[0] == len(short.read_text()), "a token a byte"
    assert (before[0], after[1] - after[0]) == (0, 20 + len("```\n\n"))
    assert sum(t[3] for t in result["trace"]) == after[1] - 1, "all but the first token, which the prompt's pass gives"
    assert all(t[1] >= t[2] >= t[3] - 1 for t in result["trace"])
    assert "stands whole in the answer: yes" in shown
    assert plot.exists()


def test_who_is_only_asked_may_say_anything(tmp_path):
    file = tmp_path / "short.py"
    file.write_text("alpha = 1\n", encoding="utf-8")
    _, result = found("shift", tmp_path / "out.json", *PAIR[:2], "--unled", "--max-tokens", 12, "--file", file)
    assert result["whole_file"] is False and result["text_identical"] is True


def test_the_best_fixed_choice_and_that_of_the_other_half():
    """Of two choices each is best on one half, by luck: held out, the choice is the other one."""
    fast = {"plain": [done(40)], "auto": [done(20)]}
    lucky = [trial(**fast, a=[done(10)], b=[done(40)]), trial(**fast, a=[done(40)], b=[done(10)])]
    assert domains.best(lucky, ["plain", "a", "b"]) in "ab"
    assert domains.cross_fitted(lucky, ["plain", "a", "b"]) == pytest.approx([2, 2])
    assert domains.cross_fitted(lucky[:1], ["plain", "a", "b"]) == []
    row = domains.compared("x", lucky[:1], ["plain", "a", "b"])
    assert row["best"] == "a" and row["against_best"]["ratio"] == pytest.approx(0.5)
    assert row["against_held_out"] is None


def test_choices_are_all_lengths_of_all_sets_and_plain_once():
    names = [mode.name for mode in domains.choices(["all", "suffix+lookup"], (0, 2, 8))]
    assert names == ["plain", "fixed:2", "fixed:8", "suffix+lookup:2", "suffix+lookup:8"]


def test_domains_on_a_toy(tmp_path):
    given = ("--per-category", 1, "--max-tokens", 12, "--lengths", "0,2", "--drafter-sets", "all,model")
    shown, result = found("domains", tmp_path / "out.json", *PAIR, *given)
    assert result["text_identical"] == result["texts"]
    rows = {row["category"]: row for row in result["comparisons"]}
    assert all(row["against_held_out"] is None for name, row in rows.items() if name != "all")
    assert rows["all"]["against_held_out"] is not None
    assert {c["mode"] for c in result["cells"]} == {"plain", "auto", "fixed:2", "model:2"}
    assert "one prompt only" in shown


def test_minutes_fill_a_prompt_and_longer_ones_begin_alike():
    assert context.minute(3) == context.minute(3) != context.minute(4)
    long, short = (context.prompts(lambda words: list(words.encode()), n) for n in (9000, 3000))
    for asked in (*long, *short):
        free = next(a for a in (long if asked.length == 9000 else short) if a.question == "free")
        assert 0.9 * asked.length < len(free.prompt) <= asked.length
        assert len(asked.prompt) < asked.length + 64
    texts = [bytes(asked.prompt).decode() for asked in (*long, *short)]
    begin = texts[-1][:2000]
    assert all(text.startswith(begin) for text in texts)


@pytest.mark.parametrize("bound", [1, 2, 3, 4, 7, 8, 100, 1023, 1024])
def test_the_most_that_fits(bound):
    assert context.most(lambda count: count <= bound) == bound


def test_contexts_on_a_toy(tmp_path):
    given = ("--lengths", "300,400", "--max-tokens", 12)
    shown, result = found("context", tmp_path / "out.json", *PAIR, *given)
    assert [c["length"] for c in result["cells"]] == [300, 300, 400, 400]
    assert result["text_identical"] == result["texts"] == 6
    assert set(result["cells"][1]["by_question"]) == set(context.QUESTIONS)
    assert "at every length" in shown


def test_an_edit_of_a_short_file_on_a_toy(tmp_path, monkeypatch, capsys):
    edit, out, short = script("edit"), tmp_path / "out.json", tmp_path / "short.py"
    short.write_text("billable_weight = 1\n", encoding="utf-8")
    monkeypatch.setattr(edit, "FILE", short)
    monkeypatch.setattr("sys.argv", ["edit.py", "--model", "toy:ngram", "--max-tokens", "24", "--json", str(out)])
    edit.main()
    result = json.loads(out.read_text(encoding="utf-8"))
    assert result["text_identical"] is True and result["tokens"] == 24
    assert len(result["rounds"]) == 2 and result["tokens_compared"] == 48
    assert "same text, token for token: yes, 48 tokens compared" in capsys.readouterr().out


def test_a_pair_on_a_toy(tmp_path):
    shown, result = found("pair", tmp_path / "out.json", *PAIR, "--max-tokens", 16, "--per-category", 1)
    assert result["text_identical"]["equal"] == result["text_identical"]["of"] == result["cells"]["all"]["prompts"]
    assert result["bare_forward_ms"] > 0
    assert json.dumps(result["mode"]) == '"auto"'
    assert "bare forward" in shown


def test_what_is_asked_wrongly_is_said_before_anything_is_measured():
    with pytest.raises(AssertionError, match="is no mode"):
        run("pair", "--model", "toy:ngram", "--mode", "fixed:x")
    with pytest.raises(AssertionError, match="--draft is needed"):
        run("bad_drafters", "--model", "toy:ngram")
