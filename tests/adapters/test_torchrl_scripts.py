"""Training scripts as TorchRL's users write them, with contig's buffers and collectors: they learn
from the same numbers as with TorchRL's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict.nn import NormalParamExtractor
from tensordict.nn import TensorDictModule as Mod
from tensordict.nn import TensorDictSequential as Seq
from torch import nn
from torchrl import data as their_data
from torchrl import envs as trl
from torchrl.data.replay_buffers import SamplerWithoutReplacement as TheirEpochs
from torchrl.modules import (
    EGreedyModule,
    LSTMModule,
    ProbabilisticActor,
    QValueActor,
    QValueModule,
    TanhNormal,
    ValueOperator,
    set_recurrent_mode,
)
from torchrl.objectives import ClipPPOLoss, DQNLoss, SACLoss, SoftUpdate
from torchrl.objectives.value import GAE
from torchrl.trainers import ReplayBufferTrainer, TargetNetUpdaterHook, Trainer, UpdateWeights

import contig
from contig.adapters import torchrl as ours

# What TorchRL tells its users of its own plans, and of losses whose targets nobody updates here.
pytestmark = [
    pytest.mark.filterwarnings("ignore:No target network updater:UserWarning"),
    pytest.mark.filterwarnings("ignore:The '.*' hook stage will be replaced:FutureWarning"),
]


def cartpole() -> Any:
    return trl.TransformedEnv(
        trl.GymEnv("CartPole-v1"), trl.Compose(trl.StepCounter(), trl.RewardSum())
    )


def pendulum() -> Any:
    return trl.TransformedEnv(trl.GymEnv("Pendulum-v1"), trl.StepCounter(50))


def q_net() -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    return QValueActor(net, in_keys=["observation"], spec=cartpole().action_spec)


def weights(module: Any) -> Any:
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach().clone()


# -- the same rows give the same losses -------------------------------------------------------


def actor_of(env: Any) -> Any:
    net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2), NormalParamExtractor())
    return ProbabilisticActor(
        Mod(net, in_keys=["observation"], out_keys=["loc", "scale"]),
        spec=env.action_spec,
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        distribution_kwargs={"low": -2.0, "high": 2.0},
        return_log_prob=True,
    )


class Concat(nn.Module):
    """A value of an observation and an action."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, observation: Any, action: Any) -> Any:
        return self.net(torch.cat([observation, action], -1))


def losses(name: str) -> tuple[Any, Any, Any]:
    """An environment's factory, a policy, and a loss of a batch."""
    torch.manual_seed(0)
    if name == "DQN":
        net = q_net()
        loss = DQNLoss(net, action_space="one-hot", delay_value=True)
        loss.make_value_estimator(gamma=0.9)
        return cartpole, net, loss
    actor = actor_of(pendulum())
    if name == "SAC":
        value = ValueOperator(Concat(), in_keys=["observation", "action"])
        return pendulum, actor, SACLoss(actor, value, num_qvalue_nets=2)
    critic = ValueOperator(nn.Linear(3, 1), in_keys=["observation"])
    loss = ClipPPOLoss(actor, critic)
    return pendulum, actor, loss


def rows_of(make: Any, policy: Any, **options: Any) -> Any:
    with ours.Collector(make, policy, frames_per_batch=120, total_frames=120, **options) as found:
        (batch,) = found
    return batch


@pytest.mark.parametrize("name", ["DQN", "SAC", "PPO"])
@pytest.mark.parametrize("whose", ["contig", "adapter"])
def test_losses_are_equal(name: str, whose: str) -> None:
    """The rows of a sample, looked up in TorchRL's own buffer of the same data: equal losses, and
    equal gradients."""
    make, policy, loss = losses(name)
    data = rows_of(make, policy, seed=1)
    if name == "PPO":
        GAE(gamma=0.9, lmbda=0.8, value_network=loss.critic_network)(data)
    mine: Any
    if whose == "contig":
        mine = contig.TensorDictReplayBuffer(contig.LazyTensorStorage(200), batch_size=32, seed=0)
    else:
        mine = ours.TensorDictReplayBuffer(storage=ours.LazyTensorStorage(200), batch_size=32)
    other = their_data.TensorDictReplayBuffer(storage=their_data.LazyTensorStorage(200))
    mine.extend(data.clone())
    other.extend(data.clone())
    sample = mine.sample()
    found = []
    for batch in (sample, other[sample["index"]]):
        torch.manual_seed(3)  # losses that draw actions
        out = loss(batch)
        total = sum(v for k, v in out.items() if k.startswith("loss"))
        loss.zero_grad()
        total.backward()
        grads = [p.grad.clone() for p in loss.parameters() if p.grad is not None]
        found.append((total.detach(), grads))
    assert torch.equal(found[0][0], found[1][0]) and found[0][0] != 0
    assert len(found[0][1]) == len(found[1][1]) > 0
    for a, b in zip(found[0][1], found[1][1]):
        assert torch.equal(a, b)


# -- whole scripts ----------------------------------------------------------------------------


def test_dqn_script() -> None:
    """With priorities, epsilon-greedy and a target net."""
    net = q_net()
    explore = EGreedyModule(spec=cartpole().action_spec, annealing_num_steps=300)
    collector = ours.SyncDataCollector(
        create_env_fn=cartpole,
        policy=Seq(net, explore),
        frames_per_batch=40,
        total_frames=400,
        init_random_frames=80,
        device="cpu",
        storing_device="cpu",
        split_trajs=False,
    )
    collector.set_seed(0)
    buffer = ours.TensorDictPrioritizedReplayBuffer(
        alpha=0.7,
        beta=0.5,
        pin_memory=False,
        prefetch=2,
        storage=ours.LazyTensorStorage(max_size=1000, device="cpu"),
        batch_size=32,
        priority_key="td_error",
    )
    loss = DQNLoss(net, action_space="one-hot", delay_value=True)
    loss.make_value_estimator(gamma=0.99)
    target = SoftUpdate(loss, eps=0.95)
    optim = torch.optim.Adam(loss.parameters(), lr=1e-3)
    before, frames, episodes = weights(net), 0, 0
    for data in collector:
        frames += data.numel()
        episodes += int(data["next", "done"].sum())
        buffer.extend(data.reshape(-1))
        explore.step(data.numel())
        if frames < collector.init_random_frames:
            continue
        for _ in range(3):
            sample = buffer.sample()
            weight = sample["priority_weight"]
            assert weight.min() > 0 and weight.max() <= 1
            value = loss(sample)["loss"]
            value.backward()
            optim.step()
            optim.zero_grad()
            target.step()
            buffer.update_tensordict_priority(sample)
    collector.shutdown()
    assert frames == 400 == len(buffer) and episodes > 3
    assert not torch.equal(weights(net), before) and float(explore.eps) < 0.2
    table = buffer.storage.episodes()
    assert (table["terminated"]).sum() == episodes
    assert buffer[:]["next", "step_count"].max() == table["steps"].max()
    buffer.close()


def ppo(storage: Any, sampler: Any, kind: Any) -> Any:
    """PPO's loop on given parts; its weights in the end."""
    torch.manual_seed(0)
    actor = actor_of(pendulum())
    critic = ValueOperator(nn.Linear(3, 1), in_keys=["observation"])
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
    loss = ClipPPOLoss(actor, critic)
    optim = torch.optim.SGD(loss.parameters(), lr=1e-3)
    data = rows_of(pendulum, actor, seed=2)
    buffer = kind(storage=storage, sampler=sampler, batch_size=120)
    for _ in range(3):
        advantage(data)
        buffer.extend(data.reshape(-1))
        batches = 0
        for batch in buffer:
            out = loss(batch)
            total = out["loss_objective"] + out["loss_critic"]
            total.backward()
            optim.step()
            optim.zero_grad()
            batches += 1
        assert batches == 1
    return weights(loss)


def test_ppo_script() -> None:
    """Epochs end by themselves; each is of the newest rows: as with TorchRL's buffer, up to the
    order in which a mean is taken."""
    mine = ppo(ours.LazyTensorStorage(120), ours.SamplerWithoutReplacement(), ours.ReplayBuffer)
    other = ppo(their_data.LazyTensorStorage(120), TheirEpochs(), their_data.ReplayBuffer)
    torch.testing.assert_close(mine, other, rtol=0, atol=2e-5)


def test_recurrent_script() -> None:
    """Items of several steps, as the tutorial on recurrent DQN stores them."""
    torch.manual_seed(0)
    lstm = LSTMModule(input_size=4, hidden_size=8, in_key="observation", out_key="embed")
    net = Seq(
        lstm,
        Mod(nn.Linear(8, 2), in_keys=["embed"], out_keys=["action_value"]),
        QValueModule(spec=cartpole().action_spec),
    )
    buffer = ours.TensorDictReplayBuffer(
        storage=ours.LazyMemmapStorage(200), batch_size=4, prefetch=2
    )
    collector = ours.Collector(
        lambda: cartpole().append_transform(trl.InitTracker()),
        net,
        frames_per_batch=25,
        total_frames=200,
        auto_register_policy_transforms=True,
    )
    loss = DQNLoss(net, action_space="one-hot", delay_value=True)
    before = weights(net)
    optim = torch.optim.Adam(loss.parameters(), lr=1e-3)
    for data in collector:
        buffer.extend(data.unsqueeze(0).to_tensordict().cpu())
        sample = buffer.sample()
        assert sample.batch_size == (4, 25)
        with set_recurrent_mode(True):
            loss(sample)["loss"].backward()
        optim.step()
        optim.zero_grad()
    collector.shutdown()
    assert len(buffer) == 8 and not torch.equal(weights(net), before)
    buffer.close()
    buffer.storage.close()


def test_trainer_of_torchrl() -> None:
    net = q_net()
    explore = EGreedyModule(spec=cartpole().action_spec)
    policy = Seq(net, explore)
    collector = ours.Collector(cartpole, policy, frames_per_batch=50, total_frames=300)
    buffer = ours.TensorDictPrioritizedReplayBuffer(
        alpha=0.7, beta=0.5, storage=ours.LazyTensorStorage(500), batch_size=32
    )
    loss = DQNLoss(net, action_space="one-hot", delay_value=True)
    trainer = Trainer(
        collector=collector,
        total_frames=300,
        frame_skip=1,
        loss_module=loss,
        optimizer=torch.optim.Adam(loss.parameters(), lr=1e-3),
        optim_steps_per_batch=2,
        progress_bar=False,
        seed=4,
    )
    ReplayBufferTrainer(buffer, batch_size=32, flatten_tensordicts=True).register(trainer)
    UpdateWeights(collector, 1).register(trainer)
    trainer.register_op("post_optim", TargetNetUpdaterHook(SoftUpdate(loss, eps=0.9)))
    before = weights(net)
    trainer.train()
    assert trainer.collected_frames == 300 == len(buffer)
    assert not torch.equal(weights(net), before)
    assert collector.policy_version > 0
    # Its hook marks every row truncated; only ends are ends.
    table = buffer.storage.episodes()
    assert not buffer[:]["next", "truncated"].any() and table["terminated"].sum() >= len(table) - 6
    state = buffer.state_dict()
    again = ours.TensorDictPrioritizedReplayBuffer(
        alpha=0.7, beta=0.5, storage=ours.LazyTensorStorage(500), batch_size=32
    )
    again.load_state_dict(state)
    assert torch.equal(again[:]["observation"], buffer[:]["observation"])
