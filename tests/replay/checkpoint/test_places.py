"""Where a checkpoint may be saved: what is there and is none is never touched."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import contig
from contig import DiskStorage, ReplayBuffer, TrajectoryReplayBuffer
from contig.testing import episode, identity
from tests.replay.checkpoint.buffers import buffer_of, everything, filled, fresh, images
from tests.trajectory.made import check, drawn, made
from tests.trajectory.made import filled as trajectories

Save = Callable[[Any], None]


def tree(path: Path) -> dict[str, Any]:
    """Everything below a path: files with their bytes, links with where they lead, directories."""
    found: dict[str, Any] = {}
    for one in sorted(path.rglob("*")):
        name = one.relative_to(path).as_posix()
        if one.is_symlink():
            found[name] = os.readlink(one)
        else:
            found[name] = one.read_bytes() if one.is_file() else None
    return found


@pytest.fixture(params=["replay", "trajectories", "export"])
def save(request: pytest.FixtureRequest) -> Save:
    if request.param == "replay":
        return buffer_of(filled().storage, "prioritized").save
    buffer = trajectories(3)
    return buffer.save_checkpoint if request.param == "trajectories" else buffer.export_rlinf


def test_foreign_contents(tmp_path: Path, save: Save) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model.pt").write_bytes(b"weeks of training")
    (tmp_path / "file").write_text("a file")
    (tmp_path / "nested" / "empty").mkdir(parents=True)
    (tmp_path / "link").symlink_to("run")
    (tmp_path / "to-file").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "fifo")
    shutil.copytree(tmp_path / "run", tmp_path / "checkpoint.json")
    fifo = (tmp_path / "fifo").stat()
    (tmp_path / "fifo").rename(tmp_path.parent / "fifo")
    before = tree(tmp_path)
    for name, there in (
        ("run", "model.pt"),
        ("file", "a file"),
        ("nested", "empty"),
        ("link", "model.pt"),
        ("to-file", "a file"),
        (".", "is there"),
        ("run/../file", "a file"),
        ("../fifo", "a file"),
    ):
        with pytest.raises(FileExistsError, match=there):
            save(tmp_path / name)
        assert tree(tmp_path) == before
    assert (tmp_path.parent / "fifo").stat().st_ino == fifo.st_ino
    (tmp_path.parent / "fifo").unlink()


def test_a_file_beside_those_of_a_checkpoint(tmp_path: Path, save: Save) -> None:
    for number, extra in enumerate(("model.pt", ".hidden", "notes/a.txt", "extents/model.pt")):
        path = tmp_path / str(number)
        save(path)
        (path / extra).parent.mkdir(exist_ok=True)
        (path / extra).write_text("mine")
        before = tree(tmp_path)
        with pytest.raises(FileExistsError, match=extra.partition("/")[0]):
            save(path)
        assert tree(tmp_path) == before


def test_a_link_among_the_files_of_a_checkpoint(tmp_path: Path, save: Save) -> None:
    save(tmp_path / "a")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "00000000.rec").write_text("mine")
    shutil.rmtree(tmp_path / "a" / "extents", ignore_errors=True)
    (tmp_path / "a" / "extents").symlink_to(tmp_path / "mine")
    before = tree(tmp_path)
    with pytest.raises(FileExistsError, match="extents"):
        save(tmp_path / "a")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("marker", ["checkpoint.json", "metadata.json"])
@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1, "name": "somebody\'s"}'])
def test_somebodys_file_of_that_name(tmp_path: Path, save: Save, marker: str, text: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / marker).write_text(text)
    with pytest.raises(FileExistsError, match=marker):
        save(tmp_path / "a")
    assert tree(tmp_path) == {"a": None, f"a/{marker}": text.encode()}


def test_places_that_are_free(tmp_path: Path, save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    (run / "empty").mkdir(parents=True)
    (run / "model.pt").write_text("mine")
    (run / "real").mkdir()
    (run / "link").symlink_to("real")
    (run / "dangling").symlink_to("somewhere/else")
    monkeypatch.chdir(run)
    for path in ("empty", run / "new", "./a/b/../c", "link", "dangling", "checkpoint"):
        for _ in range(2):  # and in place of an earlier one
            save(path)
    assert (run / "model.pt").read_text() == "mine"
    assert (run / "link").is_symlink() and (run / "dangling").is_symlink()
    assert list((run / "real").iterdir()) and list((run / "somewhere" / "else").iterdir())
    assert not [p for p in tmp_path.rglob("*") if ".tmp" in p.name or ".old" in p.name]


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[ReplayBuffer]:
    with DiskStorage(tmp_path / "store", 200, rows_per_extent=16) as storage:
        yield buffer_of(filled(storage).storage, "random")


def test_its_own_storage(
    tmp_path: Path, on_disk: ReplayBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to("store")
    (tmp_path / "above").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path / "store")
    before = everything(on_disk)
    for path in (
        tmp_path / "store",
        tmp_path,
        tmp_path.parent,
        tmp_path / "link",
        tmp_path / "above" / "store",
        tmp_path / "store" / "extents",
        tmp_path / "store" / "extents" / "deeper",
        tmp_path / "link" / "quarantine",
        tmp_path / "store" / "index.sqlite-wal",
        tmp_path / "store" / "layout.json.tmp",
        tmp_path / "store" / "lock",
        ".",
        "..",
        "extents",
        "../store/extents/00000001.rec",
    ):
        with pytest.raises(FileExistsError):
            on_disk.save(path)
        assert everything(on_disk) == before
    # What a storage does not use may be there.
    on_disk.save(tmp_path / "store" / "checkpoint")
    on_disk.save("checkpoint")
    again = fresh("random", 200)
    again.load(tmp_path / "store" / "checkpoint")
    assert images(again, 3) == images(on_disk, 3)
    on_disk.extend(episode(800, 60))
    on_disk.storage.close()
    with DiskStorage(tmp_path / "store") as reopened:
        last = reopened.read_episode(int(reopened.episodes()["id"][-1]))
        assert identity(last) == [(800, t) for t in range(60)]


def test_storages_of_others(tmp_path: Path, save: Save, on_disk: ReplayBuffer) -> None:
    """A directory of rows is no checkpoint, open or closed, nor one of another kind."""
    rows = TrajectoryReplayBuffer(auto_save=True, auto_save_path=tmp_path / "rows")
    rows.add_trajectories([made(0), made(1)])
    rows.flush()
    before, held = tree(tmp_path / "rows"), everything(on_disk)
    for path in ("store", "rows"):
        with pytest.raises(FileExistsError):
            save(tmp_path / path)
    assert tree(tmp_path / "rows") == before and everything(on_disk) == held
    rows.close()
    before = tree(tmp_path / "rows")
    with pytest.raises(FileExistsError):
        save(tmp_path / "rows")
    assert tree(tmp_path / "rows") == before


def test_kinds_do_not_replace_each_other(tmp_path: Path) -> None:
    replay, rows = buffer_of(filled().storage, "random"), trajectories(2)
    replay.save(tmp_path / "replay")
    rows.save_checkpoint(tmp_path / "rows")
    rows.export_rlinf(tmp_path / "export")
    before = tree(tmp_path)
    for call, name in (
        (replay.save, "rows"),
        (replay.save, "export"),
        (rows.save_checkpoint, "replay"),
        (rows.export_rlinf, "replay"),
    ):
        with pytest.raises(FileExistsError):
            call(tmp_path / name)
    assert tree(tmp_path) == before


def test_the_directory_of_a_demo_buffer(tmp_path: Path) -> None:
    with TrajectoryReplayBuffer(auto_save=True, auto_save_path=tmp_path / "a") as live:
        live.add_trajectories([made(7)])
        demos = TrajectoryReplayBuffer(demo_buffer=live)
        demos.add_trajectories([made(1)])
        with pytest.raises(FileExistsError, match="the storage that is being saved"):
            demos.save_checkpoint(tmp_path / "a")
        assert live.size == 1
        check(live.sample(20), 20)


def test_saves_and_loads_at_once(tmp_path: Path) -> None:
    """Several threads save to one path while others load from it: each load is of one save."""
    path = tmp_path / "a"
    buffers = []
    for number in range(3):
        buffers.append(ReplayBuffer(contig.LazyTensorStorage(4000), batch_size=4, seed=number))
        buffers[-1].extend(episode(number, 3000))
    buffers[0].save(path)
    stop, failed = threading.Event(), list[BaseException]()

    def run(call: Callable[[], None]) -> None:
        try:
            while not stop.is_set():
                call()
        except BaseException as error:
            failed.append(error)

    def load() -> None:
        again = ReplayBuffer(contig.LazyTensorStorage(4000), batch_size=4)
        again.load(path)
        steps = identity(again[:])
        number = steps[0][0]
        assert steps == [(number, t) for t in range(3000)]
        loads.append(number)

    loads: list[int] = []
    calls: list[Callable[[], None]] = [lambda b=b: b.save(path) for b in buffers]  # type: ignore[misc]
    threads = [threading.Thread(target=run, args=(c,)) for c in (*calls, load, load)]
    for thread in threads:
        thread.start()
    for _ in range(600):
        if failed or (len(loads) >= 40 and len(set(loads)) > 1):
            break
        threads[0].join(0.1)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failed, failed
    assert len(set(loads)) > 1
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("killed", ["between its renames", "while it wrote", "after them"])
def test_what_the_first_version_left(tmp_path: Path, killed: str) -> None:
    """Beside each other: the earlier one as .old, the new one as .tmp, nothing at the path."""
    world = filled()
    buffer = buffer_of(world.storage, "random")
    buffer.save(tmp_path / "a")
    images(buffer, 1)
    new = buffer_of(world.storage, "random", seed=8)
    new.save(tmp_path / ".a.0123abcd.tmp")
    if killed == "while it wrote":
        (tmp_path / ".a.0123abcd.tmp" / "checkpoint.json").unlink()
    elif killed == "between its renames":
        (tmp_path / "a").rename(tmp_path / ".a.0123abcd.old")
    else:
        (tmp_path / "a").rename(tmp_path / ".a.0123abcd.old")
        (tmp_path / ".a.0123abcd.tmp").rename(tmp_path / "a")
    loaded = fresh("random")
    loaded.load(tmp_path / "a")
    earlier = buffer_of(world.storage, "random", seed=8 if killed == "after them" else 7)
    assert images(loaded, 2) == images(earlier, 2)
    buffer.save(tmp_path / "a")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    # What only looks like it is left alone.
    (tmp_path / ".a.0123abcd.tmp").mkdir()
    (tmp_path / ".a.0123abcd.tmp" / "thesis.tex").write_text("mine")
    (tmp_path / ".a.notes.tmp").mkdir()
    buffer.save(tmp_path / "a")
    assert (tmp_path / ".a.0123abcd.tmp" / "thesis.tex").read_text() == "mine"
    assert (tmp_path / ".a.notes.tmp").is_dir()


def test_drawn_after_a_refused_save(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_text("mine")
    with trajectories(3, prefetch=2) as buffer, trajectories(3, prefetch=2) as other:
        buffer.sample(7)
        other.sample(7)
        with pytest.raises(FileExistsError):
            buffer.save_checkpoint(tmp_path)
        assert drawn(buffer) == drawn(other)
