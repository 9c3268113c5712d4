from __future__ import annotations

import pytest

from paceline import LLM, SamplingParams

PAIR = ("--model", "toy:table", "--draft", "toy:table-draft")
PROMPT = "ababab"
PLAIN = ("generate", PROMPT, "--model", "toy:table", "--max-tokens", "40")


def text_of(model: str, sampling: SamplingParams, raw: bool) -> str:
    llm = LLM(model)
    if raw:
        return llm.generate(PROMPT, sampling)[0].text
    return llm.chat([{"role": "user", "content": PROMPT}], sampling).text


@pytest.mark.parametrize("raw", [False, True])
def test_the_text_and_nothing_else_goes_to_stdout(run, raw):
    result = run(*PLAIN, *(["--raw"] if raw else []))
    assert result.code == 0
    assert result.out == text_of("toy:table", SamplingParams(max_tokens=40), raw) + "\n"
    assert "\x1b" not in result.out + result.err


def test_speculation_changes_nothing(run):
    options = ("--temperature", "0.8", "--top-p", "0.9", "--top-k", "50", "--min-p", "0.01", "--seed", "7")
    texts = {
        run("generate", PROMPT, *options, "--max-tokens", "60", *rest).out
        for rest in (
            PAIR,
            (*PAIR, "--no-speculation"),
            (*PAIR, "--drafters", "none"),
            (*PAIR, "--drafters", "model", "--max-draft", "3"),
            ("--model", "toy:table", "--drafters", "lookup"),
            ("--model", "toy:table", "--drafters", "auto", "--numerics", "fast"),
        )
    }
    assert len(texts) == 1


def test_dash_reads_stdin_without_its_last_line_break(run):
    read = run("generate", "-", "--model", "toy:table", "--max-tokens", "40", stdin=PROMPT.encode() + b"\n")
    assert read.out == run(*PLAIN).out


def test_stop_strings_end_the_text(run):
    whole = run(*PLAIN, "--raw").out
    stops = (whole[5:7], whole[9:11])
    cut = run(*PLAIN, "--raw", "--stop", stops[1], "--stop", stops[0])
    assert cut.out == whole[: min(map(whole.index, stops))] + "\n"


@pytest.mark.parametrize("context", ["8", "40", "130"])
def test_a_small_context_ends_the_text(run, context):
    found = run("generate", "abc", "--model", "toy:chaos", "--raw", "--context", context, "--json").json
    assert found["model"]["context"] == int(context)
    assert found["usage"]["completion_tokens"] == int(context) - 3


def test_system_is_part_of_the_conversation(run):
    told = run(*PLAIN, "--model", "toy:ngram", "--json", "--system", "be brief").json
    assert told["usage"]["prompt_tokens"] == len(PROMPT) + len("be brief") + 3


def test_a_model_without_a_template_asks_for_raw(refused, run, monkeypatch):
    from paceline.models import toy

    bare = toy.tokenizer()
    bare.chat_template = None
    monkeypatch.setattr(toy, "tokenizer", lambda: bare)
    assert "--raw" in refused(*PLAIN)
    assert run(*PLAIN, "--raw").code == 0


class TestClosingLine:
    @pytest.mark.usefixtures("always")
    def test_accounts_for_the_drafts(self, run):
        line = run("generate", PROMPT, *PAIR, "--max-tokens", "40").err
        assert line.count("\n") == 1
        assert line.startswith("40 tokens (length) · ")
        assert " tokens/s, plain " in line
        assert "τ " in line
        assert " drafted" in line

    def test_without_speculation_there_is_only_the_speed(self, run):
        line = run(*PLAIN, "--no-speculation").err
        assert "tokens/s, plain" in line
        assert "τ" not in line

    def test_reasons_are_codes_with_counts(self, run):
        line = run(*PLAIN, "--model", "toy:chaos").err
        assert "reasons: " in line
        assert "nothing_to_draft " in line

    def test_alarms_come_after_it_a_line_each(self, run, alarmed):
        account, *lines = run(*PLAIN).err.splitlines()
        assert account.startswith("40 tokens (length) · ")
        assert lines == [f"alarm {alarm.name}: {alarm.text}" for alarm in alarmed]

    def test_a_lossy_rule_is_called_lossy(self, run):
        line = run("generate", PROMPT, *PAIR, "--max-tokens", "40", "--rule", "typical").err
        assert "LOSSY" in line
        assert "LOSSY" not in run("generate", PROMPT, *PAIR, "--max-tokens", "40", "--rule", "ratio").err


@pytest.mark.usefixtures("always")
class TestShowDraft:
    COMMAND = ("generate", PROMPT, *PAIR, "--drafters", "model", "--max-tokens", "60", "--show-draft")

    def test_colours_what_was_guessed(self, run, monkeypatch):
        plain = run(*self.COMMAND).out
        monkeypatch.setenv("FORCE_COLOR", "1")
        shown = run(*self.COMMAND)
        assert "\x1b[32m" in shown.out
        assert shown.out.replace("\x1b[32m", "").replace("\x1b[0m", "") == plain
        assert "model" in shown.err

    def test_no_colours_into_a_pipe_or_against_the_users_will(self, run, monkeypatch):
        piped = run(*self.COMMAND)
        assert "\x1b" not in piped.out + piped.err
        assert "takes no colours" in piped.err
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("NO_COLOR", "1")
        assert "\x1b[3" not in run(*self.COMMAND).out

    def test_json_lists_the_sources(self, run):
        found = run(*self.COMMAND, "--json").json
        assert len(found["sources"]) == len(found["token_ids"])
        assert found["sources"].count("model") == found["speculation"]["accepted"]
