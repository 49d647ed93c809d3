"""DQN in one file, in the manner of CleanRL: its buffer's calls, arguments and infos."""

import argparse
import random

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from stable_baselines3.common.buffers import ReplayBuffer
from torch import nn

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--total-timesteps", type=int, default=1500)
    parser.add_argument("--learning-starts", type=int, default=300)
    parser.add_argument("--buffer-size", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    args, _ = parser.parse_known_args()
    torch.set_num_threads(1)
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = torch.device("cpu")

    def make_env():
        return gym.wrappers.RecordEpisodeStatistics(gym.make(args.env_id, max_episode_steps=15))

    envs = gym.vector.SyncVectorEnv([make_env], autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    envs.single_action_space.seed(args.seed)
    q_network, target_network = (
        nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)) for _ in range(2)
    )
    target_network.load_state_dict(q_network.state_dict())
    optimizer = torch.optim.Adam(q_network.parameters(), lr=1e-3)

    rb = ReplayBuffer(
        args.buffer_size,
        envs.single_observation_space,
        envs.single_action_space,
        device,
        handle_timeout_termination=False,
    )
    obs, _ = envs.reset(seed=args.seed)
    for global_step in range(args.total_timesteps):
        if random.random() < 0.2:
            actions = np.array([envs.single_action_space.sample() for _ in range(envs.num_envs)])
        else:
            actions = torch.argmax(q_network(torch.Tensor(obs)), dim=1).numpy()
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)
        if "final_info" in infos:
            episode_return = infos["final_info"]["episode"]["r"][0]
            print(f"global_step={global_step}, episodic_return={episode_return}")
        real_next_obs = next_obs.copy()
        for idx, trunc in enumerate(truncations):
            if trunc:
                real_next_obs[idx] = infos["final_obs"][idx]
        rb.add(obs, real_next_obs, actions, rewards, terminations, infos)
        obs = next_obs
        if global_step > args.learning_starts and global_step % 4 == 0:
            data = rb.sample(64)
            with torch.no_grad():
                best, _ = target_network(data.next_observations).max(dim=1)
                td_target = data.rewards.flatten() + 0.99 * best * (1 - data.dones.flatten())
            old_val = q_network(data.observations).gather(1, data.actions).squeeze()
            optimizer.zero_grad()
            F.mse_loss(td_target, old_val).backward()
            optimizer.step()
            if global_step % 100 == 0:
                target_network.load_state_dict(q_network.state_dict())
    weights = nn.utils.parameters_to_vector(q_network.parameters()).double()
    print(f"global_step={global_step}, weights={weights.sum().item()!r}")
    if hasattr(rb, "storage"):
        episodes = rb.storage.episodes()
        assert episodes["steps"].max() <= 15, "trajectories go on where a time limit cut them"
        assert 0 < episodes["truncated"].sum() < len(episodes), "some were cut, some terminated"
    envs.close()
