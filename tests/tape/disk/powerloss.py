"""A disk that loses power: what was not synced is there in part, or not at all, in any order.

    calls of `files`, os.fsync, mkdir, rename  ->  Disk: per file and directory, what happened when
                                                     |
                                     found_at(time, random)  ->  a directory as it would be found

Data is lost by pieces of 64 bytes to 4 kB, each of which holds what it held at some time since the
file was last synced; a name means what it meant at some time since its directory was. The sync of
a file says nothing about its name. SQLite is trusted: its files are those after some transaction,
from the last one that it synced on. `Stepped` is a committer that runs only while it is waited for,
so that a run is the same every time.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import contig.tape.disk.clock as clock
import contig.tape.disk.committer as committer_module
import contig.tape.disk.opening as opening_module
from contig.tape.disk import files
from contig.tape.disk.changes import Changes
from contig.tape.disk.committer import Committer
from contig.tape.disk.index import DiskIndex

PIECES = (64, 512, 4096)


class File:
    """Writes and sizes of a file, with their times."""

    def __init__(self) -> None:
        self.ops: list[tuple[int, int, bytes | None]] = []  # (time, offset, data); None: a size
        self.synced: list[int] = []

    def versions(self, upto: int) -> list[bytes]:
        """What it held when it was last synced, and after each later change."""
        since = max((t for t in self.synced if t <= upto), default=0)
        content = bytearray()
        out = [b""]
        for time, at, data in self.ops:
            if time > upto:
                break
            if data is None:
                content[:] = content[:at] + bytes(max(at - len(content), 0))
            else:
                content[len(content) :] = bytes(max(at + len(data) - len(content), 0))
                content[at : at + len(data)] = data
            if time <= since:
                out = []
            out.append(bytes(content))
        return out

    def found(self, upto: int, choose: Chooser) -> bytes:
        versions = self.versions(upto)
        if choose.instant:
            versions = [choose.any(versions)]
        size = len(choose("data", versions))
        content = bytearray(size)
        for at in range(0, size, choose.piece):
            version = choose("data", versions)[at : min(at + choose.piece, size)]
            content[at : at + len(version)] = version
        return bytes(content)


class Folder:
    """Names given and taken in a directory, with their times."""

    def __init__(self) -> None:
        self.ops: list[tuple[int, str, File | Folder | None]] = []
        self.synced: list[int] = []

    def found(self, upto: int, choose: Chooser) -> dict[str, File | Folder]:
        since = max((t for t in self.synced if t <= upto), default=0)
        meanings: dict[str, list[File | Folder | None]] = {}
        for time, name, node in self.ops:
            if time > upto:
                break
            known = meanings.setdefault(name, [None])
            if time <= since:
                known.clear()
            known.append(node)
        found = {name: choose("names", known) for name, known in meanings.items()}
        return {name: node for name, node in found.items() if node is not None}


class Chooser:
    """What is left of each thing: everything, nothing that was not synced, most, or anything."""

    def __init__(self, chosen: random.Random, kept: dict[str, float] | None = None) -> None:
        self._random = chosen
        self.piece = chosen.choice(PIECES)
        self._kept: dict[str, float | None] = {
            kind: chosen.choice((1.0, 0.0, 0.9, 0.5, None)) for kind in ("data", "names", "index")
        }
        self._kept.update(kept or {})
        self.instant = kept is None and chosen.random() < 0.3  # a file is as it was at one time

    def __call__(self, kind: str, versions: list[Any]) -> Any:
        kept = self._kept[kind]
        if kept is None:
            return self.any(versions)
        return versions[-1] if self._random.random() < kept else versions[0]

    def any(self, versions: list[Any]) -> Any:
        return self._random.choice(versions)


class Transaction(NamedTuple):
    """The index's files after one of its transactions, and what it then says."""

    time: int
    durable: bool
    image: dict[str, bytes]
    note: Any


class Disk:
    """Records what happens below a directory.

    Args:
        root: the directory; what is in it is on the disk.
        note: what to keep with each transaction of an index below it.
    """

    def __init__(self, root: Path, note: Callable[[Changes | None], Any]) -> None:
        self.root = root
        self.time = 0
        self.transactions: list[Transaction] = []
        self._note = note
        self._nodes: dict[int, File | Folder] = {}
        self.replaced = False  # what is noted took the place of everything
        self.interlude: Callable[[], None] | None = None  # something to do during a sync
        self.full = -1  # writes until the disk is full, for one of them
        self.torn = 64  # bytes of it that are not written
        self._take_in(root)
        for index in root.rglob("index.sqlite"):
            self.transacted(index, True, note(None), 0)

    def _take_in(self, path: Path) -> File | Folder:
        """Something that is on the disk."""
        node: File | Folder
        if path.is_dir():
            node = Folder()
            for child in sorted(path.iterdir()):
                if not child.name.startswith(("index.sqlite", "lock")):
                    node.ops.append((0, child.name, self._take_in(child)))
        else:
            known = self._nodes.get(path.stat().st_ino)
            if known is not None and path.stat().st_nlink > 1:
                return known
            node = File()
            node.ops.append((0, 0, path.read_bytes()))
        node.synced.append(0)
        self._nodes[path.stat().st_ino] = node
        return node

    # -- what happens --------------------------------------------------------------------------

    def tick(self) -> int:
        self.time += 1
        return self.time

    def _named(self, path: Path, node: File | Folder | None) -> None:
        parent = self._nodes[os.stat(path.parent).st_ino]
        assert isinstance(parent, Folder)
        parent.ops.append((self.tick(), path.name, node))

    def _file(self, fd: int) -> File:
        node = self._nodes[os.fstat(fd).st_ino]
        assert isinstance(node, File)
        return node

    def _mine(self, path: Path) -> bool:
        return self.root in path.resolve().parents

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Meanwhile, every call is recorded; nothing is really synced."""
        with pytest.MonkeyPatch.context() as patch:
            for name in ("create", "pwrite", "truncate", "unlink", "link", "rename", "remove_dir"):
                patch.setattr(files, name, getattr(self, f"_{name}"))
            patch.setattr(os, "fsync", self._fsync)
            # The same names every time, by which folders are sorted.
            patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=self.tick() << 96))
            patch.setattr(Path, "mkdir", self._around_mkdir(Path.mkdir))
            patch.setattr(Path, "rename", self._around_rename())
            patch.setattr(DiskIndex, "write", self._around_write(DiskIndex.write))
            patch.setattr(DiskIndex, "replace", self._around_replace(DiskIndex.replace))
            patch.setattr(DiskIndex, "__init__", self._around_init(DiskIndex.__init__))
            patch.setattr(opening_module, "Committer", Stepped)
            patch.setattr(clock, "boot_id", lambda: 1)  # another one than afterwards
            patch.setattr(committer_module, "_LOOK_S", 3600.0)
            patch.setattr(DiskIndex, "fold", self._around_fold(DiskIndex.fold))
            yield

    def _create(self, path: Path, nbytes: int) -> int:
        known = self._nodes[path.stat().st_ino] if path.exists() else None
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        os.ftruncate(fd, nbytes)
        node = known or File()
        assert isinstance(node, File)
        if known is None:
            self._nodes[os.fstat(fd).st_ino] = node
            self._named(path, node)
        node.ops += [(self.tick(), 0, None), (self.tick(), nbytes, None)]
        return fd

    def _pwrite(self, fd: int, data: Any, offset: int) -> int:
        part = bytes(data)
        full = False
        if not os.readlink(f"/proc/self/fd/{fd}").endswith("/committed"):  # nobody needs that file
            self.full -= 1
            full = self.full == 0
        if full:
            part = part[: -self.torn]
        if part:
            os.pwrite(fd, part, offset)
            self._file(fd).ops.append((self.tick(), offset, part))
        if full:
            raise OSError(28, os.strerror(28))
        return len(part)

    def _truncate(self, fd: int, nbytes: int) -> None:
        os.ftruncate(fd, nbytes)
        self._file(fd).ops.append((self.tick(), nbytes, None))

    def _forget(self, path: Path) -> None:
        """Before a name goes: another file may get the number of one without names."""
        if path.exists() and path.stat().st_nlink == 1:
            del self._nodes[path.stat().st_ino]

    def _unlink(self, path: Path) -> None:
        if path.exists():
            self._forget(path)
            os.unlink(path)
            self._named(path, None)

    def _remove_dir(self, path: Path) -> None:
        del self._nodes[path.stat().st_ino]
        os.rmdir(path)
        self._named(path, None)

    def _link(self, old: Path, new: Path) -> None:
        os.link(old, new)
        self._named(new, self._nodes[new.stat().st_ino])

    def _rename(self, old: Path, new: Path) -> None:
        node = self._nodes[old.stat().st_ino]
        self._forget(new)
        os.replace(old, new)
        self._named(old, None)
        self._named(new, node)

    def _fsync(self, fd: int) -> None:
        interlude, self.interlude = self.interlude, None
        if interlude is not None:
            interlude()
        number = os.fstat(fd).st_ino
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if (
            number not in self._nodes and self._mine(path) and path.exists()
        ):  # written without `files`
            node = self._nodes[number] = File()
            self._named(path, node)
            node.ops.append((self.tick(), 0, path.read_bytes()))
        if number in self._nodes:
            self._nodes[number].synced.append(self.tick())

    def _around_mkdir(self, call: Any) -> Any:
        def mkdir(path: Path, *args: Any, **kwargs: Any) -> None:
            there = path.exists()
            call(path, *args, **kwargs)
            if not there and self._mine(path):
                self._nodes[path.stat().st_ino] = node = Folder()
                self._named(path, node)

        return mkdir

    def _around_rename(self) -> Any:
        def rename(old: Path, new: Path) -> None:
            self._rename(old, new)

        return rename

    # -- the index -----------------------------------------------------------------------------

    def transacted(self, index: Path, durable: bool, note: Any, time: int | None = None) -> None:
        names = [index.with_name(index.name + suffix) for suffix in ("", "-wal")]
        image = {str(f.relative_to(self.root)): f.read_bytes() for f in names if f.exists()}
        time = self.tick() if time is None else time
        self.transactions.append(Transaction(time, durable, image, note))

    def _around_write(self, call: Any) -> Any:
        def write(index: DiskIndex, changes: Changes) -> None:
            call(index, changes)
            (level,) = index._db.execute("PRAGMA synchronous").fetchone()
            self.transacted(index.path, level == 2, self._note(changes))

        return write

    def _around_replace(self, call: Any) -> Any:
        def replace(index: DiskIndex, changes: Changes, loads: int) -> None:
            call(index, changes, loads)
            self.replaced = True
            self.transacted(index.path, True, self._note(changes))
            self.replaced = False

        return replace

    def _around_init(self, call: Any) -> Any:
        def init(index: DiskIndex, path: Path, writable: bool, *args: Any) -> None:
            call(index, path, writable, *args)
            if writable:
                self.transacted(path, True, self._note(None))

        return init

    def _around_fold(self, call: Any) -> Any:
        def fold(index: DiskIndex) -> None:
            call(index)
            self.transacted(index.path, True, self.transactions[-1].note)

        return fold

    # -- the loss ------------------------------------------------------------------------------

    def found_at(self, time: int, choose: Chooser, path: Path) -> Transaction | None:
        """Builds the directory as it is found after a loss at some time; the transaction that the
        index is at."""
        root = self._nodes[self.root.stat().st_ino]
        self._build(root, path, time, choose)
        past = [t for t in self.transactions if t.time <= time]
        durable = max((i for i, t in enumerate(past) if t.durable), default=0)
        if not past:
            return None
        one: Transaction = choose("index", past[durable:])
        for name, data in one.image.items():
            if (path / name).parent.is_dir():
                (path / name).write_bytes(data)
        return one

    def _build(self, node: File | Folder, path: Path, time: int, choose: Chooser) -> None:
        made: dict[int, Path] = {}

        def build(node: File | Folder, path: Path) -> None:
            if isinstance(node, Folder):
                path.mkdir()
                for name, child in node.found(time, choose).items():
                    build(child, path / name)
            elif id(node) in made:
                os.link(made[id(node)], path)
            else:
                path.write_bytes(node.found(time, choose))
                made[id(node)] = path

        if path.exists():
            shutil.rmtree(path)
        build(node, path)


class Stepped(Committer):
    """Commits only while somebody waits for it, and everything at once."""

    def __init__(self, index: Any, durable: bool, lag: Any, sync: Any, *calls: Any) -> None:
        note, committed = calls
        self._held: list[Changes] = []
        self._idle = threading.Event()
        self._idle.set()

        def after(changes: Changes) -> None:
            try:
                committed(changes)
            finally:
                self._idle.set()

        super().__init__(index, durable, lag, sync, note, after)

    def add(self, changes: Changes, rows: int = 0) -> int:
        with self._turn:
            self._held.append(changes)
            self._number += 1
            return self._number

    def wait(self, ticket: int | None = None, timeout_s: float | None = None) -> None:
        with self._turn:
            upto = self._number if ticket is None else ticket
        while self._done < upto:
            super().wait(self._release(), timeout_s)
            self._idle.wait()

    def _release(self) -> int:
        with self._turn:
            if self._held:
                self._idle.clear()
                self._waiting, self._held = self._held, []
                self._turn.notify_all()
            return self._number

    def close(self, timeout_s: float | None = None) -> bool:
        self.wait()
        return super().close(timeout_s)
