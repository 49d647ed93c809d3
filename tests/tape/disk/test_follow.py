"""Readers of a storage that is being written: rows are right, whatever is let go meanwhile."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import contig
import contig.tape.disk.following as following
import contig.tape.disk.index as index
from contig.tape.disk import DiskStorage, files
from contig.tape.disk.extents import Extents
from contig.tape.disk.repair import repair
from tests.tape.disk import stored
from tests.tape.disk.test_faults import ROOT, check, fill, make, run


@pytest.fixture(autouse=True)
def _polls_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_POLL_S", 0.0)


def reader_of(path: Path, capacity: int | None = 64) -> DiskStorage:
    return DiskStorage(path, capacity, read_only=True)


def same(writer: DiskStorage, reader: DiskStorage) -> None:
    reader.poll()
    assert reader.tape.snapshot()[:2] == writer.tape.snapshot()[:2]
    theirs, served = stored.contents(reader)
    assert served.all() and not reader.quarantined, reader.quarantined
    ours, _ = stored.contents(writer)
    assert np.array_equal(theirs, ours)
    assert np.array_equal(reader.episodes(), writer.episodes())


class Statements:
    """Calls something before the `number`th statement (from 0) of readers' connections, counted
    while it is armed."""

    def __init__(self, patch: pytest.MonkeyPatch, number: int, call: Callable[[], None]) -> None:
        self.number, self.call, self.seen, self.armed = number, call, 0, False
        self._connect = index.connect
        patch.setattr(index, "connect", self._traced)

    def _traced(self, path: Path, mode: str) -> sqlite3.Connection:
        db = self._connect(path, mode)
        if mode.startswith("ro"):
            db.set_trace_callback(self._note)
        return db

    def _note(self, statement: str) -> None:
        if self.armed:
            self.seen += 1
            if self.seen == self.number + 1:
                self.call()


def damage_bounds(path: Path) -> None:
    db = sqlite3.connect(path / "index.sqlite", isolation_level=None)
    db.execute("UPDATE bounds SET head = head + 1")
    db.close()


@pytest.mark.parametrize("what", ("an opening", "a look", "a repair", "a later repair"))
def test_a_commit_before_every_statement(tmp_path: Path, what: str) -> None:
    """What is committed while a reader reads the index is seen by its next look, at the latest."""
    number, at_all = 0, 1
    while number < at_all:
        with pytest.MonkeyPatch.context() as patch:
            at_all = commit_before(number, what, tmp_path / str(number), patch)
        number += 1
    assert number > 5


def commit_before(number: int, what: str, path: Path, patch: pytest.MonkeyPatch) -> int:
    """Commits before a statement of a reader, and looks; how many statements it has."""

    def commit() -> None:
        fill(writer, 5, 1)
        writer.flush()

    statements = Statements(patch, number, commit)
    with make(path, 1024) as before:
        fill(before, 0, 3)
    with contextlib.ExitStack() as held:
        if "repair" in what:
            reader = held.enter_context(reader_of(path, 1024))
            if what == "a later repair":  # the reader has seen a commit of the old index
                with make(path, 1024) as before:
                    fill(before, 3, 1)
                    before.flush()
                    same(before, reader)
            damage_bounds(path)
            repair(path)
        writer = held.enter_context(make(path, 1024))
        if what == "a look":
            reader = held.enter_context(reader_of(path, 1024))
        fill(writer, 4, 1)
        writer.flush()
        statements.armed = True
        if what == "an opening":
            reader = held.enter_context(reader_of(path, 1024))
        else:
            reader.poll()
        statements.armed = False
        same(writer, reader)
    return statements.seen


@pytest.mark.parametrize("every", (1, 3, 20))
@pytest.mark.parametrize("capacity", (24, 64, 1024))
def test_follows(tmp_path: Path, capacity: int, every: int) -> None:
    """Step by step, and in steps so large that everything it knew is gone."""
    with make(tmp_path, capacity) as writer, reader_of(tmp_path, capacity) as reader:
        for n in range(60):
            fill(writer, n, 1)
            writer.default_writer.add(stored.first_row(stored.item(stored.SINGLE, n)))
            if n % every == every - 1:
                writer.flush()
                same(writer, reader)
        writer.empty()
        writer.flush()
        same(writer, reader)
        fill(writer, 60, 5)
        writer.flush()
        same(writer, reader)


@pytest.mark.parametrize("behind", (1, 5, 11, 12, 13, 20))
def test_a_trajectory_goes_on_past_all_that_was_known(tmp_path: Path, behind: int) -> None:
    """Its entry grows, and none of the rows that a reader had of it is left."""
    with make(tmp_path, 12) as writer, reader_of(tmp_path, 12) as reader:
        for n in range(41):
            writer.default_writer.add(stored.first_row(stored.item(stored.SINGLE, n, 1000)))
            if n % behind == 0:
                writer.flush()
                same(writer, reader)
        fill(writer, 0, 1)
        writer.flush()
        same(writer, reader)


@pytest.mark.parametrize("capacity", (16, 40, 4096))
def test_reader_of_another_capacity(tmp_path: Path, capacity: int) -> None:
    with make(tmp_path, 256) as writer:
        fill(writer, 0, 20)
        writer.flush()
        with reader_of(tmp_path, capacity) as reader:
            for n in range(20, 90):
                fill(writer, n, 1)
                writer.flush()
                reader.poll()
                fields, served = stored.contents(reader)
                assert served.all() and len(fields) <= min(capacity, 256)
                head = writer.tape.snapshot()[0]
                assert reader.tape.snapshot()[:2] == (head, max(0, head - min(capacity, 256)))
                stored.check_order(fields, served, head - len(fields))
                stored.check_episodes(reader)


@pytest.mark.parametrize("capacity", (24, 40))
def test_files_let_go_before_they_are_mapped(
    tmp_path: Path, capacity: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index is read, then files that it names are gone: those rows count as evicted, and are
    never rows of an older file that was mapped in the same place."""
    with make(tmp_path, capacity) as writer, reader_of(tmp_path, capacity) as reader:
        opened = files.open_to_read
        chosen = random.Random(3)
        ours = False

        def missing(path: Path) -> int:
            if ours and chosen.random() < 0.5:
                raise FileNotFoundError(path)
            return opened(path)

        monkeypatch.setattr(files, "open_to_read", missing)
        for n in range(120):
            fill(writer, n, 1)
            writer.flush()
            ours = True
            reader.poll()
            ours = False
            head, tail, _, _ = reader.tape.snapshot()
            seqs = np.arange(tail, head, dtype=np.int64)
            batch, lost = reader.gather(seqs)
            gone = lost if isinstance(lost, np.ndarray) else seqs < lost
            there, _ = writer.gather(seqs)
            mine = np.asarray(batch["words"])[~gone]
            assert np.array_equal(mine, np.asarray(there["words"])[~gone]), "another row's place"
        assert not reader.quarantined, "rows that were let go are not damaged"


def test_checkpoint_loaded_under_a_reader(tmp_path: Path) -> None:
    with make(tmp_path / "store") as writer, reader_of(tmp_path / "store") as reader:
        buffer = contig.ReplayBuffer(writer, contig.RandomSampler(), batch_size=8)
        fill(writer, 0, 20)
        writer.flush()
        same(writer, reader)
        buffer.save(tmp_path / "checkpoint")
        fill(writer, 20, 20)
        writer.flush()
        same(writer, reader)
        buffer.load(tmp_path / "checkpoint")
        writer.flush()
        same(writer, reader)
        fill(writer, 20, 3)
        writer.flush()
        same(writer, reader)


@pytest.mark.parametrize("read_only", (False, True))
@pytest.mark.parametrize("capacity", (16, 24, 40))
def test_places_get_other_rows(
    tmp_path: Path, capacity: int, read_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody samples in the instant in which a new file is mapped: never its rows for others."""
    rows: dict[int, tuple[int, int]] = {}
    watched: list[DiskStorage] = []
    mapped, looked = Extents.map, 0

    def look(extents: Extents, extent: int) -> bool:
        nonlocal looked
        there = mapped(extents, extent)
        for storage in watched:
            if storage.opened.extents is extents and rows:
                seqs = np.array(sorted(rows))
                batch, lost = storage.gather(seqs)
                gone = lost if isinstance(lost, np.ndarray) else seqs < lost
                for seq, row in zip(seqs[~gone], np.asarray(batch["fields"])[~gone]):
                    assert (row[1], row[3]) == rows[seq], f"row {seq}"
                looked += 1
        return there

    monkeypatch.setattr(Extents, "map", look)
    with make(tmp_path, capacity) as writer, reader_of(tmp_path, capacity) as reader:
        watched.append(reader if read_only else writer)
        for n in range(60):
            fill(writer, n, 1)
            writer.flush()
            reader.poll()
            tail = writer.tape.snapshot()[1]
            fields, _ = stored.contents(writer)
            rows = {tail + i: (row[1], row[3]) for i, row in enumerate(fields.tolist())}
        assert looked > 10


def test_live(tmp_path: Path) -> None:
    """A writer in another process, at full speed, with few rows kept."""
    code = """
    import sys, time
    from pathlib import Path
    from tests.tape.disk.test_faults import fill, make
    storage = make(Path(sys.argv[1]), 48)
    fill(storage, 0, 1)
    storage.flush()
    print("ready", flush=True)
    for n in range(1, 100000):
        fill(storage, n, 1)
        if n % 7 == 0:
            storage.flush()
        if n % 64 == 0 and Path(sys.argv[2]).exists():
            break
    storage.close()
    print(n, flush=True)
    """
    stop = tmp_path / "stop"
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "store"), str(stop)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        served_rows = rounds = 0
        with reader_of(tmp_path / "store", 48) as reader:
            buffer = contig.ReplayBuffer(reader, contig.RandomSampler(), batch_size=16, seed=1)
            slices = contig.ReplayBuffer(
                reader, contig.SliceSampler(slice_len=4), batch_size=16, seed=1
            )
            while rounds < 300:
                rounds += 1
                _, served = stored.contents_while_written(reader)
                served_rows += int(served)
                for source in (buffer, slices):
                    batch = source.sample()
                    stored.check_batch(batch)
            assert served_rows > 1000
            assert not reader.quarantined, reader.quarantined
            stop.touch()
            last = int(process.stdout.readline())
            process.wait(30)
            reader.poll()
            check(reader, last)
    finally:
        process.kill()
        process.wait(30)
        process.stdout.close()


def test_polls_during_loads(tmp_path: Path) -> None:
    """Checkpoints, longer and shorter than what is there, are loaded under readers."""
    saved = []
    for n, (first, count) in enumerate(((100, 30), (200, 6), (300, 60))):
        with make(tmp_path / f"other-{n}", 4096) as storage:
            fill(storage, first, count)
            contig.ReplayBuffer(storage, contig.RandomSampler(), batch_size=4).save(
                tmp_path / f"saved-{n}"
            )
            saved.append((first, count))
    errors: list[BaseException] = []
    stop = threading.Event()

    def read() -> None:
        try:
            with DiskStorage(tmp_path / "store", 4096, read_only=True) as reader:
                while not stop.is_set():
                    reader.poll()
                    stored.contents(reader)
                    assert not reader.quarantined, reader.quarantined
                reader.poll()
                _, served = stored.contents(reader)
                check(reader, last)
                assert served.all()
        except BaseException as error:
            errors.append(error)

    with make(tmp_path / "store", 4096) as storage:
        fill(storage, 0, 40)
        storage.flush()
        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        buffer = contig.ReplayBuffer(storage, contig.RandomSampler(), batch_size=4)
        chosen = random.Random(0)
        for turn in range(40):
            n = chosen.randrange(3)
            buffer.load(tmp_path / f"saved-{n}")
            last = sum(saved[n]) - 1
            if turn % 3:
                fill(storage, last + 1, 4)
                last += 4
            if errors:
                break
        storage.flush()
        stop.set()
        for thread in threads:
            thread.join()
        assert not errors, errors


def test_an_extent_that_was_short(tmp_path: Path) -> None:
    """A reader maps a file between its creation and its getting a size: nothing is damaged."""
    path = tmp_path / "store"
    with make(path, 4096) as storage:
        fill(storage, 0, 20)
        storage.flush()
        file = path / "extents" / "00000003.rec"
        file.rename(tmp_path / "aside")
        for size in (0, 1000):
            file.write_bytes(bytes(size))
            with DiskStorage(path, 4096, read_only=True) as reader:
                os.replace(shutil.copy(tmp_path / "aside", tmp_path / "copy"), file)
                check(reader, 19)
        check(storage, 19)


@pytest.mark.parametrize("read_only", (True, False))
@pytest.mark.parametrize("size", (0, 5000, 1000))
def test_an_extent_that_is_cut(tmp_path: Path, read_only: bool, size: int) -> None:
    """Under a reader that has it mapped: its rows are damaged, the process lives."""
    code = """
    import os, sys
    from pathlib import Path
    import numpy as np
    from contig.tape.disk import DiskStorage
    from tests.tape.disk import stored
    path, read_only, size = Path(sys.argv[1]), bool(int(sys.argv[2])), int(sys.argv[3])
    with DiskStorage(path, 4096, read_only=read_only) as storage:
        fields, served = stored.contents(storage)
        assert served.all() and len(fields) > 200
        for number in (3, 4):
            os.truncate(path / "extents" / f"{number:08d}.rec", size)
        for _ in range(3):
            fields, served = stored.contents(storage)
            kept = size // 512
            assert not served[3 * 32 + kept : 4 * 32].any() and served[: 2 * 32].all()
            assert storage.quarantined
    """
    with DiskStorage(tmp_path, 4096, rows_per_extent=32, example=stored.example()) as storage:
        fill(storage, 0, 60)
    run(code, str(tmp_path), str(int(read_only)), str(size))


def test_follows_a_repair(tmp_path: Path) -> None:
    """The index is built anew under a reader, which goes on with the new one."""
    path = tmp_path / "store"
    with make(path, 4096) as storage:
        fill(storage, 0, 60)
    with DiskStorage(path, 4096, read_only=True) as reader:
        check(reader, 59)
        db = sqlite3.connect(path / "index.sqlite", isolation_level=None)
        db.execute("UPDATE producers SET seq = 1")
        db.execute("UPDATE bounds SET head = head + 1")
        db.close()
        assert "could not be read" in repair(path)[0]
        with make(path, 4096) as storage:
            fill(storage, 60, 5)
            storage.flush()
            reader.poll()
            check(reader, 64)
