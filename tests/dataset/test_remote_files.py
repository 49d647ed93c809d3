"""Files and directories behind urls: whole or refused, whatever fails on the way."""

from __future__ import annotations

import json
import threading
import uuid
from pathlib import Path

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from contig import DiskStorage, LayoutError, LazyTensorStorage, ReplayBuffer
from contig.replay import remote_files
from contig.replay.remote_files import downloaded, is_url, uploading
from tests.dataset.tapes import assert_same, filled, flat


@pytest.fixture(params=["memory", "file"])
def base(request, tmp_path):
    if request.param == "file":
        yield f"file://{tmp_path}/bucket"
        return
    name = f"memory://bucket-{uuid.uuid4().hex[:8]}"
    yield name
    MemoryFileSystem.store = {
        k: v for k, v in MemoryFileSystem.store.items() if not k.startswith(name[len("memory:/") :])
    }


def objects(url):
    fs, path = fsspec.core.url_to_fs(url)
    return sorted(p[len(path.rstrip("/")) + 1 :] for p in fs.find(path))


def make(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def read(folder: Path) -> dict[str, bytes]:
    return {
        p.relative_to(folder).as_posix(): p.read_bytes()
        for p in folder.rglob("*")
        if not p.is_dir()
    }


def put(url, content, **options):
    with uploading(url, "made", **options) as path:
        path.write_bytes(content) if isinstance(content, bytes) else make(path, content)


def got(url, **options):
    with downloaded(url, **options) as path:
        return read(path) if path.is_dir() else path.read_bytes()


TREE = {"a.bin": b"a" * 1000, "below/b.bin": b"", "below/deeper/c.bin": bytes(range(256)) * 50}
OTHER = {"a.bin": b"A" * 1001, "new.bin": b"new"}


def test_what_is_a_url():
    assert is_url("s3://bucket/x") and is_url("memory://x")
    assert not is_url("/a/b") and not is_url(Path("/a")) and not is_url("C:\\x") and not is_url(3)


def test_directories_and_files(base):
    put(f"{base}/tree", TREE)
    assert got(f"{base}/tree") == TREE
    assert "contig.json" in objects(f"{base}/tree")
    put(f"{base}/one.bin", b"one")
    assert got(f"{base}/one.bin") == b"one"
    assert got(f"{base}/tree/") == TREE  # as people write it
    with pytest.raises(ZeroDivisionError), uploading(f"{base}/never", "made") as path:
        path.write_bytes(b"x")
        1 / 0  # noqa: B018
    with pytest.raises(FileNotFoundError, match="never: nothing is there"):
        got(f"{base}/never")


def test_nothing_is_overwritten_unless_asked(base):
    for url, first, second in (
        (f"{base}/tree", TREE, OTHER),
        (f"{base}/one.bin", b"first", b"second"),
    ):
        put(url, first)
        with pytest.raises(FileExistsError, match="is there already .made.*overwrite"):
            put(url, second)
        with pytest.raises(FileExistsError, match="is there already .made.; choose another name"):
            with uploading(url, "checkpoint", overwrite="same") as path:
                path.write_bytes(b"x")
        assert got(url) == first
        put(url, second, overwrite="same")
        assert got(url) == second
        put(url, first, overwrite=True)
        assert got(url) == first
    # Of the generations, only the last is there.
    assert len({name.split("/")[0] for name in objects(f"{base}/tree")} - {"contig.json"}) == 1
    fs, path = fsspec.core.url_to_fs(f"{base}/others")
    fs.makedirs(path, exist_ok=True)
    fs.pipe_file(f"{path}/mine.txt", b"mine")
    with pytest.raises(FileExistsError, match="something else, or a part of it"):
        put(f"{base}/others", TREE)
    assert fs.cat_file(f"{path}/mine.txt") == b"mine"


class Failing:
    """A file system that fails at one of its calls, from then on if it is dead, else once."""

    NAMES = ("put_file", "pipe_file", "rm_file", "rm", "info", "makedirs", "cat_file", "get_file")

    def __init__(self, fs, at, dead):
        self._fs, self._at, self._dead = fs, at, dead
        self._lock = threading.Lock()
        self.calls = 0

    def __getattr__(self, name):
        call = getattr(self._fs, name)
        if name not in self.NAMES:
            return call

        def counted(*args, **options):
            with self._lock:
                self.calls += 1
                now = self.calls
            if now == self._at or (self._dead and now > self._at):
                if name == "put_file":  # half of it
                    self._fs.pipe_file(args[1], Path(args[0]).read_bytes()[: 1 + now % 2])
                raise ConnectionError("the network\nis gone")
            return call(*args, **options)

        return counted


@pytest.fixture
def failing(monkeypatch):
    from contig.replay import remote_place

    plain = remote_place._file_system

    def arm(at, dead):
        made = []

        def wrapped(url):
            fs, path = plain(url)
            made.append(Failing(fs, at, dead))
            return made[-1], path

        monkeypatch.setattr(remote_place, "_file_system", wrapped)
        return made

    yield arm


@pytest.mark.parametrize("dead", [False, True], ids=["once", "for_ever"])
def test_an_upload_fails_at_each_call(base, failing, monkeypatch, dead):
    """Nothing is there then, or all of it; and what was there before is there until then."""
    outcomes = set()
    for earlier in (None, TREE):
        for at in range(1, 60):
            url = f"{base}/{'new' if earlier is None else 'over'}-{at}"
            if earlier is not None:
                put(url, earlier)
            with monkeypatch.context():
                made = failing(at, dead)
                try:
                    put(url, OTHER, overwrite=earlier is not None)
                    raised = False
                except OSError as error:
                    raised = True
                    assert "the network is gone" in str(error) and "\n" not in str(error)
                calls = sum(fs.calls for fs in made)
            failing(0, False)
            try:
                found = got(url)
            except (FileNotFoundError, LayoutError) as error:
                assert earlier is None and raised, error
                found = None
            assert found in (earlier, OTHER)
            assert raised or found == OTHER
            outcomes.add((earlier is None, found == OTHER, raised))
            if calls < at:
                break
        else:
            raise AssertionError("it never came to an end")
    assert {(True, False, True), (False, False, True), (False, True, False)} <= outcomes


def test_a_file_that_is_replaced_halfway_is_refused(base, failing):
    put(f"{base}/x.bin", b"first one")
    for at in range(1, 20):
        made = failing(at, True)
        try:
            put(f"{base}/x.bin", b"another", overwrite=True)
        except OSError:
            pass
        ended = sum(fs.calls for fs in made) < at
        failing(0, False)
        try:
            assert got(f"{base}/x.bin") in (b"first one", b"another")
        except LayoutError as error:
            assert "is damaged, or is being replaced" in str(error)
        put(f"{base}/x.bin", b"first one", overwrite=True)
        if ended:
            return
    raise AssertionError("it never came to an end")


def test_a_download_fails_at_each_call(base, failing):
    put(f"{base}/tree", TREE)
    for at in range(1, 30):
        made = failing(at, False)
        try:
            assert got(f"{base}/tree") == TREE
        except OSError as error:
            assert f"{base}/tree: ConnectionError: the network is gone" == str(error)
        if sum(fs.calls for fs in made) < at:
            return
    raise AssertionError("it never came to an end")


def test_damage_on_the_way_is_found(base):
    put(f"{base}/tree", TREE)
    put(f"{base}/one.bin", b"one")
    fs, path = fsspec.core.url_to_fs(f"{base}/tree")
    name = next(p for p in fs.find(path) if p.endswith("c.bin"))
    whole = fs.cat_file(name)
    for damaged in (whole[:-1] + b"\0", whole[:-1], whole + b"x"):
        fs.pipe_file(name, damaged)
        with pytest.raises(LayoutError, match="below/deeper/c.bin is damaged"):
            got(f"{base}/tree")
    fs.rm_file(name)
    with pytest.raises(FileNotFoundError, match="c.bin, which its manifest names, is missing"):
        got(f"{base}/tree")
    fs.pipe_file(name, whole)
    assert got(f"{base}/tree") == TREE
    fs.pipe_file(f"{path[:-4]}one.bin", b"onf")
    with pytest.raises(LayoutError, match="one.bin is damaged"):
        got(f"{base}/one.bin")


def test_manifests_that_lie(base):
    put(f"{base}/tree", TREE)
    fs, path = fsspec.core.url_to_fs(f"{base}/tree")
    good = json.loads(fs.cat_file(f"{path}/contig.json"))
    for bad, expected in (
        (b"{", "contig.json is damaged"),
        (b"[]", "contig.json is damaged"),
        (json.dumps({**good, "format": 9}).encode(), "format 9, this contig reads 1"),
        (json.dumps({**good, "sums": {"../x": [1, 2]}}).encode(), "make no sense"),
        (json.dumps({**good, "sums": {"/x": [1, 2]}}).encode(), "make no sense"),
        (json.dumps({**good, "sums": {"x": 3}}).encode(), "damaged"),
        (json.dumps({**good, "generation": "../.."}).encode(), "make no sense"),
    ):
        fs.pipe_file(f"{path}/contig.json", bad)
        with pytest.raises(LayoutError, match=expected):
            got(f"{base}/tree")


def test_what_others_uploaded(base):
    fs, path = fsspec.core.url_to_fs(f"{base}/theirs")
    fs.makedirs(f"{path}/below", exist_ok=True)
    fs.pipe_file(f"{path}/a.bin", b"a")
    fs.pipe_file(f"{path}/below/b.bin", b"b")
    with pytest.raises(LayoutError, match="nothing says that it is whole.*interrupted"):
        got(f"{base}/theirs")
    assert got(f"{base}/theirs", unverified=True) == {"a.bin": b"a", "below/b.bin": b"b"}
    assert got(f"{base}/theirs/a.bin", unverified=True) == b"a"


def test_who_reads_while_it_is_replaced_gets_one_of_them(base):
    url, stop, seen = f"{base}/tree", threading.Event(), []
    put(url, TREE)

    def replace():
        for n in range(20):
            put(url, OTHER if n % 2 == 0 else TREE, overwrite=True)
        stop.set()

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        while not stop.is_set():
            try:
                seen.append(got(url))
            except OSError as error:
                assert "others keep replacing it" in str(error)
    finally:
        thread.join()
    seen.append(got(url))
    assert all(found in (TREE, OTHER) for found in seen)


def test_errors_say_what_to_do(monkeypatch):
    with pytest.raises(ValueError, match="fsspec knows no protocol 'nothing'; expected one such"):
        got("nothing://x/y")
    with pytest.raises(ImportError, match="s3://bucket/x: .*s3fs"):
        got("s3://bucket/x")
    with pytest.raises(ValueError, match="memory://: expected a bucket and a name"):
        got("memory://")
    with pytest.raises(FileNotFoundError, match="memory://no/such: nothing is there"):
        got("memory://no/such")

    class NoCredentialsError(Exception):
        pass

    def refused(self, path, *args, **options):
        raise NoCredentialsError("Unable to locate credentials")

    monkeypatch.setattr(MemoryFileSystem, "cat_file", refused)
    with pytest.raises(
        PermissionError, match="not allowed: NoCredentialsError: .*; check the cred"
    ):
        got("memory://secret/x")
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    with pytest.raises(ImportError, match=r"pip install '\.\[remote\]'"):
        got("memory://x/y")


# -- checkpoints ---------------------------------------------------------------------------------


@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
def test_checkpoints(base, tmp_path, disk):
    storage = flat([3, 5, 40], DiskStorage(tmp_path / "tape") if disk else None)
    buffer = ReplayBuffer(storage, batch_size=16, seed=3)
    buffer.save(f"{base}/run/checkpoint")
    expected = np.asarray(buffer.sample()["action"])
    again = ReplayBuffer(LazyTensorStorage(100), batch_size=16)
    again.load(f"{base}/run/checkpoint")
    assert np.asarray(again.sample()["action"]).tobytes() == expected.tobytes()
    assert_same(storage, again.storage)
    # A later one takes its place; something else does not lose it.
    again.extend_trajectory({"observation": np.zeros((1, 3)), "action": np.zeros((1, 1))} | NEXT)
    again.save(f"{base}/run/checkpoint")
    third = ReplayBuffer(LazyTensorStorage(100), batch_size=16)
    third.load(f"{base}/run/checkpoint")
    assert len(third) == 49
    put(f"{base}/run/other", TREE)
    with pytest.raises(FileExistsError, match="choose another name"):
        third.save(f"{base}/run/other")
    with pytest.raises(FileNotFoundError, match="nothing is there"):
        third.load(f"{base}/run/nothing")
    storage.close()


NEXT = {
    "next": {
        "reward": np.zeros(1),
        "observation": np.zeros((1, 3)),
        "terminated": np.array([True]),
        "truncated": np.array([False]),
    }
}


def test_a_checkpoint_that_fails_on_the_way_leaves_the_earlier_one(base, failing):
    url = f"{base}/checkpoint"
    ReplayBuffer(filled([3])).save(url)
    for at in range(1, 80):
        made = failing(at, True)
        try:
            ReplayBuffer(filled([3, 5])).save(url)
        except OSError:
            pass
        ended = sum(fs.calls for fs in made) < at
        failing(0, False)
        back = ReplayBuffer(LazyTensorStorage(100))
        back.load(url)
        assert len(back) in (3, 8)
        if ended:
            assert len(back) == 8
            return
    raise AssertionError("it never came to an end")


def test_temporary_directories_go(base, tmp_path, monkeypatch):
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    put(f"{base}/tree", TREE)
    got(f"{base}/tree")
    with pytest.raises(FileExistsError):
        put(f"{base}/tree", TREE)
    assert not list((tmp_path / "scratch").iterdir())
    assert remote_files._TRANSFERS > 1
