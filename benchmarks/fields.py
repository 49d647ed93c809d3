"""Fields of trajectories and leaves of any size: what they cost.

    python -m benchmarks.fields              some two minutes
    python -m benchmarks.fields --quick      shows that everything runs
    python -m benchmarks.fields --before DIR also a checkout of an earlier contig, built, beside it

Fields: rows of 17 floats, episodes of 64 to 336 steps; the same calls on a storage without fields
(with --before: of both versions, taking turns), on one whose fields nobody gives, and with fields
given. Predicates: a draw of 32 slices of 32 after 16 rows were written, with and without `where=`,
as the tape grows. Leaves of any size: 256 rows with about 2 kB of tokens, beside a fixed leaf of
the same bytes. Observations are stored as often as they come (`share_next=False`), as earlier
versions did.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.rows import cut, make_rows, row_at
from benchmarks.table import aligned, number
from benchmarks.timing import Effort, best_us, cycling
from contig import LazyTensorStorage, RandomSampler, ReplayBuffer, SliceSampler

FIELDS = {"task": np.int32(0), "success": False, "score": np.float32(0)}
GIVEN = {"task": 3, "score": 1.5}
TOKENS = (384, 640)  # lengths of int32: 2 kB on average
BATCH, CHUNK, ROUNDS = 256, 1000, 5


def filled(rows: int, **options: Any) -> ReplayBuffer:
    if "share_next" in inspect.signature(LazyTensorStorage).parameters:
        options["share_next"] = False
    buffer = ReplayBuffer(LazyTensorStorage(rows, **options), batch_size=BATCH, seed=0)
    data = make_rows(min(rows, 100_000))
    for _ in range(0, rows, 100_000):
        buffer.extend(data)
    return buffer


def calls(buffer: ReplayBuffer, fields: Any = None) -> dict[str, Callable[[], Any]]:
    """What is timed of a buffer."""
    data = make_rows(20_000, seed=1)
    single = cycling([row_at(data, i) for i in range(2000)])
    chunk = cycling([cut(data, at, at + CHUNK) for at in range(0, 20_000, CHUNK)])
    given = {} if fields is None else {"fields": fields}
    return {
        "add a row": lambda: buffer.add(single(), **given),
        f"extend {CHUNK} rows": lambda: buffer.extend(chunk(), **given),
        f"sample {BATCH}": buffer.sample,
    }


def without_fields(effort: Effort) -> dict[str, float]:
    """Of this process's contig: the calls that every version has."""
    return {name: best_us(call, effort) for name, call in calls(filled(effort.rows)).items()}


def before(checkout: str, quick: bool) -> dict[str, list[float]]:
    """The same of an earlier version and of this one, in processes of their own, taking turns: the
    best of each."""
    best: dict[str, list[float]] = {}
    code = "import benchmarks.fields as b; b.print_without_fields()"
    for _ in range(1 if quick else ROUNDS):
        for which, src in enumerate((os.path.join(checkout, "src"), None)):
            environment = {**os.environ, "CONTIG_QUICK": str(int(quick))}
            if src is not None:
                environment["PYTHONPATH"] = src
            out = subprocess.run(
                [sys.executable, "-c", code], env=environment, check=True, capture_output=True
            ).stdout
            for name, us in json.loads(out).items():
                pair = best.setdefault(name, [float("inf")] * 2)
                pair[which] = min(pair[which], us)
    return best


def print_without_fields() -> None:
    """For a process of its own."""
    print(json.dumps(without_fields(Effort.of(os.environ.get("CONTIG_QUICK") == "1"))))


def field_rows(effort: Effort) -> list[list[str]]:
    """Without fields, with ones that nobody gives, and with some given: in turns, best of each."""
    made = {
        "none": calls(filled(effort.rows)),
        "unused": calls(filled(effort.rows, fields=FIELDS)),
        "given": calls(filled(effort.rows, fields=FIELDS), GIVEN),
    }
    best: dict[tuple[str, str], float] = {}
    for _ in range(1 if effort.quick else 3):
        for kind, some in made.items():
            for name, call in some.items():
                key = (name, kind)
                best[key] = min(best.get(key, float("inf")), best_us(call, effort))
    rows = [["microseconds", "without", "unused", "given", "unused / without", "goal"]]
    for name in made["none"]:
        none, unused, given = (best[name, kind] for kind in made)
        shown = [number(x) for x in (none, unused, given)]
        rows.append([name, *shown, f"{unused / none:.3f}x", "<= 1.03x"])
    return rows


def where_rows(effort: Effort) -> list[list[str]]:
    """Slices after a write, with and without a predicate, on small and large tapes."""
    sizes = (10_000, 100_000) if effort.quick else (10_000, 100_000, 1_000_000)
    predicates: dict[str, Any] = {
        "all": None,
        "a comparison": ("success", "==", True),
        "a function": lambda t: t["success"] & (t["return"] > -1e9),
    }
    rows = [["write 16, 32 slices of 32; us", *(f"{n:,} rows" for n in sizes), "max / min"]]
    for title, where in predicates.items():
        found = []
        for n in sizes:
            buffer = filled(n, fields=FIELDS)
            storage = buffer.storage
            storage.set_fields(storage.episodes()["id"][::2], {"success": True})
            sampler = SliceSampler(slice_len=32, where=where)
            reader = ReplayBuffer(storage, sampler, batch_size=1024, seed=0)
            piece = cycling([cut(make_rows(1600, seed=2), i, i + 16) for i in range(0, 1600, 16)])

            def write_and_sample(reader: Any = reader, piece: Any = piece) -> None:
                reader.extend(piece(), fields={"success": True})
                reader.sample()

            found.append(best_us(write_and_sample, effort))
        ratio = f"{max(found) / min(found):.2f}x"
        rows.append([title, *(number(x) for x in found), ratio])
    return rows


def ragged_rows(effort: Effort) -> list[list[str]]:
    """Tokens of any length, beside as many bytes in a fixed leaf."""
    from contig import Ragged  # which earlier versions do not have

    n = 20_000 if effort.quick else 100_000
    rng = np.random.default_rng(0)
    lengths = rng.integers(*TOKENS, n)
    mean = int(lengths.mean())
    tokens = [np.full(k, i % 1000, np.int32) for i, k in enumerate(lengths)]
    done = np.arange(n) % 100 == 99
    flat = np.zeros((n, mean), np.int32)

    def buffer_of(column: Any, leaf: Any) -> ReplayBuffer:
        example = {"tokens": leaf, "next": {"done": False}}
        storage = LazyTensorStorage(n, example=example, blob_bytes=int(lengths.sum() + n) * 4)
        buffer = ReplayBuffer(storage, RandomSampler(), batch_size=BATCH, seed=0)
        for at in range(0, n, CHUNK):
            some = slice(at, at + CHUNK)
            buffer.extend({"tokens": column[some], "next": {"done": done[some]}})
        return buffer

    fixed, ragged = buffer_of(flat, flat[0]), buffer_of(tokens, Ragged(np.int32))
    part = slice(0, BATCH)
    pairs = {
        f"sample {BATCH}": (fixed.sample, ragged.sample, "<= 1.5x"),
        f"extend {BATCH}, a list of arrays": (
            lambda: fixed.extend({"tokens": flat[part], "next": {"done": done[part]}}),
            lambda: ragged.extend({"tokens": tokens[part], "next": {"done": done[part]}}),
            "",
        ),
        "add a row": (
            lambda: fixed.add({"tokens": flat[0], "next": {"done": False}}),
            lambda: ragged.add({"tokens": tokens[0], "next": {"done": False}}),
            "",
        ),
    }
    rows = [[f"about {mean * 4} bytes a row; us", "fixed", "any size", "ratio", "goal"]]
    for title, (one, other, goal) in pairs.items():
        times = [[best_us(f, effort) for f in (one, other)] for _ in range(3)]
        a, b = (min(t) for t in zip(*times))
        rows.append([title, number(a), number(b), f"{b / a:.2f}x", goal])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--before", metavar="DIR", help="a checkout of an earlier version, built")
    args = parser.parse_args()
    effort = Effort.of(args.quick)
    if args.before:
        rows = [["without fields; us", "before", "now", "now / before", "goal"]]
        for name, (old, new) in before(args.before, args.quick).items():
            rows.append([name, number(old), number(new), f"{new / old:.3f}x", "<= 1.03x"])
        print(aligned(rows), end="\n\n")
    for table in (field_rows, where_rows, ragged_rows):
        print(aligned(table(effort)), end="\n\n")


if __name__ == "__main__":
    main()
