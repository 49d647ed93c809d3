"""Observations stored once in shared memory: writers that are killed, readers beside them, and no
frame of another row."""

from __future__ import annotations

import multiprocessing
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import LazyTensorStorage, ReplayBuffer, SharedStorage, _native
from tests.tape.processes import sharing
from tests.waiting import WAIT_S, Task, until
from tests.zygote import Zygote

pytestmark = pytest.mark.skipif(not _native.ROBUST_LOCKS, reason="sharing needs robust locks")


def at_rest(storage: Any) -> None:
    batch = ReplayBuffer(storage)[:]
    assert sharing.wrong(batch) is None
    assert len(batch) == len(storage) > 0


# A storage that goes round all the time, and one whose rows live; a few kills, or with `soak` many.
KILLS = (
    pytest.param(60, 6, 1, id="small"),
    pytest.param(1500, 4, 1, id="large"),
    pytest.param(60, 60, 2, marks=pytest.mark.soak, id="small-often"),
    pytest.param(1500, 60, 2, marks=pytest.mark.soak, id="large-often"),
)


@pytest.mark.parametrize(("capacity", "kills", "n_readers"), KILLS)
def test_killed_writers_leave_no_frame_of_theirs(
    capacity: int, kills: int, n_readers: int, zygote: Zygote, name: str, tmp_path: Path
) -> None:
    stop = tmp_path / "stop"
    stack = {"obs": (sharing.STACK, 0)}
    with SharedStorage(capacity, name, example=sharing.EXAMPLE, stack=stack) as storage:
        readers = [
            zygote.start(sharing.read, name=name, seed=r, stop=str(stop)) for r in range(n_readers)
        ]
        writers = [
            zygote.start(sharing.write, name=name, number=w, stop=str(stop)) for w in range(2)
        ]
        draw = random.Random(capacity)
        for kill in range(kills):
            head = storage.tape.snapshot()[0]
            until(lambda head=head: storage.tape.snapshot()[0] > head + 20, "rows are written")
            writers.pop(draw.randrange(2)).kill()
            # The lock's last holder may be dead: the next one repairs, and all is well.
            sharing.fill(storage, (1 << 30) + kill, 0, 3)
            writers.append(zygote.start(sharing.write, name=name, number=10 + kill, stop=str(stop)))
            dead = [child for child in (*readers, *writers) if not child.alive()]
            assert not dead, dead[0].result(WAIT_S)
        until(lambda: storage.tape.sampled > 500, "readers have read")
        stop.touch()
        read = [child.result(WAIT_S) for child in readers]
        assert [r["wrong"] for r in read] == [[]] * n_readers
        assert all(r["rows"] > 0 for r in read)
        for child in writers:
            child.result(WAIT_S)
        at_rest(storage)
        # Killed appends gave slots that nobody refers to: their memory was used again.
        plain = sum(leaf.nbytes for leaf in storage.layout.leaves)  # type: ignore[union-attr]
        assert storage.tape.slot_memory < 1.2 * plain * (capacity + 500)


def test_threads_write_and_read(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    with LazyTensorStorage(100) as storage:
        sharing.fill(storage, 0, 0, 70)
        assert storage.schema is not None and storage.schema.sharing is not None
        assert storage.schema.sharing.leaves[0].frames == sharing.STACK
        writers = [Task(sharing.write_to, storage, n, stop) for n in (1, 2)]
        readers = [Task(sharing.read_from, storage, n, stop) for n in range(2)]
        until(lambda: storage.tape.snapshot()[0] > 20 * 100, "the ring goes round")
        stop.touch()
        assert [reader.result()["wrong"] for reader in readers] == [[], []]
        for writer in writers:
            writer.result()
        at_rest(storage)


@pytest.mark.parametrize("kind", [LazyTensorStorage, SharedStorage])
@pytest.mark.parametrize("first", ["parent", "child"])
def test_a_storage_that_is_passed_on_shares_there_too(kind: Any, first: str) -> None:
    """Whoever writes first recognises the stacks; the other one goes by that."""
    context = multiprocessing.get_context("spawn")
    with kind(500) as storage:
        if first == "parent":
            sharing.fill(storage, 1, 0, 100)
        child = context.Process(target=sharing.fill, args=(storage, 2, 0, 100))
        child.start()
        child.join(WAIT_S)
        assert child.exitcode == 0
        if first == "child":
            sharing.fill(storage, 1, 0, 100)
        assert storage.schema.sharing.leaves[0].frames == sharing.STACK
        assert storage.tape.slots_given == 2 * 101
        at_rest(storage)
        assert sorted(np.unique(ReplayBuffer(storage)[:]["env"]).tolist()) == [1, 2]
