"""Writers and readers in processes of their own, over a ring that wraps thousands of times, first
undisturbed, then while writers are killed at random instants and inside the lock."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import ReplayBuffer, SharedStorage, SliceSampler, TapeBusy
from tests.tape.processes import rows, workers
from tests.waiting import WAIT_S, until
from tests.zygote import Child, Zygote

CAPACITY = 96
WRITERS = 4


def settle(storage: SharedStorage, logs: list[Path]) -> tuple[int, int]:
    """Checks the logs of all writers against each other; returns acknowledged and unsure rows."""
    firsts: list[int] = []
    counts: list[int] = []
    unsure = 0
    for log in logs:
        done, open_rows = workers.read_log(log)
        unsure += open_rows
        mine = [done[k] for k in sorted(done)]
        starts = np.array([first for first, _ in mine], np.int64)
        assert np.all(np.diff(starts) > 0), f"{log.name}: seqs do not increase"
        firsts += [first for first, _ in mine]
        counts += [n for _, n in mine]
    order = np.argsort(firsts)
    first, n = np.array(firsts)[order], np.array(counts)[order]
    assert np.all(first[1:] >= first[:-1] + n[:-1]), "two appends got the same seqs"
    assert first[-1] + n[-1] <= storage.tape.snapshot()[0]
    return int(n.sum()), unsure


def final_check(storage: SharedStorage) -> None:
    """The tape at rest."""
    fields, batch, from_start = workers.scan(storage)
    assert len(fields) <= CAPACITY
    assert rows.torn(batch) is None
    assert rows.partial(fields, from_start) is None
    table = storage.episodes()
    assert table["steps"].sum() == len(fields)
    seen: set[int] = set()
    for episode in table:
        part = storage.read_episode(int(episode["id"]))
        mine = np.asarray(part["fields"])
        assert len(mine) == episode["steps"]
        assert rows.broken(mine, np.arange(len(mine)) == len(mine) - 1) is None
        assert len(np.unique(mine[:, 1])) == 1
        ended = bool(np.asarray(part["next", "done"])[-1])
        assert ended == bool(episode["terminated"] | episode["truncated"])
        assert bool(episode["complete"]) == (ended and mine[0, 2] == 0)
        # A trajectory is split only where its own older part was evicted.
        if int(mine[0, 1]) in seen:
            assert episode["trimmed"]
        seen.add(int(mine[0, 1]))


@pytest.mark.parametrize("ids", [False, True], ids=["lanes", "ids"])
def test_nothing_is_torn_crossed_or_lost(
    ids: bool, zygote: Zygote, name: str, tmp_path: Path
) -> None:
    stop = tmp_path / "stop"
    with SharedStorage(CAPACITY, name=name, example=rows.example(ids)) as storage:
        logs = [tmp_path / f"log-{w}" for w in range(1, 5)]
        arguments: dict[str, Any] = {"name": name, "ids": ids, "stop": str(stop)}
        writers = [
            zygote.start(workers.write, writer=w, seed=w, log=str(logs[w - 1]), **arguments)
            for w in range(1, 5)
        ]
        readers = [
            zygote.start(workers.read, seed=r, kinds=kinds, **arguments)
            for r, kinds in enumerate(("rsq", "sce", "ssc"))
        ]
        wraps = 2000 * CAPACITY
        children = (*readers, *writers)
        until(
            lambda: storage.tape.snapshot()[0] >= wraps or not all(c.alive() for c in children),
            "the ring goes round",
        )
        stop.touch()
        written = [w.result(WAIT_S) for w in writers]
        read = [r.result(WAIT_S) for r in readers]
        assert [r["wrong"] for r in read] == [[], [], []]
        head = storage.tape.snapshot()[0]
        assert head == sum(w["rows"] for w in written)
        assert settle(storage, logs) == (head, 0)
        assert head >= wraps
        for what in ("rows", "slices", "linked", "complete", "episodes", "scans"):
            assert sum(r[what] for r in read) > 0, f"the readers saw no {what}"
        final_check(storage)


class HolderWord:
    """The lock's holder as the header has it, found by looking for ourselves while we hold it."""

    def __init__(self, storage: SharedStorage, name: str) -> None:
        fd = os.open(f"/dev/shm/contig-{name}", os.O_RDONLY)
        self._memory = mmap.mmap(fd, 4096, access=mmap.ACCESS_READ)
        os.close(fd)
        self._words = memoryview(self._memory).cast("q")
        with storage.held():
            (self._at,) = [i for i, word in enumerate(self._words) if word == os.getpid()]
        assert self.pid != os.getpid()

    @property
    def pid(self) -> int:
        return self._words[self._at]


class Kills:
    """Writers come and go by SIGKILL; readers and other writers must not notice."""

    def __init__(self, zygote: Zygote, name: str, directory: Path, ids: bool, seed: int) -> None:
        self.zygote, self.name, self.directory, self.ids = zygote, name, directory, ids
        self.random = random.Random(seed)
        self.stop = directory / "stop"
        self.storage = SharedStorage(CAPACITY, name=name, example=rows.example(ids))
        self.holder = HolderWord(self.storage, name)
        self.logs: list[Path] = []
        self.writers: list[Child] = []
        self.inside = self.busy = self.kills = 0
        # The test's own writer, which must get through after every kill.
        self.own = rows.Script(0, seed, ids).blocks()
        self.handle = self.storage.writer()
        self.storage.tape.lock_timeout_s = WAIT_S
        self.own_rows = 0

    def start_writer(self, trap: float | None = None) -> Child:
        number = len(self.logs) + 1
        log = self.directory / f"log-{number}"
        self.logs.append(log)
        writer = self.zygote.start(
            workers.write,
            name=self.name,
            writer=number,
            seed=number,
            ids=self.ids,
            log=str(log),
            stop=str(self.stop),
            big=CAPACITY * 2 // 3,  # long stays inside the lock
            trap=trap,
        )
        self.writers.append(writer)
        return writer

    def append(self) -> None:
        kind, n, tree = next(self.own)
        rows.append(self.handle, kind, tree)
        self.own_rows += n

    def kill_one(self) -> None:
        assert all(w.alive() for w in self.writers), "a writer died by itself"
        if self.random.random() < 0.4:
            victim = self.start_writer(trap=self.random.random())
            victim.expect_stopped(WAIT_S)
            assert self.holder.pid == victim.pid, "it is stopped, and not inside the lock"
            self.inside += 1
            if self.inside % 5 == 1:
                self.expect_busy(victim)
        else:
            victim = self.random.choice(self.writers)
        self.writers.remove(victim)
        victim.kill()
        self.kills += 1
        self.append()  # the lock's last holder may be dead; who waits for him gets a TapeBusy
        while len(self.writers) < WRITERS:
            self.start_writer()

    def expect_busy(self, victim: Child) -> None:
        self.storage.tape.lock_timeout_s = 0.02
        script = rows.Script(1 << 40, 0, self.ids)
        kind, _, tree = next(script.blocks(1))
        before = self.storage.tape.snapshot()
        with pytest.raises(TapeBusy, match=rf"\b{victim.pid}\b"):
            rows.append(self.storage.writer(), kind, tree)
        assert self.storage.tape.snapshot()[0] == before[0], "somebody wrote past the lock"
        self.storage.tape.lock_timeout_s = WAIT_S
        self.busy += 1

    def run(self, kills: int, inside: int, seconds: float) -> None:
        """Until so many were killed, so many of them inside the lock, and so long."""
        readers = [
            self.zygote.start(
                workers.read, name=self.name, seed=r, ids=self.ids, stop=str(self.stop), kinds=kinds
            )
            for r, kinds in enumerate(("rsq", "sce", "ssc"))
        ]
        for _ in range(WRITERS):
            self.start_writer()
        deadline = time.monotonic() + seconds
        give_up = deadline + WAIT_S * max(kills // 50, 1)
        while self.kills < kills or self.inside < inside or time.monotonic() < deadline:
            assert time.monotonic() < give_up, f"{self.kills} kills, {self.inside} inside the lock"
            time.sleep(self.random.random() * 0.03)
            assert all(r.alive() for r in readers), [r.result(1) for r in readers if not r.alive()]
            self.kill_one()
        self.stop.touch()
        for writer in self.writers:
            writer.result(WAIT_S)
        read = [r.result(WAIT_S) for r in readers]
        assert [r["wrong"] for r in read] == [[], [], []]
        for what in ("rows", "slices", "linked", "complete", "episodes", "scans"):
            assert sum(r[what] for r in read) > 0, f"the readers saw no {what}"
        self.append()
        acknowledged, unsure = settle(self.storage, self.logs)
        extra = self.storage.tape.snapshot()[0] - acknowledged - self.own_rows
        assert 0 <= extra <= unsure, f"{extra} rows that nobody wrote, at most {unsure} unsure"
        final_check(self.storage)

    def close(self) -> None:
        self.storage.close()


@pytest.mark.parametrize("ids", [False, True], ids=["lanes", "ids"])
def test_killed_writers_leave_nothing_behind(
    ids: bool, zygote: Zygote, name: str, tmp_path: Path
) -> None:
    with contextlib.closing(Kills(zygote, name, tmp_path, ids, seed=7)) as kills:
        kills.run(50, 4, 0)
        assert kills.busy >= 1


@pytest.mark.soak
@pytest.mark.parametrize("ids", [False, True], ids=["lanes", "ids"])
def test_killed_writers_soak(ids: bool, zygote: Zygote, name: str, tmp_path: Path) -> None:
    seconds = float(os.environ.get("CONTIG_SOAK_S", "300"))
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")
    with contextlib.closing(Kills(zygote, name, tmp_path, ids, seed)) as kills:
        kills.run(500, 50, seconds)


def test_a_killed_writers_trajectory_stays_open(zygote: Zygote, name: str, tmp_path: Path) -> None:
    """The ring is large enough to keep all that the killed writers left."""
    with SharedStorage(1 << 16, name=name, example=rows.example(False)) as storage:
        logs = [tmp_path / f"log-{w}" for w in range(1, 7)]
        for number, log in enumerate(logs, 1):
            writer = zygote.start(
                workers.write,
                name=name,
                writer=number,
                seed=number,
                ids=False,
                log=str(log),
                stop=str(tmp_path / "stop"),
            )
            until(lambda log=log: len(workers.read_log(log)[0]) >= 100, "a hundred appends")
            writer.kill()
        storage.writer().extend_trajectory(rows.rows_of(_whole(rows.LONGEST), slice(0, None)))
        assert storage.tape.snapshot()[1] == 0, "something was evicted: the ring is too small"
        fields, batch, from_start = workers.scan(storage)
        assert rows.partial(fields, from_start) is None
        assert rows.torn(batch) is None
        # What a killed writer had appended is there, in full, or not at all.
        for number, log in enumerate(logs, 1):
            done, _ = workers.read_log(log)
            mine = np.flatnonzero(fields[:, 0] == number)
            appends = sorted(set(fields[mine, 3].tolist()))
            assert appends in (sorted(done), [*sorted(done), len(done)])
            for append, (first, n) in done.items():
                assert fields[first : first + n, 3].tolist() == [append] * n

        table = storage.episodes()
        open_now = [int(e["id"]) for e in table if not (e["terminated"] or e["truncated"])]
        last = {int(traj): row for row, traj in enumerate(fields[:, 1].tolist())}
        done_rows = np.asarray(batch["next", "done"])
        unfinished = {traj for traj, row in last.items() if not done_rows[row]}
        assert {int(storage.read_episode(e)["fields"][0, 1]) for e in open_now} == unfinished
        assert len(unfinished) >= len(logs)
        assert not table["complete"][np.isin(table["id"], open_now)].any()

        sampler = SliceSampler(slice_len=4, complete_only=True)
        buffer = ReplayBuffer(storage, sampler, batch_size=400, seed=3)
        drawn = {int(t) for _ in range(40) for t in buffer.sample()["fields"][:, 1]}
        assert drawn and not drawn & unfinished


def test_stopped_and_killed_inside_the_lock(zygote: Zygote, name: str, tmp_path: Path) -> None:
    """Appends of megabytes, each of them caught at another place."""
    stop = tmp_path / "stop"
    width, capacity = 1 << 15, 64  # 256 kB a row
    with SharedStorage(capacity, name=name, example={"x": np.zeros(width, np.int64)}) as storage:
        holder = HolderWord(storage, name)
        reader = zygote.start(workers.sample_for_ever, name=name, stop=str(stop))
        own = storage.writer()
        for turn in range(12):
            victim = zygote.start(workers.big_appends, name=name, stop=str(stop), trap=turn / 11)
            victim.expect_stopped(WAIT_S)
            assert holder.pid == victim.pid, "it is stopped, and not inside the lock"
            storage.tape.lock_timeout_s = 0.1
            head = storage.tape.snapshot()[0]
            with pytest.raises(TapeBusy, match=rf"\b{victim.pid}\b") as error:
                own.extend({"x": np.full((1, width), -1, np.int64)})
            assert isinstance(error.value, TimeoutError)
            # Readers need no lock for rows that are there.
            batch, lost = storage.gather(np.arange(max(head - 2, 0), head, dtype=np.int64))
            assert not lost and np.all(batch["x"] == batch["x"][:, :1])
            if turn % 3 == 2:  # not killed: it goes on where it was stopped
                victim.signal(signal.SIGCONT)
                storage.tape.lock_timeout_s = WAIT_S
                own.extend({"x": np.full((1, width), -1, np.int64)})
                victim.kill()
                continue
            victim.kill()
            storage.tape.lock_timeout_s = WAIT_S
            first = own.extend({"x": np.full((2, width), turn, np.int64)})
            assert first.tolist() == [head, head + 1], "the killed append took seqs"
            batch, lost = storage.gather(first)
            assert not lost and np.all(batch["x"] == turn)
        stop.touch()
        assert reader.result(WAIT_S)["samples"] > 0


def _whole(n: int) -> rows.Tree:
    numbers = np.zeros((n, len(rows.FIELDS)), np.int64)
    numbers[:, 0] = 99
    numbers[:, 1] = 99 << 20
    numbers[:, 2] = numbers[:, 5] = np.arange(n)
    numbers[:, 4] = n
    return rows.tree(numbers, np.arange(n) == n - 1, False)
