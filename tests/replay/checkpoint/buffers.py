"""Buffers with every sampler, and ways to compare what they hold and give."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import contig
from contig import ReplayBuffer, Storage
from contig.sample import Sampler
from contig.testing import World
from contig.testing.contents import contents

# How each sampler is made, and a batch size that fits it. None of them runs out of the rows of
# `filled` within a few dozen batches.
SAMPLERS: dict[str, tuple[Callable[[], Sampler], int]] = {
    "random": (contig.RandomSampler, 8),
    "retiring": (lambda: contig.RandomSampler(max_times_sampled=3), 8),
    "without replacement": (contig.SamplerWithoutReplacement, 8),
    "without replacement, drop_last": (lambda: contig.SamplerWithoutReplacement(True), 8),
    "slices": (lambda: contig.SliceSampler(slice_len=3), 9),
    "slices, all options": (
        lambda: contig.SliceSampler(
            num_slices=3, over="steps", burn_in=2, pad_output=True, complete_only=True
        ),
        9,
    ),
    "slices with span": (lambda: contig.SliceSampler(slice_len=4, span=True), 12),
    "slices without replacement": (
        lambda: contig.SliceSamplerWithoutReplacement(slice_len=3, drop_last=True),
        9,
    ),
    "prioritized": (contig.PrioritizedSampler, 8),
    "prioritized slices": (lambda: contig.PrioritizedSliceSampler(slice_len=3), 9),
    "window": (lambda: contig.WindowSampler(last_rows=60, max_staleness=4), 8),
    "window of slices": (
        lambda: contig.WindowSampler(
            contig.SliceSamplerWithoutReplacement(slice_len=3), last_trajectories=20
        ),
        9,
    ),
    "n-step": (lambda: contig.NStepSampler(3, 0.9), 8),
    "n-step of priorities": (
        lambda: contig.NStepSampler(3, 0.9, contig.PrioritizedSampler()),
        8,
    ),
    "chunks": (lambda: contig.ChunkSampler(3, contig.SamplerWithoutReplacement()), 8),
    "fifo": (lambda: contig.FifoSampler(max_times_sampled=2), 5),
    "lifo": (lambda: contig.LifoSampler(max_times_sampled=2), 5),
    "fifo of trajectories": (
        lambda: contig.FifoSampler(per="trajectories", max_times_sampled=4),
        3,
    ),
    "lifo of trajectories": (
        lambda: contig.LifoSampler(per="trajectories", max_times_sampled=4),
        3,
    ),
}

PRIORITIZED = [name for name in SAMPLERS if "priorit" in name]
CAPACITY = 150


def filled(storage: Storage | None = None) -> World:
    """A ring that has turned, with every kind of episode."""
    world = World(contig.LazyTensorStorage(CAPACITY) if storage is None else storage)
    world.write(9)
    return world


def buffer_of(storage: Storage, name: str, seed: int = 7, **options: Any) -> ReplayBuffer:
    make, batch_size = SAMPLERS[name]
    return ReplayBuffer(storage, make(), batch_size=batch_size, seed=seed, **options)


def fresh(name: str, capacity: int = CAPACITY, **options: Any) -> ReplayBuffer:
    """An empty buffer, to load into, with another seed."""
    return buffer_of(contig.LazyTensorStorage(capacity), name, seed=99, **options)


def image(batch: Any) -> dict[Any, bytes]:
    """All bytes of a batch, by leaf."""
    return {path: batch[path].tobytes() for path in batch.keys()}  # noqa: SIM118


def images(buffer: ReplayBuffer, n: int) -> list[dict[Any, bytes]]:
    return [image(buffer.sample()) for _ in range(n)]


def everything(buffer: ReplayBuffer) -> Any:
    """What a failed load must leave as it was."""
    tape = buffer.storage.tape
    held = contents(buffer.storage) if buffer.storage.schema is not None else None
    state = repr(buffer.state())
    return held, state, int(tape.inserted), int(tape.sampled), tape.snapshot()


def read_meta(path: Path) -> dict[str, Any]:
    """What checkpoint.json says. Its first line is JSON; a checksum may follow."""
    return dict(json.loads((path / "checkpoint.json").read_text().split("\n")[0]))


def write_meta(path: Path, meta: Any, seal: bool = False) -> None:
    """Puts something else into checkpoint.json, if told so with the checksum that belongs to it."""
    text = json.dumps(meta)
    lines = (path / "checkpoint.json").read_text().split("\n")[1:]
    if lines and seal:
        lines[0] = str(zlib.crc32(text.encode()))
    (path / "checkpoint.json").write_text("\n".join([text, *lines]))
