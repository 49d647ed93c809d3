"""Numbers that are none, given to servers and clients: errors that name the argument, and nothing
is sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from contig import (
    LazyTensorStorage,
    RemoteReplayBuffer,
    ReplayBuffer,
    Server,
    TcpClient,
    TcpTransport,
)

NOT_COUNTS = [0, -1, 2.5, float("nan"), float("inf"), True, "3", [3]]


def test_numbers_of_clients() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(10), batch_size=2)
    buffer.extend({"x": np.arange(5)})
    with Server(buffer=buffer, transport=TcpTransport()) as server:
        where: Any = ("127.0.0.1", server.port)
        with RemoteReplayBuffer(*where) as far:
            for bad in NOT_COUNTS:
                with pytest.raises(ValueError, match="batch_size: expected rows, at least 1"):
                    far.sample(bad)
            batch = far.sample(4.0)  # type: ignore[arg-type]
            assert len(batch) == 4 and (batch["x"] == batch["index"]).all()
        made = server.stats().connections_total
        for bad in NOT_COUNTS:
            with pytest.raises(ValueError, match="batch_size: expected rows, at least 1"):
                RemoteReplayBuffer(*where, batch_size=bad)
            with pytest.raises(ValueError, match="max_inflight_msgs: expected frames, at least 1"):
                TcpClient(*where, max_inflight_msgs=bad)
            if bad != 0:
                with pytest.raises(ValueError, match="prefetch: expected a number of batches"):
                    RemoteReplayBuffer(*where, prefetch=bad)
        assert server.stats().connections_total == made
        assert buffer.stats().batches_sampled == 1


@pytest.mark.parametrize("bad", NOT_COUNTS)
def test_numbers_of_servers(bad: Any) -> None:
    with pytest.raises(ValueError, match="batch_size: expected items, at least 1"):
        Server({"x": 0.0}, bad)
    with pytest.raises(ValueError, match="num_buffers: expected blocks .*, at least 2"):
        Server({"x": 0.0}, 4, num_buffers=bad)
