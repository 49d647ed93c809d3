"""SAC in one file, in the manner of CleanRL: its buffer's calls, arguments and infos."""

import argparse

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from stable_baselines3.common.buffers import ReplayBuffer
from torch import nn


def mlp(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))


def act(actor, obs):
    mean, log_std = actor(obs).chunk(2, -1)
    normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
    raw = normal.rsample()
    squashed = torch.tanh(raw)
    log_prob = normal.log_prob(raw) - torch.log(2 * (1 - squashed.pow(2)) + 1e-6)
    return 2 * squashed, log_prob.sum(1, keepdim=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--env-id", default="Pendulum-v1")
    parser.add_argument("--total-timesteps", type=int, default=500)
    parser.add_argument("--learning-starts", type=int, default=100)
    parser.add_argument("--num-envs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    args, _ = parser.parse_known_args()
    torch.set_num_threads(1)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = torch.device("cpu")

    def make_env():
        return gym.wrappers.RecordEpisodeStatistics(gym.make(args.env_id, max_episode_steps=40))

    envs = gym.vector.SyncVectorEnv(
        [make_env for _ in range(args.num_envs)],
        autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
    )
    envs.single_action_space.seed(args.seed)
    actor, qf1, qf2 = mlp(3, 2), mlp(4, 1), mlp(4, 1)
    qf1_target, qf2_target = mlp(4, 1), mlp(4, 1)
    qf1_target.load_state_dict(qf1.state_dict())
    qf2_target.load_state_dict(qf2.state_dict())
    q_optimizer = torch.optim.Adam([*qf1.parameters(), *qf2.parameters()], lr=1e-3)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)

    envs.single_observation_space.dtype = np.float32
    rb = ReplayBuffer(
        10_000,
        envs.single_observation_space,
        envs.single_action_space,
        device,
        n_envs=args.num_envs,
        handle_timeout_termination=False,
    )
    obs, _ = envs.reset(seed=args.seed)
    obs = obs.astype(np.float64)  # as MuJoCo's are: the buffer converts
    for global_step in range(args.total_timesteps):
        if global_step < args.learning_starts:
            actions = np.array([envs.single_action_space.sample() for _ in range(envs.num_envs)])
        else:
            with torch.no_grad():
                actions = act(actor, torch.Tensor(obs))[0].numpy()
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)
        next_obs = next_obs.astype(np.float64)
        if "final_info" in infos:
            episode_return = infos["final_info"]["episode"]["r"][0]
            print(f"global_step={global_step}, episodic_return={episode_return}")
        real_next_obs = next_obs.copy()
        for idx, trunc in enumerate(truncations):
            if trunc:
                real_next_obs[idx] = infos["final_obs"][idx]
        rb.add(obs, real_next_obs, actions, rewards, terminations, infos)
        obs = next_obs
        if global_step > args.learning_starts:
            data = rb.sample(64)
            with torch.no_grad():
                next_actions, next_log_pi = act(actor, data.next_observations)
                both = torch.cat([data.next_observations, next_actions], 1)
                value = torch.min(qf1_target(both), qf2_target(both)) - 0.2 * next_log_pi
                next_q_value = data.rewards + (1 - data.dones) * 0.99 * value
            both = torch.cat([data.observations, data.actions], 1)
            qf_loss = F.mse_loss(qf1(both), next_q_value) + F.mse_loss(qf2(both), next_q_value)
            q_optimizer.zero_grad()
            qf_loss.backward()
            q_optimizer.step()
            pi, log_pi = act(actor, data.observations)
            both = torch.cat([data.observations, pi], 1)
            actor_loss = (0.2 * log_pi - torch.min(qf1(both), qf2(both))).mean()
            actor_optimizer.zero_grad()
            actor_loss.backward()
            actor_optimizer.step()
            for net, target in ((qf1, qf1_target), (qf2, qf2_target)):
                for param, target_param in zip(net.parameters(), target.parameters()):
                    target_param.data.copy_(0.005 * param.data + 0.995 * target_param.data)
    weights = nn.utils.parameters_to_vector(actor.parameters()).double()
    print(f"global_step={global_step}, weights={weights.sum().item()!r}")
    if hasattr(rb, "storage"):
        assert rb.storage.episodes()["steps"].max() <= 40
    envs.close()
