"""From options to an engine: find the models, plan the memory, load, and put the parts together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from paceline.drafters import registry
from paceline.drafters.heads import DraftHeads
from paceline.drafters.registry import DraftModel, Surroundings
from paceline.drafters.trim import frequent
from paceline.engine import heads, identity, memory
from paceline.engine.drafting import DraftDesk
from paceline.engine.engine import Engine
from paceline.engine.measure import measure
from paceline.engine.memory import MemoryPlan
from paceline.engine.options import CONTEXT, Options, settle_weights
from paceline.engine.scheduler import Scheduler
from paceline.engine.spoken import Spoken, spelling
from paceline.engine.text import TextStream
from paceline.errors import OptionError, UnsupportedModel
from paceline.governor import saved
from paceline.governor.adaptive import Adaptive
from paceline.governor.alarms import Alarms
from paceline.governor.saved import Identity, Saved
from paceline.models import cache, toy
from paceline.models.bridge import Bridge, connect
from paceline.models.cache import Progress
from paceline.models.config import ModelConfig
from paceline.models.heads import Heads
from paceline.models.load import Model, load
from paceline.models.source import resolve
from paceline.runners.base import Runner
from paceline.runners.kv import Pool
from paceline.runners.openvino.quantise import HeadForm, Precision, settle_head, usual_head


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """What the options come to, before anything large is loaded or allocated."""

    options: Options
    target: Model
    draft: Model | None
    runner: str
    weights: Precision
    draft_weights: Precision
    context: int
    kv_tokens: int
    """Tokens that a KV pool holds; settled once, so that what is allocated is what was planned."""
    drafters: tuple[str, ...]
    memory: MemoryPlan | None
    """None for runners that plan their own."""
    bridge: Bridge | None = None
    """From the draft model's tokens to the target's."""
    heads: Heads | None = None
    head: HeadForm | None = None
    """Form of the matrix that answers, where it is not what goes with the weights."""

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers of the target that a drafter reads."""
        return self.heads.config.taps if self.heads is not None and "heads" in self.drafters else ()

    @property
    def identity(self) -> Identity | None:
        """All that measurements depend on; None where none are kept, as of toys."""
        options, drafters = self.options, self.drafters
        if not options.keep_costs or self.target.source.kind == "toy":
            return None
        draft = self.draft if "model" in drafters else None
        own_heads = options.heads if self.heads is not None and "heads" in drafters else None
        return {
            "machine": identity.machine(),
            "versions": identity.versions(self.runner),
            "runner": self.runner,
            "device": options.device,
            "numerics": options.numerics,
            "model": identity.content(self.target, self.weights),
            "weights": self.weights,
            "head_weights": self.head,
            "kv": options.kv,
            "draft": draft and identity.content(draft, self.draft_weights),
            "draft_weights": draft and self.draft_weights,
            "draft_vocabulary": draft and options.draft_vocabulary,
            "heads": own_heads and identity.listed(Path(own_heads).expanduser()),
            "heads_weights": own_heads and heads.precision(options, is_toy=False),
        }

    @property
    def spoken(self) -> Identity | None:
        """Whose tokens are counted; None where no draft model's head would be cut by the counts, or none are kept."""
        draft, size, bridge = self.draft, self.options.draft_vocabulary, self.bridge
        kept = self.options.keep_costs and self.target.source.kind != "toy" and "model" in self.drafters
        if not kept or draft is None or draft.checkpoint is None or bridge is None or bridge.way != "native":
            return None
        if size is None or len(draft.tokenizer.vocabulary) <= size:
            return None
        return {"model": identity.content(self.target, self.weights), "tokenizer": spelling(self.target.tokenizer)}


def choose(options: Options, progress: Progress = cache.silent) -> Chosen:
    """Read the models' descriptions and settle what is "auto".

    Raises:
        ModelError, OptionError, VocabularyError: the models or options do not go together.
    """
    target = load(resolve(options.model), progress)
    draft = load(resolve(options.draft), progress) if options.draft else None
    bridge = connect(target.tokenizer, draft.tokenizer) if draft is not None else None
    runner = _runner_name(options, target)
    is_toy = target.source.kind == "toy"
    config = target.checkpoint.config if target.checkpoint else None
    weights = settle_weights(options.weights, config, is_toy) if config else "fp32"
    if runner == "torch":
        weights = options.weights or "fp32"
    head = _head(options, runner, config, weights)
    draft_weights = options.draft_weights or ("fp32" if is_toy else "int4")
    context = _context(options, config.context if config else 512)
    beside = heads.read(options, target, runner)
    trees = runner != "openvino" or options.numerics == "fast"
    named = registry.choose(options.drafters, draft is not None, beside is not None, trees)
    drafters = named if options.speculate else ()
    tokens = _kv_tokens(options, target, weights, context)
    plan = None
    if runner == "openvino" and config is not None:
        pair = (draft.checkpoint.config, draft_weights) if draft and draft.checkpoint else None
        extra = (beside.config, heads.precision(options, is_toy)) if beside else None
        rows, sequences = options.prefill_rows, options.sequences
        cut = options.draft_vocabulary
        plan = memory.plan(
            config, weights, tokens, rows, pair, extra, sequences, head, options.kv, cut=cut, drafters=drafters
        )
    sizes = (weights, draft_weights, context, tokens)
    return Chosen(options, target, draft, runner, *sizes, drafters, plan, bridge, beside, head)


def build(chosen: Chosen, progress: Progress = cache.silent) -> Engine:
    """Load everything and return an engine that is ready.

    Raises:
        OutOfMemory: the plan does not fit what is free.
    """
    if chosen.memory is not None:
        chosen.memory.require()
    memory.trim()  # reading descriptions and tokenizers leaves much behind
    options, target = chosen.options, chosen.target
    runner = _load_runner(chosen, progress)
    context = min(chosen.context, runner.info.context)
    pool = _pool(runner, chosen.kv_tokens, options.prefix_cache)
    whose = chosen.spoken
    spoken = Spoken(whose, runner.info.vocab_size, options.share_history) if whose is not None else None
    draft = _draft_model(chosen, spoken, progress) if "model" in chosen.drafters else None
    beside = _heads(chosen, runner) if "heads" in chosen.drafters else None
    governor = _governor(chosen, runner, draft, beside, progress)
    surroundings = Surroundings(
        runner.info, draft, governor.least_survival, options.share_history, target.tokenizer, beside
    )
    from paceline.models.grammar import Grammars  # its library is not needed before

    grammars = Grammars(target.tokenizer, runner.info.vocab_size, target.eos_ids)
    desk = DraftDesk(registry.make(chosen.drafters, surroundings), runner.info)
    memory.trim()
    return Engine(
        target=runner,
        pool=pool,
        scheduler=Scheduler(pool, options.sequences, options.prefill_rows, options.numerics == "fast"),
        desk=desk,
        governor=governor,
        text=lambda request: TextStream(target.tokenizer, request),
        eos_ids=target.eos_ids,
        context=context,
        taps=chosen.taps,
        spoken=spoken,
        grammars=grammars,
    )


def _runner_name(options: Options, target: Model) -> str:
    kind = target.source.kind
    if kind == "toy" and target.checkpoint is None:
        if options.runner != "auto" or options.weights is not None:
            raise OptionError(f"{target.source.id} is a formula, which has no weights and one runner; leave them out")
        return "toy"
    if options.runner == "torch" and kind != "directory":
        raise OptionError(
            f"runner is 'torch' and the model is a {kind}; it runs Hugging Face directories and hub ids only"
        )
    if target.checkpoint is None:
        if options.runner == "openvino":
            raise UnsupportedModel(target.unsupported)
        return "torch"
    return "openvino" if options.runner == "auto" else options.runner


def _head(options: Options, runner: str, config: ModelConfig | None, weights: Precision) -> HeadForm | None:
    """Return the head's form where it is not what goes with the weights; refuse forms that would have no effect."""
    if runner == "openvino" and config is not None:
        return settle_head(config, weights, options.head_weights or usual_head(config, weights))
    for name, value in (("head_weights", options.head_weights), ("kv", options.kv)):
        if value not in (None, "f16"):
            raise OptionError(f"{name} is {value!r}, which the {runner} runner does not have; leave it out")
    return None


def _context(options: Options, trained: int) -> int:
    if options.context is not None and options.context > trained:
        raise OptionError(f"context is {options.context}; allowed: 2 to {trained}, which this model was trained for")
    return options.context or min(trained, CONTEXT)


def _kv_tokens(options: Options, target: Model, weights: Precision, context: int) -> int:
    """Return every sequence's context, or as much of it as fits a quarter of what is free now."""
    config = target.checkpoint.config if target.checkpoint else None
    if config is None:
        return context * options.sequences
    affordable = memory.free_bytes() // 4 // memory.kv_bytes(config, weights, 1024, options.kv) * 1024
    return max(context, min(context * options.sequences, affordable))


def _load_runner(chosen: Chosen, progress: Progress) -> Runner:
    target = chosen.target
    if chosen.runner == "toy":
        from paceline.runners.toy import ToyRunner

        law = toy.law(str(target.source.path))
        assert law is not None
        return ToyRunner(law)
    if chosen.runner == "torch":
        return _load_torch(chosen)
    assert target.checkpoint is not None
    from paceline.runners.openvino.runner import OpenVINORunner

    numerics, kv = chosen.options.numerics, chosen.options.kv
    return OpenVINORunner(
        target.checkpoint, chosen.weights, numerics, taps=chosen.taps, progress=progress, head=chosen.head, kv=kv
    )


def _load_torch(chosen: Chosen) -> Runner:
    from paceline.runners import torch

    if chosen.weights not in ("fp32", "bf16"):
        raise OptionError(f"weights is {chosen.weights!r}; the torch runner allows: fp32, bf16")
    return torch.load(chosen.target.source.path, chosen.options.device, chosen.weights)


def _draft_model(chosen: Chosen, spoken: Spoken | None, progress: Progress) -> DraftModel:
    draft, options = chosen.draft, chosen.options
    if draft is None:
        raise OptionError("drafters has 'model', which needs a draft model; name one with --draft")
    if draft.checkpoint is None:
        alone = replace(chosen, target=draft, runner=_runner_name(options, draft), weights="fp32")
        runner, vocabulary = _load_runner(alone, progress), None
    else:
        from paceline.runners.openvino.runner import OpenVINORunner

        size = options.draft_vocabulary
        counts = spoken.counts if spoken is not None else None
        vocabulary = frequent(draft.tokenizer, size, draft.eos_ids, counts) if size else None
        weights, config = chosen.draft_weights, draft.checkpoint.config
        head = usual_head(config, weights)
        runner = OpenVINORunner(draft.checkpoint, weights, "fast", vocabulary, progress=progress, head=head)
    return DraftModel(runner, _pool(runner, chosen.kv_tokens, options.prefix_cache), vocabulary, chosen.bridge)


def _heads(chosen: Chosen, runner: Runner) -> DraftHeads:
    if chosen.heads is None:
        raise OptionError("drafters has 'heads', which needs draft heads; name their directory with --heads")
    options = chosen.options
    weights = heads.precision(options, chosen.target.source.kind == "toy")
    return heads.load(chosen.heads, runner, weights, chosen.kv_tokens, options.prefix_cache)


def _governor(
    chosen: Chosen, runner: Runner, draft: DraftModel | None, beside: DraftHeads | None, progress: Progress
) -> Adaptive:
    """Measure, or read what was measured before, and make the governor that goes by it."""
    options, known = chosen.options, _known(chosen)
    before = known.costs if known is not None else None
    draft_runner = draft.runner if draft is not None else None
    costs = measure(runner, draft_runner, chosen.kv_tokens, options.sequences, before, progress)
    if beside is not None and costs.known and not costs.draft("heads", 1):
        costs.learn_draft("heads", 1, heads.seconds(beside))
        costs.profiled_draft["heads"] = costs.drafts["heads"].seconds(1)
    alarms = Alarms(known.history if known is not None else None)
    acceptance = known.acceptance if known is not None else None
    return Adaptive(options.max_draft, costs, chosen.drafters, options.epsilon, alarms, acceptance)


def _known(chosen: Chosen) -> Saved | None:
    named = chosen.identity
    found = saved.read(saved.place(named), named) if named is not None else None
    return found if isinstance(found, Saved) else None


def _pool(runner: Runner, tokens: int, reuse: bool) -> Pool:
    blocks = -(-tokens // runner.info.block_size)
    runner.allocate(blocks)
    return Pool(blocks, runner.info.block_size, runner.move, reuse and runner.info.can_rewind)
