"""Checkpoints between storages: memory, shared memory and disk, larger and smaller ones, and shares
of one for several ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contig
from contig import DiskStorage, LayoutError, ReplayBuffer
from contig.testing import episode, identity
from contig.testing.contents import contents, rows_at, steps_of
from tests.replay.checkpoint.buffers import CAPACITY, SAMPLERS, buffer_of, filled, image, images
from tests.replay.checkpoint.test_restore import check_table

KINDS = ("memory", "shared", "disk", "disk, other files")


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Any]:
    made: list[Any] = []

    def storage(kind: str, capacity: int = CAPACITY) -> Any:
        if kind == "memory":
            made.append(contig.LazyTensorStorage(capacity))
        elif kind == "shared":
            made.append(contig.SharedStorage(capacity))
        else:
            rows = 1 if kind == "disk" else 1024
            made.append(DiskStorage(tmp_path / f"s{len(made)}", capacity, rows_per_extent=rows))
        return made[-1]

    yield storage
    for one in made:
        one.close()


@pytest.mark.parametrize("there", KINDS)
@pytest.mark.parametrize("here", KINDS[:3])
def test_any_into_any(here: str, there: str, make: Any, tmp_path: Path) -> None:
    world = filled(make(here))
    buffer = buffer_of(world.storage, "slices")
    images(buffer, 3)
    buffer.save(tmp_path / "a")
    expected = contents(world.storage)
    following = images(buffer, 5)
    loaded = buffer_of(make(there), "slices", seed=1)
    for _ in range(2):  # in place of what was there
        loaded.load(tmp_path / "a")
        assert contents(loaded.storage) == expected
        assert images(loaded, 5) == following
        loaded.extend(episode(900, 40))
    check_table(loaded.storage)
    assert contents(world.storage) == expected, "what was loaded has files of its own"


@pytest.mark.parametrize("kind", KINDS[:3])
@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_goes_on_from_disk(name: str, kind: str, make: Any, tmp_path: Path) -> None:
    world = filled(make("disk"))
    buffer = buffer_of(world.storage, name)
    images(buffer, 2)
    buffer.save(tmp_path / "a")
    loaded = buffer_of(make(kind), name, seed=1)
    loaded.load(tmp_path / "a")
    assert images(loaded, 4) == images(buffer, 4)


@pytest.mark.parametrize("capacity", [1, 40, 149, 150, 400])
@pytest.mark.parametrize("name", SAMPLERS)
def test_another_capacity(name: str, capacity: int, make: Any, tmp_path: Path) -> None:
    """The newest rows that fit, with their seqs; and it can be sampled from."""
    world = filled(make("disk" if len(name) % 2 else "memory"))
    buffer_of(world.storage, name).save(tmp_path / "a")
    for kind in ("memory", "disk"):
        loaded = buffer_of(make(kind, capacity), name, seed=1)
        loaded.load(tmp_path / "a")
        stored = sorted(world.stored())
        assert rows_at(loaded.storage, np.array(stored[-capacity:])) == [
            world.step_at[s] for s in stored[-capacity:]
        ]
        assert len(loaded) == min(capacity, len(stored))
        check_table(loaded.storage)
        if capacity >= 40:
            images(loaded, 2)
        loaded.extend(episode(900, 7))
        check_table(loaded.storage)


def marked(buffer: ReplayBuffer, n: int) -> list[Any]:
    """Batches, with priorities set on the way where there are any."""
    found = []
    for turn in range(n):
        batch = buffer.sample()
        found.append(image(batch))
        if ("priority_weight",) in batch.extras:
            buffer.update_priority(batch["index"], 0.1 + (batch["index"] * 7 + turn) % 5)
    return found


@pytest.mark.parametrize("capacity", [CAPACITY + 1, 1000])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_larger_one_goes_on_exactly(name: str, capacity: int, make: Any, tmp_path: Path) -> None:
    for kind in ("memory", "disk"):
        world = filled(make("memory"))
        assert int(world.storage.tape.snapshot()[0]) % CAPACITY, "the ring's seam is inside"
        buffer = buffer_of(world.storage, name)
        marked(buffer, 3)
        buffer.save(tmp_path / "a")
        loaded = buffer_of(make(kind, capacity), name, seed=1)
        loaded.load(tmp_path / "a")
        assert marked(loaded, 4) == marked(buffer, 4)
        # And once more, from there.
        loaded.save(tmp_path / "b")
        again = buffer_of(make("memory", CAPACITY), name, seed=2)
        again.load(tmp_path / "b")
        assert marked(again, 2) == marked(buffer, 2)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_larger_one_goes_on_while_rows_come_in(name: str, make: Any, tmp_path: Path) -> None:
    buffer = buffer_of(make("memory"), name)
    for number in range(6):
        buffer.extend(episode(number, 12))
    marked(buffer, 3)
    buffer.save(tmp_path / "a")
    loaded = buffer_of(make("memory", 999), name, seed=1)
    loaded.load(tmp_path / "a")
    for number in range(6, 12):  # no more than fit into both
        for one in (buffer, loaded):
            one.extend(episode(number, 12))
        assert marked(loaded, 2) == marked(buffer, 2)


def test_priorities_of_a_few_rows_in_a_huge_storage(tmp_path: Path) -> None:
    """A directory has room for a billion rows if nothing else is said."""
    with DiskStorage(tmp_path / "a") as storage:
        buffer = buffer_of(storage, "prioritized")
        for number in range(8):
            buffer.extend(episode(number, 20))
        expected = marked(buffer, 2)
        buffer.save(tmp_path / "saved")
        assert sum(f.stat().st_size for f in (tmp_path / "saved").glob("array*")) < 10_000
        following = marked(buffer, 2)
        buffer.load(tmp_path / "saved")
        assert marked(buffer, 2) == following
    loaded = buffer_of(contig.LazyTensorStorage(CAPACITY + 50), "prioritized", seed=1)
    loaded.load(tmp_path / "saved")
    assert marked(loaded, 2) == following != expected


def test_states_of_the_first_version() -> None:
    """By slot of the ring instead of by row."""
    for name in ("prioritized", "retiring"):
        world = filled()
        buffer = buffer_of(world.storage, name)
        marked(buffer, 3)
        state = buffer.state()
        tree = state["sampler"]["tree" if name == "prioritized" else "left"]
        head, tail = tree["bounds"]
        slots = np.arange(tail, head) % CAPACITY
        weights = np.zeros(CAPACITY)
        weights[slots] = tree.pop("rows")
        tree["weights"] = weights
        if name == "retiring":
            times = np.zeros(CAPACITY, np.int64)
            times[slots] = state["sampler"]["times"]
            state["sampler"]["times"] = times
        other = buffer_of(world.storage, name, seed=1)
        other.load_state(state)
        assert marked(other, 3) == marked(buffer, 3)


@pytest.mark.parametrize("here", KINDS[:3])
@pytest.mark.parametrize("world_size", [1, 2, 3, 7, 60])
def test_shares(here: str, world_size: int, make: Any, tmp_path: Path) -> None:
    """Every trajectory in one share, contiguous, whole, the first shares one larger."""
    world = filled(make(here))
    buffer_of(world.storage, "slices").save(tmp_path / "a")
    table = world.storage.episodes()
    found, sizes, drawn = [], [], []
    for rank in range(world_size):
        loaded = buffer_of(make(("memory", "disk")[rank % 2]), "slices", seed=1)
        loaded.load(tmp_path / "a", rank=rank, world_size=world_size)
        mine = loaded.storage.episodes()
        found += mine["id"].tolist()
        sizes.append(len(mine))
        check_table(loaded.storage)
        for line in mine:
            (same,) = table[table["id"] == line["id"]]
            for field in ("steps", "return", "terminated", "truncated", "trimmed", "complete"):
                assert same[field] == line[field], field
        if len(mine) > 3:
            drawn.append(images(loaded, 2))
        loaded.extend(episode(900, 5))
        check_table(loaded.storage)
    assert found == table["id"].tolist()
    assert sizes == [len(p) for p in np.array_split(table, world_size)]
    assert all(a != b for a, b in itertools.pairwise(drawn))


def test_no_such_share(make: Any, tmp_path: Path) -> None:
    buffer = buffer_of(filled(make("memory")).storage, "random")
    buffer.save(tmp_path / "a")
    for rank, world_size in ((1, 1), (-1, 2), (0, 0)):
        with pytest.raises(ValueError, match="rank"):
            buffer.load(tmp_path / "a", rank=rank, world_size=world_size)


def test_links_are_links(make: Any, tmp_path: Path) -> None:
    """Sealed files are not copied, neither to a checkpoint nor back; the open one is."""
    storage = make("disk", 5000)
    buffer = ReplayBuffer(storage, batch_size=4)
    buffer.extend(episode(1, 3 * 512 + 10))
    buffer.save(tmp_path / "a")
    kinds = [sorted((tmp_path / "a" / "extents").glob(f"*.{kind}")) for kind in ("rec", "bin")]
    assert all(len(kind) > 1 for kind in kinds)  # rows, and observations
    for kind in kinds:
        assert [f.stat().st_nlink for f in kind] == [2] * (len(kind) - 1) + [1]
    expected = contents(storage)
    other = make("disk", 5000)
    ReplayBuffer(other, batch_size=4).load(tmp_path / "a")
    for kind in kinds:
        assert [f.stat().st_nlink for f in kind] == [3] * (len(kind) - 1) + [1]
    buffer.extend(episode(2, 600))
    ReplayBuffer(other, batch_size=4).extend(episode(3, 700))
    again = make("memory", 5000)
    ReplayBuffer(again, batch_size=4).load(tmp_path / "a")
    assert contents(again) == expected, "what is written later is not in the checkpoint"


def test_damaged_links(make: Any, tmp_path: Path) -> None:
    """Loading into memory reads every row, and says which one is damaged; on disk it is found when
    it is read, and never served."""
    storage = make("disk", 5000)
    buffer = ReplayBuffer(storage, batch_size=4)
    for number in range(10):
        buffer.extend_trajectory(episode(number, 200), terminated=True)
    buffer.save(tmp_path / "a")
    victim = tmp_path / "a" / "extents" / "00000001.rec"
    data = bytearray(victim.read_bytes())
    data[10] ^= 1
    victim.unlink()  # not the storage's file
    victim.write_bytes(data)
    memory = ReplayBuffer(make("memory", 5000), batch_size=4)
    memory.extend(episode(77, 3))
    with pytest.raises(LayoutError, match=r"00000001\.rec: row 512 is damaged"):
        memory.load(tmp_path / "a")
    assert steps_of(memory.storage) == [(77, 0), (77, 1), (77, 2)]
    disk = ReplayBuffer(make("disk", 5000), batch_size=64, seed=0)
    disk.load(tmp_path / "a")
    while not disk.storage.quarantined:
        assert (2, 112) not in identity(disk.sample()), "the damaged row"
    drawn = {number for _ in range(40) for number, _ in identity(disk.sample())}
    assert drawn == set(range(10)) - {2}, "rows 400 to 599 are episode 2"
    assert list(disk.storage.quarantined.values()) == ["a row's checksum is wrong"]
    # A checkpoint of it knows, and what loads that leaves it out.
    disk.save(tmp_path / "b")
    rest = ReplayBuffer(make("memory", 5000), batch_size=4)
    rest.load(tmp_path / "b")
    assert {number for number, _ in steps_of(rest.storage)} == set(range(10)) - {2}
    victim.unlink()
    with pytest.raises(LayoutError, match="is missing"):
        ReplayBuffer(make("disk", 5000), batch_size=4).load(tmp_path / "a")
