"""Ways into a storage of this process, or of shared memory."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from contig import (
    DeviceStorage,
    DiskStorage,
    LazyTensorStorage,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SharedStorage,
    SliceSampler,
)
from contig.tape import Storage, Writer
from contig.testing import OpenRoute, RouteNeeds, VerbKind, WriteRoute

__all__ = ["ENSEMBLE_VERBS", "LOCAL", "STORED_VERBS", "BufferRoute", "WriterRoute", "call", "keyed"]

# The verbs of a ReplayBuffer, and of everything that has the same ones.
STORED_VERBS: dict[str, VerbKind] = {
    "add": VerbKind.ROW,
    "add_step": VerbKind.STEP,
    "add_step(env_ids)": VerbKind.STEP,
    "add_step(mask)": VerbKind.STEP,
    "extend": VerbKind.ROWS,
    "extend(lanes)": VerbKind.LANES,
    "extend_trajectory": VerbKind.WHOLE,
}


def keyed(storage: Storage, needs: RouteNeeds, **more: Any) -> ReplayBuffer:
    """A buffer whose sampler names the key that is asked for."""
    sampler = None
    if needs.traj_key is not None:
        sampler = SliceSampler(slice_len=2, traj_key=needs.traj_key)
    return ReplayBuffer(storage, sampler, batch_size=2, seed=0, **more)


def call(target: Any, verb: str, data: Any) -> None:
    """Calls a verb with the arguments that stand in parentheses."""
    name, _, how = verb.rstrip(")").partition("(")
    envs = data["action"].shape[0] if name == "add_step" else 0
    if how == "env_ids":  # other numbers than those of the rows
        target.add_step(data, env_ids=np.arange(envs)[::-1] + 3)
    elif how == "mask":  # between rows that are not stored
        spread = np.repeat(np.arange(envs), 2)
        target.add_step(_taken(data, spread), mask=np.tile([False, True], envs))
    else:
        getattr(target, name)(data)


def _taken(tree: Any, rows: Any) -> Any:
    return {k: _taken(v, rows) if isinstance(v, dict) else v[rows] for k, v in tree.items()}


class BufferWay(OpenRoute):
    """Each lane has a buffer with a writer of its own, as another thread's would be."""

    def __init__(self, buffer: ReplayBuffer, face: Callable[[ReplayBuffer], Any]) -> None:
        self._buffer, self._face = buffer, face
        self._lanes: dict[int, Any] = {}

    @property
    def storage(self) -> Storage:
        return self._buffer.storage

    def write(self, verb: str, lane: int, data: Any) -> None:
        if lane not in self._lanes:
            buffer = ReplayBuffer(self.storage, batch_size=2)
            buffer.ingress = self._buffer.ingress.apart()
            self._lanes[lane] = self._face(buffer)
        call(self._lanes[lane], verb, data)


class BufferRoute(WriteRoute):
    """A ReplayBuffer, or `face` of one."""

    def __init__(
        self,
        name: str,
        make: Callable[[RouteNeeds], Storage],
        verbs: Mapping[str, VerbKind] = MappingProxyType(STORED_VERBS),
        face: Callable[[ReplayBuffer], Any] = lambda buffer: buffer,
    ) -> None:
        self.name, self.verbs, self._make, self._face = name, verbs, make, face

    @contextlib.contextmanager
    def open(self, needs: RouteNeeds) -> Iterator[OpenRoute]:
        storage = self._make(needs)
        try:
            yield BufferWay(keyed(storage, needs), self._face)
        finally:
            storage.close()


class WriterWay(OpenRoute):
    """Each lane has a writer."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._writers: dict[int, Writer] = {}

    @property
    def storage(self) -> Storage:
        return self._storage

    def write(self, verb: str, lane: int, data: Any) -> None:
        if lane not in self._writers:
            self._writers[lane] = self._storage.writer()
        if verb == "append_records":
            layout = self._storage.layout
            assert layout is not None
            columns, batch = layout.columns(data, 1)
            flat = [np.ascontiguousarray(c).view(np.uint8).reshape(-1) for c in columns]
            self._writers[lane].append_records(layout.join(flat, batch[0]))
            return
        call(self._writers[lane], verb, data)

    def happen(self, event: str) -> None:
        if event == "replace":
            self._writers = {}
        else:
            told = {lane: pickle.dumps(w.open_trajectories) for lane, w in self._writers.items()}
            self._writers = {n: self._storage.writer(pickle.loads(x)) for n, x in told.items()}


class WriterRoute(WriteRoute):
    """Writers of a storage."""

    name = "writers"
    verbs: Mapping[str, VerbKind] = {**STORED_VERBS, "append_records": VerbKind.ROWS}
    events: Mapping[str, bool] = MappingProxyType({"rejoin": False, "replace": False})

    @contextlib.contextmanager
    def open(self, needs: RouteNeeds) -> Iterator[OpenRoute]:
        with LazyTensorStorage(200) as storage:
            keyed(storage, needs)
            storage.publish_example(needs.example)
            yield WriterWay(storage)


def disk(path: Path) -> BufferRoute:
    """A buffer in files below a folder."""
    numbers = iter(range(10**6))
    return BufferRoute("disk", lambda needs: DiskStorage(path / f"rows-{next(numbers)}", 200))


ENSEMBLE_VERBS = {
    verb: kind
    for verb, kind in STORED_VERBS.items()
    if verb.partition("(")[0] in ("add_step", "extend")
}
LOCAL: list[WriteRoute] = [
    BufferRoute("memory", lambda needs: LazyTensorStorage(200)),
    BufferRoute("shared memory", lambda needs: SharedStorage(200)),
    BufferRoute("a device", lambda needs: DeviceStorage(200, "cpu")),
    WriterRoute(),
    BufferRoute(
        "an ensemble",
        lambda needs: LazyTensorStorage(200),
        ENSEMBLE_VERBS,
        lambda buffer: ReplayBufferEnsemble(buffer, batch_size=2),
    ),
]
