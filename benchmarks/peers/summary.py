"""What measurements of many engines come to: speeds, ratios with intervals, tables."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from common import DRAWS
from trials import ALL as EVERY

from peers.engines import ALL, AUTO, OURS, PLAIN

HELD_AGAINST = ("genai:plain", "llama-native:plain")
"""Plain decoding elsewhere, which plain decoding here is compared with."""
Speeds = dict[str, dict[str, np.ndarray]]
"""Configuration -> category -> [prompt, 2]: tokens after the first to come, and their seconds, over all rounds."""


def common(measurements: Sequence[Mapping[str, Any]], left_out: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """Return the measurements of prompts that every configuration has answered, with tokens after the first.

    Of one that was left out nothing is taken: what it answered before it failed are not the same prompts.
    """
    kept = [each for each in measurements if each["configuration"] not in left_out]
    names = {each["configuration"] for each in kept}
    answered: dict[tuple[int, int], set[str]] = defaultdict(set)
    for each in kept:
        if each["tokens"] > each["first_tokens"]:
            answered[each["round"], each["prompt"]].add(each["configuration"])
    return [each for each in kept if answered[each["round"], each["prompt"]] == names]


def speeds(measurements: Sequence[Mapping[str, Any]]) -> Speeds:
    sums: dict[tuple[str, str], dict[int, np.ndarray]] = defaultdict(lambda: defaultdict(lambda: np.zeros(2)))
    for each in measurements:
        added = each["tokens"] - each["first_tokens"], each["decode_s"]
        sums[each["configuration"], each["category"]][each["prompt"]] += added
    found: Speeds = defaultdict(dict)
    for (name, category), by_prompt in sums.items():
        found[name][category] = np.stack([by_prompt[prompt] for prompt in sorted(by_prompt)])
    return found


def speed(of_category: np.ndarray) -> float:
    """Return tokens a second, the first token of each answer apart."""
    tokens, seconds = of_category.sum(0)
    return float(tokens / seconds)


def mean_speed(by_category: Mapping[str, np.ndarray]) -> float:
    """Return the geometric mean over the categories: each counts alike."""
    return float(np.exp(np.mean([np.log(speed(each)) for each in by_category.values()])))


def compared(found: Speeds, ours: str, theirs: Mapping[str, str]) -> dict[str, float]:
    """Return how many times as fast one is, and its 95 % interval.

    Args:
        theirs: for each category that counts, the configuration it is held against. Over several, it is the geometric
            mean. Prompts are drawn within their categories, the same ones for both sides.
    """
    rng = np.random.default_rng(0)
    means, draws = [], []
    for category, other in theirs.items():
        a, b = found[ours][category], found[other][category]
        picked = rng.integers(len(a), size=(DRAWS, len(a)))
        means.append(np.log(speed(a) / speed(b)))
        (a_tokens, a_seconds), (b_tokens, b_seconds) = (each[picked].sum(1).T for each in (a, b))
        draws.append(np.log(a_tokens / a_seconds * b_seconds / b_tokens))
    low, high = np.quantile(np.exp(np.mean(draws, 0)), [0.025, 0.975])
    return {"ratio": float(np.exp(np.mean(means))), "low": float(low), "high": float(high)}


def summarise(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return all figures that the tables show; empty where no prompt has been answered by all."""
    kept = common(result["measurements"], result["left_out"])
    found = speeds(kept)
    if not found:
        return {}
    categories = list(next(iter(found.values())))
    return {
        "prompts": len({each["prompt"] for each in kept}),
        "configurations": {name: _configuration(name, found, kept) for name in _listed(found)},
        "categories": {name: _category(name, found) for name in categories},
        EVERY: _overall(found, categories),
        "prompt_tokens_differ": _differing(kept),
    }


def _listed(found: Speeds) -> list[str]:
    known = [each.name for each in ALL]
    return sorted(found, key=lambda name: known.index(name) if name in known else len(known))


def _configuration(name: str, found: Speeds, kept: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    its = [each for each in kept if each["configuration"] == name]
    return {
        "tokens_per_s": mean_speed(found[name]),
        "by_category": {category: speed(each) for category, each in found[name].items()},
        "first_ms": 1e3 * statistics.median(each["first_s"] for each in its),
        "peak_mib": max(each["peak_mib"] for each in its),
        "tokens_an_answer": statistics.fmean(each["tokens"] for each in its),
    }


def _best_peer(category: str, found: Speeds) -> str | None:
    peers = [name for name in found if not name.startswith(f"{OURS.name}:")]
    return max(peers, key=lambda name: speed(found[name][category]), default=None)


def _category(category: str, found: Speeds) -> dict[str, Any]:
    best = _best_peer(category, found)
    cell: dict[str, Any] = {"prompts": len(next(iter(found.values()))[category]), "best_peer": best}
    if AUTO in found and best:
        cell["auto_over_best"] = compared(found, AUTO, {category: best})
    if {AUTO, PLAIN} <= found.keys():
        cell["auto_over_plain"] = compared(found, AUTO, {category: PLAIN})
    return cell


def _overall(found: Speeds, categories: Sequence[str]) -> dict[str, dict[str, float]]:
    cells = {}
    best = {category: name for category in categories if (name := _best_peer(category, found))}
    if AUTO in found and best:
        cells[f"{AUTO} / the best peer of each category"] = compared(found, AUTO, best)
    for ours, theirs in ((AUTO, PLAIN), *((PLAIN, other) for other in HELD_AGAINST)):
        if {ours, theirs} <= found.keys():
            cells[f"{ours} / {theirs}"] = compared(found, ours, dict.fromkeys(categories, theirs))
    return cells


def _differing(kept: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return for each configuration in how many prompts it read another number of tokens than most did."""
    counts: dict[int, dict[str, int]] = defaultdict(dict)
    for each in kept:
        counts[each["prompt"]][each["configuration"]] = each["prompt_tokens"]
    usual = {prompt: statistics.mode(by_name.values()) for prompt, by_name in counts.items()}
    odd: dict[str, int] = defaultdict(int)
    for prompt, by_name in counts.items():
        for name, tokens in by_name.items():
            odd[name] += tokens != usual[prompt]
    return {name: count for name, count in odd.items() if count}


def paces(batches: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, float]]:
    """Return for each batch and configuration the tokens a second of all sequences together, over all rounds."""
    sums: dict[tuple[int, str], np.ndarray] = defaultdict(lambda: np.zeros(2))
    for each in batches:
        sums[each["batch"], each["configuration"]] += each["tokens"], each["seconds"]
    found: dict[int, dict[str, float]] = defaultdict(dict)
    for (batch, name), (tokens, seconds) in sorted(sums.items()):
        if seconds > 0:
            found[batch][name] = float(tokens / seconds)
    return dict(found)


def show(result: Mapping[str, Any]) -> None:
    summary = summarise(result)
    if summary:
        _show_configurations(summary, result)
        _show_categories(summary)
    elif result["measurements"]:
        print("no prompt has been answered by every configuration yet")
    if result["batches"]:
        _show_batches(result["batches"])
    for name, why in result["left_out"].items():
        print(f"left out: {name}: {why}")


def _show_configurations(summary: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    print(f"{'configuration':20} {'tok/s':>7} {'first, ms':>9} {'peak, MiB':>9} {'tokens an answer':>16}")
    for name, c in summary["configurations"].items():
        figures = f"{c['tokens_per_s']:7.2f} {c['first_ms']:9.0f} {c['peak_mib']:9.0f} {c['tokens_an_answer']:16.1f}"
        print(f"{name:20} {figures}")
    print(
        f"\n{summary['prompts']} prompts that all have answered, {result['arguments']['threads']} threads; tok/s: "
        "tokens after the first, a second, the geometric mean over categories.\n"
        "Texts differ between engines, as weights and rounding do."
    )
    shared = defaultdict(list)
    for name in summary["configurations"]:
        shared[result["processes"][name]].append(name)
    for names in shared.values():
        if len(names) > 1:
            print(f"one process, and so one peak: {', '.join(names)}")
    for name, count in summary["prompt_tokens_differ"].items():
        print(f"{name} read another number of tokens than most in {count} prompts")


def _show_categories(summary: Mapping[str, Any]) -> None:
    categories = summary["categories"]
    print(f"\n{'tok/s':20} " + " ".join(f"{name[:12]:>12}" for name in categories))
    for name, c in summary["configurations"].items():
        print(f"{name:20} " + " ".join(f"{c['by_category'][each]:12.2f}" for each in categories))
    print(f"\n{'category':20} {'prompts':>7} {'best peer':20} {'auto / best':>20} {'auto / plain':>20}")
    for name, c in categories.items():
        ratios = " ".join(f"{_interval(c.get(key)):>20}" for key in ("auto_over_best", "auto_over_plain"))
        print(f"{name:20} {c['prompts']:7} {c['best_peer'] or '':20} {ratios}")
    print()
    for name, c in summary[EVERY].items():
        print(f"{name:56} {_interval(c)}")


def _interval(cell: Mapping[str, float] | None) -> str:
    return f"{cell['ratio']:.3f} ({cell['low']:.3f}–{cell['high']:.3f})" if cell else ""


def _show_batches(batches: Sequence[Mapping[str, Any]]) -> None:
    by_batch = paces(batches)
    names = list(dict.fromkeys(name for cells in by_batch.values() for name in cells))
    print(f"\n{'together':>8}, tok/s " + " ".join(f"{name:>16}" for name in names))
    for batch, cells in by_batch.items():
        print(f"{batch:8}        " + " ".join(f"{cells[n]:16.1f}" if n in cells else f"{'':16}" for n in names))
