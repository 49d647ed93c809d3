"""What ingest costs the learner: a busy Python loop in its main thread, counted.

    python -m benchmarks.ingest.learner raw    [--mb-per-s R]  beside a bare `recv_into` process
    python -m benchmarks.ingest.learner contig [--mb-per-s R]  as the owner of a contig Server

One client process sends 452 kB blocks, without a rate as fast as it can. contig's go into a replay
buffer, whose old rows make room: nobody has to consume. The loop is also counted alone, before and
after, so that the loss is taken from figures of the same seconds. Prints one line of JSON.

Part of the loss is time that the main thread had to wait, for a core or for the interpreter; that
part is exact. The rest (caches, memory, the processor's clock) moves by some points by itself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from benchmarks.ingest.clients import Clients, Sent
from benchmarks.ingest.methods import load
from benchmarks.ingest.raw_side import bare_process
from benchmarks.ingest.receiver import WARM_UP_S
from benchmarks.ingest.sizes import MESSAGES, TABLE_ITEMS

MESSAGE = "frames"
CLIENT_METHODS = {"raw": "raw", "contig": "table"}


@dataclass(frozen=True)
class Loop:
    """The learner's speed without and with the load, and what arrived meanwhile."""

    alone_per_s: float
    iterations_per_s: float
    waiting: float
    """Share of the time under load in which the main thread did not run."""
    mb_per_s: float


def busy_loop(seconds: float) -> tuple[float, float]:
    """A loop that never lets go of the interpreter by itself: iterations per second, waiting."""
    iterations = 0
    ran = time.thread_time()
    start = now = time.perf_counter()
    while now < start + seconds:
        for _ in range(1000):
            iterations += 1
        now = time.perf_counter()
    return iterations / (now - start), 1 - (time.thread_time() - ran) / (now - start)


Arrived = Callable[[Sent], None]
"""Raises `RuntimeError` if what was sent did not arrive."""


@contextlib.contextmanager
def receiving(setting: str) -> Iterator[tuple[str, Arrived]]:
    """Somebody who receives: the address, and a check for afterwards."""
    if setting == "raw":
        with bare_process() as address:
            yield address, lambda sent: None
        return
    with load("table").serve(MESSAGES[MESSAGE]) as receiver:

        def arrived(sent: Sent) -> None:
            expected, held = min(sent.items, TABLE_ITEMS), receiver.take()
            if held != expected:
                raise RuntimeError(f"{expected} trajectories expected in the table, {held} held")

        yield receiver.address, arrived


def measure(setting: str, seconds: float, mb_per_s: float | None) -> Loop:
    """One measurement of the loop: alone, under load, alone."""
    method = CLIENT_METHODS[setting]
    busy_loop(WARM_UP_S)
    before, _ = busy_loop(seconds)
    with receiving(setting) as (address, arrived):
        with Clients(method, MESSAGE, address, 1, mb_per_s=mb_per_s) as clients:
            clients.go()
            busy_loop(WARM_UP_S)
            speed, waiting = busy_loop(seconds)
            clients.check()
            sent = clients.stop()
        arrived(sent)
    megabytes = sent.items * MESSAGES[MESSAGE].payload_bytes / 1e6
    after, _ = busy_loop(seconds)
    return Loop((before + after) / 2, speed, waiting, megabytes / sent.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the learner's own speed, print JSON.")
    parser.add_argument("setting", choices=CLIENT_METHODS)
    parser.add_argument("--mb-per-s", type=float, default=None)
    parser.add_argument("--seconds", type=float, required=True)
    arguments = parser.parse_args()
    with contextlib.redirect_stdout(sys.stderr):
        loop = measure(arguments.setting, arguments.seconds, arguments.mb_per_s)
    print(json.dumps(asdict(loop)), flush=True)


if __name__ == "__main__":
    main()
