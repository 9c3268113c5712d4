"""The step: one forward of the target, and what it confirms."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from paceline.core import tree
from paceline.core.rows import Row
from paceline.core.sampling import RowChoice
from paceline.core.tree import EMPTY, Draft
from paceline.core.types import RULES, Completion, Event, GrammarSpec, Request, SpeculationParams, SpeculationReport
from paceline.core.verify import verify
from paceline.drafters.base import Seen
from paceline.engine.drafting import DraftDesk
from paceline.engine.scheduler import Plan, Scheduler
from paceline.engine.sequence import Clocked, LiveSequence, Text
from paceline.engine.spoken import Spoken
from paceline.engine.tally import Tally
from paceline.errors import OptionError, RequestError
from paceline.governor.alarms import Alarm, Alarms
from paceline.governor.base import Governor, Outcome, Reason, StepReport
from paceline.runners.base import Output, Runner, Span, Want
from paceline.runners.kv import Pool

if TYPE_CHECKING:
    from paceline.models.grammar import Grammars

log = logging.getLogger(__name__)

TextFactory = Callable[[Request], Text]
Hidden = dict[int, NDArray[np.float32]]
"""layer -> [rows, width]"""


@dataclass(frozen=True, slots=True, eq=False)
class Deciding:
    """A sequence whose next token, or tokens, this step settles."""

    seq: LiveSequence
    drafted: Draft
    verified: Draft
    rows: list[Row]
    """The target's answers after the pending token and after each verified node."""
    hidden: Hidden


class Engine:
    """Runs requests until they are finished. Single thread; `step` does everything.

    Args:
        target: the model whose text this is; its blocks are allocated.
        pool: the target's KV pool.
        eos_ids: tokens that end a text unless a request ignores them.
        context: most tokens of a sequence.
        taps: layers whose hidden states the drafters want to see.
        text: makes the text stream of a request.
        spoken: counts the tokens of requests that have ended.
        grammars: what requests may ask for; None where that is none.
    """

    def __init__(
        self,
        target: Runner,
        pool: Pool,
        scheduler: Scheduler,
        desk: DraftDesk,
        governor: Governor,
        text: TextFactory,
        eos_ids: Sequence[int] = (),
        context: int | None = None,
        taps: Sequence[int] = (),
        clock: Callable[[], float] = time.perf_counter,
        spoken: Spoken | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        self.target, self.pool, self.scheduler, self.desk, self.governor = target, pool, scheduler, desk, governor
        self.spoken, self._grammars = spoken, grammars
        self._text, self._eos, self._clock = text, frozenset(eos_ids), clock
        self._taps = tuple(taps)
        self.context = min(context or target.info.context, target.info.context)
        self._live: dict[int, LiveSequence] = {}
        self._finished: dict[int, Completion] = {}
        self._pending_events: list[Event] = []
        self._next_id = 0
        self.ceiling = SpeculationParams("always")
        """What speculation may be at most; see `limit`."""
        self._ended = Tally()
        """Of all requests that have ended."""
        self._loosest = 0
        self.watch: Callable[[StepReport], None] | None = None
        """Called at the end of each step that decoded, or read prompts."""
        self._governing_s = 0.0
        """What the governor took after the end of the last step: the next one bears it."""

    @property
    def idle(self) -> bool:
        """Whether nothing waits, runs or has news."""
        return not self._live and not self._pending_events

    def add(self, request: Request) -> int:
        """Queue a request and return its id.

        Raises:
            RequestError: its prompt is empty, names tokens that do not exist, or leaves no room in the context or
                in the KV pool; or its grammar cannot be used.
        """
        self.check(request)
        given = request.sampling
        seq = LiveSequence(
            id=self._next_id,
            request=request,
            seed=secrets.randbits(64) if given.seed is None else given.seed,
            ending=frozenset(given.stop_token_ids) | (frozenset() if given.ignore_eos else self._eos),
            context=self.context,
            tree_context=self.target.info.tree_context,
            grammar=self._grammars.matcher(request.grammar) if self._grammars and request.grammar else None,
            text=self._text(request),
            clock=Clocked(self._clock()),
        )
        self._next_id += 1
        self._live[seq.id] = seq
        self._loosest = max(self._loosest, RULES.index(seq.rule))
        self.scheduler.add(seq)
        self.desk.begin(seq)  # by its own wish: the ceiling may be raised while it runs
        seq.keep_under(self.ceiling)
        return seq.id

    def limit(self, ceiling: SpeculationParams) -> None:
        """Set what speculation may be at most, from the next step on; requests that run already are no exception.

        Each request goes by the lower of this and its own wish, see `SpeculationParams.under`; mode `always` lowers
        none. What is switched off so counts as `requested_off`. Texts stay as they are, under the rules `ratio` and
        `block` in law.

        Raises:
            OptionError: it names a drafter that there is not, or a rule: that is each request's own.
        """
        if ceiling.rule != SpeculationParams().rule:
            raise OptionError(f"a ceiling has rule {ceiling.rule!r}; the rule is each request's own, leave it out")
        unknown = [name for name in ceiling.drafters or () if name not in self.desk.drafters]
        if unknown:
            allowed = ", ".join(self.desk.drafters) or "none"
            raise OptionError(f"a ceiling has drafter {unknown[0]!r}; this engine's drafters: {allowed}")
        self.ceiling = ceiling
        for seq in self._live.values():
            seq.keep_under(ceiling)

    def report(self) -> SpeculationReport:
        """Return the account of all requests so far, those that still run included.

        Its mode is that of a request without wishes, its rule the loosest that one asked for; there is no trace.
        """
        total = Tally()
        for tally in (self._ended, *(seq.tally for seq in self._live.values())):
            total.merge(tally)
        return total.report(replace(SpeculationParams().under(self.ceiling), rule=RULES[self._loosest]))

    def abort(self, request_id: int) -> None:
        """End a request where it stands; its event comes with the next step. Unknown ids are finished already."""
        seq = self._live.get(request_id)
        if seq is not None:
            self._pending_events.append(seq.fail("abort"))
            self._release(seq)

    def completion(self, request_id: int) -> Completion:
        """Hand over a finished request, once."""
        return self._finished.pop(request_id)

    def forget(self, request_ids: Iterable[int]) -> None:
        """Drop completions and news of finished requests that nobody will ask for."""
        gone = set(request_ids)
        self._pending_events = [event for event in self._pending_events if event.request_id not in gone]
        for request_id in gone:
            self._finished.pop(request_id, None)

    @property
    def alarms(self) -> Mapping[str, Alarm]:
        """What is out of order now, by name; a governor that watches nothing has none."""
        watch: Alarms | None = getattr(self.governor, "alarms", None)
        return {} if watch is None else watch.active

    def step(self) -> list[Event]:
        """Run one forward of the target and commit what it confirms."""
        start = self._clock()
        plan = self.scheduler.next()
        if not plan:
            return self._news()
        prompt_rows = sum(chunk.rows for chunk in plan.prefill)
        limits = self.governor.plan(plan.decoding, prompt_rows)
        before = self._clock()
        drafts = self.desk.propose(plan.decoding, limits, self.governor.value)
        drafted = self._clock()
        verified = self._fit(plan.decoding, self.governor.trim(plan.decoding, drafts))
        ready = self._clock()
        rows = self._rows(verified) if not plan.prefill else 0
        output = self._forward(plan, verified, rows)
        answered = self._clock()
        outcomes: list[Outcome] = []
        for deciding in self._deciding(plan, drafts, verified, output):
            self._pending_events.append(self._decide(deciding, outcomes))
        total = self._clock() - start + self._governing_s
        draft_s, forward_s = drafted - before, answered - ready
        self._account(
            StepReport(
                outcomes, prompt_rows, draft_s, forward_s, total - draft_s - forward_s, dict(self.desk.spent), rows
            )
        )
        self._release_finished()
        return self._news()

    def _news(self) -> list[Event]:
        """Hand out what has happened; an error before that must not lose it."""
        events, self._pending_events = self._pending_events, []
        return events

    def _fit(self, seqs: Sequence[LiveSequence], drafts: Sequence[Draft]) -> list[Draft]:
        """Reserve the drafts' rows; of a draft that finds too few blocks its likeliest nodes are verified.

        How many is known before a token is looked at, so that it biases no rule.
        """
        fitting = []
        for seq, draft in zip(seqs, drafts, strict=True):
            assert seq.slot is not None
            if not draft.is_chain and len(draft) > seq.tree_room:
                draft = tree.best_chain(draft)
            room = self.pool.room(seq.slot) - 1
            if room < len(draft):
                seq.tally.note(Reason.MEMORY)
                draft = tree.truncate(draft, room) if draft.is_chain else tree.prune(draft, room)
            reserved = self.pool.reserve(seq.slot, 1 + len(draft))
            assert reserved, "a sequence that decodes has room for its pending token"
            fitting.append(draft)
        return fitting

    def _rows(self, drafts: Sequence[Draft]) -> int:
        """Return how many rows the pass is to have."""
        drafted = sum(map(len, drafts))
        return self.governor.costs.steady(len(drafts) + drafted, plain=not drafted)

    def _forward(self, plan: Plan, drafts: Sequence[Draft], least: int) -> Output:
        spans = []
        for seq, draft in zip(plan.decoding, drafts, strict=True):
            assert seq.slot is not None
            spans.append(Span.drafted(seq.tokens[-1], draft, seq.cache_len, seq.slot.table))
        for chunk in plan.prefill:
            seq, rows = chunk.seq, chunk.rows
            assert seq.slot is not None
            if seq.clock.started is None:
                seq.clock.started = self._clock()
            part = seq.tokens[seq.cache_len : seq.cache_len + rows]
            wanted = [rows - 1] if chunk.finishes else []
            spans.append(Span.causal(part, seq.cache_len, seq.slot.table, wanted, stepwise=chunk.is_output))
        try:
            return self.target.forward(spans, Want(self._taps, least))
        except BaseException:
            # Nothing of this pass was committed, so the caches are sound; the sequences are not worth saving.
            for seq in [*plan.decoding, *(chunk.seq for chunk in plan.prefill)]:
                self._pending_events.append(seq.fail("error", "the forward pass failed"))
                self._release(seq)
            raise

    def _deciding(
        self, plan: Plan, drafted: Sequence[Draft], verified: Sequence[Draft], output: Output
    ) -> list[Deciding]:
        """Deal the answers out to their sequences, and cache what unfinished prompts have gained."""
        rows, hidden = output.rows, _Dealer(output.hidden)
        answers = (rows[i] for i in range(len(rows)))
        found = [
            Deciding(seq, whole, draft, [next(answers) for _ in range(1 + len(draft))], hidden.take(1 + len(draft)))
            for seq, whole, draft in zip(plan.decoding, drafted, verified, strict=True)
        ]
        for chunk in plan.prefill:
            seq, states = chunk.seq, hidden.take(chunk.rows)
            assert seq.slot is not None
            if chunk.finishes:
                found.append(Deciding(seq, EMPTY, EMPTY, [next(answers)], states))
            else:
                begin, part = seq.cache_len, seq.tokens[seq.cache_len :][: chunk.rows]
                self.pool.commit(seq.slot, part)
                self.desk.observe(seq, Seen(begin, part, EMPTY, None, [], states))
        return found

    def _decide(self, deciding: Deciding, outcomes: list[Outcome]) -> Event:
        """Walk the draft, commit what is confirmed; an error ends this sequence alone."""
        seq, draft = deciding.seq, deciding.verified
        assert seq.slot is not None
        begin, ran = seq.num_tokens, seq.tokens[seq.cache_len :]
        history = seq.output if seq.shaping.touches_logits else []

        def choices(row: int, path: tuple[int, ...]) -> RowChoice:
            return RowChoice(deciding.rows[row], seq.shaping, [*history, *path])

        try:
            verdict = verify(seq.rule, draft, choices, seq.noise, begin)
            event = seq.commit(draft, verdict, deciding.rows, self._clock())
        except Exception as error:
            log.exception("request %d failed", seq.id)
            seq.retract(begin)
            return seq.fail("error", f"{type(error).__name__}: {error}")
        committed = len(event.token_ids)
        kept = verdict.path[: committed - 1]
        tokens = [*ran, *(draft.tokens[node] for node in kept)]
        self.pool.commit(seq.slot, tokens, [*range(len(ran)), *(len(ran) + node for node in kept)])
        seq.tally.count(deciding.drafted, draft, verdict, committed)
        rows = [*ran, *draft.tokens]
        self.desk.observe(seq, Seen(begin - len(ran), rows, draft, verdict, deciding.rows, deciding.hidden))
        outcomes.append(Outcome(seq, deciding.drafted, draft, event.token_ids))
        return event

    def _account(self, step: StepReport) -> None:
        """Charge every sequence its share of the step, and let the governor learn from it."""
        start = self._clock()
        shares = self.governor.observe(step)
        self._governing_s = self._clock() - start
        n = len(step.outcomes)
        for outcome, share in zip(step.outcomes, shares, strict=True):
            tally = self._live[outcome.seq.id].tally
            tally.forward_s += step.forward_s / n
            tally.other_s += step.other_s / n
            tally.saved_s += share.saved_s
            tally.wasted_s += share.wasted_s
        if self.watch is not None:
            self.watch(step)

    def _release_finished(self) -> None:
        for seq in [s for s in self._live.values() if s.finish_reason]:
            self._release(seq)

    def _release(self, seq: LiveSequence) -> None:
        self.scheduler.remove(seq)
        self.desk.end(seq)
        del self._live[seq.id]
        if self.spoken is not None:
            self.spoken.hear(seq.request, seq.tokens)
        self._ended.merge(seq.tally)
        self._finished[seq.id] = seq.completion()

    def check(self, request: Request) -> None:
        """Raise RequestError for what `add` would not take; any thread may ask."""
        prompt, sampling, vocab = request.prompt, request.sampling, self.target.info.vocab_size
        if not prompt:
            raise RequestError("the prompt is empty; give at least one token of text")
        named = {
            "the prompt": prompt,
            "logit_bias": sampling.logit_bias,
            "stop_token_ids": sampling.stop_token_ids,
            "the prediction": request.prediction,
            "bad_token_ids": [token for word in request.bad_token_ids for token in word],
        }
        for what, tokens in named.items():
            wrong = next((t for t in tokens if not 0 <= t < vocab), None)
            if wrong is not None:
                raise RequestError(f"{what} has token id {wrong}; this model's ids are 0 to {vocab - 1}")
        if len(prompt) >= self.context:
            raise RequestError(
                f"the prompt has {len(prompt)} tokens; at most {self.context - 1} fit in the context of "
                f"{self.context}; shorten it or raise the context"
            )
        needed = self.pool.blocks_for(min(len(prompt) + sampling.max_tokens, self.context))
        if needed > self.pool.num_blocks:
            raise RequestError(
                f"prompt and max_tokens need {needed} KV blocks and the pool has {self.pool.num_blocks}; "
                "lower max_tokens or raise the context"
            )
        if request.grammar is not None:
            self._check_grammar(request.grammar, sampling.ignore_eos)

    def _check_grammar(self, grammar: GrammarSpec, ignore_eos: bool) -> None:
        if self._grammars is None:
            raise RequestError(f"there is a grammar ({grammar.kind}) and this engine takes none; leave it out")
        if ignore_eos:
            raise RequestError("there is a grammar, which end-of-sequence completes, and ignore_eos; leave one out")
        self._grammars.check(grammar)


class _Dealer:
    """Deals the rows of hidden states out, in order."""

    def __init__(self, hidden: Mapping[int, NDArray[np.float32]]) -> None:
        self._hidden, self._next = hidden, 0

    def take(self, rows: int) -> Hidden:
        begin, self._next = self._next, self._next + rows
        return {layer: states[begin : self._next] for layer, states in self._hidden.items()}
