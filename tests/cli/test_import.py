"""`contig import` and `contig export`: there and back, also by urls."""

from __future__ import annotations

import uuid

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from contig import DiskStorage, LazyTensorStorage, ReplayBuffer
from contig.cli.main import main
from contig.dataset import from_checkpoint, to_checkpoint
from tests.dataset.tapes import assert_same, flat

FRAMES = [3, 5, 1, 7]
FORMATS = ["parquet", "arrow", "hdf5", "rlinf", "checkpoint"]


@pytest.fixture
def tape(tmp_path):
    with DiskStorage(tmp_path / "tape") as storage:
        flat(FRAMES, storage)
    return tmp_path / "tape"


@pytest.fixture(params=["path", "memory", "file"])
def place(request, tmp_path):
    if request.param == "path":
        yield str(tmp_path)
    elif request.param == "file":
        yield f"file://{tmp_path}/bucket"
    else:
        name = f"bucket-{uuid.uuid4().hex[:8]}"
        yield f"memory://{name}"
        for key in [k for k in MemoryFileSystem.store if k.startswith(f"/{name}")]:
            del MemoryFileSystem.store[key]


def command(capsys, *args, status=0):
    assert main([*map(str, args)]) == status
    return capsys.readouterr()


@pytest.mark.parametrize("form", FORMATS)
def test_there_and_back(tmp_path, tape, place, capsys, form):
    out, err = command(capsys, "export", tape, f"{place}/out", "--to", form)
    assert out == f"{place}/out: 4 trajectories, 16 rows\n" and err == ""
    known = [] if form in ("rlinf", "checkpoint") else ["--from", form]
    out, _ = command(capsys, "import", f"{place}/out", tmp_path / "back", *known)
    assert out == f"{tmp_path / 'back'}: 4 trajectories\n"
    with (
        DiskStorage(tape, read_only=True) as ours,
        DiskStorage(tmp_path / "back", read_only=True) as theirs,
    ):
        assert_same(ours, theirs)
    out, _ = command(capsys, "import", f"{place}/out", tmp_path / "back", *known)
    assert out == f"{tmp_path / 'back'}: 4 trajectories, behind 4 that were there\n"


def test_suffixes(tmp_path, tape, place, capsys):
    for name in ("a.parquet", "b.arrow", "c.h5"):
        command(capsys, "export", tape, f"{place}/{name}")
        command(capsys, "import", f"{place}/{name}", tmp_path / f"back-{name}")
        with DiskStorage(tmp_path / f"back-{name}", read_only=True) as storage:
            assert len(storage) == 16


def test_a_checkpoint_is_a_source(tmp_path, tape, place, capsys):
    with DiskStorage(tape, read_only=True) as storage:
        ReplayBuffer(storage).save(f"{place}/checkpoint")
        out, _ = command(capsys, "export", f"{place}/checkpoint", f"{place}/out.parquet")
        assert "4 trajectories, 16 rows" in out
        back = LazyTensorStorage(100)
        assert main(["import", f"{place}/out.parquet", str(tmp_path / "back")]) == 0
        with DiskStorage(tmp_path / "back", read_only=True) as theirs:
            assert_same(storage, theirs)
        assert to_checkpoint(storage, tmp_path / "mine") == 4
        assert from_checkpoint(tmp_path / "mine", back) == 4
        assert_same(storage, back)
        assert from_checkpoint(tape, back) == 4  # a storage's directory, too


def test_nothing_is_overwritten_unless_asked(tmp_path, tape, place, capsys):
    out = f"{place}/out.parquet"
    command(capsys, "export", tape, out)
    err = command(capsys, "export", tape, out, status=2).err
    assert err.startswith(f"contig export: {out} is there already") and err.count("\n") == 1
    again = command(capsys, "export", tape, out, "--overwrite", status=0 if "://" in out else 2)
    if "://" in out:
        assert "16 rows" in again.out
    else:
        assert "--overwrite is for urls" in again.err


def test_errors_in_one_line(tmp_path, tape, capsys):
    to = tmp_path / "back"
    for args, expected in (
        (["export", tape, "s3://bucket/x.parquet"], "contig export: s3://bucket/x.parquet: .*s3fs"),
        (["import", "s3://bucket/x.parquet", to], "contig import: s3://bucket/x.parquet: .*s3fs"),
        (["export", tape, "what://x/y.parquet"], "fsspec knows no protocol 'what'"),
        (["import", "memory://no/x.parquet", to], "memory://no/x.parquet: nothing is there"),
        (["import", tmp_path / "no.parquet", to], "no such file or directory"),
        (["import", tape / "extents", to], "say which format with --from parquet|arrow"),
        (["export", tape, "memory://x/y", "--to", "minari"], "minari keeps its datasets"),
        (["import", "memory://x/y", to, "--from", "minari"], "minari keeps its datasets"),
        (["export", tape, to, "--to", "checkpoint", "--drop", "action"], "has all leaves"),
    ):
        import re

        err = command(capsys, *args, status=2).err
        assert re.search(expected.replace("|", "\\|"), err) and err.count("\n") == 1, err
    assert not to.exists()


def test_what_is_half_there_is_refused(tmp_path, tape, capsys):
    name = f"memory://bucket-{uuid.uuid4().hex[:8]}"
    command(capsys, "export", tape, f"{name}/x.parquet")
    fs, path = fsspec.core.url_to_fs(f"{name}/x.parquet")
    fs.rm_file(f"{path}.contig.json")
    err = command(capsys, "import", f"{name}/x.parquet", tmp_path / "back", status=2).err
    assert "nothing says that it is whole: its upload was interrupted" in err
    command(capsys, "import", f"{name}/x.parquet", tmp_path / "back", "--unverified")
    command(capsys, "export", tape, f"{name}/x.parquet", "--overwrite")
    fs.pipe_file(path, fs.cat_file(path)[:-1] + b"x")
    err = command(capsys, "import", f"{name}/x.parquet", tmp_path / "back", status=2).err
    assert "x.parquet is damaged" in err
    fs.rm(path.rsplit("/", 1)[0], recursive=True)
