"""What a run found, as table rows for a reader, JSON for a program, and the tables of docs/performance.md."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

# Every figure has one name, with its unit.
UNITS: Mapping[str, str] = {
    "mb_per_s": "MB/s",
    "requests_per_s": "requests/s",
    "messages_per_s": "messages/s",
    "rows_per_s": "rows/s",
    "connector_share": "times Spark's own connector",
    "commits_per_s": "commits/s",
    "uncommitted_share": "times uncommitted",
    "stable_s": "s to stable",
    "p99_ratio": "times the p99 without",
    "loop_lag_ms": "ms longest wait of others",
    "idle_lag_ms": "ms when idle",
    "single_share": "times one broker",
    "handover_ms": "ms longest wait",
    "failover_s": "s longest without",
    "started_s": "s to all partitions led",
    "idle_cpu_share": "of a core when idle",
    "ready_s": "s to ready",
    "answered_s": "s to all end offsets",
    "s_per_gib": "s/GiB",
    "p50_ms": "ms p50",
    "p99_ms": "ms p99",
    "p99.9_ms": "ms p99.9",
    "max_ms": "ms max",
    "created_s": "s to create",
    "stopped_s": "s to stop",
    "cpu_s_per_gb": "CPU s/GB",
    "cpu_us_each": "CPU us each",
    "resident_mb": "MB resident",
    "peak_resident_mb": "MB peak",
    "worker_peak_mb": "MB peak of a Python worker",
    "grown_mb": "MB more resident",
    "descriptors": "descriptors",
    "memory_maps": "memory maps",
    "client_cpu_share": "client CPU",
}
BEGIN, END = "<!-- begin: figures -->", "<!-- end: figures -->"


@dataclass(frozen=True, slots=True)
class Row:
    """One scenario on one system. The first figure is a median; `spread` is its lowest and highest repetition."""

    scenario: str
    system: str
    figures: Mapping[str, float]
    spread: tuple[float, float] | None = None
    failure: str = ""

    def __post_init__(self) -> None:
        unknown = set(self.figures) - set(UNITS)
        assert not unknown, f"figures without a unit: {unknown}"

    def cells(self) -> tuple[str, str, str, str]:
        if self.failure:
            return self.scenario, self.system, "failed", self.failure
        first, *others = (f"{_number(value)} {UNITS[name]}" for name, value in self.figures.items())
        if self.spread and self.spread[0] < self.spread[1]:
            low, high = self.spread
            first += f" ({_number(low)} to {_number(high)})"
        return self.scenario, self.system, first, ", ".join(others)

    def line(self) -> str:
        scenario, system, first, others = self.cells()
        return f"{scenario:<22} {system:<9} {first:<42} {others}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One promise of the project, and whether this run kept it."""

    scenario: str
    figure: str
    bound: str
    target: float
    measured: float
    passed: bool

    def cells(self) -> tuple[str, str, str, str]:
        unit = UNITS[self.figure]
        target, measured = f"{self.bound} {_number(self.target)} {unit}", f"{_number(self.measured)} {unit}"
        return self.scenario, target, measured, "pass" if self.passed else "FAIL"

    def line(self) -> str:
        scenario, target, measured, passed = self.cells()
        return f"{scenario:<22} {target:<34} {measured:<26} {passed}"


def _number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def write_json(path: Path, command: str, rows: Sequence[Row], verdicts: Sequence[Verdict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "command": command,
        "rows": [asdict(row) for row in rows],
        "verdicts": [asdict(verdict) for verdict in verdicts],
    }
    path.write_text(json.dumps(report, indent=1) + "\n")


def write_docs(path: Path, command: str, machine: str, rows: Sequence[Row], verdicts: Sequence[Verdict]) -> None:
    """Replaces the figures of the page; its prose stays."""
    before, _, rest = path.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    assert after, f"{path} lost its marks {BEGIN} and {END}"
    parts = [
        BEGIN,
        f"Made by `{command}` on {machine}.",
        _table(("promise", "at this machine's speed", "measured", ""), [verdict.cells() for verdict in verdicts]),
        _table(("scenario", "system", "median (lowest to highest)", "also"), [row.cells() for row in rows]),
        END,
    ]
    path.write_text(before + "\n\n".join(part for part in parts if part) + after)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
