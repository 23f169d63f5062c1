"""Two results: what got slower by more than the repetitions differ among themselves.

Kafka is measured in both as well. Where it changed as much as we did, the machine is the likely reason, and it is said.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.side_by_side.rows import KAFKA, PENSTOCK

# Where a row has only one repetition its spread says nothing: what differs less on a shared machine is noise.
UNREPEATED_NOISE = 0.25
# Spreads that touch nowhere and still differ by less are not worth a look.
WORTH_A_LOOK = 0.03


@dataclass(frozen=True, slots=True)
class Change:
    """Of one row; a share above 1 is better, whatever the row's direction."""

    row: str
    unit: str
    before: float
    after: float
    share: float
    kafka_share: float | None

    @property
    def is_the_machine(self) -> bool:
        """Kafka went the same way, at least half as far."""
        return self.kafka_share is not None and 1 - self.kafka_share >= (1 - self.share) / 2

    def line(self) -> str:
        kafka = "" if self.kafka_share is None else f"; Kafka {_percent(self.kafka_share)}"
        machine = " (the machine, likely)" if self.is_the_machine else ""
        figures = f"{self.before:,g} to {self.after:,g} {self.unit}"
        return f"{self.row:<34} {_percent(self.share):>6} {figures}{kafka}{machine}"


def slower(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """The rows of both results that are worse in the new one beyond the noise, worst first."""
    before = {row["row"]: row for row in old["rows"]}
    changes = [_change(before[row["row"]], row) for row in new["rows"] if row["row"] in before]
    return sorted((each for each in changes if each is not None), key=lambda change: change.share)


def missing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Rows that had a figure of ours and have none any more."""
    has_it = {row["row"] for row in new["rows"] if row[PENSTOCK] is not None}
    return [row["row"] for row in old["rows"] if row[PENSTOCK] is not None and row["row"] not in has_it]


def _change(old: Mapping[str, Any], new: Mapping[str, Any]) -> Change | None:
    share = _better_share(old, new, PENSTOCK)
    if share is None or share > 1 - WORTH_A_LOOK or not _is_beyond_noise(old, new, share):
        return None
    kafka_share = _better_share(old, new, KAFKA)
    return Change(new["row"], new["unit"], old[PENSTOCK], new[PENSTOCK], share, kafka_share)


def _better_share(old: Mapping[str, Any], new: Mapping[str, Any], system: str) -> float | None:
    """How much of the old speed is left; None where one of the two has no figure."""
    before, after = old[system], new[system]
    if not before or not after:
        return None
    return float(after / before if new["higher_is_better"] else before / after)


def _is_beyond_noise(old: Mapping[str, Any], new: Mapping[str, Any], share: float) -> bool:
    was, now = old["spread"][PENSTOCK], new["spread"][PENSTOCK]
    if was[0] == was[1] or now[0] == now[1]:
        return share < 1 - UNREPEATED_NOISE
    return bool(now[1] < was[0] if new["higher_is_better"] else now[0] > was[1])


def _percent(share: float) -> str:
    return f"{(share - 1) * 100:+.0f}%"
