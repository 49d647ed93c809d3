"""The receiver process of one measurement: opens the receiving end, starts the clients, consumes.

    python -m benchmarks.ingest.receiver METHOD MESSAGE --clients N --seconds S

Prints one line of JSON: versions; the rate at which items reached the consumer, from one delivery
to the last one within `--seconds`, after a warm-up; and how many of those sent never arrived.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import threading
import time
from dataclasses import asdict, dataclass

from benchmarks.ingest.clients import Clients, Sent
from benchmarks.ingest.methods import Receiver, load
from benchmarks.ingest.sizes import MESSAGES
from benchmarks.worker import versions_of

WARM_UP_S = 0.4
SETTLE_S = 0.3
"""Nothing delivered for so long, after the clients have ended: nothing more will come."""
PATIENCE_S = 30


@dataclass(frozen=True)
class Delivery:
    """What one measurement found."""

    items_per_s: float
    mb_per_s: float
    undelivered: int
    """Sent and waited for by the clients, but not handed to the consumer. A last batch that was
    never filled is part of it."""


class Window:
    """Counts deliveries between the first one after the warm-up and the last one in time.

    `consume` belongs to one thread; `total` and `over` may be read by another.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.total = 0.0
        self.over = threading.Event()
        self.items_per_s = 0.0

    def consume(self, receiver: Receiver) -> None:
        """Take until nothing is left; the clock starts at the call."""
        take, clock = receiver.take, time.perf_counter
        warm = clock() + WARM_UP_S
        counted, first, last = 0.0, 0.0, 0.0
        while items := take():
            now = clock()
            self.total += items
            if not first:
                first = now if now >= warm else 0.0
            elif now <= first + self._seconds:
                counted += items
                last = now
            elif not self.over.is_set():
                self.over.set()
        if not counted:
            raise RuntimeError(f"only {self.total:.0f} items arrived, too few for a rate")
        self.items_per_s = counted / (last - first)


class WindDown(threading.Thread):
    """Stops the clients when the window is over, and the receiver when nothing more arrives."""

    def __init__(self, window: Window, clients: Clients, receiver: Receiver) -> None:
        super().__init__(daemon=True)
        self._window, self._clients, self._receiver = window, clients, receiver
        self._sent: Sent | None = None
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not self._window.over.wait(0.1):
                self._clients.check()
                if time.monotonic() > deadline:
                    raise RuntimeError(f"no end of the window within {PATIENCE_S} s")
            self._sent = self._clients.stop()
            seen = -1.0
            while seen != self._window.total:
                seen = self._window.total
                time.sleep(SETTLE_S)
        except Exception as error:
            self._error = error
        finally:
            self._receiver.end()

    def result(self) -> Sent:
        """What was sent; raises what went wrong."""
        self.join()
        if self._error is not None:
            raise self._error
        assert self._sent is not None
        return self._sent


def measure(method: str, message_name: str, clients: int, seconds: float) -> Delivery:
    """One measurement, from opening to closing."""
    message = MESSAGES[message_name]
    window = Window(seconds)
    with load(method).serve(message) as receiver:
        with Clients(method, message_name, receiver.address, clients) as processes:
            wind_down = WindDown(window, processes, receiver)
            processes.go()
            wind_down.start()
            try:
                window.consume(receiver)
            finally:
                window.over.set()
                sent = wind_down.result()
    return Delivery(
        items_per_s=window.items_per_s,
        mb_per_s=window.items_per_s * message.payload_bytes / 1e6,
        undelivered=round(sent.items - window.total),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure one way of sending, print JSON.")
    parser.add_argument("method")
    parser.add_argument("message", choices=MESSAGES)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    arguments = parser.parse_args()
    with contextlib.redirect_stdout(sys.stderr):
        delivery = measure(
            arguments.method, arguments.message, arguments.clients, arguments.seconds
        )
    report = {
        "delivery": asdict(delivery),
        "versions": versions_of("contig", "id-echo", "numpy"),
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
