"""Episodes that look like something: a ball falls, a paddle catches it or does not.

Values carry the identity of their step: `state[0]` is the episode's number, `state[1]` the step,
and the pixel at the top left has the step's number, modulo 256.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from contig import TcpClient
from contig.layout import ShapeDtype

SIDE = 48
ROW = {
    "observation": {
        "pixels": ShapeDtype((SIDE, SIDE, 3), np.uint8),
        "state": ShapeDtype((6,), np.float32),
    },
    "action": ShapeDtype((2,), np.float32),
    "is_init": ShapeDtype((), np.bool_),
    "next": {
        "reward": ShapeDtype((), np.float32),
        "done": ShapeDtype((), np.bool_),
        "terminated": ShapeDtype((), np.bool_),
        "truncated": ShapeDtype((), np.bool_),
    },
    "collector": {"policy_version": ShapeDtype((), np.int64)},
}
FIELDS = {"task": np.int64(0), "success": np.bool_(False)}


def episode(number: int, steps: int, version: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Rows of one episode, and its fields; every third is cut by a time limit."""
    rng = np.random.default_rng(number)
    t = np.arange(steps)
    skill = 1 - np.exp(-number / 150)
    ball = np.abs(((t / 14 + rng.random()) % 2) - 1) * (SIDE - 8)
    height = (t * 2 + number * 5) % SIDE
    noise = np.cumsum(rng.normal(0, 1.2, steps)) * (1.3 - skill)
    paddle = np.clip(skill * ball + (1 - skill) * (SIDE / 2) + noise, 0, SIDE - 12)
    reward = np.where(height > SIDE - 6, np.where(np.abs(paddle + 4 - ball) < 8, 1.0, -0.5), 0.0)
    reward = reward + rng.normal(0, 0.02, steps)
    pixels = np.full((steps, SIDE, SIDE, 3), (24, 28, 44), np.uint8)
    for i in range(steps):
        x, y = int(ball[i]), int(height[i])
        pixels[i, max(y - 4, 0) : y + 3, x : x + 7] = (250, 178, 25)
        pixels[i, SIDE - 5 : SIDE - 1, int(paddle[i]) : int(paddle[i]) + 12] = (57, 135, 229)
    pixels[:, 0, 0] = (t % 256)[:, None]
    last = t == steps - 1
    cut = number % 3 == 2
    state = np.stack([np.full(steps, number), t, ball, height, paddle, noise], 1)
    rows = {
        "observation": {"pixels": pixels, "state": state.astype(np.float32)},
        "action": np.stack([np.diff(paddle, prepend=paddle[0]), noise], 1).astype(np.float32),
        "is_init": t == 0,
        "next": {
            "reward": reward.astype(np.float32),
            "done": last,
            "terminated": last & (not cut),
            "truncated": last & cut,
        },
        "collector": {"policy_version": np.full(steps, version, np.int64)},
    }
    return rows, {"task": number % 4, "success": bool(reward.sum() > 0)}


def length(number: int) -> int:
    """Steps of an episode."""
    return 40 + int(np.random.default_rng(number + 10_000).integers(0, 60)) + min(number, 60)


class Actors:
    """Clients that send episodes to a server until they are told to stop.

    Args:
        port: of the server.
        count: clients.
        pause_s: between two episodes of one.
        version: gives the policy's version.
    """

    def __init__(
        self,
        port: int,
        count: int = 2,
        pause_s: float = 0.05,
        version: Callable[[], int] = lambda: 0,
    ) -> None:
        self._stop = threading.Event()
        self._version = version
        self._pause_s = pause_s
        self.sent = 0
        self._turn = threading.Lock()
        self._threads = [
            threading.Thread(target=self._send, args=(port,), daemon=True) for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _send(self, port: int) -> None:
        with TcpClient("127.0.0.1", port) as client:
            while not self._stop.is_set():
                with self._turn:
                    number, self.sent = self.sent, self.sent + 1
                rows, fields = episode(number, length(number), self._version())
                ends = number % 3 == 2
                client.send_trajectory(
                    rows,
                    terminated=not ends,
                    truncated=ends,
                    traj_id=number,
                    policy_version=self._version(),
                    fields=fields,
                )
                time.sleep(self._pause_s)

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
