"""HindsightRelabel: goals of the same trajectory, with the right probabilities, and what follows.

A row's observation is [episode, step], so what a row has achieved says which row it is.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import (
    DiskStorage,
    HindsightRelabel,
    LazyTensorStorage,
    NothingEligibleError,
    NStepSampler,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    Ragged,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    WindowSampler,
)
from contig.replay.shards import ShardReader, read_shards
from contig.sample import Rng, Sampler
from contig.sample import hindsight as sample
from contig.tape.decoding import stored_bytes
from contig.testing import World
from tests.sample.drawing import SCENES, agrees

Array = np.ndarray[Any, Any]
RELABELED = ("collector", "relabeled")
STRATEGIES = ("future", "final", "episode")


def distance(achieved: Array, goals: Array, rows: Any) -> Array:
    """How many steps away the goal is, which must be in the same episode."""
    assert (achieved[:, 0] == goals[:, 0]).all()
    assert len(rows) == len(goals) == len(rows["index"])
    return np.asarray(goals[:, 1] - achieved[:, 1])


def hindsight(strategy: str = "future", k: int = 4, **options: Any) -> HindsightRelabel:
    """What is observed is achieved, and wanted."""
    options = {"reward_fn": distance, **options}
    return HindsightRelabel(strategy, k, achieved="observation", desired="observation", **options)


def kin(seqs: list[int], at: int, strategy: str) -> list[int]:
    """Which rows of an episode may give the goal of one of them."""
    return {"future": seqs[at:], "final": seqs[-1:], "episode": seqs}[strategy]


def goals_of(world: World, batch: Any) -> list[tuple[int, int]]:
    """Row and goal of each relabelled row, both as (episode, step)."""
    chosen = np.flatnonzero(batch[RELABELED])
    at = [world.step_at[s] for s in batch["index"][chosen].tolist()]
    goals = [tuple(g) for g in (batch["observation"][chosen] - [0, 1]).astype(int).tolist()]
    return list(zip(at, goals))  # type: ignore[arg-type]


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_goals_have_their_probabilities(scene: str, strategy: str) -> None:
    world = SCENES[scene]()
    buffer = ReplayBuffer(world.storage, hindsight(strategy, k=9), seed=1)
    batch = buffer.sample(20_000)
    expected = {}
    for seqs in world.episodes().values():
        for i, seq in enumerate(seqs):
            among = kin(seqs, i, strategy)
            for goal in among:
                expected[world.step_at[seq], world.step_at[goal]] = 1 / len(among)
    agrees(goals_of(world, batch), expected)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rows_of_complete_trajectories(strategy: str) -> None:
    """As SB3's HER draws: rows of finished episodes, each alike; then their goals."""
    world = SCENES["linked_evicted"]()
    rows = SliceSampler(
        slice_len=1, over="steps", complete_only=True, init_key=None, truncated_key=None
    )
    buffer = ReplayBuffer(world.storage, hindsight(strategy, sampler=rows), seed=2)
    expected = {}
    for number, seqs in world.episodes().items():
        for i, seq in enumerate(seqs if world.complete(number) else []):
            among = kin(seqs, i, strategy)
            for goal in among:
                expected[world.step_at[seq], world.step_at[goal]] = 1 / len(among)
    assert expected
    agrees(goals_of(world, buffer.sample(30_000)), expected)


@pytest.mark.parametrize("k", [0, 1, 4, 7])
def test_how_many_are_relabelled(k: int) -> None:
    world = SCENES["plain"]()
    buffer = ReplayBuffer(world.storage, hindsight(k=k), seed=0)
    for size in (1, 2, 5, 16, 33):
        counts = [int(buffer.sample(size)[RELABELED].sum()) for _ in range(300)]
        exact = size * k / (k + 1)
        assert set(counts) <= {int(exact), int(np.ceil(exact))}
        assert abs(np.mean(counts) - exact) < 0.1  # 0.5 / sqrt(300) is 0.03


def test_which_are_relabelled_does_not_depend_on_their_place() -> None:
    world = SCENES["plain"]()
    buffer = ReplayBuffer(world.storage, hindsight(k=1), seed=0)
    share = np.mean([buffer.sample(10)[RELABELED] for _ in range(2000)], 0)
    assert np.abs(share - 0.5).max() < 0.06  # 0.5 / sqrt(2000) is 0.011


def test_what_is_replaced() -> None:
    world = SCENES["plain"]()
    buffer = ReplayBuffer(world.storage, hindsight("episode", k=1), batch_size=400, seed=0)
    batch = buffer.sample()
    stored = buffer[batch["index"]]
    chosen = batch[RELABELED]
    assert 0 < chosen.sum() < 400
    for path in stored.layout.by_path:
        same = (batch[path] == stored[path]).reshape(400, -1).all(1)
        assert same[~chosen].all(), path
        if path not in (("observation",), ("next", "observation"), ("next", "reward")):
            assert same.all(), path
    goals = batch["observation"][chosen]
    np.testing.assert_array_equal(batch["next", "observation"][chosen], goals)
    achieved = stored["next", "observation"][chosen]
    np.testing.assert_array_equal(batch["next", "reward"][chosen], goals[:, 1] - achieved[:, 1])
    again = buffer[batch["index"]]  # the storage has what was written
    np.testing.assert_array_equal(again["observation"], stored["observation"])


SAMPLERS: dict[str, tuple[Any, int]] = {
    "uniform": (RandomSampler, 1),
    "retiring": (lambda: RandomSampler(max_times_sampled=50), 1),
    "without replacement": (SamplerWithoutReplacement, 1),
    "prioritized": (PrioritizedSampler, 1),
    "window": (lambda: WindowSampler(last_rows=12), 1),
    "slices": (lambda: SliceSampler(slice_len=4), 4),
    "slices of steps": (lambda: SliceSampler(slice_len=4, over="steps", complete_only=True), 4),
    "strict slices": (lambda: SliceSampler(slice_len=4, strict_length=True), 4),
    "padded slices": (lambda: SliceSampler(slice_len=4, pad_output=True), 4),
    "burn-in": (lambda: SliceSampler(slice_len=2, burn_in=2), 2),
    "slices once": (lambda: SliceSamplerWithoutReplacement(slice_len=4), 4),
    "prioritized slices": (lambda: PrioritizedSliceSampler(slice_len=4), 4),
}


@pytest.mark.parametrize("scene", ["evicted", "linked_evicted"])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler(scene: str, strategy: str, name: str) -> None:
    world = SCENES[scene]()
    make, length = SAMPLERS[name]
    buffer = ReplayBuffer(world.storage, hindsight(strategy, sampler=make()), seed=3)
    episodes = world.episodes()
    plain = ReplayBuffer(world.storage, make(), seed=3).sample(4 * length)
    relabelled = 0
    for _ in range(12):
        batch = buffer.sample(4 * length)
        assert set(batch.keys()) == {*plain.keys(), RELABELED}
        seqs, chosen = batch["index"].tolist(), batch[RELABELED]
        starts = batch["is_init"] if length > 1 else np.ones(len(batch), np.bool_)
        group = np.cumsum(starts | (np.diff(batch["index"], prepend=-9) < 0))
        for g in np.unique(group):
            rows = np.flatnonzero(group == g)
            assert len({*chosen[rows].tolist()}) == 1  # a slice as a whole, or not
            if not chosen[rows[0]]:
                continue
            relabelled += 1
            goals = {tuple(x) for x in batch["observation"][rows].astype(int).tolist()}
            assert len(goals) == 1  # one for a slice
            number, step = goals.pop()
            mine = episodes[number]
            among = kin(mine, mine.index(seqs[rows[-1]]), strategy)
            assert (number, step - 1) in [world.step_at[s] for s in among]
    assert relabelled > 20


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_window_around_it_holds_for_goals_too(scene: str, strategy: str) -> None:
    world = SCENES[scene]()
    low = max(world.stored()) - 8
    buffer = ReplayBuffer(world.storage, WindowSampler(hindsight(strategy), last_rows=9), seed=5)
    expected = {}
    for seqs in world.episodes().values():
        mine = [s for s in seqs if s >= low]
        for i, seq in enumerate(mine):
            among = kin(mine, i, strategy)
            for goal in among:
                expected[world.step_at[seq], world.step_at[goal]] = 1 / len(among)
    agrees(goals_of(world, buffer.sample(4000)), expected)


def near(achieved: Array, goals: Array, rows: Any) -> Array:
    return np.asarray(np.abs(goals[:, 1] - achieved[:, 1]) < 1)


@pytest.mark.parametrize("name", SAMPLERS)
def test_ends_that_follow_from_goals(name: str) -> None:
    """terminated is what the function says; done follows; a slice's stop is no end."""
    world = SCENES["linked"]()
    make, length = SAMPLERS[name]
    sampler = hindsight("episode", k=2, sampler=make(), terminated_fn=near)
    batch = ReplayBuffer(world.storage, sampler, seed=4).sample(30 * length)
    stored = ReplayBuffer(world.storage, seed=0)[batch["index"]]
    chosen = batch[RELABELED]
    terminated, truncated = batch["next", "terminated"], batch["next", "truncated"]
    real = batch["collector", "mask"] if ("collector", "mask") in batch else np.ones_like(chosen)
    goal, achieved = batch["observation"], stored["next", "observation"]
    reached = goal[:, 1] == achieved[:, 1]
    np.testing.assert_array_equal(terminated[chosen], (reached & real)[chosen])
    np.testing.assert_array_equal(
        terminated[~chosen], (stored["next", "terminated"] & real)[~chosen]
    )
    np.testing.assert_array_equal(batch["next", "done"], terminated | truncated)
    assert (terminated & chosen).any() and (~terminated & chosen).any()
    if length > 1:
        group = np.cumsum(batch["is_init"])
        last = np.append(group[1:] != group[:-1], True) if name != "padded slices" else None
        if last is not None:
            assert (terminated | truncated)[last].all()
        assert not (terminated & truncated)[chosen].any()
        assert not (terminated | truncated)[~real].any()


def at_root(world: World, keys: tuple[str, ...]) -> LazyTensorStorage:
    """The world's trajectories with reward and some flags at the root, and none below `next`."""
    plain = ReplayBuffer(world.storage, seed=0)
    storage = LazyTensorStorage(500)
    for episode in world.storage.episodes():
        rows = plain.storage.read_episode(episode["id"])
        after = {"observation": rows["next", "observation"]}
        root = {key: rows["next", key] for key in ("reward", *keys)}
        storage.writer().extend({"observation": rows["observation"], "next": after, **root})
    return storage


@pytest.mark.parametrize("keys", [("done",), ("done", "terminated", "truncated")])
@pytest.mark.parametrize("name", ["uniform", "slices", "padded slices"])
def test_reward_and_flags_at_the_root(name: str, keys: tuple[str, ...]) -> None:
    storage = at_root(SCENES["plain"](), keys)
    make, length = SAMPLERS[name]
    sampler = hindsight("episode", k=2, sampler=make(), terminated_fn=near)
    batch = ReplayBuffer(storage, sampler, seed=4).sample(30 * length)
    stored = ReplayBuffer(storage, seed=0)[batch["index"]]
    chosen = batch[RELABELED]
    assert ("next", "reward") not in batch and 0 < chosen.sum() < len(batch)
    away = batch["observation"][:, 1] - stored["next", "observation"][:, 1]
    np.testing.assert_array_equal(batch["reward"][chosen], away[chosen])
    np.testing.assert_array_equal(batch["reward"][~chosen], stored["reward"][~chosen])
    real = batch["collector", "mask"] if ("collector", "mask") in batch else np.ones_like(chosen)
    ends = chosen & real
    np.testing.assert_array_equal(batch["terminated"][ends], away[ends] == 0)
    np.testing.assert_array_equal(batch["terminated"][~chosen], stored["terminated"][~chosen])
    np.testing.assert_array_equal(
        batch["done"][ends], (batch["terminated"] | batch["truncated"])[ends]
    )
    assert (batch["terminated"] & ends).any() and (~batch["terminated"] & ends).any()
    if length > 1:  # slices say where they stop below `next`, and how rows end there, too
        np.testing.assert_array_equal(batch["next", "terminated"][ends], away[ends] == 0)
        flags = batch["next", "terminated"] | batch["next", "truncated"]
        np.testing.assert_array_equal(batch["next", "done"], flags)


def test_flags_of_the_state_before_are_left_alone() -> None:
    """TorchRL's rows have flags at the root too, which say whether the observation is an end."""
    storage = LazyTensorStorage(50)
    x = np.stack([np.zeros(20), np.arange(20)], 1).astype(np.float32)
    after = {"observation": x + [0, 1], "reward": np.zeros(20), "done": np.arange(20) == 19}
    storage.writer().extend({"observation": x, "done": np.zeros(20, bool), "next": after})
    sampler = hindsight("future", k=9, terminated_fn=near)
    batch = ReplayBuffer(storage, sampler, seed=0).sample(100)
    assert batch["next", "terminated"][batch[RELABELED]].any() and not batch["done"].any()


def test_goals_evicted_while_they_are_read_are_drawn_again(monkeypatch: Any) -> None:
    world = World(LazyTensorStorage(26))
    world.interleave(2, 12)
    read, turns = sample.read_leaf, []

    def overtaken(storage: Any, seqs: Array, path: Any) -> Any:
        if len(turns) < 3:
            turns.append(len(seqs))
            world.extend(9)
        return read(storage, seqs, path)

    monkeypatch.setattr(sample, "read_leaf", overtaken)
    batch = ReplayBuffer(world.storage, hindsight("episode", k=99), seed=0).sample(300)
    monkeypatch.undo()
    assert len(turns) == 3 and 0 < turns[1] <= 300  # it was overtaken
    assert len(batch) == 300
    for (number, _), (of, step) in goals_of(world, batch):
        assert number == of and step >= 0


def test_a_disk_storage(tmp_path: Path) -> None:
    world = World(DiskStorage(tmp_path / "tape", capacity=200))
    world.write(3)
    batch = ReplayBuffer(world.storage, hindsight(), seed=0).sample(200)
    for (number, t), (of, step) in goals_of(world, batch):
        assert number == of and step >= t
    world.storage.close()


def test_over_shards_goals_are_of_the_same_tape() -> None:
    worlds = [World(LazyTensorStorage(200)) for _ in range(3)]
    for i, world in enumerate(worlds):
        world._number = 100 * i  # episodes have numbers of their own
        world.write(i + 1)
    sampler = hindsight(k=3)
    readers = [ShardReader(w.storage, copy.deepcopy(sampler), i) for i, w in enumerate(worlds)]
    request = sampler.request(240)
    batch = read_shards(sampler, Rng(0), readers, request, lambda source: None)
    chosen = batch[RELABELED]
    assert len(batch) == 240 and abs(int(chosen.sum()) - 180) <= 3
    shard, seqs = batch["index"] >> 47, batch["index"] & (2**47 - 1)
    for i in np.flatnonzero(chosen).tolist():
        number, t = worlds[shard[i]].step_at[int(seqs[i])]
        assert batch["observation"][i, 0] == number and batch["observation"][i, 1] > t


def same(a: Any, b: Any) -> bool:
    return all((a[path] == b[path]).all() for path in a.layout.by_path)


def test_the_same_seed_and_a_checkpoint(tmp_path: Path) -> None:
    def make(world: World) -> ReplayBuffer:
        return ReplayBuffer(world.storage, hindsight(), batch_size=50, seed=7)

    world = SCENES["plain"]()
    one, other = make(world), make(world)
    for _ in range(3):
        assert same(one.sample(), other.sample())
    one.save(tmp_path / "checkpoint")
    loaded = ReplayBuffer(LazyTensorStorage(100), hindsight(), batch_size=50, seed=0)
    loaded.load(tmp_path / "checkpoint")
    assert same(loaded.sample(), one.sample())


def test_a_scalar_goal_and_a_reward_of_one_number() -> None:
    storage = LazyTensorStorage(50)
    buffer = ReplayBuffer(
        storage,
        HindsightRelabel(
            "final",
            k=9,
            reward_fn=lambda achieved, goal, rows: achieved == goal,
            achieved=("state", "at"),
            desired="goal",
        ),
        seed=0,
    )
    at = np.arange(20.0)
    done = np.arange(20) % 5 == 4
    following = {"state": {"at": at + 1}, "reward": np.zeros((20, 1), np.float32), "done": done}
    buffer.extend(
        {"state": {"at": at}, "goal": np.full((20, 1), -1, np.float32), "next": following}
    )
    batch = buffer.sample(100)  # no goal below next: nothing to replace there
    chosen = batch[RELABELED]
    last = (batch["index"] // 5 * 5 + 5)[chosen]
    np.testing.assert_array_equal(batch["goal"][chosen, 0], last)
    np.testing.assert_array_equal(
        batch["next", "reward"][chosen, 0], batch["next", "state", "at"][chosen] == last
    )


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="strategy: expected one of future, final, episode"):
        hindsight("past")
    with pytest.raises(ValueError, match="k"):
        hindsight(k=-1)
    with pytest.raises(TypeError, match="reward_fn: expected a function"):
        hindsight(reward_fn=None)
    with pytest.raises(TypeError, match="terminated_fn: expected a function"):
        hindsight(terminated_fn=3)
    storage = SCENES["plain"]().storage

    def sample(sampler: Sampler) -> None:
        ReplayBuffer(storage, sampler, seed=0).sample(16)

    with pytest.raises(ValueError, match="folded by NStepSampler"):
        sample(hindsight(sampler=NStepSampler(2, 0.9)))
    with pytest.raises(ValueError, match="relabelled already"):
        sample(hindsight(sampler=hindsight()))
    with pytest.raises(ValueError, match="not HindsightRelabel"):
        sample(NStepSampler(2, 0.9, hindsight()))
    with pytest.raises(ValueError, match=r"reward_fn: returned shape \[\], expected \["):
        sample(hindsight(reward_fn=lambda a, g, rows: 0.0))
    with pytest.raises(NothingEligibleError, match=r'hindsight needs a leaf \("next", "hand"\)'):
        sample(HindsightRelabel(reward_fn=distance, achieved="hand", desired="observation"))
    with pytest.raises(NothingEligibleError, match='hindsight needs a leaf "wish"'):
        sample(HindsightRelabel(reward_fn=distance, achieved="observation", desired="wish"))
    bare = LazyTensorStorage(20)
    x = np.zeros((10, 2))
    bare.writer().extend_trajectory({"x": x, "next": {"x": x}}, truncated=True)
    goals: dict[str, Any] = {
        "achieved": "x",
        "desired": "x",
        "reward_fn": lambda a, g, rows: a[:, 0],
    }
    with pytest.raises(NothingEligibleError, match=r'"reward"\); .* of zeros if there is none'):
        ReplayBuffer(bare, HindsightRelabel(**goals), seed=0).sample(16)
    paid = LazyTensorStorage(20)
    rows = {"x": x, "reward": np.zeros(10), "next": {"x": x}}
    paid.writer().extend_trajectory(rows, truncated=True)
    with pytest.raises(NothingEligibleError, match=r'"terminated"\); .* or "done"'):
        ReplayBuffer(paid, HindsightRelabel(**goals, terminated_fn=near), seed=0).sample(16)
    with pytest.raises(ValueError, match=r'"action": a row has shape .* takes its place'):
        sample(HindsightRelabel(reward_fn=distance, achieved="observation", desired="action"))


def test_rows_whose_trajectories_are_not_known() -> None:
    buffer = ReplayBuffer(
        LazyTensorStorage(50),
        HindsightRelabel(reward_fn=distance, achieved="x", desired="x"),
        seed=0,
    )
    x = np.zeros((10, 2))
    buffer.extend({"x": x, "next": {"x": x, "reward": np.zeros(10)}})
    with pytest.raises(NothingEligibleError, match="goals of the same trajectory need to know"):
        buffer.sample(4)


def _goals(codec: str | None, leaf: Any) -> ReplayBuffer:
    example = {
        "achieved_goal": leaf,
        "desired_goal": leaf,
        "next": {"achieved_goal": leaf, "reward": np.float32(0)},
    }
    coded = {("next", "achieved_goal"): codec} if codec else None
    storage = LazyTensorStorage(40, example=example, codecs=coded, blob_bytes=1 << 16)
    sampler = HindsightRelabel(reward_fn=lambda achieved, goal, rows: np.ones(len(achieved)))
    buffer = ReplayBuffer(storage, sampler, batch_size=8, seed=0)
    for n in range(4):
        goals = [np.full(16, n, np.float32)] * 5
        column = goals if codec is None else np.stack(goals)
        below = {"achieved_goal": column, "reward": np.zeros(5, np.float32)}
        buffer.extend_trajectory(
            {"achieved_goal": column, "desired_goal": column, "next": below}, truncated=True
        )
    return buffer


def test_goals_that_cannot_be_decoded_are_drawn_again() -> None:
    buffer = _goals("lz4", np.zeros(16, np.float32))
    storage = buffer.storage
    size = len(stored_bytes(storage, ("next", "achieved_goal"), np.arange(3)).values)
    storage._segment.map_data(storage.tape.blob_range[0], size)[:] = 7  # of the first trajectory
    for _ in range(20):
        batch = buffer.sample()
        assert batch["index"].min() >= 3
        of = batch["index"] // 5
        assert (batch["desired_goal"] == of[:, None]).all()
    assert storage.undecodable == 3


def test_goals_have_a_fixed_shape() -> None:
    buffer = _goals(None, Ragged(np.float32))
    with pytest.raises(ValueError, match=r'"achieved_goal"\): float32\[\*\], but goals have'):
        buffer.sample()
