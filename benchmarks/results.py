"""What a run found: merged over its rounds, written to and read from `results.json`.

Its sections: `machine`; `versions` per library; `notes` (why a case failed) per library; `cases`
(microseconds per call, or a word such as "not run", per case and library); `growth` (microseconds
per curve and point); `shared` (rates per record and run length: more is better).
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cases import FAILED, NOT_APPLICABLE, NOT_RUN, Value

Report = dict[str, Any]
RECORD_HELP = "put the figures into the file that the pages are made of"


@dataclass
class Results:
    """All sections of one run; the best figure of all rounds is kept."""

    machine: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    notes: dict[str, dict[str, str]] = field(default_factory=dict)
    cases: dict[str, dict[str, Value]] = field(default_factory=dict)
    growth: dict[str, dict[str, float]] = field(default_factory=dict)
    shared: dict[str, dict[str, float]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read a file that `save` wrote."""
        return cls(**json.loads(path.read_text()))

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(rounded(asdict(self)), indent=1) + "\n")

    def add_backend(self, backend: str, names: Iterable[str], report: Report | str) -> None:
        """Take in what one process measured for `names`, or the word that says why it did not."""
        for name in names:
            row = self.cases.setdefault(name, {})
            before = row.get(backend)
            if isinstance(report, str):
                now: Value = report
            elif name in report["values"]:
                now = report["values"][name]
            else:
                now = FAILED if name in report["notes"] else NOT_APPLICABLE
            if isinstance(before, float):
                now = min(before, now) if isinstance(now, float) else before
            row[backend] = now
        if not isinstance(report, str):
            self.versions[backend] = report["versions"]
            self.notes.setdefault(backend, {}).update(report["notes"])

    def add_growth(self, report: Report) -> None:
        """Keep the fastest of each point."""
        for curve, points in report.items():
            kept = self.growth.setdefault(curve, {})
            for point, value in points.items():
                kept[point] = min(value, kept.get(point, value))

    def add_shared(self, report: Report) -> None:
        """Keep the highest of each rate, the plain copy's as well."""
        for label, rates in report.items():
            kept = self.shared.setdefault(label, {})
            for rate, value in rates.items():
                kept[rate] = max(value, kept.get(rate, value))

    def merge_into(self, older: Results) -> Results:
        """This run's sections over those of an earlier, wider one; a case is replaced whole."""
        return Results(
            machine=self.machine,
            versions=older.versions | self.versions,
            notes=older.notes | self.notes,
            cases=older.cases | self.cases,
            growth=older.growth | self.growth,
            shared=older.shared | self.shared,
        )

    def fill_in(self, backends: Iterable[str]) -> None:
        """Every case has a word for every backend, also for those that never started."""
        for row in self.cases.values():
            for backend in backends:
                row.setdefault(backend, NOT_RUN)


def rounded(value: Any) -> Any:
    """Four digits are more than the machine repeats."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return value


def describe_machine(rounds: int, quick: bool) -> dict[str, Any]:
    """What a reader needs to judge the figures."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "rounds": rounds,
        "quick": quick,
    }


def cpu_model() -> str:
    """The processor's name as Linux gives it, or what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
