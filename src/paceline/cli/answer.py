"""One request from its tokens to its completion, with Ctrl-C heard between steps."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from paceline.core.types import Completion, Event, Request
from paceline.engine.llm import LLM


class Interrupt:
    """Whether Ctrl-C was pressed. A step is never cut in two by the first; a second one does not wait."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def heard() -> Iterator[Interrupt]:
    interrupt = Interrupt()
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)


def answer(
    llm: LLM,
    request: Request,
    show: Callable[[Event], None],
    interrupt: Interrupt,
    reading: Callable[[int, int], None],
) -> Completion:
    """Run a request to its end; after Ctrl-C its finish reason is "abort".

    Args:
        show: called with every event.
        reading: called with (tokens read, tokens of the prompt) until the answer begins.

    Raises:
        RequestError: the request cannot be served.
    """
    engine = llm.engine
    request_id = engine.add(request)
    reading(0, len(request.prompt))
    try:
        while True:
            for event in engine.step():
                if event.request_id == request_id:
                    show(event)
                    if event.finish_reason:
                        return engine.completion(request_id)
            if interrupt.asked:
                engine.abort(request_id)
            for seq in engine.scheduler.running:
                if not seq.output:
                    reading(seq.cache_len, seq.prompt_len)
    except BaseException:
        engine.abort(request_id)
        engine.forget([request_id])
        raise
