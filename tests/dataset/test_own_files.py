"""Files that are written keep out of storages, and leave nothing where they cannot go."""

from __future__ import annotations

import numpy as np
import pytest

from contig import DiskStorage
from contig.dataset import to_arrow, to_hdf5, to_parquet

WRITERS = [to_parquet, to_arrow, to_hdf5]


@pytest.fixture
def storage(tmp_path):
    with DiskStorage(tmp_path / "runs") as made:
        rows = {
            "observation": np.arange(6.0).reshape(3, 2),
            "action": np.zeros((3, 1)),
            "next": {"reward": np.ones(3)},
        }
        made.writer().extend_trajectory(rows, terminated=True)
        made.flush()
        yield made


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize(
    "name", ["layout.json", "index.sqlite", "lock", "extents/00000000.rec", "quarantine/x.parquet"]
)
def test_a_storage_s_own_files_are_not_overwritten(storage, tmp_path, write, name):
    before = {p: p.stat().st_size for p in (tmp_path / "runs").rglob("*")}
    with pytest.raises(FileExistsError, match="that is a name of the storage in"):
        write(storage, tmp_path / "runs" / name)
    assert {p: p.stat().st_size for p in (tmp_path / "runs").rglob("*")} == before


@pytest.mark.parametrize("write", WRITERS)
def test_nothing_is_left_where_a_directory_is_in_the_way(storage, tmp_path, write):
    place = tmp_path / "there"
    place.mkdir()
    with pytest.raises(OSError):
        write(storage, place)
    assert not list(tmp_path.glob("*.tmp")) and not list(place.iterdir())
