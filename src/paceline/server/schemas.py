"""What clients send: OpenAI's parameters, extensions beside them, and nothing else.

Records are strict: a number in quotes is not a number. Lists stop at their first mistake, and objects are bounded, so
that a hostile body costs no more than its size.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from paceline.core.types import Mode, Rule

MOST_KEYS = 100
"""Of an object whose keys are known here."""
MOST_PROMPTS = 64
"""Of one request."""

IGNORED = (
    "metadata",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
)
"""OpenAI parameters that are accepted and change nothing: they are about an account there, not about the text."""


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _bounded(cls, given: Any) -> Any:
        if isinstance(given, dict) and len(given) > MOST_KEYS:
            raise ValueError(f"an object has {len(given)} keys; allowed: {MOST_KEYS}")
        return given


def refused(why: str) -> BeforeValidator:
    """Return the validator of a parameter that can only be null."""

    def check(given: Any) -> None:
        if given is not None:
            raise ValueError(why)

    return BeforeValidator(check)


def _biases(given: Any) -> dict[int, float]:
    """Read logit_bias, whose keys are token ids in quotes."""
    if not isinstance(given, dict):
        raise ValueError("an object of token ids and numbers is needed")
    for token, bias in given.items():
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            raise ValueError(f"{token[:32]!r} is no token id; a whole number from 0, in quotes, is needed")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not abs(bias) <= 1e30:
            raise ValueError(f"the bias of token {token} is no number; -100 (a ban) to 100 is usual")
    return {int(token): float(bias) for token, bias in given.items()}


def _text_only(given: Any) -> Any:
    kind = given.get("type") if isinstance(given, dict) else None
    if isinstance(kind, str) and kind != "text":
        raise ValueError(f"a part has the type {kind[:32]!r}; this model reads text only")
    return given


class Part(Strict):
    type: Literal["text"]
    text: str


Parts = Annotated[list[Annotated[Part, BeforeValidator(_text_only)]], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]
Tokens = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(fail_fast=True)]
Count = Annotated[int, Field(lt=2**31)]
"""How little one may be is the engine's to say."""
Biases = Annotated[
    dict[int, float],
    BeforeValidator(_biases),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "number"}}),
]


class StreamOptions(Strict):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    """Accepted and ignored: tokens are not padded here."""


class JsonSchema(Strict):
    name: str
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None
    """Either way the answer follows the schema."""


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema goes with the type 'json_schema'; give both, or neither")
        return self


class Prediction(Strict):
    type: Literal["content"]
    content: str | Parts


class Speculation(Strict):
    """The extension `speculation`: see docs/server.md."""

    mode: Mode = "auto"
    max_draft_tokens: Annotated[int, Field(ge=0, le=64)] | None = None
    drafters: Texts | None = None
    rule: Rule = "coupled"
    show_draft: bool = False
    history: bool = True


class Body(Strict):
    """What both kinds of completion take."""

    model: str | None = None
    frequency_penalty: float | None = None
    logit_bias: Biases | None = None
    max_tokens: Count | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    prediction: Prediction | None = None
    presence_penalty: float | None = None
    response_format: ResponseFormat | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: str | Texts | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None

    bad_words: Texts | None = None
    grammar: str | None = None
    ignore_eos: bool | None = None
    min_p: float | None = None
    min_tokens: Count | None = None
    regex: str | None = None
    repetition_penalty: float | None = None
    speculation: Speculation | None = None
    stop_token_ids: Tokens | None = None
    top_k: Count | None = None

    metadata: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    store: Any = None
    user: Any = None

    @model_validator(mode="after")
    def _streams(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is given and stream is not true; set stream, or leave the options out")
        return self

    @property
    def choices(self) -> int:
        return self.n or 1


class FunctionCall(Strict):
    name: str
    arguments: str


class ToolCall(Strict):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall
    index: Count | None = None


class Message(Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Parts | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    annotations: Any = None
    """With `refusal`: what an answer of OpenAI's has, sent back; ignored."""
    refusal: Any = None
    audio: Annotated[None, refused("this model reads text only")] = None
    function_call: Annotated[None, refused("is deprecated; use tool_calls")] = None

    @model_validator(mode="after")
    def _fits_its_role(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"a message of role {self.role!r} has tool_calls; only the assistant's can")
        if self.content is None and not self.tool_calls:
            raise ValueError(f"a message of role {self.role!r} has no content; a text is needed")
        if self.role == "tool" and not self.tool_call_id:
            raise ValueError("a message of role 'tool' has no tool_call_id; name the call that it answers")
        return self


class Function(Strict):
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    """True: under tool_choice auto as well the arguments follow the schema."""


class Tool(Strict):
    type: Literal["function"]
    function: Function


class Named(Strict):
    name: str


class NamedTool(Strict):
    type: Literal["function"]
    function: Named


class ChatBody(Body):
    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1)]
    chat_template_kwargs: dict[str, Any] | None = None
    logprobs: bool | None = None
    max_completion_tokens: Count | None = None
    parallel_tool_calls: bool | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    tools: Annotated[list[Tool], Field(fail_fast=True)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    modalities: list[Literal["text"]] | None = None

    audio: Annotated[None, refused("this model writes text only; leave audio out")] = None
    function_call: Annotated[None, refused("is deprecated; use tool_choice")] = None
    functions: Annotated[None, refused("is deprecated; use tools")] = None
    moderation: Annotated[None, refused("nothing is moderated here; leave moderation out")] = None
    reasoning_effort: Annotated[None, refused("the model has no such setting; see chat_template_kwargs")] = None
    verbosity: Annotated[None, refused("the model has no such setting; say it in a message")] = None
    web_search_options: Annotated[None, refused("nothing is searched here; leave web_search_options out")] = None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            raise ValueError("max_tokens and max_completion_tokens differ; give one of them")
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs is given and logprobs is not true; set logprobs, or leave it out")
        if not self.tools and self.tool_choice not in (None, "none"):
            raise ValueError("tool_choice is given and there are no tools; give tools, or leave it out")
        return self


class CompletionBody(Body):
    prompt: str | Texts | Tokens | Annotated[list[Tokens], Field(fail_fast=True)]
    best_of: Count | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    suffix: Annotated[None, refused("the text is continued at its end only; leave suffix out")] = None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.best_of not in (None, self.choices):
            raise ValueError(f"best_of is {self.best_of}; choices are not ranked here: allowed is n, {self.choices}")
        if self.echo and self.logprobs is not None:
            raise ValueError("echo and logprobs do not go together: a prompt's tokens have none; leave one out")
        if isinstance(self.prompt, list) and not 1 <= len(self.prompts) <= MOST_PROMPTS:
            raise ValueError(f"prompt is a list of {len(self.prompts)} prompts; allowed: 1 to {MOST_PROMPTS}")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, one or many, each a text or its tokens."""
        given: Any = self.prompt
        single = isinstance(given, str) or (given and isinstance(given[0], int))
        return [given] if single else list(given)


PARAMETERS = frozenset(
    name
    for record in (ChatBody, CompletionBody, Speculation, StreamOptions, Message, Function, JsonSchema)
    for name in record.model_fields
) - {"schema_"}
"""Every parameter there is, for whom a mistyped one may have been meant."""
