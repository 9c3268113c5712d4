"""Chat templates: programs that come with a model's files, and are trusted with nothing."""

from __future__ import annotations

import contextvars
import datetime
import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS, do_indent, make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from paceline.errors import OptionError, RequestError
from paceline.models.tokenizer import Tokenizer

MAX_SOURCE = 256 * 1024
"""Characters of a template."""
MAX_LENGTH = 4 * 1024 * 1024
"""Characters of a rendered conversation, and of any string or list that a template builds on the way."""
MAX_STEPS = 300_000
"""Loop rounds, calls and filters of one rendering; a thousand characters built count as one more."""
MAX_SECONDS = 5.0
"""Time of one rendering, looked at with every step."""
MAX_NUMBER = 100_000
"""Largest number that a function or filter may be given."""
MAX_BITS = 4096
"""Of a product or power of whole numbers."""

Message = Mapping[str, Any]

_FILTERS = re.findall(
    r"\w+",
    "abs capitalize count d default dictsort first float groupby int items last length list lower map max min "
    "reject rejectattr reverse round select selectattr sort title trim truncate unique upper wordcount",
)
_STRING_METHODS = re.findall(
    r"\w+",
    "capitalize count endswith find index isalnum isalpha isdigit islower isnumeric isspace istitle isupper join lower "
    "lstrip partition removeprefix removesuffix replace rfind rpartition rsplit rstrip split splitlines startswith "
    "strip title upper",
)


class ChatTemplate:
    """A model's chat template, compiled.

    It runs in a sandbox without Python's attributes, files or other templates, and with the filters and string methods
    that templates are known to use. Bounded: the source; loop rounds, calls and filters together, and their time; the
    length of every string that is joined, repeated, indented or printed; the size of numbers. Not bounded: a single
    comparison or sort of deeply nested lists that a template builds for the purpose, and the memory of many strings
    that each keep within the limit.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        """Compile.

        Args:
            special_tokens: strings by role (bos_token, eos_token, …), which templates write themselves.

        Raises:
            OptionError: the source is too long, or is not a template.
        """
        if len(source) > MAX_SOURCE:
            raise OptionError(f"the chat template has {len(source)} characters; allowed: {MAX_SOURCE}")
        self._special = dict(special_tokens or {})
        try:
            self._template = _compile(source)
        except Exception as error:  # hostile sources end in any error of Jinja's or Python's compiler
            raise OptionError(f"the chat template cannot be compiled: {_line(error)}") from None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
        """Compile the template that came with a tokenizer.

        Raises:
            RequestError: it came with none.
            OptionError: it is not a template.
        """
        if tokenizer.chat_template is None:
            raise RequestError("this model has no chat template; use --raw, or give one")
        return cls(tokenizer.chat_template, tokenizer.special_tokens)

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """Write a conversation as the model was trained to read it.

        Args:
            messages: each with a "role" and a "content", both strings; the content may be absent beside "tool_calls".
            add_generation_prompt: end with the opening of the assistant's reply.
            options: further variables that some templates read, such as enable_thinking.

        Raises:
            RequestError: messages are malformed, the template refuses them, fails, or does more than it may.
        """
        _check_messages(messages)
        variables = {
            **self._special,
            "messages": list(messages),
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        if taken := variables.keys() & (options or {}).keys():
            raise RequestError(f"template option {min(taken)!r} is set by the request itself; leave it out")
        try:
            return contextvars.copy_context().run(self._run, variables | dict(options or {}))
        except _Limit as error:
            raise RequestError(f"the chat template is stopped: {error}") from None
        except _Refusal as error:
            raise RequestError(f"the chat template refuses these messages: {_line(error)}") from None
        except SecurityError as error:
            raise RequestError(f"the chat template tries what it may not: {_line(error)}") from None
        except Exception as error:  # a template can run into any of Python's errors
            raise RequestError(f"the chat template fails: {_line(error)}") from None

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the tokens of `render`, where only the template's own text can be special tokens.

        "<|im_end|>" in a message stays text: what is said in a conversation cannot end a turn or open another.
        """
        _check_messages(messages)
        shielded = _shield(tokenizer, list(messages))
        return tokenizer.encode_shielded(
            self.render(shielded, add_generation_prompt, _shield(tokenizer, tools), _shield(tokenizer, options))
        )

    def _run(self, variables: Mapping[str, Any]) -> str:
        _budget.set(_Budget())
        return _joined(self._template.generate(variables))


class _Refusal(jinja2.TemplateError):
    """What `raise_exception` raises."""


class _Limit(Exception):
    """A template does more than it may."""


class _Budget:
    """What one rendering may still do."""

    def __init__(self) -> None:
        self._steps, self._deadline = MAX_STEPS, time.monotonic() + MAX_SECONDS

    def spend(self, size: int) -> None:
        if size > MAX_LENGTH:
            raise _Limit(f"it builds a text or list of more than {MAX_LENGTH}")
        self._steps -= 1 + size // 1000
        if self._steps < 0 or time.monotonic() > self._deadline:
            raise _Limit(f"it takes more than {MAX_STEPS} steps or {MAX_SECONDS:g} seconds")


_budget: contextvars.ContextVar[_Budget] = contextvars.ContextVar("_budget")


def _spend(size: int = 0) -> None:
    """Count one step that makes something of this length, or refuse it."""
    _budget.get().spend(size)


def _joined(pieces: Iterable[Any], separator: str = "") -> str:
    """Concatenate what turns out short enough."""
    texts: list[str] = []
    total = 0
    for piece in pieces:
        texts.append(_text(piece))
        total += len(texts[-1]) + len(separator)
        _spend(total if total > MAX_LENGTH else len(texts[-1]))
    return separator.join(texts)


def _text(value: Any) -> str:
    """Return `str(value)`, having looked at its length first."""
    if isinstance(value, str):
        return value
    _spend(_length(value))
    return str(value)


def _length(value: Any) -> int:
    """Return about how long a value is in print; every part is a step, shared ones each time."""
    _spend()
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        value = [part for entry in value.items() for part in entry]
    total = 16
    for part in value if isinstance(value, list | tuple) else ():
        total += _length(part)
        if total > MAX_LENGTH:
            break
    return total


def _rounds(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _spend()
        yield item


@jinja2.pass_environment
def _join(env: jinja2.Environment, items: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    return _joined(items if attribute is None else map(make_attrgetter(env, attribute), items), _text(d))


def _replaced(value: Any, old: str, new: str, count: int = -1) -> str:
    text = _text(value)
    _spend(len(text) + text.count(old) * len(new))
    return text.replace(old, new, count)


def _indented(value: Any, width: int = 4, first: bool = False, blank: bool = False) -> str:
    text = _text(value)
    _spend(len(text) + (text.count("\n") + 1) * int(width))
    return do_indent(text, int(width), first, blank)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON without escaping HTML, as templates are written to expect."""
    if indent is not None and not 0 <= indent <= 16:
        raise _Limit(f"tojson is given an indent of {indent}; allowed: 0 to 16")
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return _joined(encoder.iterencode(value))


def _refuse(message: object = "no reason given") -> None:
    raise _Refusal(_text(message))


def _strftime_now(form: str) -> str:
    if len(form) > 100 or re.search(r"%[^a-zA-Z%]*\d", form):
        raise _Limit("strftime_now is given a form with widths, or of more than 100 characters")
    return datetime.datetime.now().strftime(form)


def _counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Have every use of a filter count, and look at what it is given and what it returns."""

    @functools.wraps(function)  # the marks by which Jinja passes a context come along
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        _check_call(name, args, kwargs)
        result = function(*args, **kwargs)
        _spend(len(result) if isinstance(result, str | list | tuple) else 0)
        return result

    return wrapper


def _check_call(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    if any(isinstance(value, int) and abs(value) > MAX_NUMBER for value in (*args, *kwargs.values())):
        raise _Limit(f"{name} is given a number above {MAX_NUMBER}")
    _spend()


def _check_operation(operator: str, left: Any, right: Any) -> None:
    """Refuse what would be too large, and `%` with a text, where a width can be of any size."""
    if operator == "%" and isinstance(left, str):
        raise _Limit("it formats a text with %, which is not available")
    sized = [side for side in (left, right) if isinstance(side, str | list | tuple)]
    whole = [side for side in (left, right) if isinstance(side, int)]
    if operator == "+":
        _spend(sum(map(len, sized)))
    elif operator == "*" and sized and whole:
        _spend(len(sized[0]) * max(0, whole[0]))
    elif len(whole) == 2 and operator in ("*", "**"):
        bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
        if bits > MAX_BITS:
            raise _Limit(f"it computes a number of more than {MAX_BITS} bits")
        _spend()


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})
    concat = staticmethod(_joined)  # of captured blocks and macros

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _check_operation(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "a function")
        if isinstance(owner, str) and name in ("replace", "join"):
            __obj = (
                functools.partial(_replaced, owner)
                if name == "replace"
                else functools.partial(_joined, separator=owner)
            )
        _check_call(name, args, kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> None:
        """Leave str.format to `is_safe_attribute`, which refuses it: a width in it can be of any size."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            return attr in _STRING_METHODS
        return not isinstance(obj, int | float | bytes) and super().is_safe_attribute(obj, attr, value)


class _Generation(Extension):
    """`{% generation %}`, which marks the assistant's words for training and does nothing here."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@functools.cache
def _environment() -> _Sandbox:
    env = _Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        optimized=False,  # or constant expressions would run, unbounded, while compiling
        extensions=[loopcontrols, _Generation],
        finalize=_text,
        cache_size=0,
    )
    env.filters = {name: _counted(name, FILTERS[name]) for name in _FILTERS}
    env.filters |= {"join": _join, "replace": _replaced, "string": _text, "safe": _text, "tojson": _tojson}
    env.filters |= {"indent": _indented, "_rounds": _rounds, "_joined": _joined}
    del env.globals["lipsum"]
    env.globals |= {"raise_exception": _refuse, "strftime_now": _strftime_now}
    return env


def _compile(source: str) -> jinja2.Template:
    """Compile, with the rounds of loops and the lengths of concatenations counted."""
    env = _environment()
    tree = env.parse(source)
    for loop in tree.find_all(nodes.For):
        loop.iter = _filtered(loop.iter, "_rounds")
    for concat in tree.find_all(nodes.Concat):
        pieces = nodes.List(concat.nodes, lineno=concat.lineno, environment=env)
        concat.nodes = [_filtered(pieces, "_joined")]
    return env.from_string(tree)


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno, environment=node.environment)


def _check_messages(messages: Sequence[Message]) -> None:
    if not messages:
        raise RequestError("there are no messages; at least one is needed")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise RequestError(f"message {i} is a {type(message).__name__}; an object with role and content is needed")
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not role:
            raise RequestError(f"message {i} has the role {role!r}; a string such as 'user' is needed")
        if not isinstance(content, str) and not (content is None and message.get("tool_calls")):
            raise RequestError(f"message {i} has a content of type {type(content).__name__}; a string is needed")


def _shield(tokenizer: Tokenizer, value: Any) -> Any:
    """Shield every string in nested data."""
    if isinstance(value, str):
        return tokenizer.shield(value)
    if isinstance(value, Mapping):
        return {_shield(tokenizer, key): _shield(tokenizer, entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_shield(tokenizer, entry) for entry in value]
    return value


def _line(error: Exception) -> str:
    said = " ".join(str(error).split()) or type(error).__name__
    return said if len(said) <= 300 else said[:300] + " …"
