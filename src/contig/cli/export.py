"""``contig export``: the trajectories of a storage on disk, in another format.

examples:
  contig export runs/demo episodes.parquet              the format is the suffix's
  contig export runs/demo demos --to rollouts           directories that RolloutDataset reads
  contig export runs/demo cartpole/mine-v0 --to minari  a Minari dataset of that id
  contig export runs/demo set --to lerobot --fps 20     a LeRobot v3 directory
  contig export runs/demo s3://bucket/episodes.parquet  to wherever fsspec reaches
  contig export runs/demo s3://bucket/demo --to checkpoint

exit status: 0; 1 a complete trajectory could not be read, and is not in it; 2 nothing was written.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..replay.remote_files import downloaded, is_url, uploading
from ..tape import LazyTensorStorage, Storage
from ..tape.disk import DiskStorage
from .failure import fail, one_line
from .progress import Progress
from .values import number, text

if TYPE_CHECKING:
    from ..dataset.episodes import Tally

__all__ = ["FORMATS", "SUFFIXES", "add_arguments", "opened", "run"]

# Which function of contig.dataset writes a format.
FORMATS = {
    "parquet": "to_parquet",
    "arrow": "to_arrow",
    "hdf5": "to_hdf5",
    "minari": "to_minari",
    "rlinf": "to_rlinf",
    "lerobot": "to_lerobot",
    "rollouts": "to_rollouts",
    "checkpoint": "to_checkpoint",
}
SUFFIXES = {".parquet": "parquet", ".arrow": "arrow", ".h5": "hdf5", ".hdf5": "hdf5"}
_OF_LEROBOT = ("fps", "tasks", "robot_type", "video")  # what only `to_lerobot` takes
_NAMED = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", type=text, help="the directory, or url, of a storage or a checkpoint"
    )
    parser.add_argument("out", type=text, help="file, directory or url to write; of minari, its id")
    parser.add_argument("--to", choices=FORMATS, help="the format; else the suffix of OUT says it")
    parser.add_argument(
        "--drop",
        type=text,
        action="append",
        default=[],
        metavar="LEAF",
        help="leave a leaf out, such as next.value; may be given several times",
    )
    lerobot = parser.add_argument_group("of lerobot")
    lerobot.add_argument("--fps", type=number(0.001, 1e6), help="frames per second (30)")
    lerobot.add_argument("--task", type=text, dest="tasks", help="what is to be done, in words")
    lerobot.add_argument("--robot-type", type=text, help="the robot's name")
    lerobot.add_argument(
        "--video",
        type=text,
        metavar="ENCODER",
        help="FFmpeg's encoder of videos, such as libx264rgb; or none: images, exactly",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace what is at a url")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--json", action="store_true", help="what was written, as a JSON object")


def run(args: argparse.Namespace) -> int:
    """Exit status: 0; 1 if a complete trajectory could not be read, and is not in what was written;
    2 if nothing was written, with the reason on stderr."""
    form = args.to or SUFFIXES.get(Path(args.out).suffix)
    if form is None:
        fail(f"{args.out}: say which format with --to {'|'.join(FORMATS)}")
    if is_url(args.out):
        if form == "minari":
            fail("minari keeps its datasets in its own place; choose another format")
    elif args.overwrite:
        fail(f"{args.out}: --overwrite is for urls; move what is there away")
    elif form != "minari" and Path(args.out).exists():
        fail(f"{args.out} is there already; move it away, or choose another name")
    given = [name for name in _OF_LEROBOT if getattr(args, name) is not None]
    if given and form != "lerobot":
        option = "--task" if given[0] == "tasks" else f"--{given[0].replace('_', '-')}"
        fail(f"{option}: only --to lerobot has it")
    try:
        with opened(args.path) as storage:
            return _export(storage, form, args)
    except (OSError, ValueError, ImportError) as error:
        fail(_as_typed(one_line(error)))


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
            storage.restore(kept, (0, 0), saved.layout, saved.keys, saved.fields)
            yield storage


def _export(storage: Storage, form: str, args: argparse.Namespace) -> int:
    from .. import dataset
    from ..dataset.episodes import Tally, complete

    left = len(storage.episodes()) - len(complete(storage))
    progress = Progress(sys.stderr, show=not args.quiet)
    tally = Tally(progress)
    write = partial(getattr(dataset, FORMATS[form]), drop=args.drop, on_episode=tally)
    options = {name: value for name in _OF_LEROBOT if (value := getattr(args, name)) is not None}
    if options.get("video") == "none":
        options["video"] = False
    try:
        if is_url(args.out):
            with uploading(args.out, form, overwrite=args.overwrite) as made:
                write(storage, made, **options)
        else:
            write(storage, args.out, **options)
    finally:
        progress.end()
    left = 0 if form == "checkpoint" else left
    if args.json:
        unread = [int(id) for id in tally.left]
        told = {"out": args.out, "format": form, "trajectories": tally.trajectories}
        print(json.dumps({**told, "rows": tally.rows, "left_out": left, "unread": unread}))
        return 1 if tally.left else 0
    return _summary(args.out, tally, left)


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


def _as_typed(reason: str) -> str:
    """What the functions of contig.dataset advise, as it is given here."""
    return re.sub(r'drop=\["(.*?)"\]', lambda m: f"--drop {shlex.quote(m[1])}", reason)
