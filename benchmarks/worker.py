"""The measured process: runs one library's cases and prints them as JSON on its stdout.

    {"backend": "cpprb", "versions": {"cpprb": "..."}, "values": {"sample_256": 91.2}, "notes": {}}

A case that the library cannot do is absent from `values`; one that raised has its error in `notes`.
Whatever a library prints goes to stderr, so stdout is JSON only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

from benchmarks.timing import Effort

Measure = Callable[[Effort], float]


def versions_of(*distributions: str) -> dict[str, str]:
    """Installed versions of the named distributions; those that are absent are left out."""
    found = {}
    for name in distributions:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def measure_all(cases: Mapping[str, Measure], effort: Effort, only: set[str]) -> dict[str, Any]:
    """Run the cases one after the other; a failing one is noted and the others go on."""
    values: dict[str, float] = {}
    notes: dict[str, str] = {}
    for name, measure in cases.items():
        if only and name not in only:
            continue
        try:
            values[name] = float(measure(effort))
            print(f"  {name}: {values[name]:.1f} us", file=sys.stderr, flush=True)
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            notes[name] = f"{type(error).__name__}: {error}"[:300]
    return {"values": values, "notes": notes}


def worker_arguments(description: str) -> argparse.Namespace:
    """`--quick` and `--only NAME ...`, which every measured process takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="small buffers, few repeats")
    parser.add_argument("--only", nargs="*", default=[], metavar="CASE", help="these cases only")
    return parser.parse_args()


def worker_main(backend: str, cases: Mapping[str, Measure], distributions: tuple[str, ...]) -> None:
    """The `main` of a measured library."""
    arguments = worker_arguments(f"Measure {backend}, print JSON.")
    with contextlib.redirect_stdout(sys.stderr):
        report = measure_all(cases, Effort.of(arguments.quick), set(arguments.only))
    report["backend"] = backend
    report["versions"] = versions_of(*distributions)
    print(json.dumps(report), flush=True)
