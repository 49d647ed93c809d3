"""Loads that fail or are killed: what was there before is there, or what was loaded, and nothing
in between; on the disk as well as in memory, and for those who read meanwhile."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contig
from contig import ReplayBuffer
from contig.sample.base import Rng
from contig.tape.disk import DiskStorage, files, first_load
from contig.tape.disk.appender import Appender
from contig.tape.disk.extents import Extents
from contig.tape.disk.following import TapeMirror
from contig.tape.disk.index import DiskIndex
from contig.tape.disk.marker import Marker
from contig.tape.disk.opening import Opened
from contig.tape.disk.quarantine import Quarantine
from contig.tape.disk.stored_bytes import StoredBytes
from tests.tape.disk import stored
from tests.tape.disk.test_faults import fill, make, until
from tests.tape.disk.victim import CHANGING, killed_at

OLD, NEW = range(0, 20), range(500, 512)
CALLS = (*CHANGING, "close", "exists", "links", "listing", "open_to_read", "read", "size")
THINNED = pytest.mark.parametrize(
    "every", (pytest.param(5, id="thinned"), pytest.param(1, marks=pytest.mark.soak, id="complete"))
)


def buffer_of(storage: Any, seed: int = 1) -> ReplayBuffer:
    return ReplayBuffer(storage, contig.RandomSampler(), batch_size=4, seed=seed)


def items(storage: Any) -> list[tuple[int, int]]:
    """(seq, item) of every row; each of them is as it was written, and served."""
    fields, served = stored.contents(storage)
    assert served.all() and not storage.quarantined, storage.quarantined
    stored.check_episodes(storage)
    _, tail, _, _ = storage.tape.snapshot()
    return [(tail + i, int(row[1])) for i, row in enumerate(fields)]


def found(path: Path) -> list[tuple[int, int]]:
    with make(path, 4096) as storage:
        return items(storage)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_places(tmp_path_factory.mktemp("loads"))


def make_places(root: Path) -> dict[str, Path]:
    """A storage with some items, one that was loaded into before, and checkpoints with others."""
    with make(root / "other", 4096) as storage:
        fill(storage, NEW.start, len(NEW))
        buffer_of(storage, 2).save(root / "linked")
    memory = contig.LazyTensorStorage(4096, example=stored.example())
    for number in NEW:
        memory.default_writer.extend_trajectory(stored.item(50, number))
    buffer_of(memory, 2).save(root / "packed")
    with make(root / "store", 4096) as storage:
        fill(storage, OLD.start, len(OLD))
    with make(root / "again", 4096) as storage:
        buffer_of(storage).load(root / "linked")
        fill(storage, OLD.start, len(OLD))
    return {f.name: f for f in root.iterdir()}


CASES = [("store", "linked"), ("store", "packed"), ("again", "linked")]


def loaded(places: dict[str, Path], to: str, path: Path, checkpoint: str) -> list[tuple[int, int]]:
    """What there is after such a load."""
    shutil.copytree(places[to], path)
    with make(path, 4096) as storage:
        buffer_of(storage).load(places[checkpoint])
        whole = items(storage)
    assert found(path) == whole
    shutil.rmtree(path)
    return whole


@THINNED
@pytest.mark.parametrize(("to", "checkpoint"), CASES)
def test_killed(
    places: dict[str, Path], fast_path: Path, to: str, checkpoint: str, every: int
) -> None:
    path = fast_path / "store"
    before, after = found(places[to]), loaded(places, to, path, checkpoint)
    assert before != after
    at, seen = 0, []
    while True:
        at += every
        shutil.copytree(places[to], path)
        killed = killed_at(
            at,
            lambda: make(path, 4096),
            lambda storage: buffer_of(storage).load(places[checkpoint]),
        )
        with DiskStorage(path, 4096, read_only=True) as reader:  # who reads changes nothing
            there = items(reader)
        assert there in (before, after), at
        assert found(path) == there
        seen.append(there == after)
        with make(path, 4096) as storage:  # it goes on, and the same load works
            fill(storage, 900, 2)
            assert items(storage)[: len(there)] == there
            buffer_of(storage).load(places[checkpoint])
            assert items(storage) == after
        assert found(path) == after
        shutil.rmtree(path)
        if not killed:
            break
    assert seen == sorted(seen) and not seen[0] and seen[-1] and len(seen) > 5


class _Stop(BaseException):
    """As an interrupt."""


def failing(name: str, at: int, error: BaseException, patch: Any) -> Callable[[], int]:
    call, count = getattr(files, name), 0

    def fails(*args: Any) -> Any:
        nonlocal count
        count += 1
        if count == at:
            raise error
        return call(*args)

    patch.setattr(files, name, fails)
    return lambda: count


def _follows(reader: DiskStorage, expected: list[tuple[int, int]]) -> None:
    def there() -> bool:
        reader.poll()
        return items(reader) == expected

    until(there, "the reader follows")


@THINNED
@pytest.mark.parametrize("error", (OSError(errno.ENOSPC, "No space left on device"), _Stop()))
@pytest.mark.parametrize(("to", "checkpoint"), CASES)
def test_a_call_fails(
    places: dict[str, Path],
    fast_path: Path,
    to: str,
    checkpoint: str,
    error: BaseException,
    every: int,
) -> None:
    """Every one that touches files: either it raises and all is as before, or it is loaded."""
    path, other = fast_path / "store", places[checkpoint]
    before, after = found(places[to]), loaded(places, to, path, checkpoint)
    for name in CALLS:
        if not hasattr(files, name):
            continue
        at = 1
        while True:
            shutil.copytree(places[to], path)
            with make(path, 4096) as storage, DiskStorage(path, 4096, read_only=True) as reader:
                buffer = buffer_of(storage)
                failed = False
                with pytest.MonkeyPatch.context() as patch:
                    calls = failing(name, at, error, patch)
                    try:
                        buffer.load(other)
                    except type(error) as raised:
                        failed = True
                        if isinstance(error, OSError):
                            assert isinstance(raised, contig.StorageFull), raised
                            assert "nothing was loaded" in str(raised)
                    except contig.LayoutError as raised:  # of the checkpoint, when it is read
                        failed = True
                        assert raised.__cause__ is error
                    reached = calls() >= at
                expected = before if failed else after
                if failed and isinstance(error, _Stop) and storage.restored:
                    expected = after  # it came too late
                assert items(storage) == expected, (name, at)
                assert (buffer.state()["rng"] == Rng(1).state()) == (expected == before)
                storage.flush()
                _follows(reader, expected)
                fill(storage, 900, 1)
                whole = items(storage)
            assert found(path) == whole, (name, at)
            rest = [p.name for p in (path / "extents").iterdir() if p.is_dir()]
            assert len(rest) <= 1 and "new" not in rest, rest
            shutil.rmtree(path)
            if not reached:
                break
            at += every


@pytest.mark.parametrize("after", (False, True))
def test_the_index_fails(
    places: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Nobody knows whether it was committed, until something else is."""
    path = shutil.copytree(places["store"], tmp_path / "store")
    before, call = found(path), DiskIndex._put

    def put(index: DiskIndex, *args: Any) -> None:
        if after:
            call(index, *args)
        monkeypatch.setattr(DiskIndex, "_put", call)
        raise sqlite3.OperationalError("database or disk is full")

    with make(path, 4096) as storage:
        buffer = buffer_of(storage)
        monkeypatch.setattr(DiskIndex, "_put", put)
        with pytest.raises(OSError):
            buffer.load(places["linked"])
        assert items(storage) == before
        storage.flush()
        fill(storage, 900, 1)
        whole = items(storage)
        assert whole[: len(before)] == before
    assert found(path) == whole
    assert not [p for p in (path / "extents").iterdir() if p.is_dir()]


def test_an_open_trajectory_goes_on(places: dict[str, Path], tmp_path: Path) -> None:
    with make(tmp_path, 4096) as storage, pytest.MonkeyPatch.context() as patch:
        rows = stored.item(60, 0, part_of=1 << 20)
        row = stored.first_row(rows)
        storage.default_writer.add(row)
        failing("fsync_dir", 2, OSError(errno.EIO, "I/O"), patch)
        with pytest.raises(OSError):
            buffer_of(storage).load(places["linked"])
        storage.default_writer.add(row)
        table = storage.episodes()
        assert len(table) == 1 and table["steps"][0] == 2


def test_an_older_index_loses_no_rows(places: dict[str, Path], tmp_path: Path) -> None:
    """Rows of a load that the index does not know are put aside, not deleted."""
    path = shutil.copytree(places["store"], tmp_path / "store")
    shutil.copy(path / "index.sqlite", tmp_path / "index.sqlite")
    with make(path, 4096) as storage:
        buffer_of(storage).load(places["linked"])
    rows = {f.read_bytes() for f in (path / "extents").rglob("*.rec")}
    assert rows
    for file in path.glob("index.sqlite*"):
        file.unlink()
    shutil.copy(tmp_path / "index.sqlite", path / "index.sqlite")
    make(path, 4096).close()
    assert rows <= {f.read_bytes() for f in path.rglob("*.rec")}


@pytest.mark.parametrize("kind", ("disk", "memory"))
def test_the_layout_is_not_fixed(places: dict[str, Path], tmp_path: Path, kind: str) -> None:
    """By a load that fails into a storage that has none."""
    checkpoint = shutil.copytree(places["linked"], tmp_path / "checkpoint")
    file = max((checkpoint / "extents").iterdir())
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    storage: Any = contig.LazyTensorStorage(4096)
    if kind == "disk":
        storage = DiskStorage(tmp_path / "store", 4096, rows_per_extent=stored.EXTENT)
    with storage:
        with pytest.raises(contig.LayoutError):
            buffer_of(storage).load(checkpoint)
        if kind == "disk":
            for name in ("link", "pwrite", "fsync"):
                with pytest.MonkeyPatch.context() as patch:
                    failing(name, 1, OSError(errno.EIO, "I/O"), patch)
                    with pytest.raises(OSError):
                        buffer_of(storage).load(places["linked"])
        assert storage.layout is None
        buffer_of(storage).extend({"x": np.arange(3), "next": {"done": np.zeros(3, bool)}})
        assert len(storage) == 3


def test_rows_that_are_replaced_while_they_are_synced(
    places: dict[str, Path], fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their folder is gone before its names are on the disk: nothing that anybody misses."""
    with make(fast_path / "store", 4096) as storage:
        buffer = buffer_of(storage)
        buffer.load(places["linked"])
        real, replaced = files.fsync_dir, threading.Event()

        def load_before(path: Path) -> None:
            if path == folder and not replaced.is_set():
                replaced.set()
                other = threading.Thread(target=buffer.load, args=(places["packed"],))
                other.start()
                other.join()
            real(path)

        folder = storage.opened.extents.folder
        monkeypatch.setattr(files, "fsync_dir", load_before)
        fill(storage, 900, 20)  # some of it in a new file
        storage.flush()
        storage.opened.committer.fold()
        until(replaced.is_set)
        fill(storage, 950, 2)
        storage.flush()
    assert [item for _, item in found(fast_path / "store")][-1] == 951


class Unmappable:
    """Has files opened so that they cannot be mapped, from the `first` call on."""

    def __init__(self, first: int, times: int, patch: pytest.MonkeyPatch) -> None:
        self.count, self._first, self.left = 0, first, times
        patch.setattr(files, "open_to_read", self._open)

    def _open(self, path: Path) -> int:
        if "places" in path.parts or path.suffix not in (".rec", ".bin"):
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.count += 1
        if self.count >= self._first and self.left:
            self.left -= 1
            return os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def opened(places: dict[str, Path], to: str, path: Path) -> DiskStorage:
    if to == "nothing":
        return DiskStorage(path, 4096, rows_per_extent=stored.EXTENT)
    return make(Path(shutil.copytree(places[to], path)), 4096)


ROWS = {"": contextlib.nullcontext, "any size": stored.any_size, "shared": stored.shared}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("times", (1, 1 << 30))
@pytest.mark.parametrize("to", ("store", "nothing"))
def test_a_file_cannot_be_mapped(fast_path: Path, to: str, times: int, rows: str) -> None:
    """Any of them, once or until it is over: the load raises and nothing changed, or what was
    loaded is served as soon as its files can be mapped."""
    path, first, reached, outcomes = fast_path / "store", 1, True, set()
    with ROWS[rows]():
        places = make_places(fast_path / "places")
        after = [number for _, number in found(places["other"])]
        while reached:
            with opened(places, to, path) as storage:
                before = [] if to == "nothing" else items(storage)
                buffer, failed = buffer_of(storage), False
                with pytest.MonkeyPatch.context() as patch:
                    unmappable = Unmappable(first, times, patch)
                    try:
                        buffer.load(places["linked"])
                    except OSError:
                        failed = True
                    reached = unmappable.count >= first
                    if reached and times > 1 and not failed:  # an error, and not damaged rows
                        with pytest.raises(PermissionError, match=r"\.(rec|bin) cannot be read"):
                            stored.contents(storage)
                outcomes.add(failed)
                if storage.schema is None:
                    assert failed and not before
                    storage.publish_example(stored.example())
                there = items(storage)
                assert there == before if failed else [n for _, n in there] == after, first
                fill(storage, 900, 1)
                whole = items(storage)
            assert found(path) == whole, first
            shutil.rmtree(path)
            first += 1
    assert False in outcomes and first > 3


STEPS = [
    (Opened, "show"),
    (Extents, "enter"),
    (Extents, "map"),
    (TapeMirror, "set_salts"),
    (Quarantine, "clear"),
    (StoredBytes, "adopt"),
    (Appender, "took_over"),
    (first_load, "finish"),
    (Marker, "note"),
]


@pytest.mark.parametrize("times", (1, 2, 1 << 30))
@pytest.mark.parametrize("to", ("store", "nothing"))
@pytest.mark.parametrize(("owner", "name"), STEPS, ids=[name for _, name in STEPS])
def test_a_step_fails(fast_path: Path, owner: Any, name: str, to: str, times: int) -> None:
    """Any, as native code and the system may fail: nothing was changed, or it is loaded; and if
    this process cannot show it, it says so and who opens the storage next has it."""
    path, at, reached = fast_path / "store", 1, True
    with stored.any_size():
        places = make_places(fast_path / "places")
        after = [number for _, number in found(places["other"])]
        while reached:
            storage = opened(places, to, path)
            before = [] if to == "nothing" else [number for _, number in items(storage)]
            call, count = getattr(owner, name), 0

            def fails(*args: Any, call: Any = call, first: int = at) -> Any:
                nonlocal count
                count += 1
                if first <= count < first + times:
                    raise OSError(errno.EIO, "injected")
                return call(*args)

            raised = ""
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(owner, name, fails)
                try:
                    buffer_of(storage).load(places["linked"])
                except (OSError, contig.LayoutError) as error:
                    raised = str(error)
            reached = count >= at
            expected = before if raised else after
            if "was loaded" in raised:
                expected = after
                with pytest.raises(contig.ClosedError):
                    storage.default_writer.extend_trajectory(stored.item(50, 900))
            else:
                if storage.schema is None:
                    storage.publish_example(stored.example())
                assert [number for _, number in items(storage)] == expected, at
                fill(storage, 900, 1)
                expected = [number for _, number in items(storage)]
                storage.close()
            assert [number for _, number in found(path)] == expected, at
            shutil.rmtree(path)
            at += 1
