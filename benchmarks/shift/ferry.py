"""A small ferry: who may come aboard, where everything stands, and when the boat sails."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

DECK_METRES = 84.0
MOST_PEOPLE = 240
MOST_TONNES = 160.0
CROSSING = timedelta(minutes=35)
TURNAROUND = timedelta(minutes=15)
GAP_METRES = 0.4
"""Between two vehicles that stand behind each other."""


class BoardingError(ValueError):
    """Somebody, or something, cannot come aboard."""


@dataclass(frozen=True)
class Vehicle:
    """A vehicle at the pier; length in metres, weight in tonnes."""

    plate: str
    length: float
    weight: float
    people: int = 1
    is_electric: bool = False

    @property
    def is_lorry(self) -> bool:
        return self.weight > 3.5

    @property
    def fare(self) -> float:
        """Return what the crossing costs, people included."""
        base = 38.0 if self.is_lorry else 14.0
        discount = 2.5 if self.is_electric else 0.0
        return base + 3.2 * self.people - discount


@dataclass
class Lane:
    """One lane of the deck, filled from the bow."""

    number: int
    metres: float = DECK_METRES / 3
    vehicles: list[Vehicle] = field(default_factory=list)

    @property
    def used(self) -> float:
        gaps = GAP_METRES * max(0, len(self.vehicles) - 1)
        return gaps + sum(vehicle.length for vehicle in self.vehicles)

    def has_room(self, vehicle: Vehicle) -> bool:
        gap = GAP_METRES if self.vehicles else 0.0
        return self.used + gap + vehicle.length <= self.metres

    def park(self, vehicle: Vehicle) -> None:
        if not self.has_room(vehicle):
            raise BoardingError(f"lane {self.number} has no room for {vehicle.plate}")
        self.vehicles.append(vehicle)


@dataclass
class Deck:
    """All lanes, and everybody who walked aboard."""

    lanes: list[Lane] = field(default_factory=lambda: [Lane(1), Lane(2), Lane(3)])
    walkers: int = 0

    @property
    def people(self) -> int:
        return self.walkers + sum(vehicle.people for vehicle in self.parked())

    @property
    def tonnes(self) -> float:
        return sum(vehicle.weight for vehicle in self.parked())

    def parked(self) -> Iterator[Vehicle]:
        for lane in self.lanes:
            yield from lane.vehicles

    def board(self, vehicle: Vehicle) -> Lane:
        """Park a vehicle in the lane with the most room, and return that lane."""
        if self.people + vehicle.people > MOST_PEOPLE:
            raise BoardingError(f"{vehicle.plate} brings {vehicle.people} people too many")
        if self.tonnes + vehicle.weight > MOST_TONNES:
            raise BoardingError(f"{vehicle.plate} is too heavy for today")
        lane = min(self.lanes, key=lambda candidate: candidate.used)
        lane.park(vehicle)
        return lane

    def walk_on(self, count: int) -> None:
        """Let people come aboard on foot."""
        if count < 0:
            raise BoardingError("fewer than nobody cannot come aboard")
        if self.people + count > MOST_PEOPLE:
            raise BoardingError(f"there is room for {MOST_PEOPLE - self.people} people only")
        self.walkers += count

    def imbalance(self) -> float:
        """Return by how many tonnes the outer lanes differ."""
        left, *_, right = self.lanes
        port = sum(vehicle.weight for vehicle in left.vehicles)
        starboard = sum(vehicle.weight for vehicle in right.vehicles)
        return abs(port - starboard)


@dataclass(frozen=True)
class Sailing:
    """One crossing, as the timetable has it."""

    harbour: str
    leaves: datetime

    @property
    def arrives(self) -> datetime:
        return self.leaves + CROSSING

    def __str__(self) -> str:
        return f"{self.leaves:%H:%M} from {self.harbour}, there at {self.arrives:%H:%M}"


def timetable(first: datetime, crossings: int, harbours: tuple[str, str]) -> list[Sailing]:
    """Return the sailings of a day, to and fro."""
    found = []
    leaves = first
    for number in range(crossings):
        found.append(Sailing(harbours[number % 2], leaves))
        leaves += CROSSING + TURNAROUND
    return found


def load(deck: Deck, queue: Iterable[Vehicle]) -> list[Vehicle]:
    """Board a queue in its order, and return those that have to wait."""
    waiting = []
    for vehicle in queue:
        try:
            deck.board(vehicle)
        except BoardingError:
            waiting.append(vehicle)
    return waiting


def longest_wait(sailings: Iterable[Sailing], arrived: datetime) -> timedelta:
    """Return how long somebody waits who has arrived at the pier; zero if no boat is left."""
    later = [sailing.leaves - arrived for sailing in sailings if sailing.leaves >= arrived]
    return min(later, default=timedelta(0))


def takings(deck: Deck, walker_fare: float = 4.5) -> float:
    """Return what all that are aboard have paid."""
    driven = sum(vehicle.fare for vehicle in deck.parked())
    return round(driven + walker_fare * deck.walkers, 2)


def read_queue(path: Path) -> list[Vehicle]:
    """Read the vehicles at the pier from a JSON file."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    return [
        Vehicle(
            plate=row["plate"],
            length=float(row["length"]),
            weight=float(row["weight"]),
            people=int(row.get("people", 1)),
            is_electric=bool(row.get("electric", False)),
        )
        for row in rows
    ]


def report(deck: Deck, sailing: Sailing) -> str:
    """Return a few lines for the log book."""
    lines = [f"sailing {sailing}"]
    for lane in deck.lanes:
        plates = ", ".join(vehicle.plate for vehicle in lane.vehicles) or "empty"
        lines.append(f"lane {lane.number}: {plates} ({lane.used:.1f} of {lane.metres:.1f} m)")
    lines.append(f"people {deck.people}, tonnes {deck.tonnes:.1f}, imbalance {deck.imbalance():.1f}")
    lines.append(f"takings {takings(deck):.2f}")
    return "\n".join(lines)


def main() -> None:
    deck = Deck()
    queue = read_queue(Path("queue.json"))
    left_behind = load(deck, queue)
    deck.walk_on(27)
    sailing = timetable(datetime(2026, 5, 2, 6, 30), 12, ("Nordby", "Sandvig"))[0]
    print(report(deck, sailing))
    for vehicle in left_behind:
        print(f"{vehicle.plate} waits for the next boat")


if __name__ == "__main__":
    main()
