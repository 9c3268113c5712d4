"""What it costs to send parcels: tariffs by zone and weight, surcharges, and the bill of a day."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

CENT = Decimal("0.01")
HEAVIEST_KG = Decimal(40)
VOLUME_PER_KG = 5000
"""Cubic centimetres that are charged like a kilogram."""


class TariffError(ValueError):
    """A parcel cannot be priced."""


@dataclass(frozen=True)
class Parcel:
    """A parcel on its way; sizes in centimetres, weight in kilograms."""

    number: str
    zone: str
    weight: Decimal
    length: int
    width: int
    height: int
    insured: Decimal = Decimal(0)
    is_fragile: bool = False

    @property
    def volume(self) -> int:
        return self.length * self.width * self.height

    @property
    def girth(self) -> int:
        longest, *others = sorted((self.length, self.width, self.height), reverse=True)
        return longest + 2 * sum(others)


@dataclass(frozen=True)
class Zone:
    """Where a parcel goes, and what the way there costs."""

    name: str
    base: Decimal
    per_kg: Decimal
    days: int


ZONES = {
    "home": Zone("home", Decimal("3.90"), Decimal("0.45"), 1),
    "near": Zone("near", Decimal("7.50"), Decimal("1.10"), 3),
    "far": Zone("far", Decimal("14.20"), Decimal("2.35"), 8),
}


def find_zone(name: str) -> Zone:
    """Return a zone by its name."""
    try:
        return ZONES[name.strip().lower()]
    except KeyError:
        raise TariffError(f"there is no zone {name!r}; there are: {', '.join(ZONES)}") from None


def billable_weight(parcel: Parcel) -> Decimal:
    """Return the weight that is charged: bulky parcels weigh what their volume says."""
    by_volume = Decimal(parcel.volume) / VOLUME_PER_KG
    weight = max(parcel.weight, by_volume)
    if weight > HEAVIEST_KG:
        raise TariffError(f"parcel {parcel.number} weighs {weight} kg; at most {HEAVIEST_KG} kg can be sent")
    return weight


def carriage(parcel: Parcel) -> Decimal:
    """Return the price of the way alone."""
    zone = find_zone(parcel.zone)
    return zone.base + zone.per_kg * billable_weight(parcel)


def surcharges(parcel: Parcel) -> dict[str, Decimal]:
    """Return what comes on top, by its reason."""
    found = {}
    if parcel.is_fragile:
        found["fragile"] = Decimal("2.50")
    if parcel.girth > 300:
        found["bulky"] = Decimal("9.00")
    if billable_weight(parcel) > 25:
        found["two carriers"] = Decimal("6.40")
    if parcel.insured:
        found["insurance"] = parcel.insured / 100
    return found


def rounded(amount: Decimal) -> Decimal:
    return amount.quantize(CENT, ROUND_HALF_UP)


def price(parcel: Parcel) -> Decimal:
    """Return what a parcel costs, rounded to cents."""
    return rounded(carriage(parcel) + sum(surcharges(parcel).values(), Decimal(0)))


def read_parcels(path: Path) -> Iterator[Parcel]:
    """Yield the parcels of a CSV file with a header."""
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            yield Parcel(
                number=row["number"],
                zone=row["zone"],
                weight=Decimal(row["weight"]),
                length=int(row["length"]),
                width=int(row["width"]),
                height=int(row["height"]),
                insured=Decimal(row.get("insured") or 0),
                is_fragile=row.get("fragile") == "yes",
            )


def heaviest(parcels: Iterable[Parcel]) -> Parcel:
    """Return the parcel that is charged for the most weight."""
    return max(parcels, key=billable_weight)


def by_zone(parcels: Iterable[Parcel]) -> dict[str, list[Parcel]]:
    """Return the parcels of each zone that has some, by its name."""
    groups: dict[str, list[Parcel]] = {}
    for parcel in parcels:
        zone = find_zone(parcel.zone)
        groups.setdefault(zone.name, []).append(parcel)
    return groups


def bill(parcels: Iterable[Parcel]) -> str:
    """Return the bill of a day: a line a zone, and the total."""
    lines, total = [], Decimal(0)
    for zone, group in sorted(by_zone(parcels).items()):
        amount = sum(map(price, group), Decimal(0))
        weight = sum(map(billable_weight, group), Decimal(0))
        lines.append(f"{zone:6} {len(group):4} parcels {weight:9.2f} kg {amount:10.2f}")
        total += amount
    average = total / max(1, len(lines))
    return "\n".join([*lines, f"total {total:10.2f}", f"a zone {average:9.2f}"])


__all__ = ["Parcel", "TariffError", "Zone", "bill", "billable_weight", "heaviest", "price", "read_parcels"]
