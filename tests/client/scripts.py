"""Calls of writers, the same for a buffer here and for every kind of client."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from contig import RemoteReplayBuffer, Server, SharedClient, TcpClient
from tests.client.serving import HOST


class Script:
    """Random calls.

    Args:
        seed: of the calls.
        envs: whether rows are steps of envs.
        any_size: whether they have leaves of any size, `text`, `data` and `tokens`.
    """

    def __init__(self, seed: int, envs: bool, any_size: bool = False) -> None:
        self.rng, self.envs, self.any_size = random.Random(seed), envs, any_size
        self.n = 0

    def rows(self, *dims: int, done: float = 0.2) -> Any:
        n = int(np.prod(dims))
        numbers = np.arange(self.n, self.n + n).reshape(dims)
        self.n += n
        ends = np.array([self.rng.random() < done for _ in range(n)], bool).reshape(dims)
        if not dims:
            row = {"n": numbers[()], "next": {"done": bool(ends[()])}}
            return {**row, **{k: v[0] for k, v in self.values(numbers).items()}}
        return {"n": numbers, "next": {"done": ends}, **self.values(numbers)}

    def values(self, numbers: Any) -> dict[str, Any]:
        """Leaves of any size of some rows, as their numbers say."""
        if not self.any_size:
            return {}
        each = [any_size(int(n)) for n in numbers.reshape(-1)]
        out: dict[str, Any] = {k: [row[k] for row in each] for k in each[0]}
        for dim in reversed(numbers.shape[1:]):  # lists of lists
            out = {k: [v[i : i + dim] for i in range(0, len(v), dim)] for k, v in out.items()}
        return out

    def some(self, lanes: int = 0) -> Any:
        """Fields, or none; of some lanes, one for all or one for each."""
        rng = self.rng
        if rng.random() < 0.3:
            return None
        each = lanes > 0 and rng.random() < 0.6

        def value(shape: tuple[int, ...], kind: Any) -> Any:
            whole = (lanes, *shape) if each else shape
            return (
                np.array([rng.randrange(2) for _ in range(int(np.prod(whole)))])
                .reshape(whole)
                .astype(kind)
            )

        given: dict[str, Any] = {}
        if rng.random() < 0.6:
            given["task"] = value((), np.int32)
        if rng.random() < 0.4:
            given["success"] = value((), bool)
        if rng.random() < 0.4:
            given["group"] = {"scores": value((2,), np.float32)}
        if each and rng.random() < 0.3:
            return [
                {"task": rng.randrange(9)} if rng.random() < 0.6 else None for _ in range(lanes)
            ]
        return given or None

    def call(self, writer: Any) -> None:
        verbs = ["step", "step", "trajectory"] if self.envs else ["add", "add", "extend", "lanes"]
        verb = self.rng.choice([*verbs, "trajectory"])
        if verb == "add":
            writer.add(self.rows(), fields=self.some())
        elif verb == "extend":
            writer.extend(self.rows(1, self.rng.randint(1, 4)), fields=self.some(1))
        elif verb == "lanes":
            lanes = self.rng.choice((2, 3))
            continues = self.rng.choice((None, True))
            data = self.rows(lanes, self.rng.randint(1, 3))
            writer.extend(data, continues=continues, fields=self.some(lanes))
        elif verb == "step":
            ids = sorted(self.rng.sample(range(5), self.rng.choice((1, 2, 3))))
            mask = [self.rng.random() < 0.8 for _ in ids]
            writer.add_step(
                self.rows(len(ids)), np.array(ids), np.array(mask), fields=self.some(len(ids))
            )
        else:
            data = self.rows(self.rng.randint(1, 5), done=0.0)
            writer.extend_trajectory(data, terminated=True, fields=self.some())


def any_size(n: int) -> dict[str, Any]:
    """Leaves of any size of row n."""
    return {
        "text": f"{n}ß" * (n % 4),
        "data": bytes([n % 251]) * (n * 7 % 50),
        "tokens": np.arange(n, n + 3 * (n % 5), dtype=np.int32).reshape(-1, 3),
    }


class ByClient:
    """A client under the names of a buffer."""

    def __init__(self, far: Any) -> None:
        self.add, self.extend, self.add_step = far.send, far.extend, far.add_step
        self.extend_trajectory = far.send_trajectory


@contextmanager
def writing(kind: str, server: Server) -> Iterator[Any]:
    if kind == "shared":
        with SharedClient(server.name) as shared:
            yield ByClient(shared)
    elif kind == "remote":
        with RemoteReplayBuffer(HOST, server.port) as far:
            yield far
            far.flush(60)
    else:
        with TcpClient(HOST, server.port) as tcp:
            yield ByClient(tcp)
