"""What is asked in a benchmark: our own prompts, files that people have, a log of requests.

    ours                all ten categories of our own prompts; also `short`, `long`, or the name of a category
    spec-bench:FILE     Spec-Bench's questions, the first turn of each
    humaneval:FILE      HumanEval's functions to complete, gzipped or not
    jsonl:FILE          lines with "prompt" or "messages", and "category" and "prediction" where there are any
    openai-log:FILE     lines that are request bodies of the chat API, or have one under "request" or "body"

Files are hostile until checked: one that cannot be used is refused with the number of the line.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from paceline.bench.trials import Ask
from paceline.core.types import SamplingParams
from paceline.engine.llm import LLM, Message
from paceline.errors import OptionError, PacelineError

OURS, SHORT, LONG = "ours", "short", "long"
SHORT_CHARS = 600
"""Longest prompt, quoted text included, that counts as short."""
LARGEST_BYTES = 256 << 20
LARGEST_LINE = 1 << 20
OTHER = "other"
"""The category of prompts that name none."""
_COMPLETE = "Complete this Python function. Return the whole function and nothing else.\n\n```python\n{}\n```"


@dataclass(frozen=True, slots=True)
class Item:
    category: str
    prompt: str | tuple[Message, ...]
    """What a user says, or a whole conversation."""
    prediction: str | None = None
    """What the answer may repeat, such as the file that is to be edited."""

    @property
    def messages(self) -> tuple[Message, ...]:
        return ({"role": "user", "content": self.prompt},) if isinstance(self.prompt, str) else self.prompt


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    items: tuple[Item, ...]

    @property
    def categories(self) -> tuple[str, ...]:
        """In the order in which they come."""
        return tuple(dict.fromkeys(item.category for item in self.items))


def load(name: str, prompts: int | None = None) -> Workload:
    """Return a workload.

    Args:
        name: see above.
        prompts: most prompts of each category, the first ones; None takes all.

    Raises:
        OptionError: there is no such workload, or the file cannot be used.
    """
    kind, colon, file = name.partition(":")
    if colon and kind in _FILES:
        named, items = f"{kind}:{Path(file).name}", list(_read(Path(file), _FILES[kind]))
    elif not colon:
        named, items = name, _own(name)
    else:
        raise _unknown(name)
    if prompts is not None and prompts < 1:
        raise OptionError(f"prompts is {prompts}; allowed: 1 or more of each category")
    return Workload(named, tuple(_first(items, prompts)))


def asks(llm: LLM, workload: Workload, sampling: SamplingParams) -> list[Ask]:
    """Return the prompts in the model's tokens, as its chat template has them.

    Raises:
        OptionError: a prompt cannot be encoded, or leaves no room for an answer.
    """
    found = [_ask(llm, workload, number, item, sampling) for number, item in enumerate(workload.items, 1)]
    for number, ask in enumerate(found, 1):
        if not _fits(llm, ask):
            raise OptionError(
                f"prompt {number} of {workload.name} has {len(ask.prompt)} tokens, and with {sampling.max_tokens} of "
                f"an answer they are more than the context of {llm.engine.context}; raise --context or leave it out"
            )
    return found


def fitting(llm: LLM, workload: Workload, sampling: SamplingParams) -> list[Ask]:
    """Return those of the prompts that leave room for an answer.

    Raises:
        OptionError: none does, or one cannot be encoded.
    """
    asked = [_ask(llm, workload, number, item, sampling) for number, item in enumerate(workload.items, 1)]
    if found := [ask for ask in asked if _fits(llm, ask)]:
        return found
    raise OptionError(f"no prompt of {workload.name} fits into a context of {llm.engine.context}; raise --context")


def _ask(llm: LLM, workload: Workload, number: int, item: Item, sampling: SamplingParams) -> Ask:
    try:
        prompt = tuple(llm.chat_prompt(item.messages))
    except (PacelineError, ValueError, TypeError, KeyError) as error:
        raise OptionError(f"prompt {number} of {workload.name} cannot be asked: {error}") from None
    return Ask(item.category, prompt, sampling, item.prediction)


def _fits(llm: LLM, ask: Ask) -> bool:
    return len(ask.prompt) + ask.sampling.max_tokens <= llm.engine.context


def _own(name: str) -> list[Item]:
    text = resources.files("paceline.bench").joinpath("prompts.jsonl").read_text(encoding="utf-8")
    everything = [_plain(json.loads(line)) for line in text.splitlines()]
    if name == OURS:
        return everything
    if name in (SHORT, LONG):
        return [item for item in everything if (len(str(item.prompt)) <= SHORT_CHARS) == (name == SHORT)]
    if chosen := [item for item in everything if item.category == name]:
        return chosen
    raise _unknown(name, tuple(dict.fromkeys(item.category for item in everything)))


def _unknown(name: str, categories: Sequence[str] = ()) -> OptionError:
    files = ", ".join(f"{kind}:FILE" for kind in _FILES)
    own = ", ".join((OURS, SHORT, LONG, *categories))
    return OptionError(f"workload is {name!r}; allowed: {own}, {files}")


def _first(items: Sequence[Item], most: int | None) -> Iterator[Item]:
    taken: Counter[str] = Counter()
    for item in items:
        taken[item.category] += 1
        if most is None or taken[item.category] <= most:
            yield item


def _read(path: Path, parse: Callable[[Mapping[str, Any]], Item]) -> Iterator[Item]:
    read = False
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("it is no JSON object")
            yield parse(row)
        except RecursionError:
            raise OptionError(f"line {number} of {str(path)!r} cannot be used: it is nested too deeply") from None
        except (ValueError, KeyError) as error:
            why = f"it has no {error}" if isinstance(error, KeyError) else error
            raise OptionError(f"line {number} of {str(path)!r} cannot be used: {why}") from None
        read = True
    if not read:
        raise OptionError(f"{str(path)!r} has no prompts; give a file with one JSON object a line")


def _lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_BYTES + 1)
        if data[:2] == b"\x1f\x8b":
            data = _unzipped(data)
        if len(data) > LARGEST_BYTES:
            raise OptionError(f"{str(path)!r} has more than {LARGEST_BYTES >> 20} MiB; take a part of it")
        lines = data.decode("utf-8-sig").split("\n")
    except (UnicodeDecodeError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise OptionError(f"{str(path)!r} is not UTF-8 text, gzipped or not ({error})") from None
    except OSError as error:
        raise OptionError(f"{str(path)!r} cannot be read ({error.strerror}); give a file of prompts") from None
    if long := next((n for n, line in enumerate(lines, 1) if len(line) > LARGEST_LINE), None):
        raise OptionError(f"line {long} of {str(path)!r} has more than {LARGEST_LINE:,} characters; leave it out")
    return lines


def _unzipped(data: bytes) -> bytes:
    """Unpack hardly more than may be there: a small file can unpack to any size."""
    with gzip.open(io.BytesIO(data)) as file:
        return file.read(LARGEST_BYTES + 1)


def _plain(row: Mapping[str, Any]) -> Item:
    prompt = _conversation(row["messages"]) if "messages" in row else _text(row, "prompt")
    prediction = _text(row, "prediction") if row.get("prediction") is not None else None
    return Item(_category(row), prompt, prediction)


def _spec_bench(row: Mapping[str, Any]) -> Item:
    turns = row["turns"]
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], str) or not turns[0].strip():
        raise ValueError("its turns are no list of texts")
    return Item(_category(row), turns[0])


def _humaneval(row: Mapping[str, Any]) -> Item:
    return Item("code", _COMPLETE.format(_text(row, "prompt").rstrip()))


def _logged(row: Mapping[str, Any]) -> Item:
    body = next((row[name] for name in ("request", "body") if isinstance(row.get(name), dict)), row)
    return Item(_category(row), _conversation(body["messages"]))


def _conversation(messages: Any) -> tuple[Message, ...]:
    if not isinstance(messages, list) or not messages:
        raise ValueError("its messages are no list")
    found = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError("a message has no role")
        content = message.get("content")
        if isinstance(content, list):  # OpenAI's parts
            texts = [part.get("text", "") for part in content if isinstance(part, dict)]
            content = "".join(texts) if all(isinstance(text, str) for text in texts) else None
        if not isinstance(content, str):
            raise ValueError("the content of a message is no text")
        found.append({"role": message["role"], "content": content})
    return tuple(found)


def _text(row: Mapping[str, Any], name: str) -> str:
    text = row[name]
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"its {name} is no text")
    return text


def _category(row: Mapping[str, Any]) -> str:
    category = row.get("category", OTHER)
    if not isinstance(category, str) or not 0 < len(category) <= 64:
        raise ValueError("its category is no short text")
    return category


_FILES: dict[str, Callable[[Mapping[str, Any]], Item]] = {
    "spec-bench": _spec_bench,
    "humaneval": _humaneval,
    "jsonl": _plain,
    "openai-log": _logged,
}
