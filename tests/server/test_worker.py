"""The engine thread behind the event loop: requests, cancels, back-pressure, fairness, failures."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from paceline.core.types import Completion, Event, Request, SamplingParams, SpeculationParams
from paceline.engine.llm import LLM
from paceline.errors import OptionError, PacelineError, RequestError
from paceline.server.answer import merged
from paceline.server.stepper import FAILED, GAVE_WAY
from paceline.server.worker import Answer, Busy, Draining, EngineFailed, Ticket, Worker

from .held import Held
from .live import whole


def ask(prompt: str = "a line of riders", tokens: int = 24, **given: Any) -> Request:
    sampling = SamplingParams(**({"max_tokens": tokens, "seed": 1, "temperature": 1.0, "ignore_eos": True} | given))
    return Request(tuple(prompt.encode()), sampling)


def ticket(name: str = "r", **given: Any) -> Ticket:
    return Ticket(name, **given)


async def read(answer: Answer) -> list[Event]:
    return [event async for event in answer]


@asynccontextmanager
async def working(llm: LLM, **given: Any) -> AsyncIterator[Worker]:
    worker = Worker(llm, **given)
    worker.start()
    try:
        yield worker
        if worker.snapshot.failure is None:
            await worker.drain(0)
            await worker.call(whole)
    finally:
        worker.stop()


@pytest.fixture
def llm(kept) -> LLM:
    return LLM("toy:ngram", sequences=4)


class TestAnswers:
    def test_are_what_the_library_gives(self, llm, plain_toy):
        async def main() -> list[Completion]:
            async with working(llm) as worker:
                requests = [ask(f"prompt {i}", seed=i) for i in range(9)]
                answers = [await worker.open(request, ticket(str(i))) for i, request in enumerate(requests)]
                events = await asyncio.gather(*map(read, answers))
                for answer, said in zip(answers, events, strict=True):
                    assert "".join(event.text for event in said) == answer.completion.text
                    assert [event.finish_reason for event in said[:-1]] == [None] * (len(said) - 1)
                return [answer.completion for answer in answers]

        done = asyncio.run(main())
        expected = plain_toy.run([ask(f"prompt {i}", seed=i) for i in range(9)])
        assert [c.token_ids for c in done] == [c.token_ids for c in expected]
        assert [c.text for c in done] == [c.text for c in expected]

    def test_have_no_completion_before_their_end(self, llm):
        async def main() -> None:
            async with working(llm) as worker:
                answer = await worker.open(ask(), ticket())
                with pytest.raises(PacelineError, match="has not ended"):
                    _ = answer.completion
                await read(answer)
                assert answer.completion.finish_reason == "length"
                assert await read(answer) == []

        asyncio.run(main())

    def test_that_nobody_reads_become_one_event_and_hold_back_nobody(self, llm):
        async def main() -> None:
            async with working(llm) as worker:
                slow = await worker.open(ask(tokens=200), ticket("slow"))
                quick = await worker.open(ask(tokens=200, seed=2), ticket("quick"))
                assert len(await read(quick)) > 1
                while not slow.ended:
                    await asyncio.sleep(0.01)
                [event] = await read(slow)
                assert event.token_ids == slow.completion.token_ids
                assert event.text == slow.completion.text
                assert event.sources == slow.completion.sources
                assert event.finish_reason == "length"

        asyncio.run(main())

    def test_that_nobody_reads_for_long_are_cancelled(self, llm):
        async def main() -> None:
            hold = Held(llm.engine)
            async with working(llm, idle_timeout_s=0.05) as worker:
                answer = await worker.open(ask(tokens=400), ticket())
                hold.let(3)
                while worker.idle is False and not answer.ended:
                    await asyncio.sleep(0.02)
                    hold.let(1)
                *_, last = await read(answer)
                assert (last.finish_reason, last.error) == ("abort", "nothing was read for 0.05 s")
                hold.open()

        asyncio.run(main())

    def test_that_take_too_long_are_cancelled(self, llm):
        async def main() -> None:
            hold = Held(llm.engine)
            async with working(llm, request_timeout_s=0.05) as worker:
                answer = await worker.open(ask(tokens=400), ticket())
                await asyncio.sleep(0.2)
                hold.open()
                *_, last = await read(answer)
                assert (last.finish_reason, last.error) == ("abort", "the request took longer than 0.05 s")

        asyncio.run(main())

    def test_merging_keeps_all(self):
        one = Event(1, (1, 2), "ab", ("x", None), rejected=((7, "x", 1),))
        two = Event(1, (3,), "c", (None,), finish_reason="stop", error="e")
        assert merged([one, two]) == Event(1, (1, 2, 3), "abc", ("x", None, None), (), "stop", "e", ((7, "x", 1),))
        assert merged([two]) is two


class TestCancelling:
    def test_frees_the_slot_before_the_next_step(self, llm):
        async def main() -> None:
            hold = Held(llm.engine)
            async with working(llm) as worker:
                answers = [await worker.open(ask(tokens=200, seed=i), ticket(str(i))) for i in range(5)]
                hold.let(4)
                while hold.steps < 4:
                    await asyncio.sleep(0.01)
                answers[0].cancel("gone")
                answers[0].cancel("twice")
                hold.let(1)  # the step that was already waited for
                at = hold.steps
                running = llm.engine.scheduler.running
                while hold.steps < at + 1:
                    await asyncio.sleep(0.01)
                hold.let(1)
                while hold.steps < at + 2:
                    await asyncio.sleep(0.01)
                await read(answers[0])
                assert answers[0].completion.finish_reason == "abort"
                assert answers[0].completion.error == "gone"
                assert any(seq.seed == 4 for seq in running), "the fifth has the first one's place"
                assert not any(seq.seed == 0 for seq in running)
                hold.open()
                await asyncio.gather(*map(read, answers[1:]))
                answers[1].cancel("too late")
                assert answers[1].completion.finish_reason == "length"

        asyncio.run(main())

    def test_what_waits_never_runs(self, llm):
        async def main() -> None:
            hold = Held(llm.engine)
            async with working(llm) as worker:
                answers = [await worker.open(ask(tokens=8, seed=i), ticket(str(i))) for i in range(6)]
                answers[5].cancel("changed my mind")
                hold.open()
                [event] = await read(answers[5])
                assert (event.finish_reason, event.error, event.token_ids) == ("abort", "changed my mind", ())
                assert answers[5].completion.prompt_tokens == 16
                await asyncio.gather(*map(read, answers[:5]))

        asyncio.run(main())


class TestAdmission:
    def test_a_bound_and_when_to_try_again(self, llm):
        async def main() -> None:
            hold = Held(llm.engine)
            async with working(llm, queue=3) as worker:
                answers = [await worker.open(ask(seed=i), ticket()) for i in range(3)]
                while len(answers) < 4 + 3:  # four come to run, between steps
                    hold.let()
                    await asyncio.sleep(0.02)
                    with contextlib.suppress(Busy):
                        answers.append(await worker.open(ask(seed=len(answers)), ticket()))
                with pytest.raises(Busy) as caught:
                    await worker.open(ask(), ticket())
                assert caught.value.status == 429
                assert 1 <= caught.value.retry_after <= 60
                hold.open()
                await asyncio.gather(*map(read, answers))
                assert (await worker.open(ask(), ticket())).ticket.id == "r"

        asyncio.run(main())

    def test_one_key_does_not_delay_anothers_first(self, llm):
        async def main() -> None:
            hold = Held(llm.engine)
            order: list[str] = []
            async with working(llm, watchers=[Noting(lambda t, c: order.append(t.key))]) as worker:
                many = [await worker.open(ask(tokens=8, seed=i), ticket(key="many")) for i in range(30)]
                one = await worker.open(ask(tokens=8), ticket(key="one"))
                hold.open()
                await asyncio.gather(*map(read, [*many, one]))
            assert "one" in order[:9], "those that ran, one round, and then it"

        asyncio.run(main())

    def test_what_the_engine_would_not_take_is_refused_at_once(self, llm):
        async def main() -> None:
            async with working(llm) as worker:
                with pytest.raises(RequestError, match="the prompt is empty"):
                    await worker.open(Request(()), ticket())
                assert worker.idle

        asyncio.run(main())

    def test_background_runs_alone_and_gives_way(self, llm):
        async def main() -> None:
            hold = Held(llm.engine)
            async with working(llm, queue=4) as worker:
                quiet = [await worker.open(ask(tokens=300, seed=i), ticket(f"b{i}", background=True)) for i in range(9)]
                hold.let(3)
                while hold.steps < 3:
                    await asyncio.sleep(0.01)
                assert len(llm.engine.scheduler.running) == 1, "one at a time"
                loud = [await worker.open(ask(tokens=8, seed=i), ticket(f"f{i}")) for i in range(4)]
                hold.open()
                await asyncio.gather(*map(read, loud))
                assert all(answer.completion.finish_reason == "length" for answer in loud)
                await read(quiet[0])
                assert (quiet[0].completion.finish_reason, quiet[0].completion.error) == ("abort", GAVE_WAY)
                await asyncio.gather(*map(read, quiet[1:]))
                assert [answer.completion.finish_reason for answer in quiet[1:]] == ["length"] * 8

        asyncio.run(main())


class Noting:
    """A watcher that notes who has finished."""

    def __init__(self, note: Callable[[Ticket, Completion], Any]) -> None:
        self._note, self.steps = note, 0

    def stepped(self, step: Any) -> None:
        self.steps += 1

    def finished(self, ticket: Ticket, request: Request, completion: Completion) -> None:
        self._note(ticket, completion)


class TestWatchers:
    def test_hear_of_every_step_and_end_and_may_fail(self, llm):
        def fail(*_: Any) -> None:
            raise ValueError("a watcher's own trouble")

        async def main() -> None:
            heard: list[str] = []
            bad, good = Noting(fail), Noting(lambda t, c: heard.append(t.id))
            bad.stepped = fail  # type: ignore[method-assign]
            async with working(llm, watchers=[bad, good]) as worker:
                answers = [await worker.open(ask(seed=i), ticket(str(i))) for i in range(3)]
                await asyncio.gather(*map(read, answers))
                assert sorted(heard) == ["0", "1", "2"]
                steps = sum(answer.completion.speculation.steps for answer in answers)
                assert steps / 3 <= good.steps <= steps + 3

        asyncio.run(main())


class TestSnapshots:
    def test_tell_of_what_runs_and_of_nothing(self, llm):
        async def main() -> None:
            hold = Held(llm.engine)
            async with working(llm) as worker:
                answers = [await worker.open(ask(tokens=60, seed=i), ticket()) for i in range(7)]
                while worker.snapshot.waiting != 3:
                    hold.let(1)
                    await asyncio.sleep(0.05)
                seen = worker.snapshot
                assert (seen.running, seen.failure) == (4, None)
                assert seen.blocks >= seen.blocks_used > 0
                assert seen.plain_s > 0
                hold.open()
                await asyncio.gather(*map(read, answers))
                while worker.snapshot.running or worker.snapshot.waiting:
                    await asyncio.sleep(0.01)
                seen = worker.snapshot
                assert (seen.waiting, seen.blocks_used) == (0, 0)
                assert seen.report.accepted + seen.report.steps == 7 * 60

        asyncio.run(main())


class TestOrders:
    def test_a_ceiling_is_in_force_when_it_returns(self, llm):
        async def main() -> None:
            async with working(llm) as worker:
                request = replace(ask("ab" * 40, tokens=300), speculation=SpeculationParams("always"))
                answer = await worker.open(request, ticket())
                async for _ in answer:
                    break
                await worker.limit(SpeculationParams("off"))
                before = await worker.call(lambda engine: engine.report())
                await read(answer)
                after = await worker.call(lambda engine: engine.report())
                assert after.verified == before.verified
                assert after.steps > before.steps
                with pytest.raises(OptionError, match="nonsense"):
                    await worker.limit(SpeculationParams(drafters=("nonsense",)))
                assert await worker.call(lambda engine: engine.ceiling.mode) == "off", "what it was stays"

        asyncio.run(main())

    def test_what_a_call_raises_comes_back(self, llm):
        async def main() -> None:
            async with working(llm) as worker:
                with pytest.raises(ZeroDivisionError):
                    await worker.call(lambda engine: 1 / 0)
                assert await worker.call(lambda engine: threading.current_thread().name) == "paceline-engine"

        asyncio.run(main())


class TestDraining:
    def test_lets_go_on_what_runs_and_takes_nothing_new(self, llm):
        async def main() -> None:
            async with working(llm) as worker:
                answers = [await worker.open(ask(seed=i), ticket()) for i in range(6)]
                reading = asyncio.gather(*map(read, answers))
                assert await worker.drain(30) == 0
                assert worker.draining
                with pytest.raises(Draining) as caught:
                    await worker.open(ask(), ticket())
                assert (caught.value.status, caught.value.retry_after) == (503, 5.0)
                await reading
                assert {answer.completion.finish_reason for answer in answers} == {"length"}

        asyncio.run(main())

    def test_cancels_what_is_left(self, llm):
        async def main() -> None:
            hold = Held(llm.engine)
            async with working(llm) as worker:
                answers = [await worker.open(ask(tokens=400, seed=i), ticket()) for i in range(6)]
                quiet = await worker.open(ask(tokens=400), ticket(background=True))
                asyncio.get_running_loop().call_later(0.3, hold.open)
                assert await worker.drain(0.1) == 6
                for answer in [*answers, quiet]:
                    await read(answer)
                    assert answer.completion.error == "the server is shutting down"

        asyncio.run(main())


class TestFailures:
    def test_a_step_that_raises_ends_what_runs_and_nothing_else(self, llm, plain_toy):
        async def main() -> None:
            observe, calls = llm.engine.governor.observe, iter(range(10_000))

            def failing(step: Any) -> Any:
                if next(calls) == 5:
                    raise RuntimeError("secret of the house")
                return observe(step)

            llm.engine.governor.observe = failing  # type: ignore[method-assign]
            async with working(llm) as worker:
                answers = [await worker.open(ask(tokens=60, seed=i), ticket()) for i in range(7)]
                ends = [(await read(answer))[-1] for answer in answers]
                assert [end.finish_reason for end in ends] == ["error"] * 4 + ["length"] * 3
                assert {end.error for end in ends[:4]} == {FAILED}
                assert worker.snapshot.failure is None
                again = await worker.open(ask(), ticket())
                await read(again)
                [expected] = plain_toy.run([ask()])
                assert again.completion.token_ids == expected.token_ids

        asyncio.run(main())

    def test_a_pass_that_fails_is_told_in_one_line(self, llm):
        async def main() -> None:
            forward, calls = llm.engine.target.forward, iter(range(10_000))

            def failing(*given: Any) -> Any:
                if next(calls) == 3:
                    raise RuntimeError("device lost")
                return forward(*given)

            llm.engine.target.forward = failing  # type: ignore[method-assign]
            async with working(llm) as worker:
                answer = await worker.open(ask(tokens=60), ticket())
                *_, end = await read(answer)
                assert (end.finish_reason, end.error) == ("error", FAILED)
                assert worker.snapshot.failure is None
                await read(await worker.open(ask(tokens=60), ticket()))

        asyncio.run(main())

    def test_an_engine_that_is_not_whole_is_given_up(self, llm):
        async def main() -> None:
            observe, calls = llm.engine.governor.observe, iter(range(10_000))

            def failing(step: Any) -> Any:
                if next(calls) == 5:
                    llm.engine.pool._users[-1] += 1
                    raise RuntimeError("worse")
                return observe(step)

            llm.engine.governor.observe = failing  # type: ignore[method-assign]
            async with working(llm) as worker:
                answers = [await worker.open(ask(tokens=60, seed=i), ticket()) for i in range(7)]
                for answer in answers:
                    *_, end = await read(answer)
                    assert end.finish_reason == "error"
                    assert "\n" not in end.error
                assert worker.snapshot.failure == "AssertionError in a step that could not be contained"
                with pytest.raises(EngineFailed):
                    await worker.open(ask(), ticket())
                with pytest.raises(EngineFailed):
                    await worker.call(whole)
                assert worker.idle
                assert await worker.drain(1) == 0

        asyncio.run(main())

    def test_what_runs_when_it_stops_ends_as_well(self, llm):
        async def main() -> None:
            hold = Held(llm.engine)
            worker = Worker(llm)
            worker.start()
            answers = [await worker.open(ask(tokens=400, seed=i), ticket()) for i in range(6)]
            hold.let(1)
            threading.Timer(0.1, hold.let, (1,)).start()
            worker.stop()
            for answer in answers:
                *_, end = await read(answer)
                assert (end.finish_reason, end.error) == ("error", "the engine does not run: it was stopped")

        asyncio.run(main())


def test_rejected_guesses_are_shown_where_asked_for(llm, plain_toy):
    class Wrong:
        def begin(self, seq: Any) -> None: ...
        def observe(self, seq: Any, seen: Any) -> None: ...
        def end(self, seq: Any) -> None: ...
        def propose(self, seqs: Any, limits: Any) -> Any:
            from paceline.core.tree import Draft

            return [Draft.chain([0] * min(3, limit), "wrong") for limit in limits]

    async def main() -> list[tuple[tuple[int, str, int], ...]]:
        llm.engine.desk.drafters = {"wrong": Wrong()}
        async with working(llm) as worker:
            asked = SpeculationParams("always", max_draft=3, show_rejected=True)
            shown = await worker.open(replace(ask(), speculation=asked), ticket())
            hidden = await worker.open(replace(ask(), speculation=replace(asked, show_rejected=False)), ticket())
            events = await read(shown)
            assert all(event.rejected == () for event in await read(hidden))
            assert shown.completion.token_ids == plain_toy.run([ask()])[0].token_ids
            counts = shown.completion.speculation
            assert sum(len(event.rejected) for event in events) == counts.verified - counts.accepted > 0
            return [event.rejected for event in events]

    [first, *_] = [rejected for rejected in asyncio.run(main()) if rejected]
    assert first[:3] == tuple((0, "wrong", depth) for depth in (1, 2, 3))
