"""echo (`pip install id-echo`, module `echo`): its TCP server and its clients.

Runs with the peers' interpreter. The server's `sample()` has no timeout, but returns None once
another thread has called `close()`. A client is connected when its constructor returns; `send`
blocks at `max_inflight_msgs` unacknowledged messages; leaves must be numpy arrays, 0-d ones too.

Measured twice, as it comes and tuned for this machine, and the better figure counts. Tuned, its
processes also run with malloc told to keep freed memory (`ENVIRONMENT` in methods.py): a client
copies each message twice (`tobytes`, `join`), and with messages of 452 kB in several leaves malloc
gives both copies back to the kernel every time, which made it three times slower.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from echo import Server, TcpClient, TcpTransport

from benchmarks.ingest.methods import Method, Receiver, Sender
from benchmarks.ingest.sizes import Message


@dataclass(frozen=True)
class Settings:
    """echo's own options; the defaults are echo's."""

    num_threads: int = 8
    num_drainers: int = 8
    num_buffers: int = 3
    producer_queue_size: int = 8
    max_inflight_msgs: int = 32


DEFAULTS = Settings()
TUNED = Settings(num_threads=2, num_drainers=2, producer_queue_size=64, max_inflight_msgs=256)


@contextlib.contextmanager
def serve(settings: Settings, message: Message) -> Iterator[Receiver]:
    """A delivery is a batch from `sample()`, its leaves shaped as echo shapes them."""
    server = Server(
        message.example,
        message.batch_size,
        transport=TcpTransport(0, num_threads=settings.num_threads),
        num_buffers=settings.num_buffers,
        num_drainers=settings.num_drainers,
        producer_queue_size=settings.producer_queue_size,
    )
    server.start()
    checked = False

    def take() -> float:
        nonlocal checked
        sample = server.sample()
        if sample is None:
            return 0
        if not checked:
            message.check(sample.batch)
            checked = True
        return message.batch_size

    yield Receiver(str(server.port), take, server.close)


@contextlib.contextmanager
def connect(settings: Settings, address: str, message: Message) -> Iterator[Sender]:
    client = TcpClient(
        "127.0.0.1",
        int(address),
        message.example,
        max_inflight_msgs=settings.max_inflight_msgs,
    )
    yield Sender(client.send, message.trees(), 1, client.wait)
    client.close()


def method(settings: Settings) -> Method:
    return Method(partial(serve, settings), partial(connect, settings))


METHODS = {"echo": method(DEFAULTS), "echo_tuned": method(TUNED)}
