"""Answers that lie on a device: what a draw needs is found there, for all rows at once, and only that is fetched."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from paceline.core import rows
from paceline.core.rows import Ids, Logits, Near
from paceline.runners.torch.taps import host

Few = list[tuple[Ids, Logits]]
"""For each row some tokens, ascending, and their logits."""


def answers(logits: Tensor) -> Logits | DeviceRows:
    """Return [rows, vocabulary] as an array where that costs no copy from a device."""
    return host(logits) if logits.device.type == "cpu" else DeviceRows(logits)


class DeviceRows:
    """[rows, vocabulary] on a device. Ids are those that `HostRow` finds; sums may round differently."""

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits.float()
        self._within: dict[float, Few] = {}
        self._top: dict[int, Few] = {}
        self._near: dict[float, list[Near]] = {}

    def __len__(self) -> int:
        return len(self._logits)

    def __getitem__(self, index: int) -> DeviceRow:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return DeviceRow(self, index % len(self))

    @property
    def size(self) -> int:
        return self._logits.shape[1]

    @cached_property
    def _whole(self) -> Logits:
        return host(self._logits)

    def whole(self) -> Logits:
        return self._whole

    def row(self, index: int) -> Logits:
        return self._whole[index] if "_whole" in vars(self) else host(self._logits[index])

    def at(self, index: int, token: int) -> float:
        return float(self._logits[index, token])

    @cached_property
    @torch.inference_mode()
    def best(self) -> list[int]:
        found: list[int] = self._logits.argmax(-1).tolist()
        return found

    @torch.inference_mode()
    def within(self, margin: float) -> Few:
        if margin not in self._within:
            self._within[margin] = self._from(self._least(margin))
        return self._within[margin]

    @torch.inference_mode()
    def top(self, n: int) -> Few:
        if n not in self._top:
            least = self._logits.topk(min(n, self.size)).values[:, -1]
            self._top[n] = self._from(least)
        return self._top[n]

    @torch.inference_mode()
    def near(self, temperature: float) -> list[Near]:
        if temperature not in self._near:
            least = self._least(rows.reach(self.size, temperature))
            if self.size > rows.MOST:  # more than are kept in the end are not fetched, but for ties
                least = torch.maximum(least, self._logits.topk(rows.MOST).values[:, -1])
            below = self._below(least, temperature).tolist()
            self._near[temperature] = [
                Near.of(ids, logits, mass, temperature)
                for (ids, logits), mass in zip(self._from(least), below, strict=True)
            ]
        return self._near[temperature]

    @cached_property
    def _highest(self) -> Tensor:
        return self._logits.amax(-1)

    def _least(self, margin: float) -> Tensor:
        """Return [rows], the least logits within a margin of the highest."""
        found = [rows.least(highest, margin) for highest in self._highest.tolist()]
        return torch.tensor(found, dtype=torch.float32, device=self._logits.device)

    def _from(self, least: Tensor) -> Few:
        """Return each row's tokens from a logit on."""
        place = (self._logits >= least[:, None]).nonzero(as_tuple=True)
        at, ids = (part.cpu().numpy() for part in place)
        ends = np.searchsorted(at, np.arange(1, len(self)))
        return list(zip(np.split(ids, ends), np.split(host(self._logits[place]), ends), strict=True))

    def _below(self, least: Tensor, temperature: float) -> Tensor:
        """Return [rows], sums of exp((logit - highest) / temperature) over the tokens below a logit, in fp64."""
        mass = ((self._logits - self._highest[:, None]) * rows.factor(temperature)).exp()
        return mass.masked_fill_(self._logits >= least[:, None], 0).sum(-1, dtype=torch.float64)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceRow:
    """One of them."""

    rows: DeviceRows
    index: int

    @property
    def size(self) -> int:
        return self.rows.size

    def best(self) -> int:
        return self.rows.best[self.index]

    def within(self, margin: float) -> tuple[Ids, Logits]:
        return self.rows.within(margin)[self.index]

    def near(self, temperature: float) -> Near:
        return self.rows.near(temperature)[self.index]

    def top(self, n: int) -> tuple[Ids, Logits]:
        return self.rows.top(n)[self.index]

    def at(self, token: int) -> float:
        return self.rows.at(self.index, token)

    def whole(self) -> Logits:
        return self.rows.row(self.index)
