"""``contig inspect``: what is in a storage on disk, whether it is whole, and how it went.

examples:
  contig inspect runs/demo                              the newest episodes
  contig inspect runs/demo --min-return 100 --since 1h  some of them
  contig inspect runs/demo --json --limit 0             all of them, for a script
  contig inspect runs/demo --verify                     every row's checksum
  contig inspect runs/demo --repair                     sets aside what is damaged
  contig inspect runs/demo --plot returns.png           returns and lengths over time
  contig inspect checkpoint [--verify]                  what a buffer's save() wrote

exit status: 0; 1 something is damaged; 2 there is no storage to look at.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from ..layout import Layout
from ..lazy import install_hint
from ..replay.saved_rows import is_checkpoint, saved_rows
from ..tape.disk import DiskStorage
from ..tape.disk.repair import Damage, repair, verify
from ..tape.episodes import field_column
from ..tape.sharing import SharedLeaf, Sharing
from .failure import fail, one_line
from .picture import save_picture
from .progress import Progress
from .values import number, path, picture, whole

__all__ = ["add_arguments", "run"]

Array = np.ndarray[Any, Any]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# Options that say which episodes, or change something.
_OF_STORAGES = (
    *("min_return", "max_return", "min_length", "max_length", "since", "until", "version"),
    *("writer", "json", "repair", "plot"),
)
_HEADINGS = ("id", "traj_id", "steps", "return", "end", "version", "writer", "time")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=path, help="the storage's directory, or a checkpoint")
    any_id = whole(-(1 << 63))
    some = parser.add_argument_group("which episodes")
    some.add_argument("--min-return", type=number(), metavar="R", help="of the episode")
    some.add_argument("--max-return", type=number(), metavar="R", help="of the episode")
    some.add_argument("--min-length", type=whole(0), metavar="N", help="in steps")
    some.add_argument("--max-length", type=whole(0), metavar="N", help="in steps")
    some.add_argument("--since", type=moment, help="a time, or how long ago: 2026-11-01, 90m, 2d")
    some.add_argument("--until", type=moment, help="the same: when they ended")
    some.add_argument("--version", type=any_id, metavar="N", help="of the policy")
    some.add_argument("--writer", type=any_id, metavar="ID", help="that wrote them")
    some.add_argument(
        "--limit", type=whole(0), default=20, metavar="N", help="how many of the newest; 0: all"
    )
    what = parser.add_argument_group("what else")
    what.add_argument("--json", action="store_true", help="a JSON object per episode")
    what.add_argument("--verify", action="store_true", help="check every row")
    what.add_argument("--repair", action="store_true", help="set aside what is damaged")
    what.add_argument("--quiet", action="store_true", help="no progress bar")
    what.add_argument("--plot", type=picture, metavar="PNG", help="returns and lengths over time")


def moment(text: str) -> float:
    """Seconds since 1970, of a date or of a time ago."""
    ago = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if ago is not None:
        return time.time() - float(ago[1]) * _UNITS[ago[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a date (2026-11-01T12:30) or a time ago (90m, 2d)"
        ) from None


def run(args: argparse.Namespace) -> int:
    """Exit status: 0, or 1 if something is damaged, or 2 if there is no storage to look at."""
    try:
        if is_checkpoint(args.path):
            return _inspect_checkpoint(args)
        if args.repair:
            with Progress(sys.stderr, "rows", show=not args.quiet) as progress:
                done = repair(args.path, progress)
            for line in done:
                print(line, file=sys.stderr if args.json else sys.stdout)
        storage = DiskStorage(args.path, read_only=True)
    except (OSError, ValueError) as error:
        fail(one_line(error))
    try:
        return _inspect(storage, args)
    finally:
        storage.close()


def _inspect(storage: DiskStorage, args: argparse.Namespace) -> int:
    episodes = storage.episodes()
    chosen = episodes[_wanted(episodes, args)]
    shown = chosen[-args.limit :] if args.limit else chosen
    if args.json:
        for line in shown:
            print(json.dumps(_as_json(line)))
    else:
        _print_summary(storage, episodes)
        _print_table(shown, len(chosen), _field_columns(storage))
    status = _report_damage(storage, args.verify, not args.quiet)
    if args.plot is not None:
        _plot(chosen, args.plot)
        print(f"{args.plot}: returns and lengths of {len(chosen)} episodes", file=sys.stderr)
    return status


def _inspect_checkpoint(args: argparse.Namespace) -> int:
    """What is in it; exit status 1 if it is damaged. Its episodes are not listed."""
    asked = [x for x in _OF_STORAGES if not (getattr(args, x) is None or getattr(args, x) is False)]
    if asked:
        option = "--" + asked[0].replace("_", "-")
        raise ValueError(f"{args.path} is a checkpoint, {option} is for storages: load it into one")
    try:
        with saved_rows(args.path, check=args.verify) as saved:
            contents = saved.contents
            rows, episodes = contents.head - contents.tail, len(contents.ordinals())
            print(f"{args.path}: a checkpoint, {rows:,} rows, {episodes:,} episodes")
            if rows:
                print(f"  {_bytes_per_step(saved.nbytes, rows, saved.layout)}")
            if contents.rows.sharing is not None:
                print(f"  stored once: {_once(contents.rows.sharing)}")
            _print_leaves(saved.layout, saved.fields)
            for ordinal, reason in saved.quarantine.items():
                print(f"episode {ordinal} is set aside: {reason}", file=sys.stderr)
            step = saved.rows_per_extent
            for first in range(contents.tail, contents.head if args.verify else 0, step):
                contents.rows.read(first, min(first + step, contents.head))
    except FileNotFoundError:
        raise
    except ValueError as error:  # a LayoutError is one
        print(f"contig inspect: {one_line(error)}", file=sys.stderr)
        return 1
    if args.verify:
        print(f"{rows:,} rows checked: whole", file=sys.stderr)
    return 0


def _wanted(e: Array, args: argparse.Namespace) -> Array:
    """A mask of the episodes that were asked for."""
    keep = np.ones(len(e), bool)
    bounds = (
        ("return", args.min_return, args.max_return),
        ("steps", args.min_length, args.max_length),
        ("time", args.since, args.until),
        ("policy_version", args.version, args.version),
        ("writer", args.writer, args.writer),
    )
    for field, low, high in bounds:
        if low is not None:
            keep &= e[field] >= low
        if high is not None:
            keep &= e[field] <= high
    return keep


def _print_summary(storage: DiskStorage, e: Array) -> None:
    layout = storage.layout
    record = 0 if storage.opened is None else storage.opened.shape.stored_size
    once = storage.schema is not None and storage.schema.sharing is not None
    what = "observations, each stored once" if once else "leaves of any size"
    more = f" and {storage.blob_bytes:,} in {what}" if storage.blob_bytes else ""
    size = f"{len(storage):,} rows of {record:,} bytes{more}"
    print(f"{storage.path}: {size}, {len(e):,} episodes")
    if layout is not None and len(storage):
        print(f"  {_bytes_per_step(storage.nbytes, len(storage), layout)}")
    if storage.schema is not None and storage.schema.sharing is not None:
        print(f"  stored once: {_once(storage.schema.sharing)}")
    _print_leaves(layout, storage.fields)


def _print_leaves(layout: Layout | None, fields: Layout | None) -> None:
    for leaf in () if layout is None else layout.leaves:
        print(f"  {'.'.join(map(str, leaf.path))}: {leaf.describe()}")
    for leaf in () if fields is None else fields.leaves:
        print(f"  {field_column(leaf.path)}: {leaf.describe()}, of each episode")


def _bytes_per_step(nbytes: int, rows: int, layout: Layout) -> str:
    """What a step takes in the files, beside all of its leaves as they are given."""
    step = nbytes / rows
    text = f"{step:,.0f} bytes a step in files"
    if any(leaf.ragged for leaf in layout.leaves):
        return text  # in the plain form they have no size either
    plain = layout.decoded.record_size
    return f"{text}, {step / plain:.2f} of the plain form's {plain:,}"


def _once(sharing: Sharing) -> str:
    """Leaves that are stored once, as in "pixels (4 frames), state, and what is below next"."""

    def named(leaf: SharedLeaf) -> str:
        return ".".join(map(str, leaf.path)) + (
            f" ({leaf.frames} frames)" if leaf.frames > 1 else ""
        )

    names = ", ".join(named(x) for x in sharing.leaves)
    return f"{names}, and the same below next" if sharing.paired else names


def _field_columns(storage: DiskStorage) -> list[str]:
    """Names of the columns that fields of episodes have."""
    return [] if storage.fields is None else [field_column(x.path) for x in storage.fields.leaves]


def _print_table(e: Array, of: int, fields: list[str]) -> None:
    if not len(e):
        print("no such episodes")
        return
    rows = [(*_HEADINGS, *fields), *(_cells(line, fields) for line in e)]
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.rjust(w) for cell, w in zip(row, widths)))
    if len(e) < of:
        print(f"the newest {len(e):,} of {of:,}; --limit 0 shows all")


def _cells(e: Any, fields: list[str]) -> tuple[str, ...]:
    end = "terminated" if e["terminated"] else "truncated" if e["truncated"] else "open"
    when = datetime.fromtimestamp(float(e["time"])).strftime("%Y-%m-%d %H:%M:%S")
    numbers = [str(e[f]) for f in ("id", "traj_id", "steps")]
    cut = "+" if e["trimmed"] else ""
    ids = [str(e[f]) for f in ("policy_version", "writer")]
    given = [str(e[f].tolist()) for f in fields]
    return (*numbers[:2], cut + numbers[2], f"{e['return']:.6g}", end, *ids, when, *given)


def _as_json(e: Any) -> dict[str, Any]:
    return {name: _json_value(e[name].tolist()) for name in e.dtype.names}


def _json_value(value: Any) -> Any:
    """JSON has no NaN: a return that is not known is null."""
    if isinstance(value, list):
        return [_json_value(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _report_damage(storage: DiskStorage, all_rows: bool, show: bool) -> int:
    """Prints what is set aside; with `all_rows`, looks for more."""
    aside = storage.quarantined
    news = {o: r for o, r in aside.items() if o not in storage.repaired}
    damage = Damage(news, len(aside) - len(news), 0)
    if all_rows:
        with Progress(sys.stderr, "rows", show=show) as progress:
            damage = verify(storage, progress)
    if damage.repaired:
        print(f"{damage.repaired:,} episodes were set aside by a repair", file=sys.stderr)
    for ordinal, reason in damage.trajectories.items():
        print(f"episode {ordinal} is set aside: {reason}", file=sys.stderr)
    beyond = storage.rows_beyond() if all_rows else 0
    if beyond:
        print(
            f"{beyond:,} rows are not in the index, and nobody can tell why: it is not the newest, "
            "or the system stopped before they were committed. Whoever writes next puts them "
            f"aside, in {storage.path / 'quarantine'}",
            file=sys.stderr,
        )
    if all_rows:
        state = "whole" if not damage.trajectories else "damaged; --repair sets that aside for good"
        print(f"{damage.rows_checked:,} rows checked: {state}", file=sys.stderr)
    return 1 if damage.trajectories else 0


def _plot(e: Array, path: Path) -> None:
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        fail(f"--plot needs matplotlib: {install_hint('plot')}")
    figure, axes = pyplot.subplots(2, 1, sharex=True, figsize=(9, 6), layout="constrained")
    when = [datetime.fromtimestamp(float(t)) for t in e["time"]]
    for axis, field, label in zip(axes, ("return", "steps"), ("return", "length (steps)")):
        axis.plot(when, e[field], ".", markersize=3, alpha=0.4, label="episodes")
        if len(e) >= 20:
            window = max(len(e) // 50, 5)
            mean = np.convolve(e[field], np.ones(window) / window, "valid")
            axis.plot(when[window - 1 :], mean, linewidth=2, label=f"mean of {window}")
            axis.legend(loc="best")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    axes[-1].set_xlabel("time")
    figure.autofmt_xdate()
    save_picture(figure, path)
    pyplot.close(figure)
