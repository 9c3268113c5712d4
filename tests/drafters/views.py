"""Sequences as drafters see them."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.core.sampling import Shaping
from paceline.core.types import Rule, SamplingParams
from paceline.core.verify import Randomness

GREEDY = SamplingParams()


@dataclass
class View:
    tokens: list[int]
    id: int = 0
    rule: Rule = "coupled"
    params: SamplingParams = GREEDY
    seed: int = 3
    prediction: tuple[int, ...] = ()
    tenant: str = ""
    prompt_len: int = field(init=False)
    shaping: Shaping = field(init=False)
    noise: Randomness = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_len = len(self.tokens)
        self.shaping = Shaping(self.params, tuple(self.tokens))
        self.noise = Randomness(self.seed)
