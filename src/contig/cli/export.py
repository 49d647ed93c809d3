"""``contig export``: the trajectories of a storage on disk, in another format.

contig export runs/demo episodes.parquet             the format is the suffix's
contig export runs/demo --to rollouts demos          directories that RolloutDataset reads
contig export runs/demo --to minari cartpole/mine-v0 a Minari dataset of that id
contig export runs/demo s3://bucket/episodes.parquet to wherever fsspec reaches
contig export runs/demo --to checkpoint s3://bucket/demo
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ..replay.remote_files import downloaded, is_url, uploading
from ..tape import LazyTensorStorage, Storage
from ..tape.disk import DiskStorage

if TYPE_CHECKING:
    from ..dataset.episodes import Tally

__all__ = ["FORMATS", "SUFFIXES", "Progress", "add_arguments", "opened", "run"]

# Which function of contig.dataset writes a format.
FORMATS = {
    "parquet": "to_parquet",
    "arrow": "to_arrow",
    "hdf5": "to_hdf5",
    "minari": "to_minari",
    "rlinf": "to_rlinf",
    "rollouts": "to_rollouts",
    "checkpoint": "to_checkpoint",
}
SUFFIXES = {".parquet": "parquet", ".arrow": "arrow", ".h5": "hdf5", ".hdf5": "hdf5"}
_BAR = 30
_NAMED = 10
_REDRAW_S = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", help="the directory, or url, of a storage or a checkpoint")
    parser.add_argument("out", help="file, directory or url to write; of minari, the dataset's id")
    parser.add_argument("--to", choices=FORMATS, help="the format; else the suffix of OUT says it")
    parser.add_argument(
        "--drop",
        action="append",
        default=[],
        metavar="LEAF",
        help="leave a leaf out, such as next.value; may be given several times",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace what is at a url")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    """Exit status: 0; 1 if a complete trajectory could not be read, and is not in what was written;
    2 if nothing was written, with the reason on stderr."""
    form = args.to or SUFFIXES.get(Path(args.out).suffix)
    if form is None:
        return _failed(f"{args.out}: say which format with --to {'|'.join(FORMATS)}")
    if is_url(args.out):
        if form == "minari":
            return _failed("minari keeps its datasets in its own place; choose another format")
    elif args.overwrite:
        return _failed(f"{args.out}: --overwrite is for urls; move what is there away")
    elif form != "minari" and Path(args.out).exists():
        return _failed(f"{args.out} is there already; move it away, or choose another name")
    try:
        with opened(args.path) as storage:
            return _export(storage, form, args)
    except (OSError, ValueError, ImportError) as error:
        return _failed(str(error))


@contextmanager
def opened(path: str) -> Iterator[Storage]:
    """A storage to read: of its directory, or with what is in a checkpoint's, here or at a url."""
    if is_url(path):
        with downloaded(path) as local, opened(str(local)) as storage:
            yield storage
        return
    from ..replay.saved_rows import is_checkpoint, saved_rows

    if not is_checkpoint(Path(path)):
        with DiskStorage(path, read_only=True) as storage:
            yield storage
        return
    with saved_rows(Path(path)) as saved:
        contents = saved.whole()
        with LazyTensorStorage(max(contents.head - contents.tail, 1)) as storage:
            kept = contents.newest(storage.capacity)
            storage.restore(kept, (0, 0), saved.layout, saved.keys)
            yield storage


def _export(storage: Storage, form: str, args: argparse.Namespace) -> int:
    from .. import dataset
    from ..dataset.episodes import Tally, complete

    left = len(storage.episodes()) - len(complete(storage))
    progress = Progress(sys.stderr, show=not args.quiet)
    tally = Tally(progress)
    write = getattr(dataset, FORMATS[form])
    try:
        if is_url(args.out):
            with uploading(args.out, form, overwrite=args.overwrite) as made:
                write(storage, made, drop=args.drop, on_episode=tally)
        else:
            write(storage, args.out, drop=args.drop, on_episode=tally)
    finally:
        progress.end()
    return _summary(args.out, tally, 0 if form == "checkpoint" else left)


def _summary(out: str, tally: Tally, left: int) -> int:
    print(f"{out}: {tally.trajectories:,} trajectories, {tally.rows:,} rows")
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
