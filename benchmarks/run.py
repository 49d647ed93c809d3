"""Measures contig and its peers in one run, prints the table; `--record` writes `results.json`.

    python -m benchmarks.run                     everything
    python -m benchmarks.run --quick             small buffers, one round: does it all run?
    python -m benchmarks.run --only sample_256   one case (or `growth`, `shared`, or one peer)
    python -m benchmarks.pages                   the stored results into README.md and docs/

Every library has its own process, and they take turns: contig, torchrl, cpprb, ... and again, so
that a busy minute of the machine hits all of them. Each figure is the best of all rounds. Torch is
given one thread in the first round, third round, ... and its default in the others: with two
threads it is faster on an idle machine and many times slower beside a busy neighbour.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cases import BACKENDS, CASE_NAMES, CONTIG, FAILED, NOT_RUN
from benchmarks.results import RECORD_HELP, Report, Results, describe_machine
from benchmarks.table import aligned, notes, whole

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results.json"
SECTIONS = ("growth", "shared")
MODULES = {"growth": "growth", "shared": "shared_append", CONTIG: "contig_cases"}
WORKER_TIMEOUT_S = 1800


@dataclass(frozen=True)
class Selection:
    """What `--only` leaves: cases, backends and further sections."""

    cases: tuple[str, ...]
    backends: tuple[str, ...]
    sections: tuple[str, ...]

    @classmethod
    def of(cls, names: list[str]) -> Selection:
        """No names is everything; a backend alone is all of its cases beside contig's."""
        known = {*CASE_NAMES, *BACKENDS, *SECTIONS}
        unknown = sorted(set(names) - known)
        if unknown:
            raise SystemExit(f"--only {unknown[0]}: expected one of {', '.join(sorted(known))}")
        if not names:
            return cls(CASE_NAMES, BACKENDS, SECTIONS)
        cases = tuple(name for name in CASE_NAMES if name in names)
        backends = tuple(name for name in BACKENDS if name in (*names, CONTIG))
        wanted = cases or len(backends) > 1 or CONTIG in names
        return cls(
            cases=(cases or CASE_NAMES) if wanted else (),
            backends=backends if set(names) & set(BACKENDS) else BACKENDS,
            sections=tuple(name for name in SECTIONS if name in names),
        )


def run_worker(python: str, name: str, options: list[str], threads: int | None) -> Report | str:
    """Run one measured process; its JSON, or `failed`."""
    command = [python, "-m", f"benchmarks.{MODULES.get(name, f'peer_{name}')}", *options]
    environment = dict(os.environ)
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=WORKER_TIMEOUT_S,
            check=True,
        )
        report: Report = json.loads(done.stdout.splitlines()[-1])
        return report
    except subprocess.TimeoutExpired:
        print(f"{name}: no answer within {WORKER_TIMEOUT_S} s", file=sys.stderr)
    except subprocess.CalledProcessError as error:
        tail = "\n".join(error.stderr.strip().splitlines()[-8:])
        print(f"{name} failed (exit code {error.returncode}):\n{tail}", file=sys.stderr)
    except (json.JSONDecodeError, IndexError) as error:
        print(f"{name}: its last line was not JSON ({error})", file=sys.stderr)
    return FAILED


def turns(selection: Selection, rounds: int) -> Iterator[tuple[int, str]]:
    """Who is measured when: (round, backend or section)."""
    for number in range(rounds):
        for backend in selection.backends if selection.cases else ():
            yield number, backend
        for section in selection.sections:
            yield number, section


def measure(selection: Selection, rounds: int, quick: bool, peers_python: Path) -> Results:
    """Run everything in turn and keep the best."""
    results = Results(machine=describe_machine(rounds, quick))
    have_peers = peers_python.exists()
    if not have_peers:
        print(f"{peers_python}: not there, so the peers are not run", file=sys.stderr)
    for number, name in turns(selection, rounds):
        ours = name == CONTIG or name in SECTIONS
        if not ours and not have_peers:
            results.add_backend(name, selection.cases, NOT_RUN)
            continue
        print(f"round {number + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
        options = ["--quick"] if quick else []
        if name not in SECTIONS:
            options += ["--only", *selection.cases]
        python = sys.executable if ours else str(peers_python)
        threads = None if ours or number % 2 else 1
        report = run_worker(python, name, options, threads)
        if name not in SECTIONS:
            results.add_backend(name, selection.cases, report)
        elif not isinstance(report, str):
            (results.add_growth if name == "growth" else results.add_shared)(report)
    results.fill_in(BACKENDS)
    return results


def contig_failed(results: Results, selection: Selection) -> bool:
    """Whether a figure of contig's own is missing; a peer's may be."""
    sections = {"growth": results.growth, "shared": results.shared}
    return any(row[CONTIG] == FAILED for row in results.cases.values()) or any(
        not sections[name] for name in selection.sections
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure contig and its peers in one run.")
    parser.add_argument("--quick", action="store_true", help="small buffers, one round")
    parser.add_argument("--only", nargs="+", action="extend", default=[], metavar="NAME")
    parser.add_argument("--rounds", type=int, default=None, help="default 4; with --quick 1")
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
    rounds = arguments.rounds or (1 if arguments.quick else 4)
    selection = Selection.of(arguments.only)
    results = measure(selection, rounds, arguments.quick, arguments.peers_python)
    print(whole(results, aligned))
    if notes(results):
        print(f"\nFailed:\n{notes(results)}")
    if contig_failed(results, selection):
        raise SystemExit("contig itself failed.")
    if not arguments.record:
        return
    if arguments.quick:
        raise SystemExit("Not recorded: figures of --quick are good for nothing else.")
    if arguments.only and selection.backends != BACKENDS:
        raise SystemExit("Not recorded: not every library was measured.")
    if arguments.only and RESULTS.exists():
        results = results.merge_into(Results.load(RESULTS))
    results.save(RESULTS)


if __name__ == "__main__":
    main()
