"""contig: a `Server` whose consumer takes batches, with TCP and with shared-memory clients.

| method        | client                                       | receiving end                  |
| ------------- | -------------------------------------------- | ------------------------------ |
| `contig`      | `TcpClient.send`, which coalesces by itself  | FIFO batches                   |
| `shared`      | `SharedClient.send`, no socket               | FIFO batches                   |
| `shared_runs` | `SharedClient.send_many`, `RUN` items a call | FIFO batches                   |
| `table`       | `TcpClient.send_trajectory`, `frames` only   | a ReplayBuffer, nobody samples |
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.ingest.methods import Method, Receiver, Sender
from benchmarks.ingest.sizes import FRAMES, MESSAGES, TABLE_ITEMS, Message, Tree
from contig import (
    LazyTensorStorage,
    ReplayBuffer,
    Server,
    SharedClient,
    TcpClient,
    TcpTransport,
)

RUN = 256
"""Items per `send_many`."""
TABLE = "t"
TABLE_ROWS = TABLE_ITEMS * FRAMES
POLL_S = 0.5
WAIT_S = 10.0
Find = Callable[[Any], str]


def port_of(server: Any) -> str:
    return str(server.port)


def name_of(server: Any) -> str:
    return str(server.name)


def batches(find: Find) -> Callable[[Message], contextlib.AbstractContextManager[Receiver]]:
    """`serve` of a server that clients know by `find(server)`."""

    @contextlib.contextmanager
    def serve(message: Message) -> Iterator[Receiver]:
        """A delivery is a batch from `sample()` with a view made of every leaf."""
        ended = threading.Event()
        checked = False
        with Server(
            message.example,
            batch_size=message.batch_size,
            transport=TcpTransport(port=0),
            num_buffers=3,
        ) as server:

            def take() -> float:
                nonlocal checked
                while True:
                    try:
                        sample = server.sample(timeout=POLL_S)
                    except TimeoutError:
                        if ended.is_set():
                            return 0
                        continue
                    if sample is None:
                        raise RuntimeError("the server closed by itself")
                    tree = sample.batch.tree()
                    if not checked:
                        message.check(tree)
                        checked = True
                    return message.batch_size

            yield Receiver(find(server), take, ended.set)

    return serve


@contextlib.contextmanager
def connect_tcp(address: str, message: Message) -> Iterator[Sender]:
    with TcpClient("127.0.0.1", int(address), message.example, max_inflight_msgs=32) as client:
        yield Sender(client.send, message.trees(), 1, lambda: client.wait(timeout=WAIT_S))


@contextlib.contextmanager
def connect_shared(address: str, message: Message) -> Iterator[Sender]:
    with SharedClient(address, message.example) as client:
        yield Sender(client.send, message.trees(), 1, lambda: client.wait(timeout=WAIT_S))


@contextlib.contextmanager
def connect_shared_runs(address: str, message: Message) -> Iterator[Sender]:
    trees = message.trees()
    run = stacked([trees[number % len(trees)] for number in range(RUN)])
    with SharedClient(address, message.example) as client:
        yield Sender(client.send_many, [run], RUN, lambda: client.wait(timeout=WAIT_S))


def stacked(trees: list[Tree]) -> Tree:
    """Leaves `[n, ...]` of n trees."""
    return {key: np.stack([tree[key] for tree in trees]) for key in trees[0]}


@contextlib.contextmanager
def serve_table(message: Message) -> Iterator[Receiver]:
    """A replay buffer of rows (one frame each) that clients fill; `message` is a trajectory.

    Nobody has to take: new rows overwrite old ones. A delivery is all that the buffer then holds.
    """
    row = row_of(message).example
    buffer = ReplayBuffer(storage=LazyTensorStorage(TABLE_ROWS, example=row))
    with Server(tables={TABLE: buffer}, transport=TcpTransport(port=0)) as server:
        yield Receiver(str(server.port), lambda: len(buffer) / FRAMES, end=lambda: None)


@contextlib.contextmanager
def connect_table(address: str, message: Message) -> Iterator[Sender]:
    row = row_of(message).example
    with TcpClient("127.0.0.1", int(address), row, table=TABLE) as client:

        def send(trajectory: Tree) -> None:
            client.send_trajectory(trajectory, terminated=True)

        yield Sender(send, message.trees(), 1, lambda: client.wait(timeout=WAIT_S))


def row_of(message: Message) -> Message:
    """The message that is one row of `message`'s trajectory."""
    if message.name != "frames":
        raise ValueError(f"{message.name!r} is no trajectory of {FRAMES} rows: use 'frames'")
    return MESSAGES["frame"]


METHODS = {
    "contig": Method(batches(port_of), connect_tcp),
    "shared": Method(batches(name_of), connect_shared),
    "shared_runs": Method(batches(name_of), connect_shared_runs),
    "table": Method(serve_table, connect_table),
}
