"""What a dashboard costs the learner: samples of 256, with nobody looking and with a page open.

    alone        a learner that samples, as fast as it can
    page         `buffer.dashboard()`: the page's own process reads the same memory
    server       the learner of a `Server`, which clients may reach
    own page     `server.dashboard()`
    elsewhere    `contig dashboard HOST:PORT`: another process asks the server over TCP

Pages are looked at more than a browser does: numbers, live charts, returns and the list of
episodes, all of them each second, by a process of its own. A learner's time is CPU time of its
thread and wall-clock time for each sample, the best of rounds in which all take turns; the other
threads' CPU time in the learner's process (answers to who watches) is given as a share of one core.

What a page costs is the last two columns: samples per second with it, as a share of those without
it in the same round: the median of the rounds, and between what they lie. A machine that does other
things, too, changes both sides of a round.

Run: `python -m benchmarks.dashboard [--quick] [--rounds N]`, some 2 minutes; prints JSON, and a
table to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from contig import LazyTensorStorage, ReplayBuffer, Server, TcpTransport

EPISODE = 200
LOOKING = """
import sys, time, urllib.request
url, paths = sys.argv[1].rstrip("/"), sys.argv[2:]
print("looking", flush=True)
while True:
    for path in paths:
        urllib.request.urlopen(url + path).read()
    time.sleep(1)
"""
TABLE = "/api/tables/default"
PATHS = ("/api/numbers", f"{TABLE}/live?since=0", f"{TABLE}/returns", f"{TABLE}/episodes")


def filled(rows: int) -> ReplayBuffer:
    buffer = ReplayBuffer(LazyTensorStorage(rows), batch_size=256, seed=0)
    draw = np.random.default_rng(0)
    for number in range(rows // EPISODE):
        seen = draw.random((EPISODE + 1, 17), np.float32)
        data = {
            "observation": seen[:-1],
            "action": draw.random((EPISODE, 6), np.float32),
            "next": {"observation": seen[1:], "reward": np.ones(EPISODE, np.float32)},
        }
        buffer.extend_trajectory(data, truncated=True, policy_version=number)
    return buffer


@contextlib.contextmanager
def looked_at(url: str) -> Iterator[None]:
    """Somebody has the page open."""
    command = [sys.executable, "-c", LOOKING, url, *PATHS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as browser:
        try:
            assert browser.stdout is not None and browser.stdout.readline() == "looking\n"
            yield
        finally:
            browser.kill()


@contextlib.contextmanager
def page_elsewhere(port: int) -> Iterator[str]:
    """`contig dashboard HOST:PORT`, and its address."""
    command = [sys.executable, "-m", "contig", "dashboard", f"127.0.0.1:{port}", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as page:
        try:
            assert page.stdout is not None
            for line in page.stdout:
                found = [word for word in line.split() if word.startswith("http://")]
                if found:
                    yield found[0]
                    return
            raise RuntimeError("contig dashboard printed no address")
        finally:
            page.terminate()


@contextlib.contextmanager
def watched(side: str, buffer: ReplayBuffer) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if side in ("server", "own page", "elsewhere"):
            server = stack.enter_context(Server(buffer=buffer, transport=TcpTransport()))
        if side == "page":
            page = stack.enter_context(buffer.dashboard())
            stack.enter_context(looked_at(page.url))
        elif side == "own page":
            stack.enter_context(looked_at(stack.enter_context(server.dashboard()).url))
        elif side == "elsewhere":
            stack.enter_context(looked_at(stack.enter_context(page_elsewhere(server.port))))
        time.sleep(1.5)  # its first looks
        yield


SIDES = ("alone", "page", "server", "own page", "elsewhere")
BESIDE = {"page": "alone", "own page": "server", "elsewhere": "server"}


def measure(buffer: ReplayBuffer, seconds: float) -> dict[str, float]:
    clock, own, process = time.perf_counter, time.thread_time, time.process_time
    samples, begun = 0, (clock(), own(), process())
    while clock() - begun[0] < seconds:
        for _ in range(100):
            buffer.sample()
        samples += 100
    wall, mine, whole = (now() - was for now, was in zip((clock, own, process), begun))
    return {
        "wall us": 1e6 * wall / samples,
        "cpu us": 1e6 * mine / samples,
        "others": (whole - mine) / wall,
    }


def kept(found: dict[str, list[dict[str, float]]], side: str) -> list[float]:
    """Samples per second, as a share of those of the same round without the page."""
    pairs = zip(found[side], found[BESIDE[side]])
    return sorted(without["wall us"] / one["wall us"] for one, without in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only show that everything runs")
    parser.add_argument("--rounds", type=int, help="in which all take turns (default: 5)")
    args = parser.parse_args()
    rounds, seconds = (args.rounds or 1, 0.5) if args.quick else (args.rounds or 5, 3.0)
    buffer = filled(20_000 if args.quick else 1_000_000)
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for number in range(rounds):
        for side in SIDES if number % 2 == 0 else SIDES[::-1]:
            with watched(side, buffer):
                found[side].append(measure(buffer, seconds))
    results: dict[str, Any] = {
        side: {what: min(one[what] for one in ones) for what in ones[0]}
        for side, ones in found.items()
    }
    head = ("wall us", "cpu us", "others", "samples/s", "kept", "rounds")
    print(f"{'sample 256':12}" + "".join(f"{name:>13}" for name in head), file=sys.stderr)
    for side, best in results.items():
        wall, cpu, others = best.values()
        line = f"{side:12}{wall:>13.2f}{cpu:>13.2f}{others:>13.3f}{1e6 / wall:>13,.0f}"
        if side in BESIDE:
            shares = kept(found, side)
            best["kept"], best["kept of rounds"] = statistics.median(shares), shares
            line += f"{best['kept']:>13.3f}{f'{shares[0]:.3f}-{shares[-1]:.3f}':>13}"
        print(line, file=sys.stderr)
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
