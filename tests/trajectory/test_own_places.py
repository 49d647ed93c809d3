"""What users keep in the directory of a buffer stays, whatever it is called."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contig import DiskStorage, ReplayBuffer, TrajectoryReplayBuffer
from contig.trajectory import rows
from tests.replay.checkpoint.test_places import tree
from tests.trajectory.made import check, filled, made

NAMES = ("converted", "converting", "moving", "loading")
Save = Callable[[TrajectoryReplayBuffer, Path], None]
SAVES = {
    "checkpoint": TrajectoryReplayBuffer.save_checkpoint,
    "export": TrajectoryReplayBuffer.export_rlinf,
}


def opened(path: Path, **options: Any) -> TrajectoryReplayBuffer:
    return TrajectoryReplayBuffer(auto_save=True, auto_save_path=path, **options)


def is_whole(path: Path, numbers: set[int]) -> None:
    with opened(path) as buffer:
        assert {entry["trajectory_id"] for entry in buffer.trajectory_index} == numbers
        assert set(check(buffer.sample(200))[:, 0]) == numbers


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("storage_is_first", [True, False])
def test_a_folder_of_the_user_stays(tmp_path: Path, name: str, storage_is_first: bool) -> None:
    store, folder = tmp_path / "store", tmp_path / "store" / name
    if storage_is_first:
        filled(3, auto_save=True, auto_save_path=store).close()
    (folder / "extents").mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    (folder / "layout.json").write_text("mine")
    before = tree(folder)
    if not storage_is_first:
        filled(3, auto_save=True, auto_save_path=store).close()
    filled(2).export_rlinf(tmp_path / "exported")
    is_whole(store, {0, 1, 2})
    assert tree(folder) == before
    with opened(store) as buffer:
        buffer.load_checkpoint(tmp_path / "exported")
    is_whole(store, {0, 1})
    with opened(tmp_path / "other") as buffer:
        buffer.load_checkpoint(store)
    assert tree(folder) == before


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("save", SAVES.values(), ids=SAVES)
def test_a_checkpoint_or_an_export_stays(tmp_path: Path, name: str, save: Save) -> None:
    with filled(3, auto_save=True, auto_save_path=tmp_path) as buffer:
        save(buffer, tmp_path / name)
        buffer.add_trajectories([made(3)])
    before = tree(tmp_path / name)
    for _ in range(2):
        is_whole(tmp_path, {0, 1, 2, 3})
    assert tree(tmp_path / name) == before
    with TrajectoryReplayBuffer() as buffer:
        buffer.load_checkpoint(tmp_path / name)
        assert set(check(buffer.sample(200))[:, 0]) == {0, 1, 2}


@pytest.mark.parametrize("save", SAVES.values(), ids=SAVES)
@pytest.mark.parametrize(
    "name",
    ("extents", "extents/load-1", "lock/a", "quarantine", "index-2.sqlite", ".loading.a.tmp"),
)
def test_nothing_is_saved_where_a_storage_has_its_files(
    tmp_path: Path, name: str, save: Save
) -> None:
    """Whoever's storage that is, also one that nobody has open."""
    filled(3, auto_save=True, auto_save_path=tmp_path / "trajectories").close()
    with DiskStorage(tmp_path / "rows", example={"x": 0.0}) as storage:
        ReplayBuffer(storage).add({"x": 1.0})
    before = tree(tmp_path)
    with filled(1) as buffer:
        for place in ("trajectories", "rows"):
            with pytest.raises(FileExistsError, match="a name of the storage"):
                save(buffer, tmp_path / place / name)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("count", [0, 3])
def test_a_checkpoint_is_not_opened_as_a_storage(tmp_path: Path, count: int) -> None:
    filled(count).save_checkpoint(tmp_path)
    before = tree(tmp_path)
    with pytest.raises(FileExistsError, match="load_checkpoint"):
        opened(tmp_path)
    assert tree(tmp_path) == before


def test_who_opens_the_directory_leaves_a_load_alone_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no storage yet, so nothing else keeps them apart."""
    filled(4).export_rlinf(tmp_path / "exported")
    reached, go_on = threading.Event(), threading.Event()
    real = rows.Contents.of

    def waits(storage: Any) -> Any:
        if tmp_path / "store" in Path(storage.path).parents:
            reached.set()
            assert go_on.wait(60)
        return real(storage)

    monkeypatch.setattr(rows.Contents, "of", staticmethod(waits))
    with opened(tmp_path / "store") as buffer:
        loading = threading.Thread(target=buffer.load_checkpoint, args=(tmp_path / "exported",))
        loading.start()
        assert reached.wait(60)
        opened(tmp_path / "store").close()
        go_on.set()
        loading.join(60)
    is_whole(tmp_path / "store", {0, 1, 2, 3})
    assert not [p for p in (tmp_path / "store").iterdir() if "loading" in p.name]
