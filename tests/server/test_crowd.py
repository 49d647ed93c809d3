"""More producers than a table used to remember: each item once and in order, without any fault."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest

from contig import Server, TcpTransport
from tests.server import items
from tests.server.test_many import Raw

CROWD = 4200  # a table had 4096 places once
ITEMS = 3  # of each, in one frame
BATCH = 50
LONG = 403  # items of the first frame, more than there is room for; all together are whole batches


@pytest.fixture
def many_files() -> Iterator[None]:
    """Room for this end's descriptors; the server sees to its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CROWD + 1000
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"only {hard} open files are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.timeout(400)  # thousands of connections take their time on a busy machine
@pytest.mark.usefixtures("many_files")
def test_each_item_once_however_many_producers() -> None:
    """All send before anybody takes a batch: frames that are half in wait in a long line."""
    with ExitStack() as stack:
        server = stack.enter_context(
            Server(items.example(), BATCH, TcpTransport(heartbeat_s=600.0))
        )
        sent = {who: ITEMS if who else LONG for who in range(CROWD)}

        def join(who: int) -> Raw:
            raw = stack.enter_context(closing(Raw(server, 1 + who)))
            raw.sock.sendall(raw.frame(who, 0, sent[who]))
            return raw

        # The long frame is the first; then many at a time, or each would wait for the server alone.
        raws = [join(0)]
        with ThreadPoolExecutor(24) as doors:
            raws += doors.map(join, range(1, CROWD))
        seen: list[tuple[int, int]] = []

        def take(count: int) -> None:
            while len(seen) < count:
                sample = server.sample(timeout=60)
                assert sample is not None
                seen.extend(items.read(sample.batch))

        total = sum(sent.values())
        take(total)
        items.check_all(seen, sent)
        stats = server.stats()
        assert stats.duplicates_dropped == 0
        assert stats.items_in == total
        # Nobody was forgotten, although most have been idle for as long as all the others sent:
        # neither on the same connection nor on another one.
        for who in range(1, BATCH + 1):
            raws[who].sock.sendall(raws[who].frame(who, 0, ITEMS + 1))
            sent[who] += 1
        for who in range(1, BATCH + 1):
            raws[who].await_ack(ITEMS + 1)
        take(total + BATCH)
        assert server.stats().duplicates_dropped == BATCH * ITEMS
        with closing(Raw(server, 2 + BATCH)) as again:
            assert again.connected.accepted.seen == ITEMS
        items.check_all(seen, sent)
