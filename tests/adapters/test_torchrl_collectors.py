"""contig's collectors under TorchRL's names, and TorchRL's own with contig's buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule as Mod
from torch import nn
from torchrl import collectors as theirs
from torchrl import envs as trl
from torchrl.collectors.utils import split_trajectories
from torchrl.data import MultiStep
from torchrl.envs.utils import ExplorationType, exploration_type
from torchrl.modules import RandomPolicy

import contig
from contig import WorkerError
from contig.adapters import torchrl as ours
from tests.adapters.torchrl_side import Counting, check_rows, counted, length, steps


class Acting(nn.Module):
    """Its action says which weights it has; `seen` what it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.seen: list[Any] = []

    def forward(self, observation: Any) -> Any:
        self.seen.append((observation.shape, exploration_type()))
        return (observation[..., :1] * 0 + self.weight).long()


def acting() -> Any:
    return Mod(Acting(), in_keys=["observation"], out_keys=["action"])


def test_batches_are_torchrl_s() -> None:
    """Shapes, keys and dtypes as TorchRL's collector has them; flags at the root aside."""
    policy = acting()
    options = {"frames_per_batch": 20, "total_frames": 40}
    other = theirs.Collector(counted, policy, auto_register_policy_transforms=False, **options)
    expected = list(other)
    other.shutdown()
    mine = ours.Collector(counted, policy, **options)
    assert isinstance(mine, theirs.BaseCollector) and isinstance(mine, contig.BaseCollector)
    found = list(mine)
    mine.shutdown()
    for a, b in zip(found, expected):
        assert isinstance(a, TensorDict) and a.batch_size == b.batch_size
        surplus = {"is_init", ("collector", "policy_version")}
        missing = {"done", "terminated", "truncated"}
        keys = set(b.keys(True, True)) - missing
        assert set(a.keys(True, True)) == keys | surplus
        for key in keys - {("collector", "traj_ids")}:
            assert a[key].dtype == b[key].dtype
            torch.testing.assert_close(a[key], b[key], rtol=0, atol=0, msg=str(key))


def test_what_policies_get() -> None:
    policy = acting()
    with ours.Collector(counted, policy, frames_per_batch=2, total_frames=2) as collector:
        next(iter(collector))
    with ours.SyncDataCollector(
        lambda: counted(3),
        policy,
        frames_per_batch=6,
        total_frames=6,
        exploration_type=ExplorationType.MODE,
    ) as collector:
        assert next(iter(collector)).batch_size == (3, 2)
    seen = policy.module.seen
    assert {s for s in seen[:2]} == {((3,), ExplorationType.RANDOM)}
    assert {s for s in seen[2:]} == {((3, 3), ExplorationType.MODE)}


def one(td: Any) -> Any:
    return td.set("action", torch.ones(1, dtype=torch.int64))


@pytest.mark.parametrize(
    ("policy", "actions"),
    [
        (one, {1}),
        (Acting(), {0}),
        (lambda td: torch.full((1,), 2), {2}),
        (None, {0, 1, 2, 3, 4}),
        (RandomPolicy(Counting().action_spec), {0, 1, 2, 3, 4}),
    ],
    ids=["function", "nn.Module", "action alone", "none", "RandomPolicy"],
)
def test_kinds_of_policies(policy: Any, actions: set[int]) -> None:
    with ours.Collector(Counting, policy, frames_per_batch=60, total_frames=60) as collector:
        (batch,) = collector
    assert set(batch["action"].reshape(-1).tolist()) == actions
    check_rows(batch["observation"], batch)


def test_policy_factory_and_env_kwargs() -> None:
    with ours.Collector(
        Counting,
        policy_factory=acting,
        create_env_kwargs={"lanes": 2, "first": 7},
        frames_per_batch=10,
        total_frames=10,
        init_random_frames=4,
        max_frames_per_traj=-1,
        return_same_td=True,
        storing_device="cpu",
        policy_device="cpu",
    ) as collector:
        (batch,) = collector
    assert (batch["observation"][:, :4, 1] == 7).all()
    assert batch["action"][:, 2:].sum() == 0
    assert batch.device == torch.device("cpu")


class Told(nn.Module):
    """An action and more, of what it is told."""

    def forward(self, observation: Any) -> Any:
        return (observation[..., 2:] % 5).long(), observation.sum(-1, keepdim=True)


@pytest.mark.parametrize("lanes", [None, 3])
def test_the_short_way_gives_the_same_rows(lanes: int | None) -> None:
    """A policy and an environment of TorchRL's step on one TensorDict, unless something has to be
    looked after at every step, as here a bound that is never reached."""
    policy = Mod(Told(), in_keys=["observation"], out_keys=["action", "more"])
    found = []
    for most in (None, 10**6):
        buffer = ours.TensorDictReplayBuffer(storage=ours.LazyTensorStorage(90))
        with ours.Collector(
            lambda: counted(lanes),
            policy,
            frames_per_batch=21,
            total_frames=70,
            max_frames_per_traj=most,
            init_random_frames=6,
            replay_buffer=buffer,
            seed=1,
        ) as collector:
            assert list(collector) == [None] * 4
        rows = buffer[:]
        episodes = buffer.storage.episodes()
        found.append((rows.exclude(("collector", "traj_ids"), "action", "index"), episodes))
    (short, mine), (long, other) = found
    assert len(short) == 70 and short["more"].std() > 0
    for key, value in short.items(True, True):
        assert torch.equal(value, long[key]), key
    for name in ("first", "steps", "return", "terminated", "truncated"):
        np.testing.assert_array_equal(mine[name], other[name])
    assert short["is_init"].sum() == len(mine)


class Broken(Counting):
    def _step(self, tensordict: Any) -> Any:
        out = super()._step(tensordict)
        if self.episode[0] == 3:
            out["observation"] = out["observation"] * torch.nan
        return out


class Shrinking(nn.Module):
    def forward(self, observation: Any) -> Any:
        more = torch.zeros(2 if observation[1] < 2 else 1)
        return torch.zeros(1, dtype=torch.int64), more


def test_what_goes_wrong_on_the_short_way() -> None:
    with ours.Collector(Broken, acting(), frames_per_batch=10, total_frames=40) as collector:
        with pytest.raises(ValueError, match="emitted NaN"):
            list(collector)
    policy = Mod(Shrinking(), in_keys=["observation"], out_keys=["action", "more"])
    with ours.Collector(Counting, policy, frames_per_batch=10, total_frames=40) as collector:
        with pytest.raises(contig.LayoutError, match=r'"more": the policy returned shape \[1\]'):
            list(collector)


def test_trajectories_padded_and_not() -> None:
    expected = [(e, length(e)) for e in range(8)]
    with ours.Collector(counted, frames_per_batch=20, total_frames=20, split_trajs=True) as c:
        (padded,) = c
    with ours.Collector(counted, frames_per_batch=20, total_frames=20) as c:
        (flat,) = c
    other = split_trajectories(flat, prefix="collector")
    assert padded.batch_size == other.batch_size == (6, 5)
    assert torch.equal(padded["collector", "mask"], other["collector", "mask"])
    assert torch.equal(padded["observation"], other["observation"])
    with ours.Collector(
        counted, frames_per_batch=10, total_frames=60, trajs_per_batch=3, traj_format="cat"
    ) as c:
        rows = next(iter(c))
    assert rows.batch_size == (sum(n for _, n in expected[:3]),)
    with ours.Collector(counted, frames_per_batch=10, total_frames=60, trajs_per_batch=3) as c:
        assert next(iter(c)).batch_size == (3, 5)


def test_hooks_get_tensordicts() -> None:
    seen: list[Any] = []

    def more(td: Any) -> Any:
        return td.set("twice", td["next", "reward"] * 2)

    with ours.Collector(
        counted,
        frames_per_batch=10,
        total_frames=20,
        postproc=more,
        post_collect_hook=seen.append,
    ) as collector:
        for td in collector:
            assert torch.equal(td["twice"], td["next", "reward"] * 2)
    assert [type(x) for x in seen] == [TensorDict] * 2
    buffer = ours.TensorDictReplayBuffer(storage=ours.LazyTensorStorage(100))
    n_steps = MultiStep(gamma=0.5, n_steps=3)
    with ours.Collector(
        lambda: counted(2),
        frames_per_batch=20,
        total_frames=40,
        postproc=n_steps,
        replay_buffer=buffer,
    ) as collector:
        assert list(collector) == [None, None]
    rows = buffer[:]
    assert len(rows) == 40 and rows["steps_to_next_obs"].max() == 3


def test_weights() -> None:
    policy = acting()
    with ours.Collector(counted, policy, frames_per_batch=5, total_frames=50) as collector:
        batches = iter(collector)

        def actions() -> set[int]:
            return set(next(batches)["action"].reshape(-1).tolist())

        assert actions() == {0}
        with torch.no_grad():
            policy.module.weight.fill_(1.0)
        collector.update_policy_weights_()
        assert actions() == {1}
        other = acting()
        with torch.no_grad():
            other.module.weight.fill_(2.0)
        collector.update_policy_weights_(TensorDict.from_module(other))
        assert actions() == {2}
        collector.update_policy_weights_(policy_weights={"module.weight": torch.tensor(3.0)})
        assert actions() == {3}
        with torch.no_grad():
            other.module.weight.fill_(4.0)
        collector.update_policy_weights_(other)
        assert actions() == {4}
        assert collector.state_dict()["frames"] == 25
        state = collector.state_dict()
        with pytest.raises(TypeError, match="unknown arguments"):
            collector.update_policy_weights_(weights_dict={})
    with ours.Collector(counted, acting(), frames_per_batch=5, total_frames=50) as again:
        again.load_state_dict(state)
        batches = list(again)
    assert len(batches) == 5
    assert batches[0]["action"].reshape(-1).tolist() == [4] * 5


def test_seeds_are_given_before_the_first_frame() -> None:
    env = Counting()
    with ours.Collector(env, frames_per_batch=5, total_frames=10) as collector:
        assert collector.set_seed(11) == 12
        assert collector.set_seed(7, static_seed=True) == 7
        next(iter(collector))
        with pytest.raises(RuntimeError, match="5 frames were collected"):
            collector.set_seed(0)
    assert env.seeds == [7]


@pytest.mark.timeout(300)  # every worker imports torchrl
def test_workers() -> None:
    """Another seed, weights, the shape of what comes, and rows in a buffer, in one start."""
    policy = acting()
    options = {"frames_per_batch": 20, "total_frames": 40, "update_at_each_batch": True}
    collector = ours.MultiSyncDataCollector([counted, counted], policy, num_workers=2, **options)
    with collector:
        assert collector.set_seed(3) == 5
        found = []
        for batch in collector:
            assert isinstance(batch, TensorDict) and batch.batch_size == (2, 10)
            for lane in range(2):
                check_rows(batch["observation"][lane], batch[lane])
            found.append(set(batch["action"].reshape(-1).tolist()))
            with torch.no_grad():
                policy.module.weight += 1
    assert found == [{0}, {1}]


@pytest.mark.timeout(300)  # every worker imports torchrl
def test_workers_and_a_transformed_buffer() -> None:
    buffer = ours.TensorDictReplayBuffer(storage=ours.LazyTensorStorage(max_size=100), batch_size=8)
    buffer.append_transform(trl.RewardScaling(loc=0.0, scale=0.5, in_keys=[("next", "reward")]))
    with ours.MultiaSyncDataCollector(
        [counted] * 2, one, frames_per_batch=10, total_frames=40, replay_buffer=buffer
    ) as collector:
        assert list(collector) == [None] * 4
        assert collector.getattr_rb("write_count") == 40
    rows = buffer[:]
    obs = rows["observation"]
    assert torch.equal(rows["next", "reward"][:, 0] * 2, 100 * obs[:, 1] + obs[:, 2] + 1)
    assert set(rows["action"].reshape(-1).tolist()) == {1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight_updater": object()}, "weight_updater=.*update_policy_weights_"),
        ({"compact_obs": True}, "compact_obs=True"),
        ({"traj_format": "loose"}, "traj_format: expected"),
        ({"policy": one, "policy_factory": acting}, "two ways"),
        ({"no_such_thing": 1}, "no_such_thing"),
    ],
)
def test_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        ours.Collector(counted, frames_per_batch=2, **options)


def test_refused_by_workers() -> None:
    for options in ({"num_workers": 3}, {"create_env_kwargs": [{}]}):
        with pytest.raises(ValueError, match="environments"):
            ours.MultiCollector([counted] * 2, frames_per_batch=2, **options)


# -- for those who subclass -------------------------------------------------------------------


class Recorded(ours.BaseCollector):
    """Batches from elsewhere."""

    def __init__(self, batches: int, fails: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self._count, self._fails, self.let_go = batches, fails, False

    def iterator(self) -> Any:
        for i in range(self._count):
            yield steps(10, first=2 * i, uid=10 * i)
        if self._fails:
            raise OSError("the recording is damaged")

    def _close(self) -> None:
        self.let_go = True


def test_a_collector_of_ones_own() -> None:
    seen: list[Any] = []
    with Recorded(3, post_collect_hook=lambda td: seen.append(len(td))) as collector:
        assert isinstance(collector, theirs.BaseCollector)
        assert [td["uid"][0].item() for td in collector] == [0, 10, 20]
    assert seen == [10] * 3 and collector.let_go
    assert collector.set_seed(5) == 6 and collector.state_dict() == {}
    buffer = ours.TensorDictReplayBuffer(storage=ours.LazyTensorStorage(100), batch_size=4)
    with Recorded(3, replay_buffer=buffer) as collector:
        assert list(collector) == [None] * 3
    assert buffer["uid"].tolist() == list(range(30))
    assert len(buffer.storage.episodes()) == 6
    with Recorded(2, fails=True, replay_buffer=buffer) as collector:
        collector.start()
        with pytest.raises(WorkerError, match="the recording is damaged"):
            while True:
                buffer.sample()


# -- TorchRL's collectors with contig's buffers -----------------------------------------------


@pytest.mark.parametrize("whose", ["contig", "adapter"])
def test_their_collector_writes_to_our_buffer(whose: str) -> None:
    buffer: Any
    if whose == "contig":
        buffer = contig.TensorDictReplayBuffer(contig.LazyTensorStorage(200), batch_size=8)
    else:
        buffer = ours.TensorDictReplayBuffer(storage=ours.LazyTensorStorage(200), batch_size=8)
    collector = theirs.Collector(
        counted, one, frames_per_batch=20, total_frames=60, replay_buffer=buffer
    )
    assert list(collector) == [None] * 3
    collector.shutdown()
    table = buffer.storage.episodes()
    assert table["steps"].sum() == 60
    for row in table:
        episode = buffer.storage.read_episode(row["id"])
        check_rows(episode["observation"], episode)
        np.testing.assert_array_equal(episode["observation"][:, 2], np.arange(len(episode)))


@pytest.mark.timeout(300)  # every worker imports torchrl
def test_their_workers_write_to_our_buffer() -> None:
    buffer = ours.TensorDictReplayBuffer(
        storage=ours.LazyTensorStorage(200), sampler=ours.SliceSampler(slice_len=3), batch_size=9
    )
    collector = theirs.MultiSyncCollector(
        [counted, counted],
        one,
        frames_per_batch=20,
        total_frames=40,
        replay_buffer=buffer,
    )
    try:
        assert list(collector) == [None] * 2
    finally:
        collector.shutdown()
    assert len(buffer) == 40
    for _ in range(20):
        sample = buffer.sample()
        at = sample["observation"].reshape(3, 3, 3)
        assert (at[:, :, 2].diff(dim=1) == 1).all() and (at[:, :, 1].diff(dim=1) == 0).all()
    for row in buffer.storage.episodes():
        episode = buffer.storage.read_episode(row["id"])
        check_rows(episode["observation"], episode)
