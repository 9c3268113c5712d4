"""A running server measured from outside: any that speaks OpenAI's chat API, ours or another.

Of a paceline server a mode is the request's own `speculation`, so plain decoding and others take turns on one server.
Elsewhere speculation is the server's affair: one server is one mode, and two, with and without, are compared by
NAME=URL,NAME=URL. Texts are compared as texts: clients see no tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from paceline.bench import published
from paceline.bench.client import Answer, Client
from paceline.bench.modes import listed
from paceline.bench.provenance import provenance
from paceline.bench.published import Published
from paceline.bench.result import ALL, Cell, Comparison, Difference, Result, Spread, Texts
from paceline.bench.summary import compared, noise
from paceline.bench.trials import Say, grouped
from paceline.bench.workloads import Workload
from paceline.core.types import SamplingParams, SpeculationParams
from paceline.errors import OptionError, PacelineError

SERVER = "server"
"""The one mode of a server whose requests cannot choose how it speculates."""
USUAL = "plain,off,auto"
WARM_UP = ({"role": "user", "content": "Count from one to twenty in words."},)


@dataclass(frozen=True, slots=True)
class Way:
    """A mode: where requests go, and what they ask of speculation there."""

    name: str
    client: Client
    model: str
    extra: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Round:
    """What one way made of a group of prompts that ran together."""

    way: str
    batch: int
    numbers: tuple[int, ...]
    answers: tuple[Answer, ...]
    published: Published | None

    @property
    def decode_s(self) -> float:
        """Time of tokens after the first ones: the mean over requests that ran together."""
        return sum(answer.decode_s for answer in self.answers) / len(self.answers)

    @property
    def decode_tokens(self) -> int:
        return sum(max(0, answer.tokens - 1) for answer in self.answers)

    @property
    def a_token_s(self) -> float:
        """Seconds of a token after the first, all requests together; 0 where nothing can be said."""
        return self.decode_s / self.decode_tokens if self.decode_tokens else 0.0


class RemoteBench:
    """Holds what was measured, so that whoever is interrupted keeps it."""

    def __init__(self, ways: Sequence[Way], workload: Workload, sampling: SamplingParams) -> None:
        self._ways, self._workload = tuple(ways), workload
        self._parameters = {"max_tokens": sampling.max_tokens, "temperature": sampling.temperature, "seed": 1}
        self.seen: list[Round] = []
        self._read: dict[str, str | None] = {}
        """What each server's /metrics said last."""
        self._predicting: set[str] = set()
        """Ways that take predictions."""

    def run(self, batches: Sequence[int], repeat: int, say: Say) -> None:
        """Raises PacelineError: a server refuses or breaks off."""
        for way in self._ways:
            say(f"{way.name}: warming up", 0, 1)
            self._warm_up(way)
            self._read[way.client.url] = _metrics(way.client)
        groups = {batch: grouped([item.category for item in self._workload.items], batch) for batch in batches}
        whole = sum(map(len, groups.values())) * repeat * 2 * len(self._ways)
        for batch, numbers in groups.items():
            for place, group in enumerate(numbers * repeat):
                first = place % len(self._ways)
                order = (*self._ways[first:], *self._ways[:first])
                for way in (*order, *reversed(order)):
                    category = self._workload.items[group[0]].category
                    say(f"{category}, {batch} at a time: {way.name}", len(self.seen), whole)
                    self.seen.append(self._round(way, batch, group))

    def _warm_up(self, way: Way) -> None:
        """Ask once; a server of ours refuses a prediction where no drafter would read it."""
        if way.extra.get("speculation", {}).get("mode", "off") != "off":
            with suppress(PacelineError):
                way.client.chat(way.model, WARM_UP, **self._parameters, **way.extra, **_expecting("One, two"))
                self._predicting.add(way.name)
        way.client.chat(way.model, WARM_UP, **self._parameters, **way.extra)

    def result(self) -> Result:
        """Sum up what there is so far."""
        names = list(dict.fromkeys(each.way for each in self.seen))
        texts, differences = self._texts(names[0])
        comparisons = tuple(self._comparisons(names))
        about = {way.name: f"{way.client.url} {way.model}" for way in self._ways}
        return Result(
            provenance=provenance() | {"workload": self._workload.name, "servers": about, "published_by": self._by()},
            cells=tuple(self._cells(names)),
            comparisons=comparisons,
            text_identical=texts,
            noise=noise(comparisons),
            differences=tuple(differences),
        )

    def _round(self, way: Way, batch: int, group: tuple[int, ...]) -> Round:
        def ask(number: int) -> Answer:
            item = self._workload.items[number]
            more = _expecting(item.prediction) if item.prediction and way.name in self._predicting else {}
            return way.client.chat(way.model, item.messages, **self._parameters, **way.extra, **more)

        with ThreadPoolExecutor(batch) as pool:
            answers = tuple(pool.map(ask, group))
        # From one reading to the next: what a server counts a little late is not lost in between.
        before, after = self._read[way.client.url], _metrics(way.client)
        self._read[way.client.url] = after
        said = _published(answers, before, after)
        return Round(way.name, batch, group, answers, said)

    def _by(self) -> str:
        found = dict.fromkeys(each.published.by for each in self.seen if each.published is not None)
        return ", ".join(found) or "nobody"

    def _comparisons(self, names: Sequence[str]) -> list[Comparison]:
        found: list[Comparison] = []
        for batch in dict.fromkeys(each.batch for each in self.seen):
            groups = {name: self._ratios(names[0], name, batch) for name in names[1:]}
            found += compared(self._workload.name, batch, names[0], groups)
        return found

    def _ratios(self, reference: str, name: str, batch: int) -> dict[str, list[list[float]]]:
        found: dict[str, list[list[float]]] = {}
        mine = [each for each in self.seen if each.batch == batch]
        for numbers in dict.fromkeys(each.numbers for each in mine):
            pair = [[each for each in mine if (each.numbers, each.way) == (numbers, n)] for n in (reference, name)]
            ratios = [a.a_token_s / b.a_token_s for a, b in zip(*pair, strict=False) if a.a_token_s and b.a_token_s]
            if ratios:
                found.setdefault(self._workload.items[numbers[0]].category, []).append(ratios)
        return found

    def _cells(self, names: Sequence[str]) -> list[Cell]:
        found = []
        for batch in dict.fromkeys(each.batch for each in self.seen):
            for name in names:
                mine = [each for each in self.seen if (each.batch, each.way) == (batch, name)]
                categories = dict.fromkeys(self._workload.items[each.numbers[0]].category for each in mine)
                for category in categories:
                    part = [each for each in mine if self._workload.items[each.numbers[0]].category == category]
                    found.append(_cell(self._workload.name, category, part))
                if mine:
                    found.append(_cell(self._workload.name, ALL, mine))
        return found

    def _texts(self, reference: str) -> tuple[Texts, list[Difference]]:
        first: dict[tuple[int, int], str] = {}
        differences = []
        compared = equal = 0
        for each in sorted(self.seen, key=lambda found: found.way != reference):
            for number, answer in zip(each.numbers, each.answers, strict=True):
                known = first.setdefault((each.batch, number), answer.text)
                compared += 1
                equal += known == answer.text
                if known != answer.text:
                    category = self._workload.items[number].category
                    at = _parting(known, answer.text)
                    differences.append(Difference(category, each.batch, each.way, number, at, None))
        compared, equal = compared - len(first), equal - len(first)
        return Texts(equal, compared, 0, compared - equal), differences[:20]


def parse(text: str, modes: str | None, key: str | None) -> list[Way]:
    """Return the ways that an address, or several with names, comes to; servers are asked what they are.

    Raises:
        OptionError: an address or a mode is wrong, or there are modes where a server has none.
        PacelineError: a server does not answer.
    """
    if "=" in text.split("://")[0]:
        if modes is not None:
            raise OptionError("modes are named by the URLs (NAME=URL,NAME=URL); leave --modes out")
        pairs = [part.partition("=") for part in text.split(",")]
        if len({name for name, _, _ in pairs}) < len(pairs) or not all(name and url for name, _, url in pairs):
            raise OptionError(f"url is {text!r}; allowed: URL, or NAME=URL,NAME=URL with each name once")
        clients = {name: Client(url, key) for name, _, url in pairs}
        return [Way(name, client, client.about()[0], {}) for name, client in clients.items()]
    client = Client(text, key)
    model, owner = client.about()
    if owner == "paceline":
        return [Way(mode.name, client, model, {"speculation": _wish(mode.params)}) for mode in listed(modes or USUAL)]
    if modes is not None:
        raise OptionError(
            f"{text} lets no request choose how it speculates, so --modes cannot be; "
            "leave it out, or compare two servers: --url plain=URL,fast=URL"
        )
    return [Way(SERVER, client, model, {})]


def _wish(params: SpeculationParams) -> dict[str, Any]:
    """Past answers are left aside: prompts come again here, and their answers would be drafted from themselves."""
    wish: dict[str, Any] = {"mode": params.mode, "history": False}
    if params.max_draft is not None:
        wish["max_draft_tokens"] = params.max_draft
    if params.drafters is not None:
        wish["drafters"] = list(params.drafters)
    return wish


def _published(answers: Sequence[Answer], before: str | None, after: str | None) -> Published | None:
    """What answers say is of them alone, counters are of all that the server did meanwhile."""
    said = published.of_answers([a.usage for a in answers], [a.timings for a in answers])
    if before is None or after is None or (said is not None and said.accepted_at):
        return said
    counted = published.of_metrics(before, after, [len(a.arrivals) for a in answers], sum(a.tokens for a in answers))
    if said is None or counted is None or counted.by != said.by:
        return said or counted
    return replace(said, accepted_at=counted.accepted_at)


def _metrics(client: Client) -> str | None:
    with suppress(PacelineError):
        return client.text("/metrics")
    return None


def _expecting(text: str) -> dict[str, Any]:
    return {"prediction": {"type": "content", "content": text}}


def _cell(workload: str, category: str, rounds: Sequence[Round]) -> Cell:
    answers = [answer for each in rounds for answer in each.answers]
    sums = published.total([each.published for each in rounds if each.published is not None])
    tokens = sum(a.tokens for a in answers)
    in_steps = sum(ms or 0.0 for ms in (sums.draft_ms, sums.verify_ms, sums.other_ms))
    return Cell(
        workload=workload,
        category=category,
        batch=rounds[0].batch,
        mode=rounds[0].way,
        prompts=len({number for each in rounds for number in each.numbers}),
        tokens=tokens,
        tokens_per_s=sum(each.decode_tokens for each in rounds) / max(1e-9, sum(each.decode_s for each in rounds)),
        tpot_ms=Spread.of([1e3 * a.decode_s / (a.tokens - 1) for a in answers if a.tokens > 1]),
        ttft_ms=Spread.of([1e3 * a.ttft_s for a in answers]),
        acceptance_length=sums.acceptance_length,
        acceptance_rate=sums.acceptance_rate,
        peak_memory_bytes=None,
        wasted_share=sums.wasted_ms / in_steps if sums.wasted_ms is not None and in_steps else None,
        coverage=None if sums.drafted is None else sums.drafted / max(1, tokens),
        steps=sums.passes,
        accepted_at=sums.accepted_at,
        draft_ms=sums.draft_ms,
        verify_ms=sums.verify_ms,
        other_ms=sums.other_ms,
    )


def _parting(a: str, b: str) -> int:
    """Return the first character that is another."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
