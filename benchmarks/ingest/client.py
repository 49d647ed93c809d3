"""A client process: connects, says "ready", sends from "go" until "stop", reports what it sent.

    python -m benchmarks.ingest.client METHOD MESSAGE ADDRESS [--mb-per-s RATE]

Orders come line by line on stdin; answers go to stdout: `ready`, then at the end one line of JSON,
`{"items": ..., "seconds": ...}`. If stdin closes without "stop", the parent is gone and the process
ends at once.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import threading
import time

from benchmarks.ingest.clients import STOP_TIMEOUT_S
from benchmarks.ingest.methods import Sender, load
from benchmarks.ingest.sizes import MESSAGES


def await_stop(stopped: threading.Event) -> None:
    """Runs in a thread of its own; ends the process if it does not end by itself after "stop"."""
    if not sys.stdin.readline():
        os._exit(1)
    stopped.set()
    time.sleep(STOP_TIMEOUT_S)
    os._exit(1)


def send_until(stopped: threading.Event, sender: Sender) -> int:
    """Send as fast as the other side takes it; how many pieces."""
    send = sender.send
    count = 0
    for piece in itertools.cycle(sender.pieces):
        if stopped.is_set():
            break
        send(piece)
        count += 1
    return count


def send_paced(stopped: threading.Event, sender: Sender, pieces_per_s: float) -> int:
    """Send at a fixed rate, without catching up after a stall; how many pieces."""
    due = time.perf_counter()
    count = 0
    for piece in itertools.cycle(sender.pieces):
        if stopped.is_set():
            break
        sender.send(piece)
        count += 1
        now = time.perf_counter()
        due = max(due + 1 / pieces_per_s, now - 0.01)
        if due > now:
            time.sleep(due - now)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description="Send messages until told to stop.")
    parser.add_argument("method")
    parser.add_argument("message", choices=MESSAGES)
    parser.add_argument("address")
    parser.add_argument("--mb-per-s", type=float, default=None, help="default: as fast as it goes")
    arguments = parser.parse_args()
    message = MESSAGES[arguments.message]
    with load(arguments.method).connect(arguments.address, message) as sender:
        print("ready", flush=True)
        if not sys.stdin.readline():
            return
        stopped = threading.Event()
        threading.Thread(target=await_stop, args=(stopped,), daemon=True).start()
        start = time.perf_counter()
        if arguments.mb_per_s is None:
            pieces = send_until(stopped, sender)
        else:
            piece_bytes = message.payload_bytes * sender.items_per_piece
            pieces = send_paced(stopped, sender, 1e6 * arguments.mb_per_s / piece_bytes)
        sender.wait()
        seconds = time.perf_counter() - start
    print(json.dumps({"items": pieces * sender.items_per_piece, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
