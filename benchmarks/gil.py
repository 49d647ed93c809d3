"""How long the interpreter stands still while one thread makes a large call.

A thread ticks every 0.2 ms; printed is, of each operation, the longest time between two ticks in
milliseconds, the best of several repeats: other load on the machine only makes it longer. Whoever
holds the interpreter's lock for 5 ms or less gives another thread its turn in time.

Run: `python -m benchmarks.gil [--quick] [--only NAME ...]`; some two minutes, and 4 GB of memory.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from contig import (
    Blob,
    DiskStorage,
    FifoSampler,
    LazyTensorStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    Ragged,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SharedStorage,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TrajectorySampler,
    WindowSampler,
)

TICK_S = 0.0002
MB = 1 << 20

Operation = Callable[[], object]
# Each repeat makes what it needs anew, and gives (name, call) one after another.
Case = Callable[["Sizes", Path], Iterator[tuple[str, Operation]]]


class Sizes:
    def __init__(self, quick: bool) -> None:
        self.bytes = (32 if quick else 256) * MB
        self.runs = 200_000 if quick else 2_000_000


class Ticker:
    """Measures the longest time for which no other thread came to run Python."""

    def __init__(self) -> None:
        self._going = True
        self._longest_s = 0.0
        self._thread = threading.Thread(target=self._tick, daemon=True)
        self._thread.start()

    def _tick(self) -> None:
        last = time.perf_counter()
        while self._going:
            time.sleep(TICK_S)
            now = time.perf_counter()
            self._longest_s = max(self._longest_s, now - last)
            last = now

    def longest_ms(self, call: Operation) -> float:
        time.sleep(10 * TICK_S)
        self._longest_s = 0.0
        result = call()
        time.sleep(10 * TICK_S)  # a gap counts when it ends
        longest = self._longest_s
        del result
        return 1e3 * longest

    def close(self) -> None:
        self._going = False
        self._thread.join()


def _columns(sizes: Sizes) -> dict[str, Any]:
    n = sizes.bytes // 1024
    return {
        "observation": np.ones((n, 255), np.float32),
        "next": {"reward": np.ones(n, np.float32), "done": np.zeros(n, np.bool_)},
    }


def _ragged(sizes: Sizes) -> dict[str, Any]:
    """Some thousand rows of two such leaves, whose bytes do not lie one behind the other."""
    n = sizes.bytes // (64 * 1024)
    values = np.ones(sizes.bytes // 8, np.float32)
    offsets = np.linspace(0, len(values), n + 1).astype(np.int64)
    blobs = [bytes(sizes.bytes // 2 // n)] * n
    return {"points": Ragged(values, offsets), "image": blobs}


RAGGED_EXAMPLE = {"points": Ragged(np.float32), "image": Blob()}


def _small(n: int) -> dict[str, Any]:
    """Episodes of one row each: as many runs as rows."""
    ends = np.ones(n, np.bool_)
    return {
        "observation": np.arange(n, dtype=np.float32),
        "next": {"reward": np.ones(n, np.float32), "done": ends, "terminated": ends},
    }


def _storages(sizes: Sizes, folder: Path, rows: int, **options: Any) -> Iterator[tuple[str, Any]]:
    yield "memory", LazyTensorStorage(rows, **options)
    yield "shared", SharedStorage(rows, **options)
    yield "disk", DiskStorage(folder / "disk", rows, **options)


def extend(sizes: Sizes, folder: Path) -> Iterator[tuple[str, Operation]]:
    rows = _columns(sizes)
    n = len(rows["observation"])
    for name, storage in _storages(sizes, folder, n):
        buffer = ReplayBuffer(storage)
        yield f"extend, {name}", lambda b=buffer: b.extend(rows)
        yield f"extend again, {name}", lambda b=buffer: b.extend(rows)
        yield f"sample, {name}", lambda b=buffer: b.sample(n // 2)
        yield f"all rows, {name}", lambda b=buffer: b[:]
        yield f"close, {name}", storage.close


def extend_any_size(sizes: Sizes, folder: Path) -> Iterator[tuple[str, Operation]]:
    rows = _ragged(sizes)
    n = len(rows["image"])
    for name, storage in _storages(
        sizes, folder, n, example=RAGGED_EXAMPLE, blob_bytes=2 * sizes.bytes
    ):
        buffer = ReplayBuffer(storage)
        yield f"extend any size, {name}", lambda b=buffer: b.extend(rows)
        yield f"sample any size, {name}", lambda b=buffer: b.sample(n // 2)
        storage.close()
    one = {"points": rows["points"].values, "image": b"".join(rows["image"])}
    buffer = ReplayBuffer(LazyTensorStorage(4, example=RAGGED_EXAMPLE, blob_bytes=2 * sizes.bytes))
    yield "add any size", lambda: buffer.add(one)
    buffer.close()


def first_draw(sizes: Sizes, folder: Path) -> Iterator[tuple[str, Operation]]:
    """The first draw of each sampler over rows that are episodes of one step each."""
    storage = SharedStorage(sizes.runs)
    writing = ReplayBuffer(storage)
    yield "extend, episodes of one row", lambda: writing.extend(_small(sizes.runs))
    samplers: dict[str, Callable[[], Any]] = {
        "uniform": RandomSampler,
        "each once": SamplerWithoutReplacement,
        "newest": lambda: WindowSampler(last_rows=sizes.runs // 2),
        "slices": lambda: SliceSampler(slice_len=1),
        "slices, not strict": lambda: SliceSampler(slice_len=2, strict_length=False),
        "slices, each once": lambda: SliceSamplerWithoutReplacement(slice_len=1),
        "prioritized": PrioritizedSampler,
        "prioritized slices": lambda: PrioritizedSliceSampler(slice_len=1),
        "trajectories": lambda: TrajectorySampler(256),
        "first in first out": FifoSampler,
    }
    for name, make in samplers.items():
        size = None if name == "trajectories" else 256
        reader = ReplayBuffer(storage, sampler=make(), batch_size=size)
        yield f"first draw, {name}", reader.sample
        if isinstance(reader.sampler, PrioritizedSampler):
            yield (
                f"update, {name}",
                lambda r=reader: r.update_priority(np.arange(256), np.ones(256)),
            )
    yield "episodes()", storage.episodes
    yield "stats()", writing.stats
    yield "save", lambda: writing.save(folder / "saved")
    yield "load", lambda: writing.load(folder / "saved")
    yield "draw after load", lambda: writing.sample(256)
    yield "empty", writing.empty
    writing.close()


def disk(sizes: Sizes, folder: Path) -> Iterator[tuple[str, Operation]]:
    n = sizes.runs // 10
    storage = DiskStorage(folder / "runs", n)
    buffer = ReplayBuffer(storage, batch_size=256)
    yield "extend, episodes of one row, disk", lambda: buffer.extend(_small(n))
    yield "first draw, disk", buffer.sample
    yield "save, disk", lambda: buffer.save(folder / "saved-disk")
    buffer.close()
    storage.close()
    opened: list[Any] = []
    yield "open, disk", lambda: opened.append(DiskStorage(folder / "runs"))
    yield "episodes(), disk", opened[0].episodes
    opened[0].close()


CASES: dict[str, Case] = {
    "extend": extend,
    "any-size": extend_any_size,
    "first-draw": first_draw,
    "disk": disk,
}


@contextmanager
def _quiet_collector() -> Iterator[None]:
    """Without collections of garbage, which are no operation's own."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def longest_gaps(case: Case, sizes: Sizes, repeats: int) -> dict[str, float]:
    """Returns the longest gap of each of a case's operations, in milliseconds."""
    best: dict[str, float] = {}
    for _ in range(repeats):
        ticker = Ticker()
        with tempfile.TemporaryDirectory() as folder, _quiet_collector():
            for name, call in case(sizes, Path(folder)):
                best[name] = min(best.get(name, float("inf")), ticker.longest_ms(call))
        ticker.close()
    return best


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="*", choices=sorted(CASES), default=sorted(CASES))
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args(argv)
    sys.setswitchinterval(0.0005)  # else Python code itself is 5 ms
    for name in arguments.only:
        gaps = longest_gaps(CASES[name], Sizes(arguments.quick), arguments.repeats)
        for operation, gap in gaps.items():
            print(f"{operation:40}{gap:9.1f} ms{'  <- above 5 ms' if gap > 5 else ''}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
