"""What policies are given and may return; hidden states are carried, stored and reset."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tensordict.nn import TensorDictModule

from contig import (
    Collector,
    GymEnv,
    LazyTensorStorage,
    ParallelEnv,
    ReplayBuffer,
    SerialEnv,
    ShapeDtype,
    StepCounter,
    TensorDictPrimer,
)
from tests.collect.envs import Steps, check_trajectory, make_steps, split


def collect(policy: Any, env: Any = None, frames: int = 40, **options: Any) -> Any:
    (batch,) = Collector(
        Steps() if env is None else env,
        policy,
        frames_per_batch=frames,
        total_frames=frames,
        seed=0,
        **options,
    )
    return batch


def test_numpy_policies_get_a_mapping_with_an_env_dim() -> None:
    shapes = []

    def policy(inputs: Any) -> Any:
        shapes.append((inputs["observation"].shape, inputs["is_init"].shape))
        assert isinstance(inputs["observation"], np.ndarray)
        return inputs["observation"][:, 2] % 5

    batch = collect(policy)
    assert set(shapes) == {((1, 3), (1,))}
    np.testing.assert_array_equal(batch["action"], batch["observation"][:, 2] % 5)
    collect(policy, SerialEnv(2, make_steps))
    assert shapes[-1] == ((2, 3), (2,))


@pytest.mark.parametrize("env", [Steps, lambda: SerialEnv(2, Steps)])
def test_policies_may_change_their_inputs_in_place(env: Any) -> None:
    def policy(inputs: Any) -> Any:
        action = inputs["observation"][:, 2] % 5
        inputs["observation"] //= 2
        inputs["is_init"][:] = True
        return action

    batch = collect(policy, env())
    rows = [batch[i : i + 1].reshape(-1) for i in range(2)] if len(batch.shape) == 2 else [batch]
    for piece in [p for lane in rows for p in split(lane)]:
        check_trajectory(piece)


def test_whatever_a_policy_returns_is_stored_and_inputs_are_ignored() -> None:
    def policy(inputs: Any) -> Any:
        n = len(inputs["is_init"])
        return {
            **inputs,
            "observation": np.zeros((n, 3), np.int64),
            "action": np.zeros(n, np.int64),
            ("stats", "value"): np.full((n, 1), 2.5, np.float32),
            "nested": {"logits": np.ones((n, 5), np.float32)},
        }

    batch = collect(policy)
    for piece in split(batch):
        check_trajectory(piece)  # the observation is the environment's
    assert (batch["stats", "value"] == 2.5).all() and batch["nested", "logits"].shape == (40, 5)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 5)

    def forward(self, inputs: Any) -> Any:
        assert isinstance(inputs["observation"], torch.Tensor)
        logits = self.linear(inputs["observation"].float())
        assert not logits.requires_grad
        return {"action": logits.argmax(-1), "logits": logits}


class Fickle(torch.nn.Module):
    """Returns the same in other dtypes, containers and kinds of tensors, from step to step."""

    def __init__(self, extra: str = "") -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.arange(3.0)[None])
        self.extra = extra

    def forward(self, inputs: Any) -> Any:
        t = int(inputs["observation"][0, 2])
        assert bool(inputs["is_init"][0]) == (t == 0)
        seen = inputs["observation"] + 1
        inputs["is_init"].fill_(True)  # neither rows nor later steps nor the environment mind
        inputs["observation"].fill_(-7)
        kinds = [torch.int64, torch.int32, torch.float32]
        value = np.full((1, 2), t, np.float64) if t % 2 else torch.full((1, 2), float(t))
        out = {"action": torch.full((1,), t % 5, dtype=kinds[t % 3]), "value": value}
        out["bias"] = self.bias if t % 2 else self.bias * 1
        if t == 3 and self.extra:
            out[self.extra] = torch.zeros(1)
        if t == 4:
            return {**out, "observation": seen}  # an input is ignored
        return out


def test_the_short_road_stores_what_the_long_one_does() -> None:
    short = collect(Fickle(), Steps(), frames=120)
    for piece in split(short):
        check_trajectory(piece)
    long = collect(Fickle(), StepCounter(Steps()), frames=120)
    for key in short.layout.by_path:
        if key != ("collector", "traj_ids"):
            np.testing.assert_array_equal(short[key], long[key])
    np.testing.assert_array_equal(short["value"][:, 0], short["observation"][:, 2])
    np.testing.assert_array_equal(short["action"], short["observation"][:, 2] % 5)
    assert (short["bias"] == np.arange(3)).all() and short["action"].dtype == np.int64
    for env in (Steps(), StepCounter(Steps())):
        with pytest.raises(ValueError, match="surprise"):
            collect(Fickle("surprise"), env, frames=120)


class Holder:
    """A policy that holds a module, and is none."""

    def __init__(self) -> None:
        self.net = Net()

    def __call__(self, inputs: Any) -> Any:
        return self.net(inputs)


@pytest.mark.parametrize("make", [Net, Holder, lambda: Net().forward, lambda: _closure(Net())])
def test_torch_policies_get_tensors(make: Any) -> None:
    batch = collect(make(), device="cpu")
    np.testing.assert_array_equal(batch["action"], batch["logits"].argmax(-1))
    batch = collect(make(), SerialEnv(2, make_steps))
    assert batch["logits"].shape == (2, 20, 5)


def _closure(net: Any) -> Any:
    def policy(inputs: Any) -> Any:
        return net(inputs)

    return policy


def test_tensordict_policies_get_a_tensordict() -> None:
    def act(obs: Any, init: Any) -> Any:
        assert init.shape[-1] == 1
        return obs[..., 2] % 5

    module = TensorDictModule(act, in_keys=["observation", "is_init"], out_keys=["action"])
    batch = collect(module)
    np.testing.assert_array_equal(batch["action"], batch["observation"][:, 2] % 5)


def test_refused_outputs_name_the_path() -> None:
    for output, message in (
        ({"value": np.zeros(1)}, '"action"'),
        (np.zeros(2, np.int64), r"shape \[2\], expected\s+\[1, ...\]"),
        (np.zeros((1, 1), np.int64), r"shape \[1, 1\], expected \[1\]"),
        (np.array([0.5]), "0.5"),
    ):
        with pytest.raises(ValueError, match=message):
            collect(lambda inputs, output=output: output)
    with pytest.raises(TypeError, match="callable"):
        collect(3)


# -- hidden states ------------------------------------------------------------------------------


def counting(inputs: Any) -> Any:
    """A policy whose state counts its calls since the reset."""
    state = inputs["state"]
    return {"action": state[:, 0].astype(np.int64) % 5, ("next", "state"): state + 1}


@pytest.mark.parametrize(("kind", "start"), [("one", 10.0), ("serial", 0.0), ("parallel", 10.0)])
def test_hidden_states_are_carried_stored_and_reset(kind: str, start: float) -> None:
    def make() -> Any:
        return TensorDictPrimer(Steps(), {"state": np.full(2, start, np.float32)})

    envs = {
        "one": make,
        "serial": lambda: SerialEnv(2, make),
        "parallel": lambda: ParallelEnv(2, make),
    }
    with Collector(envs[kind](), counting, frames_per_batch=80, total_frames=80, seed=0) as c:
        (batch,) = c
    assert batch["state"].shape[-1] == 2
    np.testing.assert_array_equal(batch["state"][..., 0], batch["observation"][..., 2] + start)
    np.testing.assert_array_equal(batch["next", "state"], batch["state"] + 1)


def test_a_hidden_state_without_a_primer_is_an_error_that_says_what_to_do() -> None:
    def policy(inputs: Any) -> Any:
        return {"action": np.zeros(1, np.int64), ("next", "state"): np.zeros((1, 2))}

    with pytest.raises(ValueError, match="auto_register_policy_transforms"):
        collect(policy)


class Remembers:
    """A policy that says what it needs, in the way recurrent modules do."""

    def make_tensordict_primer(self) -> Any:
        return {"state": ShapeDtype((2,), np.float32)}

    def __call__(self, inputs: Any) -> Any:
        return counting(inputs)


@pytest.mark.parametrize("kind", ["one", "serial", "parallel"])
def test_policies_register_what_they_need_once(kind: str) -> None:
    policy = Remembers()
    envs: dict[str, Any] = {
        "one": lambda **o: GymEnv(make_steps, **o),
        "serial": lambda **o: SerialEnv(2, make_steps, **o),
        "parallel": lambda **o: ParallelEnv(2, make_steps, **o),
    }
    ways: list[Any] = [({"policy": policy}, False), ({}, True), ({"policy": policy}, True)]
    for options, register in ways[-1:] if kind == "parallel" else ways:
        env = envs[kind](**options)
        with Collector(
            env,
            policy,
            frames_per_batch=20,
            total_frames=20,
            auto_register_policy_transforms=register,
            seed=0,
        ) as collector:
            (batch,) = collector
        assert set(env.primers) == {("state",)} and env.marks_init
        np.testing.assert_array_equal(batch["state"][..., 0], batch["observation"][..., 2])


def test_a_gru_acts_step_by_step_as_it_learns_in_sequence() -> None:
    from contig.learn import GRUModule, set_recurrent_mode

    torch.manual_seed(0)

    class Policy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = GRUModule(
                input_size=3,
                hidden_size=8,
                num_layers=1,
                in_keys=["x", "recurrent_state", "is_init"],
                out_keys=["features", ("next", "recurrent_state")],
            )
            self.head = torch.nn.Linear(8, 5)

        def forward(self, inputs: Any) -> Any:
            out = self.gru({**inputs, "x": inputs["observation"].float() / 10})
            out["action"] = self.head(out["features"]).argmax(-1)
            return out

    policy = Policy()
    buffer = ReplayBuffer(LazyTensorStorage(500), batch_size=8)
    with Collector(
        SerialEnv(2, make_steps),
        policy,
        frames_per_batch=60,
        total_frames=60,
        replay_buffer=buffer,
        auto_register_policy_transforms=True,
        seed=0,
    ) as collector:
        list(collector)
    for episode in buffer.storage.episodes():
        rows = buffer.storage.read_episode(int(episode["id"]))
        with set_recurrent_mode("recurrent"), torch.no_grad():
            again = policy.gru(rows.torch())
        np.testing.assert_allclose(rows["features"], again["features"], atol=1e-6)
        np.testing.assert_allclose(
            rows["next", "recurrent_state"], again["next"]["recurrent_state"], atol=1e-6
        )
        assert (rows["recurrent_state"][0] == 0).all()


def test_versions_are_stamped_on_rows() -> None:
    net = Net()
    collector = Collector(Steps(), net, frames_per_batch=10, total_frames=30, seed=0)
    stamps = []
    for batch in collector:
        stamps.append(set(batch["collector", "policy_version"].tolist()))
        collector.update_policy_weights_()
    assert stamps == [{0}, {1}, {2}] and collector.policy_version == 3
    other = Net()
    collector.update_policy_weights_(other)
    assert torch.equal(net.linear.weight, other.linear.weight)
    collector.update_policy_weights_({k: v * 0 for k, v in other.state_dict().items()})
    assert not net.linear.weight.any() and collector.policy_version == 5
