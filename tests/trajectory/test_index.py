"""What a buffer says of its trajectories, and what it draws from, against a list."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contig import EmptyBufferError, NothingEligibleError, TrajectoryReplayBuffer
from contig.trajectory.cache import TrajectoryCache
from tests.trajectory.made import check, made

OPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 5), st.integers(1, 2), st.integers(0, 3)),
        st.tuples(st.just("damage"), st.integers(0, 3)),
        st.tuples(st.just("reopen")),
        st.tuples(st.just("clear")),
    ),
    max_size=25,
)


class One(NamedTuple):
    """A trajectory of the model."""

    name: int
    trajectory_id: int
    samples: int
    weights: str


class Model:
    """The same by lists."""

    def __init__(self, window: int, stale: int | None) -> None:
        self.window_size, self.stale = window, stale
        self.damaged = 0
        self.clear()

    def clear(self) -> None:
        self.entries: list[One] = []
        self.weights: list[str] = []
        self.counter = 0

    def add(self, name: int, samples: int, weights: str) -> None:
        if weights not in self.weights:
            self.weights.append(weights)
        self.entries.append(One(name, self.counter, samples, weights))
        self.counter += 1

    def window(self) -> list[One]:
        part = self.entries[-self.window_size :]
        if self.stale is None:
            return part
        oldest = len(self.weights) - 1 - self.stale
        return [e for e in part if self.weights.index(e.weights) >= oldest]


def agree(buffer: TrajectoryReplayBuffer, model: Model) -> None:
    found = [
        (e["trajectory_id"], e["num_samples"], e["model_weights_id"])
        for e in buffer.trajectory_index
    ]
    assert found == [entry[1:] for entry in model.entries]
    samples = sum(e.samples for e in model.entries)
    assert (len(buffer), buffer.total_samples) == (len(model.entries), samples)
    assert buffer.trajectory_counter == model.counter
    known, window = buffer.get_stats(), model.window()
    drawable = {(e.name, i) for e in window for i in range(e.samples)}
    assert (known["window_trajectories"], known["window_samples"]) == (len(window), len(drawable))
    assert known["damaged_trajectories"] == model.damaged
    if not drawable:
        with pytest.raises((EmptyBufferError, NothingEligibleError)):
            buffer.sample(1)
        return
    who = check(buffer.sample(20 * len(drawable))).astype(int)
    rows = {(int(n), int(t * (1 + n % 2) + b)) for n, t, b in who}
    assert rows <= drawable
    assert {name for name, _ in rows} == {e.name for e in window}


@given(ops=OPS, window=st.integers(0, 4), stale=st.one_of(st.none(), st.integers(0, 2)))
def test_in_memory(ops: list[Any], window: int, stale: int | None) -> None:
    model = Model(window, stale)
    buffer = TrajectoryReplayBuffer(
        sample_window_size=window, max_staleness=stale, output="numpy", enable_cache=False
    )
    for name, op in enumerate(ops):
        if op[0] == "add":
            add(buffer, model, name, *op[1:])
            model.entries = model.entries[-window:]  # no others are kept
        elif op[0] == "clear":
            buffer.clear()
            model.clear()
        agree(buffer, model)


@settings(max_examples=25)
@given(ops=OPS, window=st.integers(0, 4), stale=st.one_of(st.none(), st.integers(0, 2)))
def test_in_a_directory(ops: list[Any], window: int, stale: int | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"sample_window_size": window, "max_staleness": stale}
        options |= {"auto_save": True, "auto_save_path": Path(folder) / "rows", "output": "numpy"}
        model, buffer = Model(window, stale), TrajectoryReplayBuffer(**options)
        for name, op in enumerate(ops):
            if op[0] == "add":
                add(buffer, model, name, *op[1:])
            elif op[0] == "damage" and model.entries:
                gone = model.entries.pop(min(op[1], len(model.entries) - 1))
                found = buffer._rows.find(gone.trajectory_id)
                assert found is not None
                buffer._rows.storage.quarantine({found.ordinal: "for a test"})  # type: ignore[attr-defined]
                model.damaged += 1
            elif op[0] == "reopen":
                buffer.close()
                buffer = TrajectoryReplayBuffer(**options)
                # Ids and weights are those of what is there.
                model.counter = max((e.trajectory_id + 1 for e in model.entries), default=0)
                there = {e.weights for e in model.entries}
                if not there or model.weights[-1] not in there or model.damaged:
                    break
            elif op[0] == "clear":
                buffer.clear()
                model.clear()
            agree(buffer, model)
        buffer.close()


def add(
    buffer: TrajectoryReplayBuffer, model: Model, name: int, steps: int, _: int, weights: int
) -> None:
    """A trajectory of `steps` steps; of 2 envs if its name is an odd number."""
    envs = 1 + name % 2
    ids = buffer.add_trajectories([made(name, steps, envs, weights=f"w{weights}")])
    assert ids == [model.counter]
    model.add(name, steps * envs, f"w{weights}")


def test_fields_are_columns_of_episodes() -> None:
    buffer = TrajectoryReplayBuffer()
    buffer.add_trajectories([made(0, weights="a"), made(1, 3, 5, weights="b" * 256)])
    assert len(buffer) == 2
    episodes = buffer._rows.storage.episodes()
    assert episodes["traj_id"].tolist() == [0, 1] and episodes["steps"].tolist() == [8, 15]
    assert episodes["max_episode_length"].tolist() == [10, 11]
    assert episodes["shape"][:, :2].tolist() == [[4, 2], [3, 5]]
    assert bytes(episodes["model_weights_id"][1]).decode() == "b" * 256


@pytest.mark.parametrize("weights", ["b" * 257, "ends with a zero\0"])
@pytest.mark.parametrize("count", [1, 2])
def test_names_that_have_no_room(weights: str, count: int) -> None:
    buffer = TrajectoryReplayBuffer()
    buffer.add_trajectories([made(0)])
    with pytest.raises(ValueError, match=r"model_weights_id: expected text of at most 256 bytes"):
        buffer.add_trajectories([*[made(1)] * (count - 1), made(1, weights=weights)])
    assert len(buffer) == buffer.trajectory_counter == 1


@pytest.mark.parametrize("weights", ["", "ü" * 100, "a\0b", "\ud800", "x" * 300])
def test_names_of_weights_are_kept(weights: str, tmp_path: Path) -> None:
    buffer = TrajectoryReplayBuffer()
    buffer.add_trajectories([made(0, weights=weights)])  # the first one gets the room it needs
    assert buffer.trajectory_index[0]["model_weights_id"] == weights
    buffer.save_checkpoint(tmp_path / "saved")
    other = TrajectoryReplayBuffer()
    other.load_checkpoint(tmp_path / "saved")
    assert other.read_trajectory(0)["model_weights_id"] == weights


def test_cache() -> None:
    cache = TrajectoryCache(2)
    for number in range(3):
        cache.put(number, {"x": number})
    assert cache.get(0) is None and cache.get(1) == {"x": 1} and 2 in cache and len(cache) == 2
    cache.put(1, {"x": "new"})  # keeps its turn
    cache.put(3, {"x": 3})
    assert cache.get(1) is None and cache.get(2) == {"x": 2}
    cache.clear()
    assert len(cache) == 0 and TrajectoryCache().max_size == 5
    with pytest.raises(ValueError, match="max_size: expected .*, at least 1"):
        TrajectoryCache(0)
