"""Workers whose writes wait for a rate limiter."""

from __future__ import annotations

import time

from contig import GymEnv, LazyTensorStorage, MultiCollector, RateLimiter, ReplayBuffer


def test_shutdown_ends_the_wait() -> None:
    """Nobody samples, so every worker is stuck in its second append; they end all the same."""
    buffer = ReplayBuffer(
        LazyTensorStorage(1000),
        batch_size=10,
        limiter=RateLimiter(1.0, min_size=1, error_buffer=30),
    )
    collector = MultiCollector(
        [GymEnv("CartPole-v1")] * 2, frames_per_batch=20, sync=False, replay_buffer=buffer, seed=0
    )
    collector.start()
    while len(buffer) < 20:
        time.sleep(0.01)
    time.sleep(0.5)
    assert len(buffer) <= 60
    processes = [handle.process for handle in collector._workers.handles]
    collector.shutdown()
    assert [process.returncode for process in processes] == [0, 0]  # not killed
