"""Random collectors with real worker processes: what is stored is what environments emitted."""

from __future__ import annotations

import itertools
import os
import signal
import tempfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contig import (
    DiskStorage,
    LazyTensorStorage,
    MultiCollector,
    ReplayBuffer,
    SerialEnv,
    SharedStorage,
    SliceSampler,
)
from tests.collect.envs import check_storage, check_trajectory, make_steps, split, steps_of
from tests.waiting import until

SEED = 1000


class Case:
    """One collector and what it must do.

    Args:
        workers, lanes: how many; no lanes is a single environment in each.
        rows: of each lane in a batch.
        total: frames.
        sync: as the collector has it.
        kill: kills a worker after the first iteration, if it is iterated over and `sync`.
        options: more arguments.
    """

    def __init__(
        self,
        workers: int,
        lanes: int,
        rows: int,
        total: int,
        sync: bool,
        kill: bool,
        options: dict[str, Any],
    ) -> None:
        self.workers, self.width, self.total = workers, max(lanes, 1), total
        self.kill = kill and sync
        self.options = options
        self.arguments = {
            "envs": [SerialEnv(lanes, make_steps) if lanes else make_steps] * workers,
            "frames_per_batch": rows * self.width * (workers if sync else 1),
            "total_frames": total,
            "sync": sync,
            "seed": SEED,
            "max_restarts": 1,
            **options,
        }
        self.lanes_together = self.width * (workers if sync else 1)
        self.rows = rows

    def iterate(self, collector: Any) -> list[Any]:
        out = []
        for turn, data in enumerate(collector):
            out.append(data)
            if self.kill and turn == 0:
                os.kill(collector.pids[-1], signal.SIGKILL)
        return out

    def check_ids(self, collector: Any, steps: list[tuple[int, int, int]]) -> None:
        """Environments are those that were seeded, and those of the worker that replaced one."""
        lanes = self.workers * self.width
        known = set(range(SEED, SEED + lanes * (1 + collector.restarts)))
        assert {s[0] for s in steps} <= known
        assert len(set(steps)) == len(steps)


cases = st.builds(
    Case,
    workers=st.integers(1, 3),
    lanes=st.integers(0, 2),
    rows=st.integers(1, 12),
    total=st.integers(1, 150),
    sync=st.booleans(),
    kill=st.booleans(),
    options=st.fixed_dictionaries(
        {
            "trajs_per_batch": st.none() | st.integers(1, 4),
            "set_truncated": st.booleans(),
            "reset_at_each_iter": st.booleans(),
            "max_frames_per_traj": st.none() | st.integers(1, 5),
            "init_random_frames": st.sampled_from([0, 7]),
        }
    ),
)


def check_buffer(case: Case, kind: str, ndim: int, start: bool) -> None:
    """Collects into a buffer, by iteration or in the background, and checks what is in it."""
    folder = tempfile.TemporaryDirectory()
    storage: Any = {
        "lazy": lambda: LazyTensorStorage(1000, ndim=ndim),
        "shared": lambda: SharedStorage(1000, ndim=ndim),
        "disk": lambda: DiskStorage(folder.name + "/rows", 1000, ndim=ndim),
    }[kind]()
    buffer = ReplayBuffer(storage, SliceSampler(slice_len=3), batch_size=30, seed=0)
    with folder, storage, MultiCollector(**case.arguments, replay_buffer=buffer) as collector:
        if start:
            collector.start()
            until(lambda: not collector._thread.is_alive())
        else:
            assert set(case.iterate(collector)) <= {None}
        collector.check()
        found = check_storage(storage, anywhere=case.options["set_truncated"])
        steps = [s for x in found for s in steps_of(x)]
        case.check_ids(collector, steps)
        if case.options["trajs_per_batch"] is None:
            assert len(steps) == case.total == collector.frames
        else:
            assert len(steps) + collector.dropped_frames == case.total
            assert all(x["next", "done"][-1] for x in found)
        if case.options["max_frames_per_traj"] is not None:
            assert all(len(x) <= case.options["max_frames_per_traj"] for x in found)
        if steps:
            check_slices(buffer.sample())


def check_slices(sample: Any) -> None:
    ends = np.flatnonzero(sample["collector", "slice_end"] | sample["next", "done"]) + 1
    for first, last in itertools.pairwise([0, *ends.tolist()]):
        piece = steps_of(sample[first:last])
        assert [s[2] for s in piece] == list(range(piece[0][2], piece[0][2] + len(piece)))
        assert len({s[:2] for s in piece}) == 1


def check_yields(case: Case) -> None:
    """Iterates without a buffer and checks what comes out."""
    with MultiCollector(**case.arguments) as collector:
        batches = case.iterate(collector)
    steps = [s for b in batches for s in steps_of(b)]
    case.check_ids(collector, steps)
    wanted = case.options["trajs_per_batch"]
    if wanted is None:
        whole = case.total // case.lanes_together * case.lanes_together
        assert len(steps) == whole == collector.frames
        ids: set[int] = set()
        for batch in batches:
            assert batch.shape[-1] <= case.rows
            for lane in batch.reshape(-1, batch.shape[-1]) if len(batch.shape) > 1 else [batch]:
                for piece in split(lane.reshape(-1)):
                    check_trajectory(piece, starts_anywhere=True)
                    ids.add(int(piece["collector", "traj_ids"][0]))
        assert len(ids) >= len({s[:2] for s in steps})
        return
    for batch in batches:
        pieces = split(batch)
        assert len(pieces) == wanted and len(batch.shape) == 1
        for piece in pieces:
            check_trajectory(piece, starts_anywhere=case.options["set_truncated"])
            assert piece["next", "done"][-1]
    assert len(steps) + collector.dropped_frames == case.total


kinds = st.sampled_from(["lazy", "lazy", "shared", "disk"])


@settings(max_examples=9)
@given(case=cases, kind=kinds, ndim=st.integers(1, 3), start=st.booleans())
def test_a_buffer_holds_what_environments_emitted(
    case: Case, kind: str, ndim: int, start: bool
) -> None:
    check_buffer(case, kind, ndim, start)


@settings(max_examples=5)
@given(case=cases)
def test_batches_hold_what_environments_emitted(case: Case) -> None:
    check_yields(case)


@pytest.mark.soak
@settings(max_examples=300)
@given(case=cases, kind=kinds, ndim=st.integers(1, 3), start=st.booleans())
def test_a_buffer_holds_what_environments_emitted_soak(
    case: Case, kind: str, ndim: int, start: bool
) -> None:
    check_buffer(case, kind, ndim, start)


@pytest.mark.soak
@settings(max_examples=150)
@given(case=cases)
def test_batches_hold_what_environments_emitted_soak(case: Case) -> None:
    check_yields(case)
