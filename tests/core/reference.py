"""Plain, slow, obviously right versions of what core does: loops, dense vectors and closed forms, no cleverness."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from paceline.core.noise import TargetNoise
from paceline.core.sampling import Shaping
from paceline.core.tree import Draft
from paceline.core.types import LARGEST, ROOT, SamplingParams

Context = tuple[int, ...]
Dense = Sequence[float]
Table = Callable[[Context], Dense]
"""A context's law over the vocabulary, as a dense vector."""


def shaped_logits(logits: Sequence[float], shaping: Shaping, output: Sequence[int]) -> list[np.float32]:
    """Penalties, bias and bans, one token at a time, in the precision of the logits."""
    params, shaped = shaping.params, [np.float32(x) for x in logits]
    for token in set(shaping.prompt) | set(output):
        penalty = np.float32(params.repetition_penalty)
        shaped[token] = shaped[token] / penalty if shaped[token] > 0 else shaped[token] * penalty
    for token in set(output):
        shaped[token] -= np.float32(params.presence_penalty + params.frequency_penalty * list(output).count(token))
    for token, bias in params.logit_bias.items():
        shaped[token] += np.float32(max(bias, -LARGEST))
    banned = {t for t in range(len(shaped)) for bad in shaping.bad if (*output, t)[-len(bad) :] == bad}
    if len(output) < params.min_tokens:
        banned |= set(shaping.ending)
    if any(math.isfinite(x) for t, x in enumerate(shaped) if t not in banned):
        shaped = [np.float32(-math.inf) if t in banned else x for t, x in enumerate(shaped)]
    return shaped


def dense_law(logits: Sequence[float], shaping: Shaping, output: Sequence[int]) -> list[float]:
    params, shaped = shaping.params, [float(x) for x in shaped_logits(logits, shaping, output)]
    if params.temperature == 0:
        return one_hot(len(shaped), shaped.index(max(shaped)))
    live = {token: score for token, score in enumerate(shaped) if score > -math.inf}
    if params.top_k:
        bar = sorted(live.values(), reverse=True)[: params.top_k][-1]
        live = {token: score for token, score in live.items() if score >= bar}
    best = max(live.values())
    p = _normalised({token: math.exp((score - best) / params.temperature) for token, score in live.items()})
    if params.top_p < 1:
        mass, ranked = 0.0, sorted(p.values())
        while mass < params.top_p and ranked:
            bar = ranked.pop()
            mass += bar
        p = {token: x for token, x in p.items() if x >= bar}
    bar = params.min_p * max(p.values())
    p = _normalised({token: x for token, x in p.items() if x >= bar})
    return [p.get(token, 0.0) for token in range(len(shaped))]


def near_tokens(logits: Sequence[float], temperature: float, reach: float, most: int) -> list[int]:
    """The finite ones within temperature · reach of the highest, the `most` highest of them, ascending."""
    highest = max(logits)
    near = [t for t, x in enumerate(logits) if x > -math.inf and x >= highest - temperature * reach]
    return sorted(sorted(near, key=lambda t: (-logits[t], t))[:most])


def two_level_draw(logits: Sequence[float], temperature: float, noise: TargetNoise, reach: float, most: int) -> int:
    """The near tokens and the sum of all others compete; where the others win, a share of their mass says which."""
    shares = dense_law(logits, Shaping(SamplingParams(temperature=temperature)), ())
    near = near_tokens(logits, temperature, reach, most)
    others = [t for t in range(len(shares)) if t not in near]
    own = noise(np.arange(len(shares)))
    token, score = max(((t, math.log(shares[t]) + own[t]) for t in near), key=lambda pair: (pair[1], -pair[0]))
    mass = math.fsum(shares[t] for t in others)
    if mass == 0 or math.log(mass) + noise.of_tail() <= score:
        return token
    left = noise.within_tail() * mass
    for token in others:
        left -= shares[token]
        if left < 0:
            break
    return token


def _normalised(p: dict[int, float]) -> dict[int, float]:
    total = math.fsum(p.values())
    return {token: x / total for token, x in p.items()}


def one_hot(size: int, token: int) -> list[float]:
    return [float(t == token) for t in range(size)]


def ancestors(parents: Sequence[int], node: int) -> list[int]:
    """The nodes above `node`, nearest first."""
    found = []
    while (node := parents[node]) != ROOT:
        found.append(node)
    return found


def mask(parents: Sequence[int]) -> list[list[bool]]:
    """Row i sees the pending token, itself, and the rows above it."""
    rows = [[True] + [False] * len(parents)]
    for node in range(len(parents)):
        seen = {0, node + 1} | {above + 1 for above in ancestors(parents, node)}
        rows.append([row in seen for row in range(len(parents) + 1)])
    return rows


def token_path(draft: Draft, node: int) -> Context:
    """The tokens from the root's child down to `node`."""
    return tuple(draft.tokens[n] for n in [*reversed(ancestors(draft.parents, node)), node])


def merged(drafts: Iterable[Draft]) -> dict[Context, dict[str, float]]:
    """Path of tokens -> every drafter that named it, the first of them first, and the highest confidence it gave."""
    found: dict[Context, dict[str, float]] = {}
    for draft in drafts:
        for node in range(len(draft)):
            mine = found.setdefault(token_path(draft, node), {})
            for name, confidence in draft.guesses(node):
                mine[name] = max(mine.get(name, 0.0), confidence)
    return found


def survival(draft: Draft, node: int) -> float:
    return math.prod(draft.confidence[n] for n in [*reversed(ancestors(draft.parents, node)), node])


def best_first(draft: Draft, budget: int) -> set[int]:
    """Again and again the most probable node to be reached among those whose parent is in; of equals the first."""
    kept: set[int] = set()
    while len(kept) < min(budget, len(draft)):
        open_ = [n for n in range(len(draft)) if n not in kept and draft.parents[n] in kept | {ROOT}]
        kept.add(min(open_, key=lambda n: (-survival(draft, n), n)))
    return kept


def best_total(draft: Draft, budget: int) -> float:
    """The highest sum of survivals over every set of `budget` nodes that holds the parents of its nodes."""
    sets = (set(s) | {ROOT} for s in itertools.combinations(range(len(draft)), min(budget, len(draft))))
    connected = [s - {ROOT} for s in sets if all(draft.parents[n] in s for n in s - {ROOT})]
    return max(math.fsum(survival(draft, n) for n in s) for s in connected)


def walk(draft: Draft, next_token: Callable[[Context], int]) -> tuple[Context, int]:
    """Ask for the token after each confirmed path, and go on while some node carries it; return path and last token."""
    nodes: list[int] = []
    said: Context = ()
    while True:
        token = next_token(said)
        parent = nodes[-1] if nodes else ROOT
        here = [n for n in range(len(draft)) if draft.parents[n] == parent and draft.tokens[n] == token]
        if not here:
            return tuple(nodes), token
        nodes.append(here[0])
        said += (token,)


def argmax_draw(p: Dense, noise: Dense) -> int:
    """Gumbel-max over a dense vector; of equals the first."""
    scores = [math.log(x) + g if x > 0 else -math.inf for x, g in zip(p, noise, strict=True)]
    return scores.index(max(scores))


def keep_chances(tokens: Context, p: Table, q: Table, rule: str) -> list[float]:
    """c_0 … c_g: the chance that at least the first i drafted tokens stay, given those i tokens.

    ratio: the product of min(1, p/q). block: min(c · p/q, 1), step by step (Sun et al. 2403.10444, lemma 2).
    """
    chances = [1.0]
    for i, x in enumerate(tokens):
        share = p(tokens[:i])[x] / q(tokens[:i])[x]
        chances.append(chances[-1] * min(1.0, share) if rule == "ratio" else min(1.0, chances[-1] * share))
    return chances


def leftover(p: Dense, q: Dense, chance: float, rule: str) -> list[float]:
    """The mass per token that is emitted as a correction, given the path so far."""
    if rule == "ratio":
        return [chance * max(a - b, 0.0) for a, b in zip(p, q, strict=True)]
    return [max(chance * a - b, 0.0) for a, b in zip(p, q, strict=True)]


def emission_law(p: Table, q: Table, vocabulary: int, depth: int, rule: str) -> dict[Context, float]:
    """Tokens of one step (accepted ones and the last) -> probability, in closed form.

    With c_i the chance that i tokens stay, a step ends after path x with correction y in q(x) · leftover(y).
    """
    found: dict[Context, float] = {}
    for length in range(depth + 1):
        for path in itertools.product(range(vocabulary), repeat=length):
            drafted = math.prod(q(path[:i])[x] for i, x in enumerate(path))
            if drafted == 0:
                continue
            chance = keep_chances(path, p, q, rule)[-1]
            ends = [chance * x for x in p(path)] if length == depth else leftover(p(path), q(path), chance, rule)
            for y, mass in enumerate(ends):
                found[(*path, y)] = drafted * mass
    return found


def accepted_length(p: Table, q: Table, vocabulary: int, depth: int, rule: str) -> float:
    """Expected number of drafted tokens that stay: the sum over paths of q(path) · c."""
    total = 0.0
    for length in range(1, depth + 1):
        for path in itertools.product(range(vocabulary), repeat=length):
            drafted = math.prod(q(path[:i])[x] for i, x in enumerate(path))
            total += drafted * keep_chances(path, p, q, rule)[-1] if drafted else 0.0
    return total


def plain_law(p: Table, vocabulary: int, length: int) -> dict[Context, float]:
    """The law of the first `length` tokens without any speculation."""
    return {
        text: math.prod(p(text[:i])[x] for i, x in enumerate(text))
        for text in itertools.product(range(vocabulary), repeat=length)
    }


def completed(emitted: dict[Context, float], p: Table, vocabulary: int, length: int) -> dict[Context, float]:
    """The law of the first `length` tokens when plain decoding goes on after each emission."""
    found = dict.fromkeys(itertools.product(range(vocabulary), repeat=length), 0.0)
    for text in found:
        for cut in range(1, length + 1):
            rest = math.prod(p(text[:i])[text[i]] for i in range(cut, length))
            found[text] += emitted.get(text[:cut], 0.0) * rest
    return found


def ratio_verdict(
    tokens: Context, p: Table, q: Table, accept: Callable[[int], float], noise: Callable[[int], Dense]
) -> tuple[int, int]:
    """Kept tokens and the last one; `accept` and `noise` are asked by depth."""
    for i, x in enumerate(tokens):
        here, guess = p(tokens[:i]), q(tokens[:i])
        if accept(i) >= here[x] / guess[x]:
            left = leftover(here, guess, 1.0, "ratio")
            return i, argmax_draw(left if sum(left) > 0 else here, noise(i))
    return len(tokens), argmax_draw(p(tokens), noise(len(tokens)))


def block_verdict(
    tokens: Context, p: Table, q: Table, accept: Callable[[int], float], noise: Callable[[int], Dense]
) -> tuple[int, int]:
    """From the deepest block upwards, the first that is accepted is kept."""
    weights = keep_chances(tokens, p, q, "block")
    kept = len(tokens)
    while kept > 0:
        if kept == len(tokens):
            chance = weights[kept]
        else:
            left = sum(leftover(p(tokens[:kept]), q(tokens[:kept]), weights[kept], "block"))
            chance = left / (left + (1 - weights[kept])) if left or weights[kept] < 1 else 1.0
        if accept(kept - 1) < chance:
            break
        kept -= 1
    if kept == len(tokens):
        return kept, argmax_draw(p(tokens), noise(kept))
    left = leftover(p(tokens[:kept]), q(tokens[:kept]), weights[kept], "block")
    return kept, argmax_draw(left if sum(left) > 0 else p(tokens[:kept]), noise(kept))
