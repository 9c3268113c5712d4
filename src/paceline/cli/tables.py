"""A survey as tables."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from paceline.cli.account import draft_runner
from paceline.cli.survey import Survey, why_rewind, why_runner
from paceline.drafters import registry
from paceline.engine.build import Chosen
from paceline.engine.memory import MemoryPlan, mib
from paceline.models.bridge import Bridge
from paceline.models.heads import HeadsConfig
from paceline.models.load import Model
from paceline.models.vocabulary import Comparison


def tables(found: Survey) -> Iterator[RenderableType]:
    chosen = found.chosen
    yield _titled("model", _facts([*_model(chosen.target), *_running(chosen)]))
    if found.draft is not None and found.vocabulary is not None:
        facts = [*_model(found.draft), *_drafting(found.draft, chosen, found.vocabulary)]
        yield _titled("draft model", _facts(facts))
    if chosen.heads is not None:
        yield _titled("heads", _facts(_heads(str(chosen.options.heads), chosen.heads.config)))
    yield _titled("drafters", _facts(_drafters(found)))
    yield _titled("memory", _unplanned(chosen) if chosen.memory is None else _plan(chosen, chosen.memory))


def _titled(title: str, table: Table) -> Group:
    return Group(Text(title, style="bold"), table, "")


def _facts(rows: list[tuple[str, str]]) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True, style="dim", min_width=14)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def _model(model: Model) -> list[tuple[str, str]]:
    config, tokenizer = model.checkpoint.config if model.checkpoint else None, model.tokenizer
    known = [("architecture", "not known to us" if model.unsupported else "a formula")]
    if config is not None:
        known = [
            ("architecture", config.family),
            ("parameters", f"{config.parameters:,}"),
            ("layers", str(config.layers)),
            ("context", f"{config.context:,} tokens"),
        ]
    template = "yes" if tokenizer.chat_template is not None else "no: use --raw"
    return [
        ("name", model.source.id),
        *known,
        ("tokenizer", f"{len(tokenizer.vocabulary):,} tokens"),
        ("chat template", template),
    ]


def _running(chosen: Chosen) -> list[tuple[str, str]]:
    rewinds, where = why_rewind(chosen)
    answer = {True: "yes", False: "no", None: "not known yet"}[rewinds]
    return [
        ("runner", f"{chosen.runner}: {why_runner(chosen)}"),
        ("weights", "exact" if chosen.runner == "toy" else chosen.weights),
        ("numerics", chosen.options.numerics),
        ("served context", f"{chosen.context:,} tokens"),
        ("can rewind", f"{answer}: {where}"),
    ]


def _drafting(draft: Model, chosen: Chosen, pair: Comparison) -> list[tuple[str, str]]:
    rows = [("runner", draft_runner(draft))]
    if draft.checkpoint is not None:
        rows.append(("weights", chosen.draft_weights))
        if draft.checkpoint.config.context < chosen.context:
            rows.append(("limit", f"it drafts only up to its own context of {draft.checkpoint.config.context:,}"))
    sizes = f"{pair.target_size:,} and {pair.drafter_size:,} tokens"
    if pair.kind == "native":
        return [*rows, ("vocabulary", f"native: the same tokens ({sizes})")]
    first = "; ".join(f"{d.token_id}: {_spelled(d.target)}, {_spelled(d.drafter)}" for d in pair.first)
    shown = f"different: {pair.different:,} ids differ ({sizes}); first, target's and drafter's: {first}"
    return [*rows, ("vocabulary", shown), *([("drafts", _way(chosen.bridge))] if chosen.bridge else [])]


def _way(bridge: Bridge) -> str:
    if bridge.way == "intersection":
        return f"tokens that both have, {bridge.shared:,} (TLI): {bridge.reason}"
    return f"text, put into the target's tokens (SLEM): {bridge.reason}"


def _heads(directory: str, config: HeadsConfig) -> list[tuple[str, str]]:
    kind = "EAGLE-3" if config.kind == "eagle3" else f"Medusa, {config.count} tokens ahead"
    taps = ", ".join(map(str, config.taps))
    reads = f"the target's states after layers {taps}" if config.kind == "eagle3" else "the target's last state"
    return [
        ("name", directory),
        ("kind", f"{kind}, in the layout of {config.layout}"),
        ("fits", f"yes: {config.target_width} wide, {config.vocab_size:,} tokens"),
        ("reads", reads),
        ("parameters", f"{config.parameters:,}"),
        ("vocabulary", f"drafts {config.draft_vocab_size:,} of the target's {config.vocab_size:,} tokens"),
    ]


def _spelled(token: str | None) -> str:
    return "nothing" if token is None else repr(token)


def _drafters(found: Survey) -> list[tuple[str, str]]:
    there = sorted(registry.known())
    lacking = [
        note
        for note, there in (("model needs --draft", found.draft), ("heads needs --heads", found.chosen.heads))
        if there is None
    ]
    without = f" ({', '.join(lacking)})" if lacking else ""
    return [("available", ", ".join(there) + without), ("used", ", ".join(found.chosen.drafters) or "none")]


def _unplanned(chosen: Chosen) -> Table:
    needs = "a toy needs next to none" if chosen.runner == "toy" else f"not known: the {chosen.runner} runner plans it"
    return _facts([("needed", needs)])


def _plan(chosen: Chosen, plan: MemoryPlan) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True, style="dim", min_width=14)
    table.add_column(justify="right")
    sizes = {
        "weights": plan.weights,
        f"KV, {chosen.kv_tokens:,} tokens": plan.kv,
        "draft weights": plan.draft_weights,
        "draft KV": plan.draft_kv,
        "logits": plan.logits,
        "remembered": plan.remembered,
        "program": plan.program,
        "total": plan.total,
        "free": plan.free,
    }
    for name, size in sizes.items():
        table.add_row(name, mib(size))
    table.add_row("fits", "yes" if plan.fits else "no")
    return table
