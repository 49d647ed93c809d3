"""What is on its way: no more bytes than the server allows; what it had acked and then lost."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from contig import OverloadError, ReplayBuffer, Server, SharedStorage, TcpClient, TcpTransport
from tests.server import items
from tests.server.proxy import Proxy
from tests.waiting import Threads, until

MOST = 8 << 10  # bytes in flight: a quarter of max_bytes
NARROW = TcpTransport(max_frame=MOST // 2, max_bytes=4 * MOST, in_process=True)
RECORD = 8 + 8 + 4 * items.WIDTH
CAPACITY = 8


@pytest.fixture
def server() -> Iterator[Server]:
    """Of little room, and nobody samples."""
    with Server(items.example(), CAPACITY // 2, NARROW, num_buffers=2) as made:
        yield made


def connect(server: Server, **options: Any) -> TcpClient:
    return TcpClient("127.0.0.1", server.port, items.example(), **options)


# -- bytes in flight ------------------------------------------------------------------------------


def test_raises_when_the_server_allows_no_more(server: Server) -> None:
    client = connect(server, max_inflight_msgs=10_000, on_full="raise")
    sent = 0
    with pytest.raises(OverloadError, match=f"at most {MOST} may be"):
        while True:
            client.send(items.item(0, sent))
            sent += 1
    assert client.blocked == 1
    assert sent * RECORD > MOST // 2 and client._session.inflight.sent_bytes <= MOST
    rest = -sent % CAPACITY
    received: list[tuple[int, int]] = []
    threads = Threads(lambda: received.extend(items.drain(server, sent + rest)))
    client.wait(20)
    for n in range(sent, sent + rest):  # it was not sent, and the client is as good as before
        client.send(items.item(0, n))
    client.close()
    threads.join(60)
    items.check_all(received, {0: sent + rest})


def test_waits_until_the_server_has_taken_some(server: Server) -> None:
    count, flying = 1000 * CAPACITY, 0
    client = connect(server, max_inflight_msgs=10_000)

    def produce() -> None:
        nonlocal flying
        for n in range(count):
            client.send(items.item(0, n))
            flying = max(flying, client._session.inflight.sent_bytes)

    producer = Threads(produce)
    until(lambda: client.blocked > 0, "a send that waits")
    items.check_all(items.drain(server, count), {0: count})
    producer.join(20)
    client.close()
    assert 0 < flying <= MOST
    assert server.stats().items_in == count and server.stats().rejected == {}


def test_what_is_sent_again_is_bounded_too(server: Server) -> None:
    """After a reconnect everything unacked is to be sent at once."""
    with Proxy(server.port) as proxy:
        address = ("127.0.0.1", proxy.port)
        client = TcpClient(*address, items.example(), 10_000, reconnect_s=30, on_full="raise")
        sent = 0
        with pytest.raises(OverloadError):
            while True:
                client.send(items.item(0, sent))
                sent += 1
        for _ in range(3):
            before = server.stats().connections_total
            proxy.cut_all()
            until(lambda n=before: server.stats().connections_total > n, "a reconnect")
            until(lambda: client._session.thread.lost_at is None, "the end of its handshake")
            assert client._session.inflight.sent_bytes <= MOST
        whole = sent - sent % CAPACITY
        items.check_all(items.drain(server, whole), {0: whole})
        client.close()
        assert server.info().samples_inserted_total == sent


def test_one_frame_is_always_allowed() -> None:
    """Also one that is larger than what may be in flight."""
    storage = SharedStorage(10_000, example=items.row_example())
    steps = int(1.5 * MOST) // storage.layout.record_size  # type: ignore[union-attr]
    wide = NARROW._replace(max_frame=2 * MOST)
    with Server(buffer=ReplayBuffer(storage, batch_size=4), transport=wide) as server:
        with TcpClient("127.0.0.1", server.port, reconnect_s=0) as client:
            for episode in range(5):
                client.send_trajectory(items.rows(0, episode, steps), terminated=True)
        assert server.stats().rows_in == 5 * steps and server.stats().rejected == {}
    assert (storage.episodes()["steps"] == steps).all()
    storage.close()


# -- sent again -----------------------------------------------------------------------------------


def test_a_frame_that_was_taken_in_half(server: Server) -> None:
    """The queue had room for some of its items; after a reconnect it comes as a whole."""
    with Proxy(server.port) as proxy:
        with TcpClient("127.0.0.1", proxy.port, items.example(), reconnect_s=30) as client:
            client.send_many(items.many(0, range(2 * CAPACITY)))  # one frame
            until(lambda: server.info().queue_depth_sum > 0, "a frame that waits")
            assert server.stats().resent_frames == 0
            proxy.cut_all()
            # Room before that would let the rest in from where it waits.
            until(lambda: client.resends == 1, "the frame once more")
            items.check_all(items.drain(server, 2 * CAPACITY), {0: 2 * CAPACITY})
            client.wait(20)
        stats = server.stats()
        assert stats.resent_frames == 1 and stats.duplicates_dropped == CAPACITY
        assert stats.items_in == 2 * CAPACITY and stats.lost_items == 0


# -- acked as received, and lost ------------------------------------------------------------------


@pytest.mark.parametrize("in_process", [True, False])
def test_closing_counts_what_is_lost(
    in_process: bool, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    transport = TcpTransport(in_process=in_process)
    server = Server(items.example(), CAPACITY // 2, transport, num_buffers=2).start()
    first, other, safe = (connect(server, ack=ack) for ack in ("received", "received", "committed"))
    with caplog.at_level(logging.WARNING, "contig.transport"):
        for n in range(CAPACITY):
            first.send(items.item(0, n))
        first.wait(20)
        for client, count in ((first, 3), (other, 2)):
            client.send_many(items.many(1, range(count)))
            client.wait(20)  # acked, and there is no room for them
        safe.send_many(items.many(2, range(7)))
        until(lambda: server.stats().blocked == 3, "three connections that wait")
        server.close()
    assert server.stats().lost_items == 5
    said = caplog.text if in_process else capfd.readouterr().err
    assert "5 items" in said
    assert server.info().samples_inserted_total == CAPACITY
    for client in (first, other):
        client.close()
    with pytest.raises(ConnectionError, match="7 items"):
        safe.close()


def test_closing_with_room_loses_nothing(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    with connect(server, ack="received") as client:
        client.send_many(items.many(0, range(2 * CAPACITY)))
        client.wait(20)
        seen = items.drain(server, CAPACITY)
        server.close()
    assert server.stats().lost_items == 0 and not caplog.records
    while (sample := server.sample()) is not None:
        seen += items.read(sample.batch)
    items.check_all(seen, {0: 2 * CAPACITY})
