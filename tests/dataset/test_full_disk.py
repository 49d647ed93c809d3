"""Exports onto a disk that is full: an error of ours, no file, and the process goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# A limit of the size of files needs no rights; it cuts in a write's middle, as a full disk does.
EXPORT = """
import gc, json, os, resource, signal, sys, warnings
warnings.simplefilter("ignore")
form, limit, place = sys.argv[1], int(sys.argv[2]), sys.argv[3]
os.environ["MINARI_DATASETS_PATH"] = place
from contig import StorageFull
from contig.dataset import to_arrow, to_hdf5, to_minari, to_parquet
from tests.dataset.tapes import flat

source = flat([2000] * 10)
calls = {
    "hdf5": lambda: to_hdf5(source, place + "/out"),
    "parquet": lambda: to_parquet(source, place + "/out"),
    "arrow": lambda: to_arrow(source, place + "/out"),
    "minari": lambda: to_minari(source, "some/full-v0"),
}
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
try:
    calls[form]()
    said = "done"
except StorageFull as error:
    said = str(error)
gc.collect()
left = [os.path.join(at, name) for at, _, names in os.walk(place) for name in names]
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    calls[form]()  # when there is room again
print(json.dumps([said, left]))
"""
ROOT = Path(__file__).parents[2]


def export(*arguments: object, before: tuple[str, ...] = ()) -> tuple[str, list[str]]:
    command = [*before, sys.executable, "-c", EXPORT, *map(str, arguments)]
    ran = subprocess.run(
        command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert ran.returncode == 0, (ran.returncode, ran.stderr)
    said, left = json.loads(ran.stdout.splitlines()[-1])
    return said, left


@pytest.mark.parametrize("limit", [3_000, 50_000, 200_000])
@pytest.mark.parametrize("form", ["hdf5", "minari", "parquet", "arrow"])
def test_a_file_that_may_not_grow(tmp_path: Path, form: str, limit: int) -> None:
    said, left = export(form, limit, tmp_path)
    assert "Make room" in said and str(tmp_path) in said
    assert left == []


@pytest.mark.parametrize("form", ["hdf5", "minari"])
def test_a_full_file_system(tmp_path: Path, form: str) -> None:
    mount = f'mount -t tmpfs -o size=200k tmpfs {tmp_path} && exec "$@"'
    private = ("unshare", "-m", "sh", "-c", mount, "sh")  # gone with the process
    try:
        subprocess.run([*private, "true"], check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this process may not mount")
    said, left = export(form, 0, tmp_path, before=private)
    # Less than the rows need: nothing else must be taken for success.
    assert "Make room" in said and left == []


def test_the_process_that_writes_is_killed(tmp_path: Path) -> None:
    from contig.dataset import to_hdf5
    from contig.dataset.writing_process import WritingProcess
    from tests.dataset.tapes import flat

    def kill(done: int, total: int) -> None:
        if done == 2:
            made[0]._child.kill()

    made: list[WritingProcess] = []
    real = WritingProcess.__init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            WritingProcess,
            "__init__",
            lambda self, *a, **k: (made.append(self), real(self, *a, **k))[1],
        )
        with pytest.raises(OSError, match="the process that writes it ended"):
            to_hdf5(flat([5, 6, 7, 8]), tmp_path / "out.h5", on_episode=kill)
    assert list(tmp_path.iterdir()) == []
