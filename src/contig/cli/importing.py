"""``contig import``: trajectories of other formats, into a storage on disk.

examples:
  contig import episodes.parquet runs/demo              the format is the suffix's or directory's
  contig import s3://bucket/episodes.parquet runs/demo  from wherever fsspec reaches
  contig import cartpole/mine-v0 runs/demo --from minari
  contig import table.parquet runs/demo --columns ep=episode t=step obs=observation rew=next.reward

exit status: 0; 2 it failed: the reason says how many trajectories were there before it did.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from ..replay.remote_files import downloaded, is_url
from ..tape.disk import DiskStorage
from .export import SUFFIXES
from .failure import fail, one_line
from .progress import Progress, watching
from .values import column, path, text

__all__ = ["FORMATS", "add_arguments", "run"]

# Which function of contig.dataset reads a format.
FORMATS = {
    "parquet": "from_parquet",
    "arrow": "from_parquet",
    "hdf5": "from_hdf5",
    "minari": "from_minari",
    "rlinf": "from_rlinf",
    "lerobot": "from_lerobot",
    "checkpoint": "from_checkpoint",
}
# By which file a directory's format is known.
_MARKS = {
    "checkpoint.json": "checkpoint",
    "layout.json": "checkpoint",
    "trajectory_index.json": "rlinf",
    "meta/info.json": "lerobot",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", type=text, help="file, directory or url to read; of minari, the id"
    )
    parser.add_argument("path", type=path, help="the storage's directory; made if it is not there")
    parser.add_argument(
        "--from", dest="form", choices=FORMATS, help="the format, if it is not clear"
    )
    parser.add_argument(
        "--unverified",
        action="store_true",
        help="take what another program put at a url, of which nothing says that it is whole",
    )
    parser.add_argument(
        "--columns",
        type=column,
        nargs="+",
        metavar="COLUMN=LEAF",
        help="of a Parquet or Arrow table of another program: what its columns are, leaves or "
        "episode, step, terminated, truncated",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--json", action="store_true", help="what was read, as a JSON object")


def run(args: argparse.Namespace) -> int:
    """Exit status: 0; 2 if it failed, with the reason on stderr."""
    if args.form == "minari":
        if is_url(args.source):
            fail("minari keeps its datasets in its own place; choose another format")
    elif not is_url(args.source) and not Path(args.source).exists():
        fail(f"{args.source}: no such file or directory")
    elif not is_url(args.source) and Path(args.source).resolve() == args.path.resolve():
        fail(f"{args.source} is where it comes from and where it would go: name another directory")
    if args.unverified and not is_url(args.source):
        fail(f"--unverified is for urls, and {args.source} is none")
    added = 0
    try:
        with _local(args) as source:
            form = args.form or _form_of(source)
            if form is None:
                fail(f"{args.source}: say which format with --from {'|'.join(FORMATS)}")
            options = {}
            if args.columns:
                if FORMATS[form] != "from_parquet":
                    fail(f"--columns is for Parquet and Arrow, and {args.source} is {form}")
                options["columns"] = dict(args.columns)
            from .. import dataset

            with DiskStorage(args.path) as storage:
                before = len(storage.episodes())
                shown = Progress(sys.stderr, show=not args.quiet)
                taken = partial(_taken, storage, before)
                try:
                    with watching(shown, taken):
                        read = getattr(dataset, FORMATS[form])
                        count = read(str(source), storage, **options)
                        storage.flush()
                finally:
                    added = len(storage.episodes()) - before
    except (OSError, ValueError, ImportError) as error:
        more = f"; {added:,} trajectories before it are in {args.path}" if added else ""
        fail(f"{one_line(error)}{more}")
    if args.json:
        print(json.dumps({"path": str(args.path), "trajectories": count, "before": before}))
        return 0
    there = f", behind {before:,} that were there" if before else ""
    print(f"{args.path}: {count:,} trajectories{there}")
    return 0


def _taken(storage: DiskStorage, before: int) -> int:
    """Trajectories that came so far."""
    return max(int(storage.tape.trajectories) - before, 0)


def _local(args: argparse.Namespace) -> AbstractContextManager[str | Path]:
    if is_url(args.source):
        return downloaded(args.source, unverified=args.unverified)
    return nullcontext(args.source)


def _form_of(source: str | Path) -> str | None:
    path = Path(source)
    known = SUFFIXES.get(path.suffix)
    if known is not None:
        return known
    return next((form for mark, form in _MARKS.items() if (path / mark).exists()), None)
