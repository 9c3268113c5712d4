"""What a completion cost and gained: as one line, and as the object that `--json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline import __version__
from paceline.core.types import Completion
from paceline.drafters import prediction
from paceline.engine import report
from paceline.engine.build import Chosen
from paceline.engine.llm import LLM
from paceline.governor.alarms import Alarm
from paceline.models.load import Model

SAME = 0.02
"""Speeds that differ by less are not told apart."""


def tokens_per_s(completion: Completion) -> float:
    """Return the speed of decoding; the first token belongs to reading the prompt. 0 where there is no other."""
    seconds = completion.timings.decode_ms / 1e3
    return (len(completion.token_ids) - 1) / seconds if seconds > 0 else 0.0


def closing_line(completion: Completion, plain: float | None, predicted: bool = False) -> str:
    """Return what happened, in one line.

    Args:
        plain: tokens per second of plain decoding, measured here; None where it was not.
        predicted: whether there was a prediction.
    """
    spec = completion.speculation
    end = "stopped" if completion.finish_reason == "abort" else completion.finish_reason
    parts = [f"{len(completion.token_ids)} tokens ({end})", _speed(completion, plain)]
    if spec.mode != "off":
        parts.append(f"τ {spec.acceptance_length:.2f}, accepted {spec.accepted} of {spec.drafted} drafted")
    if predicted:
        parts.append("prediction: accepted {}, rejected {}".format(*prediction.counted(spec).values()))
    if reasons := report.reasons(spec):
        parts.append("reasons: " + ", ".join(f"{code} {count}" for code, count in reasons.items()))
    if not spec.lossless:
        parts.append(f"LOSSY: rule {spec.rule} changes the text")
    return " · ".join(parts)


def alarm_lines(alarms: Mapping[str, Alarm]) -> list[str]:
    """Return a line for each alarm that is on."""
    return [f"alarm {alarm.name}: {alarm.text}" for alarm in alarms.values()]


def _speed(completion: Completion, plain: float | None) -> str:
    rate = tokens_per_s(completion)
    if not rate:
        return "too short to measure"
    shown = f"{rate:.1f} tokens/s"
    if completion.speculation.mode == "off":
        return f"{shown}, plain"
    if plain is None:
        return f"{shown}, plain not measured"
    ratio = rate / plain
    if ratio > 1 and not completion.speculation.accepted:
        return f"{shown}, plain {plain:.1f} here, no draft helped"  # the difference is the machine's mood
    verdict = "as fast" if abs(ratio - 1) < SAME else "faster" if ratio > 1 else "slower"
    return f"{shown}, plain {plain:.1f} here: ×{ratio:.2f}, {verdict}"


def as_json(
    llm: LLM, completion: Completion, load_s: float, with_sources: bool = False, predicted: bool = False
) -> dict[str, Any]:
    """Return the object that `generate --json` prints.

    Args:
        with_sources: list for each token the drafter that guessed it.
        predicted: whether there was a prediction.
    """
    timings, info = completion.timings, llm.engine.target.info
    found: dict[str, Any] = {
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "usage": {"prompt_tokens": completion.prompt_tokens, "completion_tokens": len(completion.token_ids)},
        "speculation": {
            **report.as_json(completion.speculation),
            "trace": [list(step) for step in completion.speculation.trace],
        },
        "timings": {
            "load_s": load_s,
            "prefill_ms": timings.prefill_ms,
            "decode_ms": timings.decode_ms,
            "decode_tokens_per_s": tokens_per_s(completion),
            "plain_tokens_per_s": llm.plain_tokens_per_s,
            "time_to_first_token_ms": timings.time_to_first_token_ms,
        },
        "model": {
            "id": llm.chosen.target.source.id,
            "runner": info.name,
            "weights": info.weights,
            "context": llm.engine.context,
        },
        "draft_model": draft_model(llm.chosen),
        "alarms": [{"name": alarm.name, "text": alarm.text} for alarm in llm.engine.alarms.values()],
        "seed": completion.seed,
        "version": __version__,
    }
    if predicted:
        found["usage"]["completion_tokens_details"] = prediction.counted(completion.speculation)
    if with_sources:
        found["sources"] = list(completion.sources)
    if completion.error is not None:
        found["error"] = completion.error
    return found


def draft_model(chosen: Chosen) -> dict[str, Any] | None:
    """Return the draft model that is in use."""
    draft = chosen.draft
    if draft is None or "model" not in chosen.drafters:
        return None
    weights = chosen.draft_weights if draft.checkpoint else "fp32"
    return {
        "id": draft.source.id,
        "runner": draft_runner(draft),
        "weights": weights,
        "context": draft.checkpoint.config.context if draft.checkpoint else chosen.context,
    }


def draft_runner(draft: Model) -> str:
    if draft.checkpoint is not None:
        return "openvino"
    return "toy" if draft.source.kind == "toy" else "torch"
