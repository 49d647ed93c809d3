"""Ctrl-C while a client waits: the threads that share it go on, and nothing is lost or twice."""

from __future__ import annotations

from contig import LazyTensorStorage, ReplayBuffer, Server, TcpTransport
from tests.server import items
from tests.server.actors import Actor
from tests.waiting import Threads


def test_interrupts_leave_a_client_whole() -> None:
    got: list[tuple[int, int]] = []
    with Server(items.example(), 2, TcpTransport(), num_buffers=2) as server:
        with Actor("interrupted", port=server.port, interrupts=1500) as actor:

            def consume() -> None:
                for sample in server.dataset_iter():
                    got.extend(items.read(sample.batch))

            consumer = Threads(consume)
            told = actor.hear(100)
            assert actor.wait(30) == 0, actor.errors()
        assert not told["failed"] and told["caught"] > 100, told
        server.close(flush=True)
        consumer.join(20)
    for who in (1, 2):  # those that nobody interrupted
        assert [n for w, n in got if w == who] == list(range(told["sent"][who]))
    mine = [n for w, n in got if w == 0]
    assert mine == sorted(set(mine)) and set(mine) <= set(range(told["sent"][0]))


def test_answers_to_interrupted_requests_are_not_kept() -> None:
    storage = LazyTensorStorage(100, example=items.row_example())
    buffer = ReplayBuffer(storage, batch_size=2)
    buffer.extend_trajectory(items.rows(0, 0, 2), truncated=True)
    with Server(buffer=buffer, transport=TcpTransport()) as server:
        with Actor("interrupted_requests", port=server.port, interrupts=1500) as actor:
            told = actor.hear(100)
            assert actor.wait(30) == 0, actor.errors()
        assert told["caught"] > 20 and set(told["steps"]) <= {0, 1}, told
        assert told["kept"] <= 3 + 1, told  # what is asked for ahead
        # Nor was the server asked for more than it allows: it refused nothing.
        assert server.stats().rejected == {}
