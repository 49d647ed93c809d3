"""What a run found: merged over its rounds, written to `results.json`, shown as tables.

Sections of the file: `machine`; `versions`; `rates` (items per second: message, number of clients,
method; the best of all rounds, or "failed" / "not run"); `undelivered` (the most items that a
method lost); `learner` (every round's loop speeds and MB/s, by setting); `notes` (why something
failed).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cases import FAILED, Value
from benchmarks.ingest.cases import (
    CLIENTS,
    ECHO,
    LEARNER_LOAD_SHARE,
    LEARNER_LOSS_POINTS,
    LOADS_MB_PER_S,
    RAW,
    SHARED,
    TCP,
    Case,
    best,
)
from benchmarks.ingest.methods import side_of
from benchmarks.ingest.sizes import MESSAGES
from benchmarks.results import rounded
from benchmarks.table import Render, Row, aligned


@dataclass
class Results:
    """All sections of one run."""

    machine: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    rates: dict[str, dict[str, dict[str, Value]]] = field(default_factory=dict)
    undelivered: dict[str, int] = field(default_factory=dict)
    learner: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read a file that `save` wrote."""
        return cls(**json.loads(path.read_text()))

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(rounded(asdict(self)), indent=1) + "\n")

    def row(self, message: str, clients: int) -> dict[str, Value]:
        """The rates of one message and number of clients, by method."""
        return self.rates.setdefault(message, {}).setdefault(str(clients), {})

    def add(self, method: str, message: str, clients: int, delivery: dict[str, Any]) -> None:
        """Keep the highest rate. contig must deliver all but a batch that never filled."""
        missing = delivery["undelivered"]
        self.undelivered[method] = max(missing, self.undelivered.get(method, missing))
        if side_of(method) == "contig" and not 0 <= missing < MESSAGES[message].batch_size:
            self.fail(method, message, clients, f"{missing} of its items were not delivered once")
            return
        row = self.row(message, clients)
        before = row.get(method)
        rate = float(delivery["items_per_s"])
        row[method] = max(rate, before) if isinstance(before, float) else rate

    def fail(self, method: str, message: str, clients: int, why: str) -> None:
        """A peer keeps what it had in another round; contig does not."""
        self.notes[f"{method}, {message} x{clients}"] = why
        row = self.row(message, clients)
        if side_of(method) == "contig" or not isinstance(row.get(method), float):
            row[method] = FAILED

    def contig_failed(self) -> bool:
        """Whether a figure of contig's own is missing."""
        return any("contig" in key or "shared" in key for key in self.notes)


def reasons(results: Results) -> str:
    """Why things failed, one line per reason."""
    failed: dict[str, list[str]] = {}
    for what, why in results.notes.items():
        failed.setdefault(why, []).append(what)
    return "\n".join(f"failed: {why}\n    in {'; '.join(what)}" for why, what in failed.items())


def load_title(mb_per_s: float | None) -> str:
    """The name of a load on the learner, as in `results.json`."""
    return "full speed" if mb_per_s is None else f"{mb_per_s:.0f} MB/s"


def shown(case: Case, value: Value | None) -> str:
    """A rate in the case's unit, or the word that stands for it."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return value
    return f"{case.mb_per_s(value):,.0f}" if case.in_bytes else f"{value / 1e3:,.1f}"


def ratio(ours: Value | None, theirs: Value | None) -> str:
    if not isinstance(ours, float) or not isinstance(theirs, float):
        return "-"
    return f"{ours / theirs:.2f}x" if ours < 10 * theirs else f"{ours / theirs:.0f}x"


def tcp_rows(results: Results, in_bytes: bool) -> list[Row]:
    unit = "MB/s over TCP" if in_bytes else "thousands/s over TCP"
    titles = ["raw", "raw 512 kB", "echo", "tuned", "contig", "/echo", "/raw"]
    rows: list[Row] = [[unit, "clients", *titles, "goal", ""]]
    for case in TCP:
        if case.in_bytes != in_bytes:
            continue
        for clients in CLIENTS:
            rates = results.row(case.message, clients)
            ours = rates.get(case.ours)
            cells = [shown(case, rates.get(method)) for method in (*RAW, *ECHO, case.ours)]
            ratios = [ratio(ours, best(rates, ECHO)), ratio(ours, best(rates, RAW))]
            verdict = case.verdict(rates, clients)
            rows.append([case.title, str(clients), *cells, *ratios, case.goal, verdict])
    return rows


def shared_rows(results: Results) -> list[Row]:
    rows: list[Row] = [["shared memory", "clients", "thousands/s", "MB/s", "goal", ""]]
    for case in SHARED:
        for clients in CLIENTS:
            rates = results.row(case.message, clients)
            rate = rates.get(case.ours)
            if isinstance(rate, float):
                cells = [f"{rate / 1e3:,.1f}", f"{case.mb_per_s(rate):,.0f}"]
            else:
                cells = [rate or "-", ""]
            goal = case.goal if clients in case.goal_clients else ""
            rows.append([case.title, str(clients), *cells, goal, case.verdict(rates, clients)])
    return rows


def learner_rows(results: Results) -> list[Row]:
    """Medians over the rounds: a difference of two best rounds says little."""
    titles = ["alone", "under load", "loss", "waiting", "MB/s in", "goal", ""]
    rows: list[Row] = [["the learner's loop, M iterations/s", *titles]]
    for load in map(load_title, LOADS_MB_PER_S):
        found: dict[str, tuple[float, float]] = {}
        for setting in ("raw", "contig"):
            name = f"{setting}, {load}"
            rounds = results.learner.get(name)
            if not rounds:
                word = FAILED if f"learner, {name}" in results.notes else "-"
                rows.append([name, word, *[""] * 6])
                continue
            alone, loaded, waiting, arrived = (
                median(one[key] for one in rounds)
                for key in ("alone_per_s", "iterations_per_s", "waiting", "mb_per_s")
            )
            loss = median(map(loss_points, rounds))
            found[setting] = loss, arrived
            cells = [f"{alone / 1e6:.1f}", f"{loaded / 1e6:.1f}", f"{loss:.1f} points"]
            rows.append([name, *cells, f"{100 * waiting:.1f} points", f"{arrived:,.0f}", "", ""])
        if len(found) == 2:
            more = found["contig"][0] - found["raw"][0]
            share = found["contig"][1] / found["raw"][1]
            verdict = "met" if more <= LEARNER_LOSS_POINTS else "missed"
            if share < LEARNER_LOAD_SHARE:
                verdict = "not the same load"
            cells = [f"{more:+.1f} points", "", f"{share:.2f}x"]
            goal = f"<= {LEARNER_LOSS_POINTS:.0f} points"
            rows.append([f"contig against raw, {load}", "", "", *cells, goal, verdict])
    return rows


def loss_points(one: dict[str, float]) -> float:
    """How much of the learner's speed was lost, in points of its speed alone."""
    return 100 * (1 - one["iterations_per_s"] / one["alone_per_s"])


def whole(results: Results, sides: set[str], render: Render = aligned) -> str:
    """Every table that was measured."""
    machine = results.machine
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    parts = [
        f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}; best of "
        f"{machine['rounds']} alternating round(s), the learner's loop: median; {versions}"
        + ("; QUICK RUN" if machine["quick"] else "")
    ]
    if sides & {"raw", "echo", "contig"}:
        parts += [render(tcp_rows(results, in_bytes)) for in_bytes in (False, True)]
    if "contig" in sides:
        parts.append(render(shared_rows(results)))
    if "learner" in sides:
        parts.append(render(learner_rows(results)))
    if results.undelivered:
        lost = ", ".join(f"{name} {count}" for name, count in results.undelivered.items())
        parts.append(
            f"Sent, but in no delivered batch (the last may stay unfilled), at most: {lost}"
        )
    if results.notes:
        parts.append(reasons(results))
    return "\n\n".join(parts)
