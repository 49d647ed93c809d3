"""ChunkSampler against lists: which actions come after a row, and where they end."""

from __future__ import annotations

import copy
import pickle
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

import contig
from contig import (
    ChunkSampler,
    DiskStorage,
    HindsightRelabel,
    LazyTensorStorage,
    NothingEligibleError,
    NStepSampler,
    PrioritizedSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SharedStorage,
    SliceSampler,
    Storage,
    WindowSampler,
)
from contig.keys import CHUNK_MASK
from contig.sample import Request, Rng
from contig.testing import World, episode
from tests.sample.drawing import SCENES, agrees, uniform
from tests.sample.tape_machine import WINDOWS, TapeMachine

scenes = pytest.mark.parametrize("scene", SCENES)


def check(world: World, batch: Any, k: int) -> None:
    """Every chunk is what was written after its row, then its last action."""
    episodes = world.episodes()
    assert batch["action"].shape == (len(batch), k)
    assert batch[CHUNK_MASK].shape == (len(batch), k) and batch[CHUNK_MASK].dtype == np.bool_
    for i, seq in enumerate(batch["index"].tolist()):
        number, t = world.step_at[seq]
        seqs = episodes[number]
        left = len(seqs) - seqs.index(seq)
        n = min(k, left)
        actions = [1000 * number + t + min(j, n - 1) for j in range(k)]
        assert batch["action"][i].tolist() == actions
        assert batch[CHUNK_MASK][i].tolist() == [j < n for j in range(k)]


@scenes
@pytest.mark.parametrize("k", [1, 2, 5, 40])
def test_against_the_list(scene: str, k: int) -> None:
    world = SCENES[scene]()
    batch = ReplayBuffer(world.storage, ChunkSampler(k), batch_size=200, seed=0).sample()
    check(world, batch, k)
    np.testing.assert_array_equal(batch["observation"][:, 1], batch["action"][:, 0] % 1000)


@scenes
def test_rows_are_uniform_and_so_are_their_chunks(scene: str) -> None:
    world = SCENES[scene]()
    batch = ReplayBuffer(world.storage, ChunkSampler(3), batch_size=10_000, seed=0).sample()
    uniform(batch["index"].tolist(), world.stored())
    # How many actions a chunk has: as often as there are rows with so many left.
    left = [min(3, len(seqs) - at) for seqs in world.episodes().values() for at in range(len(seqs))]
    expected = {n: float(left.count(n)) for n in set(left)}
    agrees(batch[CHUNK_MASK].sum(1).tolist(), expected)


STORAGES: dict[str, Callable[[Path], Storage]] = {
    "memory": lambda path: LazyTensorStorage(61),
    "shared": lambda path: SharedStorage(61),
    "disk": lambda path: DiskStorage(path / "tape", capacity=61),
}


@pytest.mark.parametrize("kind", STORAGES)
def test_storages(kind: str, tmp_path: Path) -> None:
    with STORAGES[kind](tmp_path) as storage:
        world = World(storage)
        buffer = ReplayBuffer(storage, ChunkSampler(4), batch_size=32, seed=0)
        for _ in range(12):
            world.write()
            check(world, buffer.sample(), 4)


# -- a tape to which everything happens -----------------------------------------------------------


class Chunks(TapeMachine):
    fields: Any = {"task": np.int32(0)}  # noqa: RUF012

    @initialize()
    def ask(self) -> None:
        self.samplers = [ChunkSampler(k, keys=("uid", ("next", "obs"))) for k in (1, 2, 5, 80)]
        self.where = ChunkSampler(3, keys=("uid",), where=("steps", ">=", 3), fields=("task",))

    def following(self, seq: int) -> list[int]:
        """Uids from a row to the end of what is stored of its trajectory."""
        trajectory, step = self.tape.by_seq[seq]
        return [row.uid for _, row in trajectory.rows[step - trajectory.before :]]

    def check(self, draw: Any, k: int) -> None:
        for i, seq in enumerate(draw.seqs.tolist()):
            uids = self.following(seq)[:k]
            assert draw.columns["uid",][i].tolist() == uids + uids[-1:] * (k - len(uids))
            assert draw.columns[CHUNK_MASK][i].tolist() == [j < len(uids) for j in range(k)]

    @rule(which=st.integers(0, 2), sampler=st.integers(0, 3), bounds=WINDOWS)
    def draw(self, which: int, sampler: int, bounds: tuple[int | None, ...]) -> None:
        index, chunks = self.indexes[which], self.samplers[sampler]
        index.refresh()
        window, naive = self.window(index, bounds)
        draw = chunks.draw(index.narrowed(window), Rng(self.uid), Request(7))
        stored = self.rows_in(naive)
        assert (draw is None) == (not stored)
        if draw is not None:
            assert set(draw.seqs.tolist()) <= stored
            self.check(draw, chunks.chunk)
            uid, obs = draw.columns["uid",], draw.columns["next", "obs"]
            np.testing.assert_array_equal(obs, uid + 0.5)

    @rule(which=st.integers(0, 2))
    def draw_where(self, which: int) -> None:
        index = self.indexes[which]
        index.refresh()
        draw = self.where.draw(index, Rng(self.uid), Request(7))
        held = {
            s
            for s, (t, _) in self.tape.by_seq.items()
            if sum(seq >= self.tape.tail for seq, _ in t.rows) >= 3
        }
        assert (draw is None) == (not held)
        if draw is not None:
            assert set(draw.seqs.tolist()) <= held
            assert draw.columns["fields", "task"].shape == (7,)
            self.check(draw, 3)


class SharedChunks(Chunks):
    def make_storage(self, capacity: int) -> Storage:
        return SharedStorage(capacity, fields=self.fields)


class DiskChunks(Chunks):
    def make_storage(self, capacity: int) -> Storage:
        path = Path(self.folder.name) / "tape"
        return DiskStorage(path, capacity=capacity, fields=self.fields)


def _of(machine: Any, examples: int) -> Any:
    machine.TestCase.settings = settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    return machine.TestCase


TestChunks = _of(Chunks, 120)
TestSharedChunks = _of(SharedChunks, 40)
TestDiskChunks = _of(DiskChunks, 20)


# -- ends -----------------------------------------------------------------------------------------


def test_a_done_row_within_a_told_trajectory_ends_the_chunk() -> None:
    # An explicit traj_key decides alone; what was done after a reset is of another episode.
    sampler = ChunkSampler(4)
    sampler.traj_key = "lane"
    buffer = ReplayBuffer(LazyTensorStorage(20), sampler, batch_size=60, seed=0)
    done = np.array([False, False, True, False, False, False])
    data = {"lane": np.zeros(6, np.int64), "action": np.arange(6.0), "next": {"done": done}}
    buffer.extend(data)
    assert len(buffer.storage.episodes()) == 1
    batch = buffer.sample()
    got = dict(zip(batch["index"].tolist(), batch["action"].tolist()))
    assert got[0] == [0, 1, 2, 2] and got[1] == [1, 2, 2, 2] and got[2] == [2, 2, 2, 2]
    assert got[3] == [3, 4, 5, 5] and got[5] == [5, 5, 5, 5]
    masks = dict(zip(batch["index"].tolist(), batch[CHUNK_MASK].sum(1).tolist()))
    assert masks == {0: 3, 1: 2, 2: 1, 3: 3, 4: 2, 5: 1}


def test_an_open_end_grows_with_the_trajectory() -> None:
    world = World(LazyTensorStorage(100))
    world.extend(3, number=50, end=None)
    buffer = ReplayBuffer(world.storage, ChunkSampler(4), batch_size=60, seed=0)
    assert set(buffer.sample()[CHUNK_MASK].sum(1).tolist()) == {1, 2, 3}
    world.extend(2)  # rows of another trajectory lie between its parts
    world.extend(2, number=50, start=3)
    batch = buffer.sample()
    got = dict(zip(batch["index"].tolist(), batch[CHUNK_MASK].sum(1).tolist()))
    assert got == {0: 4, 1: 4, 2: 3, 3: 2, 4: 1, 5: 2, 6: 1}
    check(world, batch, 4)


def test_rows_that_were_evicted_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from contig.sample import chunk as module

    world = World(LazyTensorStorage(10))
    world.extend(10)
    buffer = ReplayBuffer(world.storage, ChunkSampler(3), batch_size=20, seed=0)
    read, turns = module.read_leaves, []

    def overtaken(*given: Any) -> Any:
        if not turns:
            turns.append(1)
            world.extend(6)
        return read(*given)

    monkeypatch.setattr(module, "read_leaves", overtaken)
    batch = buffer.sample()
    assert turns and set(batch["index"].tolist()) <= world.stored()
    check(world, batch, 3)


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_while_others_write(kind: str, tmp_path: Path) -> None:
    """The ring turns under the reader: a chunk is of one episode, and whole."""
    with STORAGES[kind](tmp_path) as storage:
        stop = threading.Event()

        def write(first: int) -> None:
            writer, number = storage.writer(), first
            while not stop.is_set():
                writer.extend(episode(number, 1 + number % 9))
                number += 2

        writers = [threading.Thread(target=write, args=(n,)) for n in range(2)]
        for thread in writers:
            thread.start()
        try:
            buffer = ReplayBuffer(storage, ChunkSampler(4), batch_size=32, seed=0)
            while len(storage) < 61:
                time.sleep(0.001)
            for _ in range(200 if kind == "memory" else 50):
                batch = buffer.sample()
                number, t = batch["observation"].T.astype(int)
                left = np.minimum(1 + number % 9 - t, 4)
                at = t[:, None] + np.minimum(np.arange(4), left[:, None] - 1)
                np.testing.assert_array_equal(batch["action"], 1000 * number[:, None] + at)
                np.testing.assert_array_equal(batch[CHUNK_MASK].sum(1), left)
        finally:
            stop.set()
            for thread in writers:
                thread.join()


def test_a_sampler_that_has_drawn_can_be_sent_elsewhere() -> None:
    world = SCENES["linked"]()
    sampler = ChunkSampler(3, where=("steps", ">", 1))
    ReplayBuffer(world.storage, sampler, batch_size=8, seed=0).sample()
    for other in (copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler))):
        check(world, ReplayBuffer(world.storage, other, batch_size=8, seed=0).sample(), 3)


# -- with other samplers --------------------------------------------------------------------------


def test_the_transition_of_a_chunk() -> None:
    """Of n steps and as many actions: what a critic of chunks needs."""
    world = SCENES["linked"]()
    inner = NStepSampler(4, 1.0, PrioritizedSampler())
    batch = ReplayBuffer(world.storage, ChunkSampler(4, inner), batch_size=100, seed=0).sample()
    check(world, batch, 4)
    real = batch[CHUNK_MASK]
    np.testing.assert_array_equal(batch["steps_to_next_obs"], real.sum(1))
    total = (np.where(real, batch["action"] + 1.0, 0)).sum(1)  # the reward of a row: its action + 1
    np.testing.assert_allclose(batch["next", "reward"], total)
    assert batch["priority_weight"].shape == (100,)
    other = NStepSampler(4, 1.0, ChunkSampler(4))
    batch = ReplayBuffer(world.storage, other, batch_size=100, seed=0).sample()
    check(world, batch, 4)
    np.testing.assert_array_equal(batch["steps_to_next_obs"], batch[CHUNK_MASK].sum(1))


def test_every_row_of_a_slice_has_its_chunk() -> None:
    world = SCENES["linked"]()
    sampler = ChunkSampler(3, SliceSampler(slice_len=2, pad_output=True))
    batch = ReplayBuffer(world.storage, sampler, batch_size=40, seed=0).sample()
    check(world, batch, 3)
    assert batch["is_init"].sum() == 20 and batch["collector", "mask"].shape == (40,)


def test_rows_are_those_of_the_sampler_inside() -> None:
    world = SCENES["linked"]()
    inner = SamplerWithoutReplacement()
    buffer = ReplayBuffer(world.storage, ChunkSampler(3, inner), batch_size=7, seed=0)
    seqs: list[int] = []
    while len(seqs) < len(world.stored()):
        seqs += buffer.sample()["index"].tolist()
    assert sorted(seqs) == sorted(world.stored())


def test_window_outside_and_inside() -> None:
    world = SCENES["linked"]()
    newest = {s for s in world.stored() if s > max(world.stored()) - 9}
    for sampler in (
        WindowSampler(ChunkSampler(3), last_rows=9),
        ChunkSampler(3, WindowSampler(last_rows=9)),
    ):
        batch = ReplayBuffer(world.storage, sampler, batch_size=60, seed=0).sample()
        assert set(batch["index"].tolist()) == newest
        check(world, batch, 3)


def test_goals_and_chunks() -> None:
    steps = np.arange(12)
    buffer = ReplayBuffer(
        LazyTensorStorage(20),
        HindsightRelabel("final", 10**6, reward_fn=lambda a, g, _: a == g, sampler=ChunkSampler(4)),
        batch_size=50,
        seed=0,
    )
    goal = np.full(12, 99)
    data: dict[str, Any] = {"action": steps, "achieved_goal": steps, "desired_goal": goal}
    after = {"achieved_goal": steps + 1, "desired_goal": goal, "reward": np.zeros(12)}
    buffer.extend({**data, "next": {**after, "done": steps == 11}})
    batch = buffer.sample()
    assert set(batch["desired_goal"].tolist()) == {12}
    np.testing.assert_array_equal(
        batch["action"], np.minimum(batch["index"][:, None] + np.arange(4), 11)
    )


# -- leaves ---------------------------------------------------------------------------------------


def test_nested_actions_and_other_leaves() -> None:
    buffer = ReplayBuffer(
        LazyTensorStorage(20),
        ChunkSampler(3, keys=("action", ("next", "reward"))),
        batch_size=9,
        seed=0,
    )
    t = np.arange(8)
    action = {"arm": np.stack([t, -t], 1).astype(np.float32), "grip": (t % 2).astype(np.int8)}
    buffer.extend({"action": action, "next": {"reward": t * 1.0, "done": t == 7}})
    batch = buffer.sample()
    assert batch["action", "arm"].shape == (9, 3, 2) and batch["action", "grip"].shape == (9, 3)
    at = np.minimum(batch["index"][:, None] + np.arange(3), 7)
    np.testing.assert_array_equal(batch["action", "arm"], np.stack([at, -at], -1))
    np.testing.assert_array_equal(batch["action", "grip"], at % 2)
    np.testing.assert_array_equal(batch["next", "reward"], at)
    assert batch["action", "grip"].dtype == np.int8


def test_frames_that_are_kept_encoded() -> None:
    storage = LazyTensorStorage(20, codecs={"pixels": "zstd"})
    buffer = ReplayBuffer(storage, ChunkSampler(3, keys=("pixels",)), batch_size=9, seed=0)
    t = np.arange(8)
    pixels = np.broadcast_to(t[:, None, None], (8, 4, 4)).astype(np.uint8)
    buffer.extend({"pixels": pixels, "next": {"done": t == 7}})
    batch = buffer.sample()
    at = np.minimum(batch["index"][:, None] + np.arange(3), 7)
    np.testing.assert_array_equal(batch["pixels"][..., 0, 0], at)
    assert batch["pixels"].shape == (9, 3, 4, 4)


def test_the_chunk_may_change_between_samples() -> None:
    world = SCENES["plain"]()
    sampler = ChunkSampler(2)
    buffer = ReplayBuffer(world.storage, sampler, batch_size=30, seed=0)
    check(world, buffer.sample(), 2)
    sampler.chunk = 5
    check(world, buffer.sample(), 5)


def test_refusals() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(20), ChunkSampler(3), batch_size=4)
    buffer.extend({"act": np.arange(4.0), "next": {"done": np.arange(4) == 3}})
    with pytest.raises(NothingEligibleError, match='need a leaf "action"; .*"act".*keys='):
        buffer.sample()
    bare = ReplayBuffer(LazyTensorStorage(20), ChunkSampler(3), batch_size=4)
    bare.extend({"action": np.arange(4.0)})
    with pytest.raises(NothingEligibleError, match="chunks need to know where trajectories end"):
        bare.sample()
    text = ReplayBuffer(LazyTensorStorage(20), ChunkSampler(3, keys=("said",)), batch_size=4)
    text.extend({"said": contig.Blob.of(["a", "bc"]), "next": {"done": np.array([False, True])}})
    with pytest.raises(ValueError, match='"said": .*fixed shape'):
        text.sample()
    for bad in ("action", (), None):
        with pytest.raises(TypeError, match="keys: expected"):
            ChunkSampler(3, keys=bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='no field "task"'):
        named = ReplayBuffer(buffer.storage, ChunkSampler(3, keys=("act",), fields=("task",)))
        named.sample(4)
