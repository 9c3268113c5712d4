"""The options that commands share, and what they come to."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from paceline.core.types import GrammarSpec, Mode, SamplingParams, SpeculationParams
from paceline.errors import OptionError, RequestError

if TYPE_CHECKING:
    from paceline.engine.options import Options

Text = str | None


def option(name: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(name, help=help, metavar=metavar, show_default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFlags:
    """Which model, and how it runs. Numbers are texts here: `settle` reads them, with our own messages."""

    model: Annotated[str, option("--model", "Hub id, directory, .gguf file, demo or toy:NAME.", "MODEL")]
    draft: Annotated[Text, option("--draft", "A small model of the same family that drafts.", "MODEL")] = None
    drafters: Annotated[
        Text, option("--drafters", "Names with commas between (lookup,model), auto [default] or none.", "NAMES")
    ] = None
    heads: Annotated[
        Text, option("--heads", "Directory of draft heads (EAGLE-3, Medusa) that were trained for the model.", "DIR")
    ] = None
    max_draft: Annotated[Text, option("--max-draft", "Most drafted tokens a step, 0 to 64.", "N")] = None
    runner: Annotated[Text, option("--runner", "auto [default], openvino or torch.", "NAME")] = None
    weights: Annotated[
        Text, option("--weights", "int4, int8, bf16 or fp32 [default: int8 for small models, else int4].", "FORM")
    ] = None
    head_weights: Annotated[
        Text,
        option("--head-weights", "int4 or int8, of the matrix that answers [default: as --weights].", "FORM"),
    ] = None
    kv: Annotated[Text, option("--kv", "f16 [default], or u8: keys and values in about half of it.", "FORM")] = None
    draft_weights: Annotated[
        Text, option("--draft-weights", "The same for the draft model [default: int4] and for heads [int8].", "FORM")
    ] = None
    numerics: Annotated[
        Text,
        option("--numerics", "invariant [default]: the same text to the last bit with and without drafts; fast.", "X"),
    ] = None
    context: Annotated[
        Text, option("--context", "Most tokens, prompt and answer [default: the model's, up to 8192].", "N")
    ] = None
    device: Annotated[Text, option("--device", "Of the torch runner: cpu [default], cuda.", "NAME")] = None
    debug: Annotated[bool, option("--debug", "Show tracebacks and warnings.")] = False

    def options(self, sequences: int | None = 1) -> Options:
        """Return the engine's options.

        Raises:
            OptionError: one is not allowed, is not there yet, or would have no effect.
        """
        from paceline.engine.options import Options

        batch: dict[str, Any] = {} if sequences is None else {"sequences": sequences}
        return Options(self.model, speculate=self.speculates, **self.asked(), **batch)

    def asked(self) -> dict[str, Any]:
        """Return what was given, by the names of the engine's options.

        Raises:
            OptionError: see `options`.
        """
        named = self.drafter_names()
        for option, given, drafter in (("draft", self.draft, "model"), ("heads", self.heads, "heads")):
            if given is not None and named is not None and drafter not in named and self.speculates:
                raise OptionError(
                    f"{option} is {given!r} and drafters is {self.drafters!r}, which does not use it; "
                    f"add {drafter!r} to --drafters or leave --{option} out"
                )
        options: dict[str, Any] = {
            "draft": self.draft,
            "heads": self.heads,
            "drafters": named,
            "max_draft": whole("max_draft", self.max_draft),
            "runner": self.runner,
            "weights": self.weights,
            "head_weights": self.head_weights,
            "kv": self.kv,
            "draft_weights": self.draft_weights,
            "numerics": self.numerics,
            "context": whole("context", self.context),
            "device": self.device,
        }
        return {name: value for name, value in options.items() if value is not None}

    @property
    def drafts(self) -> bool:
        return self.drafters != "none" and whole("max_draft", self.max_draft) != 0

    @property
    def speculates(self) -> bool:
        return self.drafts

    def drafter_names(self) -> tuple[str, ...] | None:
        """Return what --drafters lists; None is auto."""
        if self.drafters in (None, "auto"):
            return None
        if self.drafters == "none":
            return ()
        return tuple(name.strip() for name in self.drafters.split(","))


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags(ModelFlags):
    """What `generate` and `chat` share."""

    rule: Annotated[
        Text, option("--rule", "coupled [default], ratio, block, or typical, which changes the text.", "NAME")
    ] = None
    no_speculation: Annotated[bool, option("--no-speculation", "Decode plainly.")] = False
    max_tokens: Annotated[Text, option("--max-tokens", "Most tokens of an answer [default: 256].", "N")] = None
    temperature: Annotated[Text, option("--temperature", "0 [default] takes the most probable token.", "X")] = None
    top_p: Annotated[Text, option("--top-p", "Keep the most probable tokens up to this mass.", "X")] = None
    top_k: Annotated[Text, option("--top-k", "Keep this many of the most probable tokens.", "N")] = None
    min_p: Annotated[Text, option("--min-p", "Drop tokens below this share of the most probable one.", "X")] = None
    seed: Annotated[Text, option("--seed", "The same seed gives the same text [default: drawn].", "N")] = None
    stop: Annotated[list[str] | None, option("--stop", "End before this text; may be given again.", "TEXT")] = None
    system: Annotated[Text, option("--system", "What the model is told before the conversation.", "TEXT")] = None
    raw: Annotated[bool, option("--raw", "Continue the text as it is: no chat template.")] = False
    prediction: Annotated[Text, option("--prediction", "Text that an answer may repeat.", "FILE")] = None
    json_schema: Annotated[Text, option("--json-schema", "Answer in JSON that fits this schema.", "FILE")] = None
    regex: Annotated[Text, option("--regex", "Answer in a text that this expression matches.", "PATTERN")] = None
    grammar: Annotated[Text, option("--grammar", "Answer in a text of this Lark grammar.", "FILE")] = None
    show_draft: Annotated[bool, option("--show-draft", "Colour tokens by the drafter that guessed them.")] = False
    json: Annotated[bool, option("--json", "Print one JSON object instead of the text.")] = False

    @property
    def speculates(self) -> bool:
        return self.drafts and not self.no_speculation

    def check(self) -> None:
        """Raise OptionError for what would have no effect."""
        if self.raw and self.system is not None:
            raise OptionError("system needs the chat template, which --raw leaves out; give one of the two")

    def expected(self) -> str | None:
        """Return the text of a prediction, if there is one.

        Raises:
            OptionError: it would not be used.
            RequestError: the file cannot be read, is empty or is not UTF-8.
        """
        path, named = self.prediction, self.drafter_names()
        if path is None:
            return None
        if not self.speculates:
            raise OptionError(
                f"prediction is {path!r} and speculation is off; leave --prediction out or speculation on"
            )
        if named is not None and "prediction" not in named:
            raise OptionError(
                f"prediction is {path!r} and drafters is {self.drafters!r}, which does not use it; "
                "add 'prediction' to --drafters or leave --prediction out"
            )
        return read("prediction", path)

    def form(self) -> GrammarSpec | None:
        """Return what answers must look like, if anything was said of it.

        Raises:
            OptionError: there is more than one grammar, or an empty one.
            RequestError: the file cannot be read, is empty or is not UTF-8.
        """
        given = {"json-schema": self.json_schema, "regex": self.regex, "grammar": self.grammar}
        asked = {name: text for name, text in given.items() if text is not None}
        if len(asked) > 1:
            raise OptionError(f"there are {' and '.join(f'--{name}' for name in asked)}; give one of them")
        if self.json_schema is not None:
            return GrammarSpec("json_schema", read("json-schema", self.json_schema))
        if self.grammar is not None:
            return GrammarSpec("lark", read("grammar", self.grammar))
        return GrammarSpec("regex", self.regex) if self.regex is not None else None

    def sampling(self) -> SamplingParams:
        given: dict[str, Any] = {
            "max_tokens": whole("max_tokens", self.max_tokens),
            "temperature": number("temperature", self.temperature),
            "top_p": number("top_p", self.top_p),
            "top_k": whole("top_k", self.top_k),
            "min_p": number("min_p", self.min_p),
            "seed": whole("seed", self.seed),
            "stop": tuple(self.stop or ()),
        }
        return SamplingParams(**{name: value for name, value in given.items() if value is not None})

    def speculation(self) -> SpeculationParams:
        mode: Mode = "auto" if self.speculates else "off"
        rule: Any = self.rule or "coupled"
        return SpeculationParams(mode=mode, max_draft=whole("max_draft", self.max_draft), rule=rule)


def read(option: str, path: str) -> str:
    """Return the text of a file that an option names.

    Raises:
        RequestError: it cannot be read, is empty or is not UTF-8.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise RequestError(f"{option} {path!r} cannot be read ({error.strerror}); give a text file") from None
    if not data:
        raise RequestError(f"{option} {path!r} is empty; give a text file, or leave --{option} out")
    return decode(data, f"{option} {path!r}")


def whole(name: str, text: str | None) -> int | None:
    """Raises OptionError: the text is no whole number."""
    try:
        return None if text is None else int(text)
    except ValueError:
        raise OptionError(f"{name} is {text!r}; allowed: a whole number") from None


def number(name: str, text: str | None) -> float | None:
    """Raises OptionError: the text is no number."""
    try:
        return None if text is None else float(text)
    except ValueError:
        raise OptionError(f"{name} is {text!r}; allowed: a number") from None


def decode(data: bytes, name: str) -> str:
    """Raises RequestError: these bytes are not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{name} is not UTF-8 text (byte 0x{data[error.start]:02x} at {error.start}); convert it first"
        ) from None


def spread(command: Callable[..., int]) -> Callable[..., int]:
    """Return a command whose first parameter, a record of options, is spread into one parameter for each option."""
    hints = get_type_hints(command, include_extras=True)
    first, *others = inspect.signature(command).parameters.values()
    record = hints[first.name]
    own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[p.name]) for p in others]
    kinds = get_type_hints(record, include_extras=True)
    options = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=kinds[field.name],
        )
        for field in fields(record)
    ]

    @wraps(command)
    def spreading(**given: Any) -> int:
        rest = {p.name: given.pop(p.name) for p in others}
        return command(record(**given), **rest)

    parameters = [*own, *options]
    spreading.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spreading.__annotations__ = {p.name: p.annotation for p in parameters}
    return spreading
