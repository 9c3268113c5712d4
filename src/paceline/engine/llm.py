"""What users import: prompts in, completions out."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Self

from paceline.core.types import Completion, Event, GrammarSpec, Request, SamplingParams, SpeculationParams
from paceline.drafters.prediction import Prediction
from paceline.engine.build import Chosen, build, choose
from paceline.engine.engine import Engine
from paceline.engine.keeper import keep
from paceline.engine.options import Options
from paceline.errors import OptionError, PacelineError, RequestError
from paceline.models import cache
from paceline.models.cache import Progress
from paceline.models.chat import ChatTemplate
from paceline.models.tokenizer import Tokenizer

Prompt = str | Sequence[int]
Message = Mapping[str, Any]
GREEDY, AUTO = SamplingParams(), SpeculationParams()


class LLM:
    """A model that answers, with speculative decoding.

    Args:
        model: a hub id, a directory, a .gguf file, "demo" or "toy:NAME".
        progress: called while loading takes its time.
        options: the fields of `Options`; an unknown one is an error.

    Raises:
        PacelineError: the model cannot be found, read or held in memory, or an option is wrong.

    Example:
        >>> from paceline import LLM, SamplingParams
        >>> llm = LLM("toy:ngram")
        >>> a = llm.generate("ab", SamplingParams(max_tokens=8))[0]
        >>> len(a.token_ids)
        8
    """

    def __init__(self, model: str, *, progress: Progress = cache.silent, **options: Any) -> None:
        unknown = options.keys() - Options.__dataclass_fields__.keys()
        if unknown:
            allowed = ", ".join(name for name in Options.__dataclass_fields__ if name != "model")
            raise OptionError(f"LLM has no option {min(unknown)!r}; allowed: {allowed}")
        self._start(choose(Options(model, **options), progress), progress)

    @classmethod
    def from_options(cls, options: Options, progress: Progress = cache.silent) -> Self:
        return cls.from_chosen(choose(options, progress), progress)

    @classmethod
    def from_chosen(cls, chosen: Chosen, progress: Progress = cache.silent) -> Self:
        """Build from options that are settled already (see `paceline.engine.build.choose`)."""
        llm = cls.__new__(cls)
        llm._start(chosen, progress)
        return llm

    def _start(self, chosen: Chosen, progress: Progress) -> None:
        self.chosen = chosen
        self.engine: Engine = build(chosen, progress)
        self._keeper = keep(chosen.identity, self.engine, self)
        self._inbox = Inbox(self.engine)
        self.tokenizer: Tokenizer = chosen.target.tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams = GREEDY,
        speculation: SpeculationParams = AUTO,
        prediction: Prompt | None = None,
        tenant: str = "",
        grammar: GrammarSpec | None = None,
    ) -> list[Completion]:
        """Complete prompts, many at a time; the completions come in the order of the prompts.

        Args:
            prediction: what the answers may repeat, in part or whole: a file that is to be edited, say. It changes no
                text, only how soon it is there.
            tenant: whose requests these are; what they say drafts for no other tenant's.
            grammar: what the answers must look like. One that `max_tokens` cuts off is the beginning of such a text.

        Raises:
            RequestError: a prompt cannot be served, or the prediction or grammar not be used; none is then run.
        """
        given = (sampling, speculation, prediction, tenant, grammar)
        return self.run([self.request(prompt, *given) for prompt in _listed(prompts)])

    def chat(
        self,
        messages: Sequence[Message],
        sampling: SamplingParams = GREEDY,
        speculation: SpeculationParams = AUTO,
        prediction: Prompt | None = None,
        tenant: str = "",
        grammar: GrammarSpec | None = None,
    ) -> Completion:
        """Answer a conversation: messages with "role" and "content"."""
        prompt = self.chat_prompt(messages)
        return self.run([self.request(prompt, sampling, speculation, prediction, tenant, grammar)])[0]

    def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams = GREEDY,
        speculation: SpeculationParams = AUTO,
        prediction: Prompt | None = None,
        tenant: str = "",
        grammar: GrammarSpec | None = None,
    ) -> Stream:
        """Complete one prompt as it comes; closing the stream early aborts the request."""
        return Stream(self._inbox, self.request(prompt, sampling, speculation, prediction, tenant, grammar))

    def chat_prompt(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens of a conversation, up to where the answer begins."""
        return ChatTemplate.of(self.tokenizer).encode(self.tokenizer, messages)

    def request(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        speculation: SpeculationParams,
        prediction: Prompt | None = None,
        tenant: str = "",
        grammar: GrammarSpec | None = None,
    ) -> Request:
        """Return a request in tokens; special tokens that the text of a prompt spells count, a prediction's do not.

        Raises:
            RequestError: a text cannot be encoded, or the prediction or grammar not be used.
        """
        ids = self.tokenizer.encode(prompt, add_special=True, allow_special=True) if isinstance(prompt, str) else prompt
        bad = tuple(tuple(self.tokenizer.encode(start + word)) for word in sampling.bad_words for start in ("", " "))
        expected = () if prediction is None else self._expected(prediction, speculation)
        bad = tuple(dict.fromkeys(b for b in bad if b))
        request = Request(tuple(ids), sampling, speculation, bad, expected, tenant, grammar)
        if grammar is not None:
            self.engine.check(request)
        return request

    def _expected(self, prediction: Prompt, speculation: SpeculationParams) -> tuple[int, ...]:
        """Return the tokens of a prediction; one that nobody would read is refused, for it was meant to help."""
        if why := self._unread(speculation):
            raise RequestError(f"there is a prediction and {why}; leave the prediction out, or let it draft")
        text = self.tokenizer.encode(prediction) if isinstance(prediction, str) else prediction
        vocab = self.engine.target.info.vocab_size
        if (wrong := next((t for t in text if not 0 <= t < vocab), None)) is not None:
            raise RequestError(f"the prediction has token id {wrong}; this model's ids are 0 to {vocab - 1}")
        if len(text) > self.engine.context:
            raise RequestError(
                f"the prediction has {len(text)} tokens; an answer has at most {self.engine.context}, the context; "
                "shorten it or raise the context"
            )
        return tuple(text)

    def _unread(self, speculation: SpeculationParams) -> str:
        """Return why a prediction would not be read; empty if it would."""
        if Prediction.name not in self.engine.desk.drafters:
            return f"the drafters are {', '.join(self.engine.desk.drafters) or 'none'}"
        if speculation.mode == "off" or speculation.max_draft == 0:
            return "the request's speculation is off"
        if not speculation.uses(Prediction.name):
            return f"the request's drafters are {', '.join(speculation.drafters or ())}"
        return ""

    def run(self, requests: Sequence[Request]) -> list[Completion]:
        """Run requests to their ends; Ctrl-C, or an error, aborts them all."""
        ids: list[int] = []
        done: dict[int, Completion] = {}
        try:
            for request in requests:
                ids.append(self._inbox.add(request))
            while running := [i for i in ids if i not in done]:
                event = self._inbox.take(running)
                if event.finish_reason:
                    done[event.request_id] = self._inbox.close(event.request_id)
            self.rest()
            return [done[i] for i in ids]
        except BaseException:
            for request_id in ids:
                if request_id not in done:
                    self._inbox.close(request_id)
            raise

    def rest(self) -> None:
        """Use a moment in which nothing runs to write down what was learnt; for who steps the engine on their own."""
        self._keeper.rest()

    @property
    def plain_tokens_per_s(self) -> float | None:
        """The measured speed of plain decoding of one sequence here, None before it was seen."""
        seconds = self.engine.governor.costs.plain_seconds(1)
        return 1 / seconds if seconds else None


class Inbox:
    """Steps the engine for whoever waits, and keeps what comes for others meanwhile."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._events: dict[int, deque[Event]] = {}

    def add(self, request: Request) -> int:
        request_id = self._engine.add(request)
        self._events[request_id] = deque()
        return request_id

    def take(self, request_ids: Collection[int]) -> Event:
        """Return the next event of any of these requests, none of which has ended."""
        while True:
            for request_id in request_ids:
                if self._events[request_id]:
                    return self._events[request_id].popleft()
            for event in self._engine.step():
                if event.request_id in self._events:
                    self._events[event.request_id].append(event)

    def close(self, request_id: int) -> Completion:
        """End a request, where it stands if it still runs, and hand over its completion."""
        self._engine.abort(request_id)
        completion = self._engine.completion(request_id)
        self._engine.forget([request_id])
        del self._events[request_id]
        return completion


class Stream:
    """The events of one request; afterwards its completion."""

    def __init__(self, inbox: Inbox, request: Request) -> None:
        self._inbox = inbox
        self._id = inbox.add(request)
        self._completion: Completion | None = None

    def __iter__(self) -> Iterator[Event]:
        try:
            while self._completion is None:
                event = self._inbox.take([self._id])
                if event.finish_reason:
                    self._completion = self._inbox.close(self._id)
                yield event
        finally:
            self.close()

    @property
    def completion(self) -> Completion:
        """Raises PacelineError while the request still runs."""
        if self._completion is None:
            raise PacelineError("the stream has not ended; iterate over it first, or close it")
        return self._completion

    def close(self) -> None:
        """End the request where it stands."""
        if self._completion is None:
            self._completion = self._inbox.close(self._id)


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt is a text or token ids; several are a sequence of those."""
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]
