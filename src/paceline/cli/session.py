"""A loaded model and what the user asked for: answers requests, one at a time."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import typer

from paceline.cli.account import alarm_lines, as_json, closing_line
from paceline.cli.answer import answer, heard
from paceline.cli.options import Flags
from paceline.cli.progress import Shown
from paceline.cli.render import Attribution, Colours, Printer, can_colour, note
from paceline.core.types import Completion, Event, GrammarSpec, SamplingParams, SpeculationParams
from paceline.engine.build import choose
from paceline.engine.llm import LLM, Prompt
from paceline.errors import PacelineError


class Display:
    """An answer in the making: its text where there is a printer, and what it is waiting for."""

    def __init__(self, progress: Shown, printer: Printer | None, max_tokens: int) -> None:
        self._progress, self._printer, self._most = progress, printer, max_tokens
        self._streams_here = printer is not None and sys.stdout.isatty()
        self._done = 0

    def show(self, event: Event) -> None:
        self._done += len(event.token_ids)
        if self._streams_here:
            self._progress.close()
        else:
            self._progress("generating", self._done, self._most)
        if self._printer is not None:
            self._printer.show(event)

    def reading(self, at: int, of: int) -> None:
        self._progress("reading the prompt", at, of)

    def break_off(self) -> None:
        if self._printer is not None:
            self._printer.break_off()


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    llm: LLM
    flags: Flags
    sampling: SamplingParams
    speculation: SpeculationParams
    grammar: GrammarSpec | None
    load_s: float

    @classmethod
    def open(cls, flags: Flags) -> Session:
        """Check all options, then load.

        Raises:
            PacelineError: an option is wrong, or the model cannot be had.
        """
        flags.check()
        sampling, speculation, options = flags.sampling(), flags.speculation(), flags.options()
        grammar = flags.form()
        start = time.perf_counter()
        with Shown() as progress:
            chosen = choose(options, progress)
            progress(f"loading {options.model}", 0, 1)
            llm = LLM.from_chosen(chosen, progress)
        return cls(llm, flags, sampling, speculation, grammar, time.perf_counter() - start)

    def respond(self, prompt: Prompt, prediction: str | None = None) -> Completion:
        """Answer on stdout, and account for it.

        Args:
            prediction: text that the answer may repeat.

        Raises:
            PacelineError: the request cannot be served, or failed.
        """
        request = self.llm.request(prompt, self.sampling, self.speculation, prediction, grammar=self.grammar)
        printer = None if self.flags.json else self._printer(request.prompt)
        with Shown() as progress, heard() as interrupt:
            display = Display(progress, printer, self.sampling.max_tokens)
            try:
                completion = answer(self.llm, request, display.show, interrupt, display.reading)
            except BaseException:
                display.break_off()
                raise
        self._close(completion, printer, predicted=prediction is not None)
        return completion

    def _printer(self, prompt: Sequence[int]) -> Printer:
        if self.flags.show_draft and can_colour():
            return Printer(self._colours(), Attribution(self.llm.tokenizer, prompt))
        return Printer(None, None)

    def _colours(self) -> Colours:
        return Colours(list(self.llm.engine.desk.drafters))

    def _close(self, completion: Completion, printer: Printer | None, predicted: bool) -> None:
        if printer is None:
            if completion.finish_reason != "abort":
                found = as_json(self.llm, completion, self.load_s, self.flags.show_draft, predicted)
                typer.echo(json.dumps(found, ensure_ascii=False))
        else:
            printer.end()
            if self.flags.show_draft:
                note(self._colours().legend() if can_colour() else "show-draft: stdout takes no colours")
            note(closing_line(completion, self.llm.plain_tokens_per_s, predicted))
            for line in alarm_lines(self.llm.engine.alarms):
                note(line)
        if completion.finish_reason == "error":
            raise PacelineError(f"the request failed: {completion.error}")
