"""The suffix drafter's definition, searched out: every place, every voter, every node, each time anew."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from paceline.core.types import ROOT
from paceline.drafters import suffix
from paceline.drafters.corpus import BREAK, LONGEST, SIZES

Text = list[int]
Nodes = list[tuple[int, int, float]]
"""(token, parent, confidence)"""


def matched(text: Text, place: int, tail: Text) -> int:
    """How many tokens before a place are the end of `tail`."""
    return max(n for n in range(LONGEST + 1) if n <= min(place, len(tail)) and text[place - n : place] == ends(tail, n))


def ends(tail: Text, n: int) -> Text:
    return tail[len(tail) - n :]


def places(text: Text, tail: Text, most: int) -> dict[int, int]:
    """Place -> match length; places are indices of `text`."""
    going_on = [p for p in range(len(text)) if text[p] != BREAK]
    found = {}
    for n in SIZES:
        for place in [p for p in going_on if matched(text, p, tail) >= n][-most:]:
            found[place] = matched(text, place, tail)
    return found


def children(text: Text, voters: list[int], length: int) -> list[tuple[int, float, list[int]]]:
    """(token, confidence, the places after it), most votes first, of equals the latest."""
    voters = [p for p in sorted(voters, reverse=True) if p < len(text) and text[p] != BREAK]
    ways = list(dict.fromkeys(text[p] for p in voters))
    votes = len(voters) + len(ways) * suffix.DOUBT * suffix.TRUST ** (length - 1)
    agreed = {token: [p + 1 for p in voters if text[p] == token] for token in ways}
    ranked = sorted(ways, key=lambda token: -len(agreed[token]))
    return [(token, len(agreed[token]) / votes, agreed[token]) for token in ranked]


def elect(text: Text, voters: list[int], length: int, most: int) -> tuple[Nodes, float]:
    """The likeliest nodes and the sum of their chances to be reached."""
    nodes: Nodes = []
    score = 0.0
    candidates = [(*way, ROOT, 1.0, length) for way in children(text, voters, length)]
    while len(nodes) < most:
        likely = [c for c in candidates if c[4] * c[1] >= suffix.LEAST]
        if not likely:
            break
        best = max(likely, key=lambda c: c[4] * c[1])
        candidates.remove(best)
        token, sure, agreed, parent, reached, depth = best
        nodes.append((token, parent, sure))
        score += reached * sure
        below = children(text, agreed, depth + 1)
        candidates += [(*way, len(nodes) - 1, reached * sure, depth + 1) for way in below]
    return nodes, score


def best(text: Text, tail: Text, limit: int) -> tuple[Nodes, float]:
    """The best of all match lengths."""
    found = places(text, tail, suffix.VOTERS)
    kept: tuple[Nodes, float] = ([], 0.0)
    asked = 0
    for length in range(LONGEST, 0, -1):
        voters = [place for place, n in found.items() if n >= length]
        if not voters or len(voters) < 2 * asked:
            continue
        asked = len(voters)
        nodes, score = elect(text, voters, length, min(limit, suffix.FACTOR * length))
        if score > kept[1]:
            kept = nodes, score
    return kept


def guess(texts: list[Text], tail: Text, limit: int) -> dict[tuple[int, ...], float]:
    """Path of tokens -> confidence of its last: the nodes of the best of each text, the likeliest `limit` of them."""
    sure: dict[tuple[int, ...], float] = {}
    for nodes, _ in sorted((best(text, tail, limit) for text in texts), key=lambda found: -found[1]):
        for path, confidence in zip(paths(nodes), (node[2] for node in nodes), strict=True):
            sure[path] = max(confidence, sure.get(path, 0.0))
    kept: set[tuple[int, ...]] = {()}
    while len(kept) <= limit and (front := [p for p in sure if p not in kept and p[:-1] in kept]):
        kept.add(max(front, key=lambda path: reached(sure, path)))
    return {path: confidence for path, confidence in sure.items() if path in kept}


def paths(nodes: list[tuple[int, int, float]]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for token, parent, _ in nodes:
        found.append((token,) if parent == ROOT else (*found[parent], token))
    return found


def reached(sure: dict[tuple[int, ...], float], path: tuple[int, ...]) -> float:
    chance = 1.0
    for n in range(1, len(path) + 1):
        chance *= sure[path[:n]]
    return chance


@dataclass
class Past:
    """What a history should hold."""

    tenants: int
    tenant_tokens: int
    tokens: int
    text: OrderedDict[str, Text] = field(default_factory=OrderedDict)

    def add(self, tenant: str, output: Text) -> None:
        if not output:
            return
        before = self.text.pop(tenant, [])
        self.text[tenant] = shorten([*before, *output, BREAK], min(self.tenant_tokens, self.tokens))
        if len(self.text) > self.tenants:
            self.text.popitem(last=False)
        while (total := sum(map(len, self.text.values()))) > self.tokens:
            quiet = next(iter(self.text))
            kept = len(self.text[quiet]) - (total - self.tokens)
            self.text[quiet] = shorten(self.text[quiet], max(0, kept))
            if not self.text[quiet]:
                del self.text[quiet]

    def touch(self, tenant: str) -> None:
        if tenant in self.text:
            self.text.move_to_end(tenant)

    def pieces(self) -> dict[str, list[Text]]:
        return {tenant: pieces(text) for tenant, text in self.text.items()}


def shorten(text: Text, most: int) -> Text:
    """The last `most` tokens, without a break at their beginning."""
    text = text[max(0, len(text) - most) :]
    return text[1:] if text[:1] == [BREAK] else text


def pieces(text: Text) -> list[Text]:
    found: list[Text] = [[]]
    for token in text:
        if token == BREAK:
            found.append([])
        else:
            found[-1].append(token)
    return [piece for piece in found if piece]
