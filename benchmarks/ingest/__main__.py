"""Measures ingest in turns, prints the tables, writes `results.json` beside this file.

    python -m benchmarks.ingest                       everything, some 15 minutes
    python -m benchmarks.ingest --quick               one short round: does it all run?
    python -m benchmarks.ingest --only raw echo       these sides only (raw, echo, contig, learner)
    python -m benchmarks.ingest --rounds 5
    python -m benchmarks.pages                        the stored results into README.md and docs/

For each message and number of clients all methods are measured one after the other, and that for
several rounds, so that a busy minute of the machine hits all of them. Only whole runs are stored:
ratios of figures from different runs mean nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.cases import NOT_RUN
from benchmarks.ingest.cases import CLIENTS, LOADS_MB_PER_S, SHARED, TCP
from benchmarks.ingest.clients import ROOT
from benchmarks.ingest.methods import ENVIRONMENT, side_of
from benchmarks.ingest.report import Results, load_title, whole
from benchmarks.ingest.sizes import MESSAGES
from benchmarks.results import RECORD_HELP, describe_machine

RESULTS = Path(__file__).resolve().parent / "results.json"
SIDES = ("raw", "echo", "contig", "learner")
LEARNER_REPEATS = 3
"""Per round; its figure is a difference, and needs more of them."""
TIMEOUT_S = 120


class MeasurementError(Exception):
    """A measured process failed; the text is the end of its stderr."""


def run(python: str, module: str, options: list[str], extra: dict[str, str]) -> dict[str, Any]:
    """Run one measured process with all that it starts, in a session of their own; its JSON."""
    process = subprocess.Popen(
        [python, "-m", f"benchmarks.ingest.{module}", *options],
        cwd=ROOT,
        env={**os.environ, **extra},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=TIMEOUT_S)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise MeasurementError(f"no answer within {TIMEOUT_S} s") from None
        raise
    if process.returncode:
        tail = errors.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        raise MeasurementError(tail[0])
    report: dict[str, Any] = json.loads(output.splitlines()[-1])
    return report


def methods_of(message: str, sides: set[str]) -> list[str]:
    """The methods measured with a message, in the order of their turns."""
    names: dict[str, None] = {}
    for case in (*TCP, *SHARED):
        if case.message == message:
            names.update(dict.fromkeys((*case.beside, case.ours)))
    return [name for name in names if side_of(name) in sides]


def turns(sides: set[str]) -> Iterator[tuple[str, int, str]]:
    """One round: (message, clients, method)."""
    for message in MESSAGES:
        for clients in CLIENTS:
            for method in methods_of(message, sides):
                yield message, clients, method


def measure_deliveries(
    results: Results, sides: set[str], seconds: float, peers_python: Path
) -> None:
    """One round of everything that is received."""
    for message, clients, method in turns(sides):
        python = str(peers_python) if side_of(method) == "echo" else sys.executable
        if not Path(python).exists():
            results.row(message, clients)[method] = NOT_RUN
            continue
        options = [method, message, "--clients", str(clients), "--seconds", str(seconds)]
        try:
            report = run(python, "receiver", options, ENVIRONMENT.get(method, {}))
        except MeasurementError as error:
            results.fail(method, message, clients, str(error))
            told = f"failed: {error}"
        else:
            results.versions |= report["versions"]
            results.add(method, message, clients, report["delivery"])
            told = "{items_per_s:,.0f} items/s, {mb_per_s:,.1f} MB/s".format(**report["delivery"])
        print(f"  {message} x{clients}, {method}: {told}", file=sys.stderr, flush=True)


def measure_learner(results: Results, seconds: float) -> None:
    """One round of the learner's loop: in each setting under each load."""
    repeats = range(LEARNER_REPEATS)
    for _, load, setting in itertools.product(repeats, LOADS_MB_PER_S, ("raw", "contig")):
        name = f"{setting}, {load_title(load)}"
        options = [setting, "--seconds", str(seconds)]
        if load is not None:
            options += ["--mb-per-s", str(load)]
        try:
            loop = run(sys.executable, "learner", options, {})
        except MeasurementError as error:
            results.notes[f"learner, {name}"] = told = str(error)
        else:
            results.learner.setdefault(name, []).append(loop)
            told = "{iterations_per_s:,.0f} of {alone_per_s:,.0f} per s, {mb_per_s:,.0f} MB/s"
            told = told.format(**loop)
        print(f"  learner {name}: {told}", file=sys.stderr, flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure ingest beside echo and a bare socket.")
    parser.add_argument("--quick", action="store_true", help="one round, 0.3 s per measurement")
    parser.add_argument("--only", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--rounds", type=int, default=None, help="default 3; with --quick 1")
    parser.add_argument(
        "--peers-python",
        type=Path,
        default=ROOT / ".venv-peers" / "bin" / "python",
        help="interpreter of the environment with requirements-peers.txt",
    )
    parser.add_argument("--record", action="store_true", help=RECORD_HELP)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    seconds = 0.3 if arguments.quick else 2.0
    sides = set(arguments.only)
    results = Results(machine=describe_machine(rounds, arguments.quick))
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        measure_deliveries(results, sides, seconds, arguments.peers_python)
        if "learner" in sides:
            measure_learner(results, seconds / 2)
    print(whole(results, sides))
    if results.contig_failed():
        raise SystemExit("contig itself failed.")
    if not arguments.record:
        return
    if arguments.quick or sides != set(SIDES):
        raise SystemExit("Not recorded: not a whole run.")
    results.save(RESULTS)


if __name__ == "__main__":
    main()
