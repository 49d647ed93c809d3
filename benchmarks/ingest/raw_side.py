"""The bare socket: `sendall` at one end, `recv_into` at the other, nothing looked at.

A receiving thread per stream, each with a buffer of its own: of the simple ways to receive several
streams (threads, `selectors`, buffers of 64 kB to 1 MB) the fastest here with 2 and 8 of them.
Without `MSG_WAITALL`: with it one stream of large blocks is faster still, as the receiver is woken
less often, but the goals are set against the plain loop.

As a program it is the process beside the learner:

    python -m benchmarks.ingest.raw_side      prints its address, receives until stdin closes
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial

from benchmarks.ingest.clients import ROOT
from benchmarks.ingest.methods import Method, Receiver, Sender
from benchmarks.ingest.sizes import BLOCK_BYTES, Message

BUFFER_BYTES = 1 << 20
POLL_S = 0.005


class Streams:
    """Accepts connections and receives from each in a thread of its own until it ends."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._received: list[int] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return str(self._listener.getsockname()[1])

    @property
    def received_bytes(self) -> int:
        return sum(self._received)

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                connection, _ = self._listener.accept()
                self._received.append(0)
                number = len(self._received) - 1
                receive = partial(self._receive, connection, number)
                threading.Thread(target=receive, daemon=True).start()

    def _receive(self, connection: socket.socket, number: int) -> None:
        buffer = memoryview(bytearray(BUFFER_BYTES))
        with connection:
            while count := connection.recv_into(buffer):
                self._received[number] += count


@contextlib.contextmanager
def serve(message: Message) -> Iterator[Receiver]:
    """A delivery is whatever all streams have received since the last one."""
    streams = Streams()
    ended = threading.Event()
    size = message.payload_bytes
    seen = 0

    def take() -> float:
        nonlocal seen
        while True:
            over = ended.is_set()
            time.sleep(POLL_S)
            now = streams.received_bytes
            if now != seen or over:
                new, seen = now - seen, now
                return new / size

    yield Receiver(streams.address, take, ended.set)
    streams.close()


@contextlib.contextmanager
def connect(block_bytes: int, address: str, message: Message) -> Iterator[Sender]:
    """As many messages per `sendall` as `block_bytes` hold, at least one."""
    items = max(1, block_bytes // message.payload_bytes)
    packed = [b"".join(leaf.tobytes() for leaf in tree.values()) for tree in message.trees()]
    blocks = [one * items for one in packed]
    with socket.create_connection(("127.0.0.1", int(address))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield Sender(connection.sendall, blocks, items, wait=lambda: None)


METHODS = {
    "raw": Method(serve, partial(connect, 0)),
    "raw_coalesced": Method(serve, partial(connect, BLOCK_BYTES)),
}


@contextlib.contextmanager
def bare_process() -> Iterator[str]:
    """A process that does nothing but receive; its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.ingest.raw_side"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:  # leaving closes its stdin and waits for it
        assert process.stdout is not None
        yield process.stdout.readline().strip()


def main() -> None:
    streams = Streams()
    print(streams.address, flush=True)
    sys.stdin.read()
    streams.close()


if __name__ == "__main__":
    main()
