"""How models write tool calls, and grammars that make them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.core.types import GrammarSpec
from paceline.errors import RequestError

MOST_CALLS = 16
"""Of one answer whose calls a grammar makes."""
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
"""What a function without parameters takes."""


@dataclass(frozen=True, slots=True)
class Style:
    """How one family of models writes a call: an object with a name and arguments, and what surrounds it."""

    name: str
    arguments: str
    """The key of the arguments."""
    mark: str = ""
    """What announces a call; empty where calls stand before any other text."""
    begin: str = ""
    """Between the mark and the object."""
    end: str = ""
    """After the object."""
    between: str = ""
    """Between calls."""
    prefix: str = ""
    """What may stand before a call that has no mark."""


HERMES = Style("hermes", "arguments", mark="<tool_call>", begin="\n", end="\n</tool_call>", between="\n")
"""Hermes 2 Pro, Qwen2.5, Qwen3 and others."""
LLAMA = Style("llama", "parameters", between="; ", prefix="<|python_tag|>")
"""Llama 3.1 and later."""


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    schema: str
    """Of its arguments: JSON."""
    strict: bool = False


def style_of(template: str | None) -> Style:
    """Return how the model whose chat template this is writes calls.

    Raises:
        RequestError: its template knows no tools, or of another style.
    """
    if template is None or not re.search(r"\btools\b", template):
        raise RequestError("tools are given and this model's chat template has no place for them; leave them out")
    if HERMES.mark in template:
        return HERMES
    if re.search(r'\\?"parameters\\?"', template):
        return LLAMA
    raise RequestError(
        "tools are given and this model's way of writing calls is not known here (known: Hermes and Qwen, Llama 3.1); "
        "leave them out"
    )


def schema_of(parameters: Mapping[str, Any] | None) -> str:
    """Return the JSON schema of a function's arguments.

    Raises:
        RequestError: it is not that of an object.
    """
    if not parameters:
        return json.dumps(NOTHING)
    kind = parameters.get("type", "object")
    if kind != "object":
        raise RequestError(f"a tool's parameters have the type {str(kind)[:32]!r}; arguments are an object")
    return json.dumps({"type": "object", **parameters})


def calling(style: Style, functions: Sequence[Function], many: bool) -> GrammarSpec:
    """Return the grammar of an answer that is nothing but calls: one, or up to sixteen."""
    more = f" ({_quoted(style.between)} call){{0,{MOST_CALLS - 1}}}" if many else ""
    options = " | ".join(f"call_{i}" for i in range(len(functions)))
    opening = style.mark + style.begin
    rules = [f"start: call{more}", f"call: {options}"]
    for i, function in enumerate(functions):
        head = _quoted(opening + _head(style, function))
        rules.append(f"call_{i}: {head} %json {function.schema} {_quoted('}' + style.end)}")
    return GrammarSpec("lark", "\n".join(rules) + "\n")


def calling_at_will(style: Style, functions: Sequence[Function]) -> GrammarSpec:
    """Return the grammar of an answer in which calls may stand, and are such as their functions take.

    Raises:
        RequestError: calls of this style cannot be told from text before they are complete.
    """
    if not style.mark:
        raise RequestError(
            f"a tool is strict and tool_choice is auto, which calls of {style.name} style cannot be held to; "
            "leave strict out, or choose required"
        )
    options = " | ".join(f"call_{i}" for i in range(len(functions)))
    rules = [f"start: (marked ({options}))* TEXT", "TEXT: /(.|\\n)*/", f"marked[lazy]: TEXT {_quoted(style.mark)}"]
    for i, function in enumerate(functions):
        head = _quoted(style.begin + _head(style, function))
        schema = function.schema if function.strict else json.dumps({"type": "object"})
        rules.append(f"call_{i}: {head} %json {schema} {_quoted('}' + style.end)}")
    return GrammarSpec("lark", "\n".join(rules) + "\n")


def _head(style: Style, function: Function) -> str:
    return f'{{"name": {json.dumps(function.name)}, "{style.arguments}": '


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
