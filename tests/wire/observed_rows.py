"""Rows of trajectories whose observations are shared, or nearly; tapes and builders for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from contig import Layout, LazyTensorStorage
from contig.tape.stacks import stacks_of
from tests.tape.observations import Env
from tests.tape.observations import Form as Observed
from tests.wire.compact import Form, form_of

OBSERVED = [
    Observed(),
    Observed(state=True),
    Observed(frames=3),
    Observed(frames=4, axis=-1, image=True),
    Observed(frames=3, state=True),
    Observed(frames=2, state=True, below_next=False),
]


def made(observed: Observed, seed: int, episodes: int, longest: int) -> list[list[Any]]:
    """Rows of some whole trajectories, those of one step among them."""
    rnd = np.random.default_rng(seed)
    envs = [Env(observed, n, rnd) for n in range(3)]
    out = []
    for number in range(episodes):
        length = int(rnd.integers(1, longest + 1))
        out.append([envs[number % 3].row(i == length - 1) for i in range(length)])
    return out


def form_for(observed: Observed, row: Any) -> Form:
    share = True if observed.below_next else None
    return form_of(row, share_next=share, stack=stacks_of(observed.stack))


def storage_for(observed: Observed, row: Any, capacity: int, shares: bool = True) -> Any:
    if not shares:
        return LazyTensorStorage(capacity, example=row, share_next=False)
    share = True if observed.below_next else None
    return LazyTensorStorage(capacity, example=row, share_next=share, stack=observed.stack)


def records_of(layout: Layout, rows: list[Any]) -> list[bytes]:
    return [bytes(layout.pack_one(_completed(layout, row))) for row in rows]


def _completed(layout: Layout, row: Any) -> Any:
    """With the flags that a table adds."""
    done = row["next"]["done"]
    flags = {"done": done, "terminated": done, "truncated": np.zeros_like(done)}
    return {**row, "next": {**row["next"], **flags}}


def take_all(builder: Any) -> list[bytes]:
    sent = []
    while (frame := builder.take(True)) is not None:
        data = frame.head + bytes(frame) + frame.slots + frame.bytes
        assert len(data) == frame.nbytes
        sent.append(data)
    return sent


def add_run(builder: Any, records: list[bytes], told: tuple[int, int, int], grow: bool) -> None:
    flags, traj_id, lanes = told
    data = np.frombuffer(b"".join(records), np.uint8)
    builder.add_run(data, flags, traj_id, -1, lanes, grow)
