"""`contig export`: every format from the command line, its progress, and what it refuses."""

from __future__ import annotations

import json
import os
import pty
import shlex
import subprocess
import sys

import minari
import numpy as np
import pytest

from contig import DiskStorage, LazyTensorStorage, ReplayBuffer, RolloutDataset
from contig.cli.export import FORMATS
from contig.cli.main import main
from contig.dataset import (
    from_checkpoint,
    from_hdf5,
    from_lerobot,
    from_minari,
    from_parquet,
    from_rlinf,
    lerobot_tasks,
)
from tests.dataset.tapes import assert_same, fill, flat, lengths

FRAMES = [3, 5, 1, 7]
READERS = {
    "parquet": from_parquet,
    "arrow": from_parquet,
    "hdf5": from_hdf5,
    "rlinf": from_rlinf,
    "lerobot": from_lerobot,
    "checkpoint": from_checkpoint,
}


@pytest.fixture
def tape(tmp_path):
    with DiskStorage(tmp_path / "tape") as storage:
        flat(FRAMES, storage)
    return tmp_path / "tape"


def export(capsys, *args, status=0):
    assert main(["export", *map(str, args)]) == status
    return capsys.readouterr()


@pytest.mark.parametrize("form", [f for f in FORMATS if f != "minari"])
def test_formats(tmp_path, tape, capsys, form):
    out, err = export(capsys, tape, tmp_path / "out", "--to", form)
    assert out == f"{tmp_path / 'out'}: 4 trajectories, 16 rows\n" and err == ""
    with DiskStorage(tape, read_only=True) as source:
        if form == "rollouts":
            read = [b.reward.item() for b in RolloutDataset(tmp_path / "out", device="cpu")]
            assert read == [1000.0 * n + f for n, count in enumerate(FRAMES) for f in range(count)]
            return
        back = LazyTensorStorage(100)
        assert READERS[form](tmp_path / "out", back) == 4
        assert lengths(back) == lengths(source)
        assert_same(source, back)


@pytest.mark.filterwarnings("ignore::UserWarning")  # Minari wants to know more
def test_minari(tmp_path, tape, capsys, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    export(capsys, tape, "--to", "minari", "contig/exported-v0")
    assert minari.load_dataset("contig/exported-v0").total_steps == 16
    err = export(capsys, tape, "--to", "minari", "contig/exported-v0", status=2).err
    assert "contig/exported-v0" in err and "exist" in err
    back = LazyTensorStorage(100)
    from_minari("contig/exported-v0", back)
    with DiskStorage(tape, read_only=True) as source:
        assert_same(source, back)


def test_lerobot(tmp_path, tape, capsys):
    options = ("--fps", "12.5", "--task", "push it", "--robot-type", "arm", "--video", "none")
    export(capsys, tape, "--to", "lerobot", tmp_path / "set", *options)
    info = json.loads((tmp_path / "set/meta/info.json").read_text())
    assert (info["fps"], info["robot_type"]) == (12.5, "arm")
    assert lerobot_tasks(tmp_path / "set") == {0: "push it"}
    back = LazyTensorStorage(100)
    from_lerobot(tmp_path / "set", back)
    assert ReplayBuffer(back)[:]["timestamp"][:3].tolist() == np.float32([0, 0.08, 0.16]).tolist()
    err = export(capsys, tape, tmp_path / "x.arrow", "--task", "push it", status=2).err
    assert "--task: only --to lerobot has it" in err
    err = export(capsys, tape, "--to", "lerobot", tmp_path / "y", "--fps", "0", status=2).err
    assert "fps: expected" in err and not (tmp_path / "y").exists()


def test_the_suffix_says_the_format(tmp_path, tape, capsys):
    for name in ("a.parquet", "b.arrow", "c.h5", "d.hdf5"):
        export(capsys, tape, tmp_path / name)
    assert (tmp_path / "a.parquet").read_bytes()[:4] == b"PAR1"
    assert (tmp_path / "b.arrow").read_bytes()[:6] == b"ARROW1"
    assert (tmp_path / "c.h5").read_bytes()[1:4] == b"HDF"
    err = export(capsys, tape, tmp_path / "e.txt", status=2).err
    assert (
        "say which format with --to parquet|arrow|hdf5|minari|rlinf|lerobot|rollouts|checkpoint"
        in err
    )


def test_refusals(tmp_path, tape, capsys):
    assert "no" in export(capsys, tmp_path / "nowhere", tmp_path / "x.arrow", status=2).err
    (tmp_path / "there.parquet").write_text("mine")
    assert "is there already" in export(capsys, tape, tmp_path / "there.parquet", status=2).err
    assert (tmp_path / "there.parquet").read_text() == "mine"
    with DiskStorage(tmp_path / "nested") as storage:
        fill(storage)
    err = export(capsys, tmp_path / "nested", "--to", "rollouts", tmp_path / "x", status=2).err
    assert "contig export: observation: nested" in err
    assert not (tmp_path / "x").exists()
    err = export(capsys, tape, tmp_path / "x.h5", "--drop", "next.valeu", status=2).err
    assert "contig export: --drop next.valeu: there is no such leaf; the data has " in err


@pytest.mark.parametrize("form", ["rollouts", "rlinf"])
def test_advice_is_an_option_of_the_command(tmp_path, capsys, form):
    """What functions call `drop=[...]` is `--drop NAME` here, as it is typed; and it helps."""
    with DiskStorage(tmp_path / "tape", fields={"task": 0}) as storage:
        values = {"observation": np.zeros(3, np.float32), "action": np.zeros(1, np.float32)}
        after = {**values, "reward": np.float32(1), "done": True}
        storage.writer().add({**values, "my note": "é", "next": after}, fields={"task": 1})
    command = ["export", str(tmp_path / "tape"), "--to", form, str(tmp_path / "x")]
    while main(command) != 0:
        err = capsys.readouterr().err
        assert "drop=" not in err
        command += shlex.split(err[err.index("--drop") :].partition(",")[0])
    assert "my note" in command and "fields" in command


def test_leaves_left_out_and_episodes_left_out(tmp_path, capsys):
    with DiskStorage(tmp_path / "tape") as storage:
        fill(storage, value=lambda i: i)
        row = {"state": np.zeros(3, np.float32), "t": np.int64(0)}
        after = {"reward": np.float32(0), "observation": row}
        step = {"observation": row, "action": np.zeros(1), "value": np.int64(0), "next": after}
        storage.writer().add(step)
    out, err = export(capsys, tmp_path / "tape", tmp_path / "x.arrow", "--drop", "value")
    assert "2 trajectories, 8 rows" in out
    assert err == "left out: 1 trajectories that are open, trimmed or damaged\n"
    back = LazyTensorStorage(100)
    from_parquet(tmp_path / "x.arrow", back)
    assert ("value",) not in back.layout.by_path


def test_it_says_what_it_wrote(tmp_path, capsys):
    """Damage that is only found when a trajectory is read: it is not in the file, nor counted."""
    with DiskStorage(tmp_path / "tape", rows_per_extent=1) as storage:  # rounded up
        flat([8] * 200, storage)
        entries = storage.episodes()
    ids = [int(entries["id"][n]) for n in (2, 7)]
    files = sorted((tmp_path / "tape" / "extents").iterdir())  # the first of a kind is sealed
    first = next(x for x in files if np.float32(2001).tobytes() * 3 in x.read_bytes())
    content = first.read_bytes()
    for number in (2, 7):
        value = np.float32(1000 * number + 1).tobytes() * 3
        at = content.index(value)
        content = content[:at] + b"\xff" + content[at + 1 :]
    first.write_bytes(content)
    out, err = export(capsys, tmp_path / "tape", tmp_path / "out.h5", status=1)
    assert out == f"{tmp_path / 'out.h5'}: 198 trajectories, 1,584 rows\n"
    assert f"could not be read: 2 trajectories, damaged or evicted meanwhile: {ids[0]}, " in err
    back = LazyTensorStorage(2000)
    assert from_hdf5(tmp_path / "out.h5", back) == 198
    seen = set((np.asarray(ReplayBuffer(back)[:]["action"]).ravel() // 1000).tolist())
    assert seen == set(range(200)) - {2, 7}


def test_a_bar_on_a_terminal(tmp_path, tape):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "contig.cli.main", "export", str(tape), "--to", "parquet"]
    done = subprocess.run(
        [*command, str(tmp_path / "x")],
        stderr=theirs,
        stdout=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert done.returncode == 0, shown
    assert "4 of 4 trajectories" in shown
