"""Samples of a server are trees of the classes that its example is of."""

from __future__ import annotations

from typing import Any

import numpy as np
import optree
import pytest

from contig import Server, TcpClient, TcpTransport
from tests.waiting import WAIT_S


class Node:
    """A node of optree's registry, of two children by name."""

    def __init__(self, obs: Any, reward: Any) -> None:
        self.obs, self.reward = obs, reward


optree.register_pytree_node(
    Node,
    lambda node: ((node.obs, node.reward), None, ("obs", "reward")),
    lambda _, children: Node(*children),
    namespace="contig",
)


@pytest.mark.parametrize("over", ["submit", "tcp"])
def test_registered_nodes_come_out_as_their_class(over: str) -> None:
    example = {"step": Node(np.zeros(2, np.float32), np.float32(0)), "at": np.int64(0)}
    transport = None if over == "submit" else TcpTransport()
    with Server(example, batch_size=3, transport=transport) as server:
        client = None if over == "submit" else TcpClient("127.0.0.1", server.port, example)
        for at in range(6):
            step = Node(np.full(2, at, np.float32), np.float32(at))
            send = server.submit if client is None else client.send
            send({"step": step, "at": at})
        if client is not None:
            client.close()
        for first, copy in ((0, False), (3, True)):
            sample = server.sample(timeout=WAIT_S, copy=copy)
            assert sample is not None
            node = sample.batch["step"]
            assert type(node) is Node and type(sample.batch.tree()["step"]) is Node
            assert node.reward.tolist() == [first, first + 1, first + 2]
            assert np.array_equal(node.obs[:, 1], sample.batch["at"])
