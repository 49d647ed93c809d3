"""``contig export``: the trajectories of a storage on disk, in another format.

contig export runs/demo episodes.parquet             the format is the suffix's
contig export runs/demo --to rollouts demos          directories that RolloutDataset reads
contig export runs/demo --to minari cartpole/mine-v0 a Minari dataset of that id
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TextIO

from ..tape.disk import DiskStorage

__all__ = ["FORMATS", "Progress", "add_arguments", "run"]

# Which function of contig.dataset writes a format.
FORMATS = {
    "parquet": "to_parquet",
    "arrow": "to_arrow",
    "hdf5": "to_hdf5",
    "minari": "to_minari",
    "rlinf": "to_rlinf",
    "rollouts": "to_rollouts",
}
_SUFFIXES = {".parquet": "parquet", ".arrow": "arrow", ".h5": "hdf5", ".hdf5": "hdf5"}
_BAR = 30
_NAMED = 10
_REDRAW_S = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, help="the storage's directory")
    parser.add_argument("out", help="file or directory to write; of minari, the dataset's id")
    parser.add_argument("--to", choices=FORMATS, help="the format; else the suffix of OUT says it")
    parser.add_argument(
        "--drop",
        action="append",
        default=[],
        metavar="LEAF",
        help="leave a leaf out, such as next.value; may be given several times",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    """Exit status: 0; 1 if a complete trajectory could not be read, and is not in what was written;
    2 if nothing was written, with the reason on stderr."""
    form = args.to or _SUFFIXES.get(Path(args.out).suffix)
    if form is None:
        return _failed(f"{args.out}: say which format with --to {'|'.join(FORMATS)}")
    if form != "minari" and Path(args.out).exists():
        return _failed(f"{args.out} is there already; move it away, or choose another name")
    try:
        storage = DiskStorage(args.path, read_only=True)
    except (OSError, ValueError) as error:
        return _failed(str(error))
    with storage:
        return _export(storage, form, args)


def _export(storage: DiskStorage, form: str, args: argparse.Namespace) -> int:
    from .. import dataset
    from ..dataset.episodes import Tally, complete

    left = len(storage.episodes()) - len(complete(storage))
    progress = Progress(sys.stderr, show=not args.quiet)
    tally = Tally(progress)
    try:
        write = getattr(dataset, FORMATS[form])
        write(storage, args.out, drop=args.drop, on_episode=tally)
    except (OSError, ValueError, ImportError) as error:
        progress.end()
        return _failed(str(error))
    progress.end()
    print(f"{args.out}: {tally.trajectories:,} trajectories, {tally.rows:,} rows")
    if left:
        print(f"left out: {left:,} trajectories that are open, trimmed or damaged", file=sys.stderr)
    if tally.left:
        ids = ", ".join(map(str, tally.left[:_NAMED]))
        more = f" and {len(tally.left) - _NAMED:,} more" if len(tally.left) > _NAMED else ""
        print(
            f"could not be read: {len(tally.left):,} trajectories, damaged or evicted meanwhile: "
            f"{ids}{more}; contig inspect --verify says more",
            file=sys.stderr,
        )
    return 1 if tally.left else 0


def _failed(reason: str) -> int:
    print(f"contig export: {reason}", file=sys.stderr)
    return 2


class Progress:
    """A bar on a terminal: how many are done, and how long the rest takes. Elsewhere nothing.

    Args:
        stream: where it is drawn.
        show: whether to, if that is a terminal.
    """

    def __init__(self, stream: TextIO, *, show: bool = True) -> None:
        self._stream = stream
        self._show = show and stream.isatty()
        self._began = self._drawn = time.monotonic()
        self._open = False
        self.done = 0

    def __call__(self, done: int, total: int) -> None:
        self.done = done
        now = time.monotonic()
        if not self._show or (done < total and now - self._drawn < _REDRAW_S):
            return
        self._drawn = now
        filled = _BAR * done // max(total, 1)
        rest_s = (now - self._began) / done * (total - done)
        bar = "#" * filled + "." * (_BAR - filled)
        self._stream.write(f"\r[{bar}] {done:,} of {total:,} trajectories, {rest_s:,.0f} s left ")
        self._stream.flush()
        self._open = True

    def end(self) -> None:
        """Ends the bar's line."""
        if self._open:
            self._stream.write("\n")
            self._open = False
