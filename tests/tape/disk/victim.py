"""A process that forks writers, which are killed.

    request (a line of JSON)  ->  [ lines of the writer: seen, ack, done ]  ->  "end STATUS"

Each writer appends to a storage and reports what is committed. It kills itself at storage event
number `kill_at`, or is killed `delay_s` after it was forked.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import contig.server.tables  # noqa: F401  imported once, before any fork
import contig.tape.disk.committer as committer
from contig.tape.disk import DiskStorage, files
from contig.tape.disk.index import DiskIndex
from tests.tape.disk import stored

PRODUCERS = (1, 2, 3)
LOCAL, STEPPED = 50, stored.SINGLE
PARTS = 3  # items of a producer's trajectory
CHANGING = (
    "copy", "create", "fsync", "fsync_dir", "link", "make_dir", "open_to_write", "pwrite",
    "pwrite_all", "remove_dir", "rename", "truncate", "unlink", "write_new",
)  # fmt: skip


def killed_at(at: int, opened: Callable[[], Any], call: Callable[[Any], object]) -> bool:
    """A fork opens a storage, and dies at event `at` of the call; false if it has fewer."""
    pid = os.fork()
    if pid == 0:
        try:
            storage = opened()
            Events(at)
            call(storage)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert status == 0
    return False


class Events:
    """Counts what happens to the files; kills this process at one of them."""

    def __init__(self, kill_at: int | None) -> None:
        self.kill_at = kill_at
        self.count = 0
        self.torn = False
        for name in CHANGING:
            if hasattr(files, name):
                setattr(files, name, self._around(getattr(files, name), name))
        for name in ("write", "replace"):
            if hasattr(DiskIndex, name):
                setattr(DiskIndex, name, self._traced(getattr(DiskIndex, name)))

    def _traced(self, call: Any) -> Any:
        def traced(index: DiskIndex, *args: Any) -> None:
            index._db.set_trace_callback(lambda statement: self.event())
            call(index, *args)
            self.event()

        return traced

    def event(self) -> bool:
        self.count += 1
        if self.count == self.kill_at:
            if self.torn:
                return True
            os.kill(os.getpid(), signal.SIGKILL)
        return False

    def _around(self, call: Any, name: str) -> Any:
        def wrapped(*args: Any) -> Any:
            self.event()
            if name == "pwrite":  # and halfway through
                fd, data, offset = args
                self.torn = True
                if self.event():
                    os.pwrite(fd, data[: len(data) // 2 + 1], offset)
                    os.kill(os.getpid(), signal.SIGKILL)
                self.torn = False
            result = call(*args)
            self.event()
            return result

        return wrapped


def say(kind: str, **what: Any) -> None:
    os.write(1, (json.dumps({"kind": kind, **what}) + "\n").encode())


def write(request: dict[str, Any]) -> None:
    with stored.any_size(request["any_size"]), stored.shared(request["shared"]):
        _write(request)


def _write(request: dict[str, Any]) -> None:
    chosen = random.Random(request["seed"])
    events = Events(request["kill_at"])
    if request["fold"]:
        committer._TEND_S = 0.002  # the log is folded in all the time
    storage = DiskStorage(request["path"], example=stored.example(), **request["options"])
    acked = {int(k): v for k, v in request["acked"].items()}
    # Where the storage says that each producer is, and from where it sends again.
    seen = {p: int(storage.tape.seen(p, 0)) for p in PRODUCERS}
    say("seen", seen=seen)
    writers = {p: storage.native_writer(storage.schema) for p in PRODUCERS}
    sent = {p: min(acked.get(p, 0), seen[p]) for p in PRODUCERS}
    local = storage.writer()
    next_local = {int(k): v for k, v in request["next_local"].items()}
    size = storage.layout.record_size
    for _ in range(request["appends"]):
        op = chosen.random()
        if op < 0.5 and not request["any_size"]:  # frames of these tests have no such leaves
            p = chosen.choice(PRODUCERS)
            first = max(sent[p] - chosen.randrange(4), acked.get(p, 0), 0)
            count = sent[p] - first + chosen.randrange(1, 4)
            data = stored.frame(storage, p, first, count, PARTS)
            now, _, _, gap = writers[p].accept(stored.received(data, size), p, 1 << 62)
            assert not gap and now >= first + count, (p, first, count, now)
            sent[p] = first + count
        elif op < 0.8:
            rows = stored.item(LOCAL, next_local[LOCAL])
            (local.extend if chosen.random() < 0.5 else local.extend_trajectory)(rows)
            next_local[LOCAL] += 1
        elif op < 0.9:
            storage.default_writer.add(stored.first_row(stored.item(STEPPED, next_local[STEPPED])))
            next_local[STEPPED] += 1
        elif op < 0.93:
            storage.retain()
        else:
            storage.flush()
            say("ack", acked={**sent, **next_local}, head=storage.tape.snapshot()[0])
    storage.close()
    say("ack", acked={**sent, **next_local}, head=0)
    say("done", events=events.count)


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            try:
                write(request)
            except BaseException:
                say("error", text=traceback.format_exc())
            os._exit(0)
        if request["delay_s"] is not None:
            time.sleep(request["delay_s"])
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        say("end", signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)


class Victims:
    """Starts writers one after another; returns what each said."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.tape.disk.victim"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=Path(__file__).resolve().parents[3],
        )

    def run(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write((json.dumps(request) + "\n").encode())
        self._process.stdin.flush()
        said: list[dict[str, Any]] = []
        while not said or said[-1]["kind"] != "end":
            said.append(json.loads(self._process.stdout.readline()))
        return said

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


if __name__ == "__main__":
    main()
