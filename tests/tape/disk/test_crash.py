"""Writers killed at every storage event and at random instants: what was acknowledged is there
byte for byte, nothing is there in part or twice, whatever retention does meanwhile."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contig.tape.disk import DiskStorage
from tests.tape.disk import stored
from tests.tape.disk.victim import LOCAL, PRODUCERS, STEPPED, Victims

STRIDE = 512
KEPT = 40  # rows
STORES: dict[str, dict[str, Any]] = {
    "rows": {"capacity": KEPT, "rows_per_extent": stored.EXTENT},
    "bytes": {
        "capacity": 1 << 12,
        "max_bytes": KEPT * STRIDE,
        "rows_per_extent": stored.EXTENT,
        "durability": "durable",
    },
    "everything": {"capacity": 1 << 16, "rows_per_extent": stored.EXTENT},
}


@pytest.fixture
def victims() -> Iterator[Victims]:
    made = Victims()
    yield made
    made.close()


class Oracle:
    """What one storage must hold, from what its writers said."""

    def __init__(self, victims: Victims, path: Path, kind: str, seed: int) -> None:
        self.victims, self.path, self.options = victims, path, STORES[kind]
        self.kind = kind
        self.random = random.Random(seed)
        self.acked = {w: 0 for w in (*PRODUCERS, LOCAL, STEPPED)}
        self.next_local = {LOCAL: 0, STEPPED: 0}
        self.head = self.kills = self.events = 0

    def turn(self, kill_at: int | None, delay_s: float | None = None, appends: int = 14) -> bool:
        """Runs a writer; true if it was killed."""
        request = {
            "path": str(self.path),
            "options": self.options,
            "seed": self.random.randrange(1 << 30),
            "acked": {p: self.acked[p] for p in PRODUCERS},
            "next_local": self.next_local,
            "appends": appends,
            "kill_at": kill_at,
            "delay_s": delay_s,
            "fold": self.random.random() < 0.3,
            "any_size": stored.has_any_size(),
            "shared": stored.has_shared(),
        }
        said = self.victims.run(request)
        for line in said:
            assert line["kind"] != "error", line["text"]
            if line["kind"] == "seen":
                for producer, seen in line["seen"].items():
                    assert seen >= self.acked[int(producer)], f"{producer}: {seen}, {self.acked}"
            if line["kind"] == "ack":
                self.acked.update({int(w): n for w, n in line["acked"].items()})
                self.head = max(self.head, line["head"])
            if line["kind"] == "done":
                self.events = max(self.events, line["events"])
        killed = bool(said[-1]["signal"])
        self.kills += killed
        self.check()
        return killed

    def check(self) -> None:
        if not (self.path / "layout.json").exists():
            assert not any(self.acked.values())
            return
        with DiskStorage(self.path, **self.options) as storage:
            head, tail, _, _ = storage.tape.snapshot()
            fields, served = stored.contents(storage)
            assert not storage.quarantined, storage.quarantined
            assert served.all()
            assert head >= self.head
            kept = len(fields) if self.kind == "everything" else KEPT
            assert tail == max(0, head - kept), (tail, head)
            there = stored.check_order(fields, served, tail)
            for writer, acked in self.acked.items():
                last = there[writer][1] if writer in there else -1
                assert last >= acked - 1 or (writer not in there and tail > 0), (
                    f"{writer}: {acked} items were acknowledged, the last one there is {last}"
                )
                if writer in PRODUCERS:
                    seen = int(storage.tape.seen(writer, 0))
                    assert seen >= acked and (writer not in there or seen == last + 1)
                elif writer in there:
                    self.next_local[writer] = last + 1
                else:
                    self.next_local[writer] = max(self.next_local[writer], acked)
            stored.check_episodes(storage)
            self.head = head


def crash(victims: Victims, path: Path, kind: str, kills: int, seed: int) -> None:
    oracle = Oracle(victims, path, kind, seed)
    event = 0
    while oracle.kills < kills:
        event += 1
        if oracle.turn(event):
            continue
        # Past the last event of such a run: random instants, then every event again.
        event = 0
        for _ in range(kills // 4):
            oracle.turn(None, delay_s=oracle.random.random() * 0.04, appends=60)


@pytest.mark.parametrize("kind", STORES)
def test_killed_at_every_event(victims: Victims, tmp_path: Path, kind: str) -> None:
    crash(victims, tmp_path / "store", kind, kills=110, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", STORES)
def test_soak(victims: Victims, tmp_path: Path, kind: str, seed: int) -> None:
    crash(victims, tmp_path / "store", kind, kills=400, seed=100 + seed)
