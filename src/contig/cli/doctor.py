"""``contig doctor``: what is wrong with this machine or installation, and how to put it right.

examples:
  contig doctor
  contig doctor --rows 1000000 --example row.json     is there room for such a buffer?
  contig doctor --bytes 8G --json
  contig doctor --clean                               remove what dead processes left

Looks at versions, the native module, memory and shared memory (against what a buffer needs, if that
is said), locks, file descriptors, huge pages, and segments of shared memory whose processes are all
dead; only those are removed by --clean.

exit status: 0 nothing is wrong (there may be notes); 1 something is; 2 it could not look.
"""

from __future__ import annotations

import argparse
import json
import re

from .checkup import Checkup, Finding
from .failure import FOUND, OK, fail, one_line
from .values import MOST_ROWS, path, whole

__all__ = ["add_arguments", "byte_count", "run"]

_MOST = 1 << 60
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def byte_count(text: str) -> int:
    """Of ``8G``, ``512M`` or a plain number."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    count = 0 if found is None else int(float(found[1]) * _UNITS[found[2].upper()])
    if not 1 <= count <= _MOST:
        raise argparse.ArgumentTypeError(f"{text!r}: expected bytes, such as 512M or 8G")
    return count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    need = parser.add_argument_group("what a buffer needs")
    need.add_argument("--rows", type=whole(1, MOST_ROWS), metavar="N", help="its capacity")
    need.add_argument("--example", type=path, metavar="JSON", help="one row, as for contig serve")
    need.add_argument("--bytes", type=byte_count, metavar="SIZE", help="or its bytes, as in 8G")
    parser.add_argument("--clean", action="store_true", help="remove what dead processes left")
    parser.add_argument("--json", action="store_true", help="findings as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Prints what it finds; returns the exit status."""
    findings = list(Checkup(_need(args), args.clean).findings())
    wrong = any(f.status == "wrong" for f in findings)
    if args.json:
        print(json.dumps({"ok": not wrong, "checks": [f._asdict() for f in findings]}, indent=2))
    else:
        for finding in findings:
            _print(finding)
        print("something is wrong" if wrong else "nothing is wrong")
    return FOUND if wrong else OK


def _need(args: argparse.Namespace) -> int | None:
    """Bytes of the buffer that was described; None: none was."""
    if args.bytes is not None:
        if args.rows is not None or args.example is not None:
            fail("give --bytes, or --rows and --example")
        return int(args.bytes)
    if args.rows is None and args.example is None:
        return None
    if args.rows is None or args.example is None:
        given, other = ("--rows", "--example") if args.example is None else ("--example", "--rows")
        fail(f"{given} has no effect without {other}")
    try:
        from ..layout import Layout
        from .tables import read_example

        return int(args.rows * Layout(read_example(args.example)).record_size)
    except (OSError, ValueError) as error:
        fail(one_line(error))


def _print(finding: Finding) -> None:
    mark = {"ok": "ok   ", "note": "note ", "wrong": "WRONG"}[finding.status]
    print(f"{mark}  {finding.name:<16}  {finding.found}")
    if finding.remedy:
        print(f"{'':<25}-> {finding.remedy}")
