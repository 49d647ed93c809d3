"""Fields of trajectories, given, changed and read by processes of their own; some are killed."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from contig import SharedStorage
from tests.tape.processes import field_workers as workers
from tests.waiting import WAIT_S, until
from tests.zygote import Child, Zygote

CAPACITY = 64


def check_at_rest(storage: SharedStorage) -> None:
    storage.writer().add({"uid": 7, "next": {"done": True}}, workers.record(7, 1))
    table = storage.episodes()
    assert workers.wrong(table["key"], table["body"]) is None
    for episode in table:
        uids = storage.read_episode(int(episode["id"]))["uid"]
        first = int(episode["key"][0])
        assert first <= uids[0] < first + workers.LONGEST
    assert storage.set_fields(table["id"], {"key": np.zeros(2), "body": np.zeros(500)}) == len(
        table
    )
    assert not storage.episodes()["body"].any()


def test_nothing_is_mixed(zygote: Zygote, name: str, tmp_path: Path) -> None:
    """Two writers, two that change, two that read: records come out as they went in."""
    stop = tmp_path / "stop"
    options = {"name": name, "stop": str(stop)}
    with SharedStorage(CAPACITY, name=name, example=workers.ROW, fields=workers.FIELDS) as storage:
        writers = [zygote.start(workers.write, writer=w, **options) for w in (1, 2)]
        changers = [zygote.start(workers.change, writer=w, **options) for w in (3, 4)]
        readers = [zygote.start(workers.read, **options) for _ in range(2)]
        everybody = [*writers, *changers, *readers]
        until(
            lambda: (
                (
                    storage.tape.snapshot()[0] > 60 * CAPACITY
                    and storage.tape.fields_changes() > 4000
                )
                or not all(c.alive() for c in everybody)
            ),
            "the ring goes round, and fields change",
        )
        stop.touch()
        got = [c.result(WAIT_S) for c in readers]
        assert [r["wrong"] for r in got] == [None, None]
        assert sum(c.result(WAIT_S)["changed"] for c in changers) > 1000
        assert all(c.result(WAIT_S)["appends"] > 0 for c in writers)
        for what in ("tables", "records", "changes"):
            assert sum(r[what] for r in got) > 0, f"the readers saw no {what}"
        check_at_rest(storage)


@pytest.mark.parametrize("how", ["append", "empty"])
def test_set_fields_outlive_the_rows(how: str, zygote: Zygote, name: str, tmp_path: Path) -> None:
    """One process has a trajectory open, a second one sets its fields, and a third, which knew no
    layout before, evicts its rows."""
    go, end = tmp_path / "go", tmp_path / "end"
    with SharedStorage(CAPACITY, name=name, fields=workers.FIELDS) as storage:
        evictor = zygote.start(workers.evict, name=name, how=how, go=str(go), count=CAPACITY)
        writer = zygote.start(workers.go_on, name=name, end=str(end))
        until(lambda: len(storage.episodes()) == 1 or not writer.alive(), "the first row")
        ids = storage.episodes()["id"]
        assert storage.set_fields(ids, workers.record(1, 5)) == 1
        go.touch()
        assert evictor.result(WAIT_S) == {"evicted": True}
        assert storage.set_fields(ids, workers.record(1, 6)) == 0
        end.touch()
        assert writer.result(WAIT_S) == {"key": [1, 5], "wrong": None}


@pytest.mark.parametrize("seed", range(2))
def test_killed_anywhere(seed: int, zygote: Zygote, name: str, tmp_path: Path) -> None:
    """Writers and those that change are killed at any instant, some of them in the middle of a
    change, with the lock; nobody else notices."""
    stop = tmp_path / "stop"
    rnd = random.Random(seed)
    options = {"name": name, "stop": str(stop)}
    with SharedStorage(CAPACITY, name=name, example=workers.ROW, fields=workers.FIELDS) as storage:
        storage.tape.lock_timeout_s = WAIT_S
        readers = [zygote.start(workers.read, **options) for _ in range(2)]
        number = inside = 0
        own = storage.writer()
        for _ in range(12):
            number += 3
            writers: list[Child] = [zygote.start(workers.write, writer=number, **options)]
            writers.append(zygote.start(workers.change, writer=number + 1, **options))
            trap = rnd.random() if rnd.random() < 0.6 else None
            if trap is not None:
                # Of what it hands over one page cannot be read: it stops with the lock held.
                writers.append(zygote.start(workers.write, writer=number + 2, trap=trap, **options))
                writers[-1].expect_stopped(WAIT_S)
                inside += 1
            else:
                head = storage.tape.snapshot()[0]
                until(
                    lambda head=head: storage.tape.snapshot()[0] > head + rnd.randrange(40),
                    "somebody writes",
                )
            for child in rnd.sample(writers, len(writers)):
                child.kill()
            # The lock's holder may be dead: what it left is repaired.
            own.add({"uid": 9 + number, "next": {"done": True}}, workers.record(9 + number, 2))
            table = storage.episodes()
            assert workers.wrong(table["key"], table["body"]) is None
            assert table["key"][-1].tolist() == [9 + number, 2]
        assert inside > 2, "nobody died inside"
        stop.touch()
        assert [r.result(WAIT_S)["wrong"] for r in readers] == [None, None]
        check_at_rest(storage)
