"""Names in exported files, which anybody may have written: no paths, no formulas."""

from __future__ import annotations

import csv
import io
import zipfile
from pathlib import PurePosixPath, PureWindowsPath

import numpy as np

from contig import LazyTensorStorage
from contig.dashboard import StorageSource
from tests.dashboard.pages import ask, served

STEPS = 3
LEAVES = ["../../etc/passwd", "/absolute", "..\\up", "a/b", "a.b", "c:\\x", "\n", "..", "x" * 300]
FIELDS = {
    '=HYPERLINK("x")': np.int64(0),
    "+1": np.int64(0),
    "@sum": np.int64(0),
    "plain": np.int64(0),
}


def exported(form):
    row = {name: np.float32(number) for number, name in enumerate(LEAVES)}
    storage = LazyTensorStorage(8, example={**row, "done": False}, fields=FIELDS)
    columns = {name: np.full(STEPS, value) for name, value in row.items()}
    columns["done"] = np.arange(STEPS) == STEPS - 1
    storage.writer().extend_trajectory(columns, fields=FIELDS)
    with served(StorageSource("buffer", "buffer", {"default": storage})) as url:
        answer = ask(url, f"/api/tables/default/export?as={form}")
    assert answer.status == 200
    return answer.body


def test_entries_of_an_archive_stay_in_its_folder():
    with zipfile.ZipFile(io.BytesIO(exported("npz"))) as archive:
        names = archive.namelist()
        arrays = [np.load(io.BytesIO(archive.read(name))) for name in names]
    assert len(names) == len(set(names))
    values = {float(array[0]) for array in arrays if array.dtype == np.float32}
    assert values == set(map(float, range(len(LEAVES))))
    for name in names:
        for path in (PurePosixPath(name), PureWindowsPath(name)):
            assert not path.is_absolute() and not path.drive and len(path.parts) == 1
            assert ".." not in path.parts and name.isprintable() and len(name) < 255


def test_cells_of_a_table_are_no_formulas():
    heads, *lines = csv.reader(io.StringIO(exported("csv").decode()))
    assert {'\'=HYPERLINK("x")', "'+1", "'@sum", "plain"} <= set(heads)
    for cell in [*heads, *(cell for line in lines for cell in line)]:
        assert cell[:1] not in ("=", "+", "@")
        assert cell[:1] != "-" or float(cell) < 0  # a number
