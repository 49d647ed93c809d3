"""Storages on disk: committed appends, samples of a store larger than the page cache, checkpoints.

    python -m benchmarks.disk                    a store of 20 GB, some minutes
    python -m benchmarks.disk --gigabytes 1      a small one
    python -m benchmarks.disk --folder DIR       on another disk (default: the temporary directory)
    python -m benchmarks.disk --growth           how figures grow with what is stored, a minute

Beside the appends stands the disk's own sequential rate: the same bytes with `pwrite` in 8 MB
pieces and one fsync at the end. Samples are drawn by a new process after the page cache was
dropped, with its page faults counted, and once more when the rows are in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from contig import DiskStorage, RandomSampler, ReplayBuffer, SliceSampler
from contig.tape.disk.extents import row_stride
from contig.tape.disk.repair import verify

RECORD_BYTES = 1900
EPISODE = 200
BATCH = 256
ENVS = 64


def rows(n: int, number: int) -> dict[str, Any]:
    """Rows of some 1.9 kB that do not compress."""
    random = np.random.default_rng(number)
    return {
        "observation": random.integers(0, 256, (n, RECORD_BYTES - 8), np.uint8),
        "next": {"reward": np.ones(n, np.float32), "done": np.arange(n) == n - 1},
    }


def sequential_rate(folder: Path, nbytes: int) -> float:
    """MB/s of plain writes, synced at the end."""
    piece = np.random.default_rng(0).integers(0, 256, 8 << 20, np.uint8).tobytes()
    path = folder / "sequential"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    began = time.perf_counter()
    for at in range(0, nbytes, len(piece)):
        os.pwrite(fd, piece, at)
    os.fsync(fd)
    seconds = time.perf_counter() - began
    os.close(fd)
    path.unlink()
    return nbytes / seconds / 1e6


def append(path: Path, nbytes: int) -> dict[str, float]:
    """Fills a store; each call is one episode, committed in groups as fast as they come."""
    episodes = [rows(EPISODE, i) for i in range(50)]
    storage = DiskStorage(path)
    buffer = ReplayBuffer(storage, batch_size=BATCH)
    began, written, number = time.perf_counter(), 0, 0
    while written < nbytes:
        buffer.extend_trajectory(episodes[number % len(episodes)], terminated=True)
        written += EPISODE * RECORD_BYTES
        number += 1
    storage.flush()
    committed = time.perf_counter() - began
    storage.close()
    os.sync()
    synced = time.perf_counter() - began
    return {
        "gigabytes": written / 1e9,
        "committed_mb_per_s": written / committed / 1e6,
        "synced_mb_per_s": written / synced / 1e6,
    }


def one_by_one(path: Path, durability: str) -> float:
    """Median milliseconds from an append of one episode to its commit, alone."""
    storage = DiskStorage(path, durability=durability)
    buffer = ReplayBuffer(storage, batch_size=BATCH)
    episode, times = rows(64, 0), []
    for _ in range(120):
        began = time.perf_counter()
        buffer.extend_trajectory(episode, terminated=True)
        storage.flush()
        times.append(time.perf_counter() - began)
    storage.close()
    return statistics.median(times[20:]) * 1e3


def drop_page_cache(path: Path) -> None:
    """Of the store's files: nobody may have them mapped."""
    for file in path.rglob("*"):
        if file.is_file():
            fd = os.open(file, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def sample(path: Path, kind: str, batches: int) -> dict[str, float]:
    """In a process of its own: opening, then batches, with faults per row."""
    began = time.perf_counter()
    storage = DiskStorage(path, read_only=True)
    opened = time.perf_counter() - began
    sampler = RandomSampler() if kind == "rows" else SliceSampler(slice_len=32)
    buffer = ReplayBuffer(storage, sampler, batch_size=BATCH, seed=0)
    buffer.sample()
    before = resource.getrusage(resource.RUSAGE_SELF)
    times = []
    for _ in range(batches):
        began = time.perf_counter()
        buffer.sample()
        times.append(time.perf_counter() - began)
    after = resource.getrusage(resource.RUSAGE_SELF)
    major = after.ru_majflt - before.ru_majflt
    minor = after.ru_minflt - before.ru_minflt
    return {
        "open_s": opened,
        "rows": len(storage),
        "batch_ms": statistics.median(times) * 1e3,
        "major_faults_per_row": major / batches / BATCH,
        "minor_faults_per_row": minor / batches / BATCH,
    }


def checkpoint(path: Path, target: Path) -> float:
    """Seconds to save everything."""
    storage = DiskStorage(path)
    buffer = ReplayBuffer(storage, batch_size=BATCH)
    began = time.perf_counter()
    buffer.save(target)
    seconds = time.perf_counter() - began
    storage.close()
    return seconds


# -- growth ----------------------------------------------------------------------------------------


def one_step() -> dict[str, Any]:
    """A step of 64 envs: by `add_step`, runs of one row each."""
    return {
        "observation": np.zeros((ENVS, 17), np.float32),
        "action": np.zeros((ENVS, 6), np.float32),
        "next": {"reward": np.zeros(ENVS, np.float32), "done": np.zeros(ENVS, bool)},
    }


def write_steps(path: Path, n: int) -> float:
    """Rows per second, committed, of one-row runs."""
    storage = DiskStorage(path)
    buffer, step = ReplayBuffer(storage, RandomSampler(), batch_size=BATCH), one_step()
    buffer.add_step(step)
    began = time.perf_counter()
    for _ in range(n // ENVS):
        buffer.add_step(step)
    storage.flush()
    rate = n / (time.perf_counter() - began)
    buffer.save(path.with_name(path.name + "-saved"))
    storage.close()
    return rate


def write_episodes(path: Path, n: int) -> float:
    """Rows per second, committed, of episodes of 100 rows."""
    steps = 100
    episode = {
        "observation": np.zeros((steps, 17), np.float32),
        "next": {"reward": np.ones(steps, np.float32), "done": np.arange(steps) == steps - 1},
    }
    with DiskStorage(path) as storage:
        buffer = ReplayBuffer(storage, batch_size=BATCH)
        began = time.perf_counter()
        for _ in range(n // steps):
            buffer.extend_trajectory(episode, terminated=True)
        storage.flush()
        return n / (time.perf_counter() - began)


def most_memory() -> float:
    """MB that this process had at most. (`ru_maxrss` begins with that of its parent.)"""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0


def opened(path: Path) -> dict[str, float]:
    """In a process of its own: seconds and memory to open, verify, sample."""
    before = most_memory()
    began = time.perf_counter()
    storage = DiskStorage(path)
    seconds = time.perf_counter() - began
    most = most_memory()
    began = time.process_time()
    rows = verify(storage).rows_checked
    checked = time.process_time() - began
    buffer = ReplayBuffer(storage, RandomSampler(), batch_size=BATCH, seed=0)
    times = []
    for _ in range(1000):
        began = time.perf_counter()
        buffer.sample()
        times.append(time.perf_counter() - began)
    nbytes = rows * row_stride(storage.layout.record_size if storage.layout else 0)
    storage.close()
    return {
        "open_s": seconds,
        "megabytes": most,
        "added_megabytes": most - before,
        "verify_gb_per_s": nbytes / checked / 1e9,
        "sample_ms": statistics.median(times) * 1e3,
    }


def load(path: Path, saved: Path) -> float:
    """Seconds until a checkpoint is loaded and committed."""
    with DiskStorage(path) as storage:
        buffer = ReplayBuffer(storage, RandomSampler(), batch_size=BATCH)
        began = time.perf_counter()
        buffer.load(saved)
        storage.flush()
        return time.perf_counter() - began


def growth(folder: Path) -> None:
    print("one-row runs, by add_step of 64 envs:")
    for n in (100_000, 300_000, 1_000_000):
        store = folder / f"steps-{n}"
        rate = write_steps(store, n)
        found = in_new_process("--opened", str(store))
        loaded = load(folder / f"loaded-{n}", store.with_name(store.name + "-saved"))
        print(f"  {n:>10,}: written {rate:,.0f}/s, loaded in {loaded:.2f} s,", _line(found))
    print("episodes of 100 rows:")
    for n in (1_000_000, 3_000_000, 10_000_000):
        store = folder / f"episodes-{n}"
        rate = write_episodes(store, n)
        found = in_new_process("--opened", str(store))
        print(f"  {n:>10,}: written {rate:,.0f}/s,", _line(found))


def _line(found: dict[str, float]) -> str:
    return (
        "opened in {open_s:.2f} s and {megabytes:.0f} MB ({added_megabytes:.0f} of it for this), "
        "verified at {verify_gb_per_s:.1f} GB/s of one core, {batch} rows in {sample_ms:.3f} ms"
    ).format(batch=BATCH, **found)


def in_new_process(*arguments: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.disk", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure storages on disk.")
    parser.add_argument("--gigabytes", type=float, default=20)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--sample", nargs=3, metavar=("PATH", "KIND", "BATCHES"))
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--opened", type=Path, metavar="PATH")
    arguments = parser.parse_args()
    if arguments.opened is not None:
        print(json.dumps(opened(arguments.opened)))
        return
    if arguments.sample is not None:
        path, kind, batches = arguments.sample
        print(json.dumps(sample(Path(path), kind, int(batches))))
        return
    folder = Path(tempfile.mkdtemp(prefix="contig-bench-", dir=arguments.folder))
    try:
        if arguments.growth:
            growth(folder)
            return
        report(folder, int(arguments.gigabytes * 1e9))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def report(folder: Path, nbytes: int) -> None:
    store = folder / "store"
    rate = sequential_rate(folder, min(nbytes, 4_000_000_000))
    for durability in ("committed", "durable"):
        median = one_by_one(folder / durability, durability)
        print(f"one episode of 64 rows (122 kB) {durability}: {median:.2f} ms (median)")
    filled = append(store, nbytes)
    print(
        "appends: {committed_mb_per_s:,.0f} MB/s committed, {synced_mb_per_s:,.0f} MB/s until all "
        "of it is on the disk ({gigabytes:.1f} GB)".format(**filled),
        f"; plain writes: {rate:,.0f} MB/s",
        sep="",
    )
    for kind in ("rows", "slices"):
        drop_page_cache(store)
        cold = in_new_process("--sample", str(store), kind, "40")
        print(
            f"{BATCH} {kind} of {cold['rows']:,}, page cache dropped: {cold['batch_ms']:.2f} ms, "
            f"{cold['major_faults_per_row']:.2f} major and {cold['minor_faults_per_row']:.2f} "
            f"minor faults per row; opened in {cold['open_s']:.2f} s"
        )
    warm = in_new_process("--sample", str(store), "rows", "2000")
    print(f"{BATCH} rows, cache as it is after 2,000 batches: {warm['batch_ms']:.3f} ms")
    print(f"checkpoint: {checkpoint(store, folder / 'checkpoint'):.2f} s")


if __name__ == "__main__":
    main()
