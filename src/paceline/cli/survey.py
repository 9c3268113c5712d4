"""What is known of a model, and of a pair, before anything large is read."""

from __future__ import annotations

import importlib.util
from dataclasses import asdict, dataclass, replace
from typing import Any

from paceline import __version__
from paceline.cli.account import draft_runner
from paceline.drafters import registry
from paceline.engine import heads
from paceline.engine.build import Chosen, choose
from paceline.engine.memory import mib
from paceline.engine.options import Options
from paceline.errors import ModelError, VocabularyError
from paceline.models.cache import Progress
from paceline.models.load import Model, load
from paceline.models.source import resolve
from paceline.models.vocabulary import Comparison, compare


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    chosen: Chosen
    """Without the draft model where it cannot speak to the target."""
    draft: Model | None
    vocabulary: Comparison | None
    """Of the pair; None without a draft model."""
    refusal: str = ""
    """Why the draft model cannot speak to the target."""
    misfit: str = ""
    """Why the draft heads cannot be used; `chosen` is without them then."""

    @property
    def problems(self) -> list[str]:
        """Why this would not run, or not as asked."""
        found = [why for why in (self.refusal, self.misfit) if why]
        memory = self.chosen.memory
        if memory is not None and not memory.fits:
            found.append(f"about {mib(memory.total)} of memory are needed and {mib(memory.free)} are free")
        runners = {self.chosen.runner, *([draft_runner(self.draft)] if self.draft else [])}
        if "torch" in runners and not all(map(importlib.util.find_spec, ("torch", "transformers"))):
            found.append("the torch runner is not installed: pip install 'paceline[torch]'")
        return found

    @property
    def unknown(self) -> list[str]:
        """What shows only when it is loaded."""
        if self.chosen.runner != "torch":
            return []
        found = ["how much memory the torch runner takes", "whether it can rewind"]
        return ["whether transformers knows this architecture", *found] if self.chosen.target.unsupported else found


def survey(options: Options, progress: Progress) -> Survey:
    """Read descriptions and tokenizers.

    Raises:
        ModelError, OptionError: a model cannot be read, or an option is wrong.
    """
    options, misfit = _fitting(options, progress)
    try:
        chosen = choose(options, progress)
        draft, refusal = chosen.draft, ""
    except VocabularyError as error:
        assert options.draft is not None
        chosen = choose(replace(options, draft=None, drafters=_without("model", options)), progress)
        draft, refusal = load(resolve(options.draft), progress), str(error)
    pair = chosen.bridge.comparison if chosen.bridge else None
    if draft is not None and pair is None:
        pair = compare(chosen.target.tokenizer, draft.tokenizer)
    return Survey(chosen, draft, pair, refusal, misfit)


def _fitting(options: Options, progress: Progress) -> tuple[Options, str]:
    """Return the options without heads that cannot be used, and why they cannot."""
    if options.heads is None:
        return options, ""
    bare = choose(replace(options, heads=None, draft=None, drafters=()), progress)
    try:
        heads.read(options, bare.target, bare.runner)
    except (ModelError, VocabularyError) as error:
        return replace(options, heads=None, drafters=_without("heads", options)), str(error)
    return options, ""


def _without(drafter: str, options: Options) -> tuple[str, ...] | None:
    return None if options.drafters is None else tuple(name for name in options.drafters if name != drafter)


def why_runner(chosen: Chosen) -> str:
    target = chosen.target
    if chosen.runner == "toy":
        return "this toy is a formula, not a network"
    if chosen.options.runner != "auto":
        return "as asked"
    if chosen.runner == "openvino":
        return "the default on a CPU, and it knows this family"
    return target.unsupported or "openvino cannot run it"


def why_rewind(chosen: Chosen) -> tuple[bool | None, str]:
    """Return whether rejected tokens can be taken back (None: not known before it is loaded), and in which layers."""
    if chosen.runner == "toy":
        return True, "its cache is the tokens themselves"
    if chosen.target.checkpoint is None or chosen.runner == "torch":
        return None, "the torch runner says so when it loads the model; without it nothing is drafted"
    config = chosen.target.checkpoint.config
    windows = len(config.window_layers)
    if not windows:
        return True, f"all {config.layers} layers, full attention"
    return True, (
        f"all {config.layers} layers, full attention in {config.layers - windows}, "
        f"a window of {config.window} tokens in {windows}"
    )


def as_json(found: Survey) -> dict[str, Any]:
    chosen, memory = found.chosen, found.chosen.memory
    rewinds, _ = why_rewind(chosen)
    model = _model(chosen.target, chosen.runner, chosen.weights, chosen.context)
    return {
        "model": model | {"runner_reason": why_runner(chosen), "can_rewind": rewinds},
        "draft_model": _draft(found),
        "heads": _heads(chosen),
        "vocabulary": _vocabulary(found),
        "memory": _memory(chosen) if memory else None,
        "drafters": {"available": sorted(registry.known()), "used": list(chosen.drafters)},
        "usable": not found.problems,
        "problems": found.problems,
        "unknown": found.unknown,
        "version": __version__,
    }


def _draft(found: Survey) -> dict[str, Any] | None:
    draft = found.draft
    if draft is None:
        return None
    context = draft.checkpoint.config.context if draft.checkpoint else None
    return _model(draft, draft_runner(draft), found.chosen.draft_weights, context)


def _vocabulary(found: Survey) -> dict[str, Any] | None:
    if found.vocabulary is None:
        return None
    pair, bridge = asdict(found.vocabulary), found.chosen.bridge
    if bridge is None:
        return pair | {"way": None, "reason": found.refusal}
    shares = {"target": bridge.target_share, "drafter": bridge.drafter_share}
    return pair | {"way": bridge.way, "reason": bridge.reason, "shared": bridge.shared, "shares": shares}


def _heads(chosen: Chosen) -> dict[str, Any] | None:
    if chosen.heads is None:
        return None
    config = chosen.heads.config
    return {
        "directory": chosen.options.heads,
        "kind": config.kind,
        "layout": config.layout,
        "taps": list(config.taps),
        "draft_vocabulary": config.draft_vocab_size,
        "parameters": config.parameters,
    }


def _model(model: Model, runner: str, weights: str, context: int | None) -> dict[str, Any]:
    config, tokenizer = model.checkpoint.config if model.checkpoint else None, model.tokenizer
    return {
        "id": model.source.id,
        "runner": runner,
        "weights": weights if config or runner == "torch" else "exact",
        "context": context,
        "architecture": config and config.family,
        "parameters": config and config.parameters,
        "layers": config and config.layers,
        "trained_context": config and config.context,
        "vocabulary": len(tokenizer.vocabulary),
        "chat_template": tokenizer.chat_template is not None,
    }


def _memory(chosen: Chosen) -> dict[str, Any]:
    memory = chosen.memory
    assert memory is not None
    sizes = {f"{name}_bytes": size for name, size in asdict(memory).items()}
    return sizes | {"total_bytes": memory.total, "fits": memory.fits, "kv_tokens": chosen.kv_tokens}
