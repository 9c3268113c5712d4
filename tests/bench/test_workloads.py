"""Workloads: our own prompts, the files that people have, and files that are hostile."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, SamplingParams
from paceline.bench import workloads
from paceline.bench.workloads import Item, asks, fitting, load
from paceline.errors import OptionError

CATEGORIES = {
    "chat",
    "code",
    "edit",
    "json",
    "maths",
    "proof",
    "summary",
    "retrieval",
    "translation",
    "creative",
}
HALF = "a\ud83d"
GOOD = b'{"prompt": "fine"}\n'


def file(tmp_path: Path, data: bytes, name: str = "prompts.jsonl") -> Path:
    path = tmp_path / name
    path.write_bytes(data)
    return path


def lines(tmp_path: Path, *rows: Any) -> Path:
    return file(tmp_path, "\n".join(json.dumps(row) for row in rows).encode())


def refusal(name: str, **options: Any) -> str:
    with pytest.raises(OptionError) as caught:
        load(name, **options)
    told = str(caught.value)
    assert "\n" not in told
    return told


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("toy:ngram", drafters=(), keep_costs=False)


class TestOurs:
    def test_ten_categories_of_eight_prompts_none_twice(self) -> None:
        items = load("ours").items
        assert Counter(item.category for item in items) == dict.fromkeys(CATEGORIES, 8)
        assert len({item.prompt for item in items}) == 80

    def test_short_and_long_ones_are_all_of_them(self) -> None:
        short, long = (load(name).items for name in ("short", "long"))
        assert len(short) + len(long) == 80 and {*short, *long} == {*load("ours").items}
        assert min(len(short), len(long)) >= 10
        assert max(len(str(item.prompt)) for item in short) <= 600 < min(len(str(item.prompt)) for item in long)

    def test_prompts_are_the_first_of_each_category(self) -> None:
        whole, part = load("ours"), load("ours", 2)
        assert part.categories == whole.categories and set(whole.categories) == CATEGORIES
        for name in CATEGORIES:
            of = [[item for item in found.items if item.category == name] for found in (whole, part)]
            assert of[1] == of[0][:2]
        assert load("maths", 3).items == load("maths").items[:3]

    def test_an_edit_names_the_text_that_may_come_back(self) -> None:
        assert all(item.prediction for item in load("edit").items)

    @pytest.mark.parametrize("name", ["", "our", "maths:file", "spec-bench", "MATHS"])
    def test_another_name_is_refused(self, name: str) -> None:
        told = refusal(name)
        assert f"workload is {name!r}; allowed: ours, short, long" in told and "spec-bench:FILE" in told

    @pytest.mark.parametrize("count", [0, -1])
    def test_no_prompts_are_refused(self, count: int) -> None:
        assert f"prompts is {count}; allowed: 1 or more" in refusal("ours", prompts=count)


class TestFormats:
    def test_jsonl(self, tmp_path: Path) -> None:
        talk = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
        path = lines(tmp_path, {"prompt": "a"}, {"messages": talk, "category": "b", "prediction": "c"})
        found = load(f"jsonl:{path}")
        assert found.name == "jsonl:prompts.jsonl", "no directory of this machine"
        assert found.items == (Item("other", "a"), Item("b", tuple(talk), "c"))
        assert found.items[0].messages == ({"role": "user", "content": "a"},)

    def test_spec_bench_asks_the_first_turn(self, tmp_path: Path) -> None:
        path = lines(tmp_path, {"question_id": 81, "category": "writing", "turns": ["one", "two"]})
        assert load(f"spec-bench:{path}").items == (Item("writing", "one"),)

    @pytest.mark.parametrize("pack", [bytes, gzip.compress])
    def test_humaneval_packed_or_not(self, tmp_path: Path, pack: Any) -> None:
        row = {"task_id": "HumanEval/0", "prompt": "def f(x):\n    '''One more.'''\n", "entry_point": "f"}
        [item] = load(f"humaneval:{file(tmp_path, pack(json.dumps(row).encode()))}").items
        assert item.category == "code" and "def f(x):\n    '''One more.'''\n```" in str(item.prompt)

    @pytest.mark.parametrize("inside", [None, "request", "body"])
    def test_a_log_of_requests(self, tmp_path: Path, inside: str | None) -> None:
        parts = [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]
        body = {"model": "m", "messages": [{"role": "user", "content": parts}]}
        path = lines(tmp_path, body if inside is None else {"time": 1, inside: body})
        assert load(f"openai-log:{path}").items == (Item("other", ({"role": "user", "content": "ab"},)),)

    def test_empty_lines_and_windows(self, tmp_path: Path) -> None:
        path = file(tmp_path, b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n  \r\n{"prompt": "b"}\r\n')
        assert [item.prompt for item in load(f"jsonl:{path}").items] == ["a", "b"]

    @pytest.mark.parametrize("odd", ["\u2028", "\u2029", "\x85", "\x0b", "\x1c"])
    def test_only_a_line_feed_ends_a_line(self, tmp_path: Path, odd: str) -> None:
        text = json.dumps({"prompt": f"a{odd}b"}, ensure_ascii=False)
        assert load(f"jsonl:{file(tmp_path, text.encode())}").items[0].prompt == f"a{odd}b"

    def test_joined_gzip_files_are_read_to_the_end(self, tmp_path: Path) -> None:
        data = gzip.compress(b'{"prompt": "a"}\n') + gzip.compress(b'{"prompt": "b"}\n') + b"\0" * 8
        assert [item.prompt for item in load(f"jsonl:{file(tmp_path, data)}").items] == ["a", "b"]


class TestHostile:
    @pytest.mark.parametrize(
        ("row", "why"),
        [
            (b'{"prompt": "a"', "delimiter"),
            (b"[1]", "it is no JSON object"),
            (b"null", "it is no JSON object"),
            (b"{}", "it has no 'prompt'"),
            (b'{"prompt": ""}', "its prompt is no text"),
            (b'{"prompt": " \\n"}', "its prompt is no text"),
            (b'{"prompt": 7}', "its prompt is no text"),
            (b'{"prompt": ["a"]}', "its prompt is no text"),
            (b'{"prompt": "a", "category": 3}', "its category is no short text"),
            (b'{"prompt": "a", "category": ""}', "its category is no short text"),
            (b'{"prompt": "a", "category": "' + b"x" * 65 + b'"}', "its category is no short text"),
            (b'{"prompt": "a", "prediction": {}}', "its prediction is no text"),
            (b'{"messages": []}', "its messages are no list"),
            (b'{"messages": "a"}', "its messages are no list"),
            (b'{"messages": ["a"]}', "a message has no role"),
            (b'{"messages": [{"content": "a"}]}', "a message has no role"),
            (b'{"messages": [{"role": "user"}]}', "the content of a message is no text"),
            (b'{"messages": [{"role": "user", "content": [{"text": 5}]}]}', "the content of a message is no text"),
            (b'{"prompt": ' + b"9" * 5000 + b"}", "digits"),
            (b'{"prompt": ' + b"[" * 100_000, "it is nested too deeply"),
        ],
        ids=lambda value: value[:40] if isinstance(value, str) else "",
    )
    def test_the_line_is_named(self, tmp_path: Path, row: bytes, why: str) -> None:
        path = file(tmp_path, GOOD + b"\n" + row + b"\n" + GOOD)
        told = refusal(f"jsonl:{path}")
        assert told.startswith(f"line 3 of {str(path)!r} cannot be used: ") and why in told and len(told) < 400

    @pytest.mark.parametrize("turns", [None, [], "a", [1], [""], [["a"]]])
    def test_turns_that_are_none(self, tmp_path: Path, turns: Any) -> None:
        assert "line 1 of" in refusal(f"spec-bench:{lines(tmp_path, {'turns': turns})}")

    @pytest.mark.parametrize("row", [{}, {"request": "text"}, {"body": {"input": "a"}}])
    def test_requests_without_messages(self, tmp_path: Path, row: Any) -> None:
        assert "it has no 'messages'" in refusal(f"openai-log:{lines(tmp_path, row)}")

    @pytest.mark.parametrize("data", [b"", b"\n\n", b"   "])
    def test_nothing_in_it(self, tmp_path: Path, data: bytes) -> None:
        assert "has no prompts" in refusal(f"jsonl:{file(tmp_path, data)}")

    def test_not_utf8(self, tmp_path: Path) -> None:
        assert "is not UTF-8 text" in refusal(f"jsonl:{file(tmp_path, GOOD + bytes([0xFF, 10]))}")

    @pytest.mark.parametrize("cut", [3, 12, 25])
    def test_a_gzip_file_that_ends_in_the_middle(self, tmp_path: Path, cut: int) -> None:
        data = gzip.compress(GOOD * 5)[:cut]
        assert "is not UTF-8 text, gzipped or not" in refusal(f"jsonl:{file(tmp_path, data)}")

    def test_a_gzip_file_that_is_broken(self, tmp_path: Path) -> None:
        data = bytearray(gzip.compress(GOOD))
        data[-8] ^= 1  # its checksum
        assert "is not UTF-8 text, gzipped or not" in refusal(f"jsonl:{file(tmp_path, bytes(data))}")

    def test_a_gzip_bomb_is_not_unpacked(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(workloads, "LARGEST_BYTES", 1 << 16)
        path = file(tmp_path, gzip.compress(b"\n" * (32 << 20)))
        assert path.stat().st_size < 1 << 16
        asked: list[int] = []
        inside = gzip.GzipFile.read
        monkeypatch.setattr(gzip.GzipFile, "read", lambda self, n=-1: asked.append(n) or inside(self, n))
        assert "take a part of it" in refusal(f"jsonl:{path}")
        assert asked == [(1 << 16) + 1], "never more than was asked for"

    def test_a_file_that_is_too_large_or_never_ends(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(workloads, "LARGEST_BYTES", 100)
        assert "take a part of it" in refusal(f"jsonl:{file(tmp_path, GOOD * 10)}")
        assert "take a part of it" in refusal("jsonl:/dev/zero")

    def test_a_line_that_is_too_long(self, tmp_path: Path) -> None:
        path = file(tmp_path, GOOD + b'{"prompt": "' + b"a" * (1 << 20) + b'"}')
        assert f"line 2 of {str(path)!r} has more than 1,048,576 characters" in refusal(f"jsonl:{path}")

    @pytest.mark.parametrize(("name", "why"), [("", "directory"), ("no/such/file", "No such file")])
    def test_no_file(self, name: str, why: str) -> None:
        assert why in refusal(f"jsonl:{name}")


class TestAsked:
    def test_prompts_go_through_the_chat_template(self, llm: LLM, tmp_path: Path) -> None:
        sampling = SamplingParams(8, seed=1)
        path = lines(tmp_path, {"prompt": "abc", "category": "x", "prediction": "d"})
        [ask] = asks(llm, load(f"jsonl:{path}"), sampling)
        assert ask.prompt == tuple(llm.chat_prompt([{"role": "user", "content": "abc"}]))
        assert (ask.category, ask.prediction, ask.sampling) == ("x", "d", sampling)

    def test_what_leaves_no_room_is_refused_or_left_out(self, llm: LLM, tmp_path: Path) -> None:
        found = load(f"jsonl:{lines(tmp_path, {'prompt': 'abc'}, {'prompt': 'a' * 505})}")
        with pytest.raises(
            OptionError, match=r"prompt 2 of jsonl:prompts.jsonl has 507 tokens, and with 8 of an answer"
        ):
            asks(llm, found, SamplingParams(8))
        assert len(fitting(llm, found, SamplingParams(8))) == 1
        with pytest.raises(OptionError, match="no prompt of"):
            fitting(llm, found, SamplingParams(511))

    def test_half_a_character_is_named(self, llm: LLM, tmp_path: Path) -> None:
        found = load(f"jsonl:{lines(tmp_path, {'prompt': 'fine'}, {'prompt': HALF})}")
        with pytest.raises(OptionError, match=r"prompt 2 of jsonl:prompts\.jsonl cannot be asked"):
            asks(llm, found, SamplingParams(8))
