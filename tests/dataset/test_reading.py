"""Reading rollouts in any way: every frame of every trajectory is handed out once in each loop."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tensordict import TensorDict
from torch.utils.data import DataLoader

from contig import (
    DeviceStorage,
    LayoutError,
    LazyTensorStorage,
    ReplayBuffer,
    RolloutDataset,
    RolloutFileBase,
    RolloutWriter,
)
from contig.dataset import Transition
from tests.dataset.made import identities, trajectory, written


def ids(batches: Any) -> list[float]:
    return [float(x) for batch in batches for x in batch.reward.flatten()]


def test_looking_before_the_first_reset(tmp_path):
    dataset = RolloutDataset(written(tmp_path, [3, 2]), 2, device="cpu")
    assert dataset.read_dataset_directory() and dataset.read_dataset_directory()
    assert ids([dataset.get_batch()]) == [0.0, 1000.0]
    fresh = RolloutDataset(tmp_path, 3, device="cpu")
    assert not fresh.read_dataset_directory()
    one = RolloutDataset(tmp_path, 1, device="cpu")
    assert one.read_dataset_directory()
    assert ids(one) == identities([3, 2])


@pytest.mark.parametrize("steps", [1, 3, 4, 7, 100])
@pytest.mark.parametrize("loops", [1, 2])
def test_the_last_batch_has_what_is_left(tmp_path, steps, loops):
    lengths = [5, 1, 9, 4]
    dataset = RolloutDataset(written(tmp_path, lengths), 1, loops, device="cpu")
    got = []
    with pytest.raises(StopIteration):
        while True:
            got.append(dataset.get_batch(steps))
    assert ids(got) == identities(lengths) * loops
    assert [len(batch.reward) for batch in got[:-1]] == [steps] * (len(got) - 1)
    assert got[-1].observation.shape == (len(got[-1].done), 1, 3)
    assert got[-1].privileged_observation is None
    with pytest.raises(ValueError, match="num_transitions_per_env=0"):
        dataset.get_batch(0)


def test_a_reset_skips_nothing_that_was_not_begun(tmp_path):
    lengths = [4] * 5
    dataset = RolloutDataset(written(tmp_path, lengths), 2, device="cpu")
    dataset.reset([0])  # a fresh one
    assert ids([dataset.get_batch()]) == [0.0, 1000.0]
    dataset.reset()
    dataset.reset([0, 1])
    dataset.reset(torch.tensor([False, True]))
    assert ids([dataset.get_batch()]) == [0.0, 1000.0]
    dataset.reset(torch.tensor([False, True]))  # a mask
    dataset.reset(1)
    assert ids([dataset.get_batch()]) == [1.0, 2000.0]
    for wrong in ([2], [-1], [0, 0], [0.5], [[0]]):
        with pytest.raises(ValueError, match="expected numbers from 0 to 1, each once, or a mask"):
            dataset.reset(wrong)
        with pytest.raises(ValueError, match="expected numbers from 0 to 1"):
            dataset.fill_transition(dataset.get_buffer(), wrong)
    assert ids([dataset.get_batch()]) == [2.0, 2001.0]


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loaders_of_any_kind(tmp_path, workers):
    lengths = [5, 3, 4, 6]
    dataset = RolloutDataset(written(tmp_path, lengths), 1, device="cpu")
    for size in (None, 1, 4):
        loader = DataLoader(dataset, num_workers=workers, batch_size=size)
        batches = list(loader)
        assert all(isinstance(batch, Transition) for batch in batches)
        assert sorted(ids(batches)) == identities(lengths)
        first = batches[0]
        lead = (1,) if size is None else (size, 1)
        assert first.observation.shape == (*lead, 3) and first.reward.shape == lead
        assert first.privileged_observation is None
        assert torch.equal(first.observation[..., 0], first.reward)
    plain = list(DataLoader(dataset))
    assert ids(plain) == identities(lengths)


class Frames(RolloutFileBase):
    """Ten frames for each env, in buffers of some kind."""

    kind = "dict"

    def reset_all(self) -> None:
        self.at = 0

    def refresh_handlers(self, env_ids: Any) -> None:
        self.at = 0

    def get_buffer(self, num_transitions_per_env: int | None = None) -> Any:
        lead = () if num_transitions_per_env is None else (num_transitions_per_env,)
        shape = (*lead, self.num_envs)
        if self.kind == "tensor":
            return torch.zeros(shape)
        if self.kind == "wrong":
            return "no buffer"
        names = ("observation", "action", "reward", "done")
        made: dict[str, Any] = {name: torch.zeros(shape) for name in names}
        if self.kind == "nested":
            made["observation"] = {"a": torch.zeros(shape), "b": (torch.zeros(shape), None)}
        if self.kind == "tensordict":
            return TensorDict(made, batch_size=shape)
        return made

    def fill_transition(self, buffer: Any, env_ids: Any = None) -> None:
        if self.at == 10:
            raise StopIteration
        value = torch.arange(self.num_envs) + 1000.0 * self.at
        self.at += 1
        if self.kind == "tensor":
            buffer.copy_(value)
        elif self.kind == "nested":
            buffer["observation"]["a"] = value  # in the place of the view
            buffer["observation"]["b"][0].copy_(value + 0.5)
            buffer["reward"][:] = value
        elif self.kind == "extra":
            buffer["other"] = value
        else:
            for name in ("observation", "action", "reward", "done"):
                buffer[name][:] = value


@pytest.mark.parametrize("kind", ["dict", "nested", "tensordict", "tensor"])
def test_buffers_of_any_kind(kind):
    dataset = Frames("anywhere", 2, "cpu")
    dataset.kind = kind
    want = [[1000.0 * t, 1000.0 * t + 1] for t in range(10)]
    for steps in (None, 4):
        dataset.reset()
        got: list[Any] = []
        with pytest.raises(StopIteration):
            while True:
                batch = dataset.get_batch(steps)
                rows = batch if kind == "tensor" else batch["reward"]
                got += rows.reshape(-1, 2).tolist()
                if kind == "nested":
                    assert torch.equal(batch["observation"]["a"], rows)
                    assert torch.equal(batch["observation"]["b"][0], rows + 0.5)
                    assert batch["observation"]["b"][1] is None
        assert got == want
    if kind in ("dict", "tensordict"):
        dataset.reset()
        s, a, r, d, info = dataset.get_transition_batch()
        assert torch.equal(s, a) and torch.equal(r, d) and s.tolist() == want[0] and info == {}


def test_buffers_that_do_not_fit_say_so():
    dataset = Frames("anywhere", 2, "cpu")
    dataset.kind = "extra"
    with pytest.raises(LayoutError, match="fill_transition wrote 'other', for which get_buffer"):
        dataset.get_batch(3)
    dataset.kind = "wrong"
    with pytest.raises(LayoutError, match="get_buffer returned str: expected tensors"):
        dataset.get_batch(3)
    dataset.kind = "tensor"
    with pytest.raises(LayoutError, match="Tensor has no observation"):
        dataset.get_transition_batch()


def test_filling_a_dict_of_ones_own(tmp_path):
    dataset = RolloutDataset(written(tmp_path, [5, 5], 2), 2, device="cpu")
    made = dataset.get_buffer()
    mine = {"reward": torch.zeros(2), "next_observation": torch.zeros(2, 3)}
    for frame in range(5):
        dataset.fill_transition(mine)
        assert mine["reward"].tolist() == [frame, 1000.0 + frame]
        after = min(frame + 1, 4)
        assert mine["next_observation"][:, 0].tolist() == [after, 1000.0 + after]
    dataset.reset()
    dataset.fill_transition(made._asdict(), [1])
    assert made.reward[1] == 1000.0 and bool(made.done[1])
    with pytest.raises(LayoutError, match="dict has no observation.* it has obs"):
        dataset.fill_transition({"obs": torch.zeros(2, 3)})


@pytest.mark.parametrize("make", [LazyTensorStorage, partial(DeviceStorage, device="cpu")])
def test_a_replay_buffer_is_a_dataset_too(make):
    buffer = ReplayBuffer(make(100))
    for number in range(2):
        data = trajectory(number, 3)
        reward = {"reward": data.pop("reward")}
        buffer.extend_trajectory({**data, "next": reward}, terminated=True, truncated=False)
    assert ids(RolloutDataset(buffer, device="cpu")) == identities([3, 3])
    grouped = ReplayBuffer(LazyTensorStorage(100))
    seen = {"camera": np.zeros((3, 2)), "joints": np.zeros((3, 4))}
    rows = {"observation": seen, "action": np.zeros(3), "next": {"reward": np.zeros(3)}}
    grouped.extend_trajectory(rows)
    with pytest.raises(LayoutError, match="observation is a dict, and a dataset hands out one"):
        RolloutDataset(grouped, device="cpu").get_batch()
    with pytest.raises(TypeError, match="data_dir=dict: expected a directory or a list"):
        RolloutDataset({}, device="cpu")


# -- steps that subclasses override -------------------------------------------------------------


class Traced(RolloutDataset):
    """Overrides every step, and writes down what is called."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.calls: list[tuple[str, int]] = []
        super().__init__(*args, **kwargs)

    def _refresh_traj_data(self, env_idx: int) -> None:
        super()._refresh_traj_data(env_idx)
        self.calls.append(("data", env_idx))
        self.traj_data[env_idx]["reward"] += 0.25

    def _refresh_traj_handler(self, env_idx: int) -> None:
        super()._refresh_traj_handler(env_idx)
        self.calls.append(("handler", env_idx))

    def _maintain_handler(self, env_idx: int) -> None:
        super()._maintain_handler(env_idx)
        self.calls.append(("maintain", env_idx))

    def _fill_transition_per_env(self, buffer: Any, env_idx: int) -> None:
        super()._fill_transition_per_env(buffer, env_idx)
        self.calls.append(("fill", env_idx))
        buffer.action[env_idx] += 0.5


def test_steps_that_are_overridden_are_taken(tmp_path):
    lengths = [5, 3, 6, 2]
    written(tmp_path, lengths, 2)
    for envs in (1, 2):
        dataset, plain = Traced(tmp_path, envs, 2, device="cpu"), None
        plain = RolloutDataset(tmp_path, envs, 2, device="cpu")
        theirs, ours = list(dataset), list(plain)
        assert len(theirs) == len(ours)
        for a, b in zip(theirs, ours):
            assert torch.equal(a.reward, b.reward + 0.25)
            assert torch.equal(a.action, b.action + 0.5)
            for name in ("observation", "next_observation", "done", "timeout"):
                assert torch.equal(getattr(a, name), getattr(b, name))
        counts = Counter(dataset.calls)
        assert sum(counts["fill", env] for env in range(envs)) == len(theirs) * envs
        assert sum(counts["handler", env] for env in range(envs)) == 2 * len(lengths)
        if envs == 1:
            assert counts["data", 0] == 2 * (3 + 2 + 3 + 1)  # a file at a time
        assert dataset.traj_data[0]["observation"].shape[1:] == (3,)


class PerEnv(RolloutFileBase):
    """The base's own order of steps: env by env."""

    lengths = (3, 2, 4, 1, 5)

    def reset_all(self) -> None:
        self.unused, self.number = list(range(len(self.lengths))), [0] * self.num_envs
        self.at = [0] * self.num_envs
        self.data: list[Any] = [None] * self.num_envs
        self.refresh_handlers(self.all_env_ids)

    def refresh_handlers(self, env_ids: Any) -> None:
        super().refresh_handlers(env_ids)

    def _refresh_traj_handler(self, env_idx: int) -> None:
        if not self.unused:
            raise StopIteration
        self.number[env_idx], self.at[env_idx] = self.unused.pop(0), 0
        self._refresh_traj_data(env_idx)

    def _refresh_traj_data(self, env_idx: int) -> None:
        number = self.number[env_idx]
        self.data[env_idx] = number * 1000.0 + torch.arange(self.lengths[number])

    def _maintain_handler(self, env_idx: int) -> None:
        if self.at[env_idx] == len(self.data[env_idx]):
            self._refresh_traj_handler(env_idx)

    def get_buffer(self, num_transitions_per_env: int | None = None) -> Any:
        lead = () if num_transitions_per_env is None else (num_transitions_per_env,)
        return {"reward": torch.zeros(*lead, self.num_envs)}

    def fill_transition(self, buffer: Any, env_ids: Any = None) -> None:
        super().fill_transition(buffer, env_ids)

    def _fill_transition_per_env(self, buffer: Any, env_idx: int) -> None:
        buffer["reward"][env_idx] = self.data[env_idx][self.at[env_idx]]
        self.at[env_idx] += 1


def test_a_subclass_that_works_env_by_env():
    dataset = PerEnv("anywhere", 1, "cpu")
    got = [float(batch["reward"]) for batch in dataset]
    assert got == identities(list(PerEnv.lengths))
    dataset = PerEnv("anywhere", 2, "cpu")
    batch = dataset.get_batch(4)["reward"]
    assert batch.t().tolist() == [[0.0, 1.0, 2.0, 3000.0], [1000.0, 1001.0, 2000.0, 2001.0]]


def test_a_step_that_is_missing_is_named():
    class Half(Frames):
        def fill_transition(self, buffer: Any, env_ids: Any = None) -> None:
            RolloutFileBase.fill_transition(self, buffer, env_ids)

    with pytest.raises(NotImplementedError, match="Half has no _fill_transition_per_env"):
        Half("anywhere", 2, "cpu").get_batch()


# -- any order of calls -------------------------------------------------------------------------


class Reader(RuleBasedStateMachine):
    """A dataset that is read, reset and added to in any order.

    Trajectories are begun as often as there were loops with them; one that was begun goes on
    frame by frame to its end, unless its env was reset or the data ended.
    """

    @initialize(
        lengths=st.lists(st.integers(1, 6), min_size=3, max_size=5),
        envs=st.integers(1, 3),
        loops=st.integers(1, 2),
        shuffle=st.booleans(),
    )
    def begin(self, lengths: list[int], envs: int, loops: int, shuffle: bool) -> None:
        self.path = Path(tempfile.mkdtemp())
        self.lengths: list[int] = []
        self.since: list[int] = []
        self.writer = RolloutWriter(self.path, frames_per_file=2)
        self.dataset = RolloutDataset(self.path, envs, loops, shuffle, device="cpu", wait_s=0)
        self.envs, self.loops = envs, loops
        for length in lengths:
            self.record(length)
        self.anew()

    def anew(self) -> None:
        self.at: list[tuple[int, int] | None] = [None] * self.envs  # the frame seen last
        self.begun: Counter[int] = Counter()
        self.over = False
        self.since = [0] * len(self.lengths)

    def record(self, length: int) -> None:
        self.writer.add_trajectory(trajectory(len(self.lengths), length))
        self.lengths.append(length)

    @precondition(lambda self: len(self.lengths) < 9)
    @rule(length=st.integers(1, 6))
    def add(self, length: int) -> None:
        self.record(length)
        self.since.append(self.dataset.num_dataset_looped)

    @rule()
    def look(self) -> None:
        assert self.dataset.read_dataset_directory()

    @rule()
    def start_anew(self) -> None:
        self.dataset.reset()
        self.anew()

    @rule(env=st.integers(0, 2))
    def reset_one(self, env: int) -> None:
        env %= self.envs
        fresh = not self.dataset._ready
        try:
            self.dataset.reset([env])
        except StopIteration:
            self.end()
        if not fresh:
            seen = self.at[env]
            if seen is not None:  # else it has handed out nothing, and keeps what it has
                self.at[env] = None

    @rule(steps=st.one_of(st.none(), st.integers(1, 9)))
    def batch(self, steps: int | None) -> None:
        try:
            got = self.dataset.get_batch(steps)
        except StopIteration:
            self.end()
            return
        rewards = got.reward.reshape(-1, self.envs)
        assert 1 <= len(rewards) <= (steps or 1)
        for row in rewards:
            for env in range(self.envs):
                self.saw(env, float(row[env]))

    @rule(env=st.integers(0, 2))
    def one_env(self, env: int) -> None:
        env %= self.envs
        row = {"reward": torch.full((self.envs,), -1.0), "done": torch.zeros(self.envs).bool()}
        try:
            self.dataset.fill_transition(row, [env])
        except StopIteration:
            self.end()
            return
        assert [float(x) >= 0 for x in row["reward"]] == [e == env for e in range(self.envs)]
        self.saw(env, float(row["reward"][env]))

    def saw(self, env: int, value: float) -> None:
        number, frame = divmod(int(value), 1000)
        before = self.at[env]
        if frame == 0 and (before is None or before[1] == self.lengths[before[0]] - 1):
            self.begun[number] += 1
            assert self.begun[number] <= self.loops - self.since[number]
        else:
            assert before == (number, frame - 1), "a frame was skipped, or is another's"
        self.at[env] = (number, frame)

    def end(self) -> None:
        """All has been given to some env; what an env was given at the end may not be begun."""
        due = sum(self.loops - since for since in self.since)
        waiting = sum(1 for env in range(self.envs) if self.dataset._first[env])
        assert sum(self.begun.values()) + waiting == due
        assert waiting < self.envs, "with one env, nothing is left"
        self.over = True

    def teardown(self) -> None:
        if hasattr(self, "path"):
            self.writer.close()
            shutil.rmtree(self.path)


TestReader = Reader.TestCase
TestReader.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
