"""`contig inspect`: what it lists, what it finds, what it sets aside."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import DiskStorage, LazyTensorStorage, Ragged, ReplayBuffer
from contig.cli.main import main
from contig.testing import episode, identity

EPISODES, STEPS = 30, 40


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Episode n has 40 + n steps, of policy n // 10; the files hold about a dozen episodes each."""
    path = tmp_path / "store"
    storage = DiskStorage(path, rows_per_extent=1)
    buffer = ReplayBuffer(storage, batch_size=8)
    for n in range(EPISODES):
        end = "terminated" if n % 2 == 0 else "truncated"
        buffer.extend_trajectory(episode(n, STEPS + n, end=end, version=n // 10))
    storage.close()
    return path


def inspect(capsys: Any, *args: Any, status: int = 0) -> tuple[list[str], str]:
    assert main(["inspect", *map(str, args)]) == status
    out, err = capsys.readouterr()
    return out.splitlines(), err


def listed(capsys: Any, *args: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in inspect(capsys, *args, "--json")[0]]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)


def test_lists_the_newest(store: Path, capsys: Any) -> None:
    lines, _ = inspect(capsys, store, "--limit", 3)
    assert f"{EPISODES} episodes" in lines[0]
    assert lines[-1] == "the newest 3 of 30; --limit 0 shows all"
    cells = [line.split() for line in lines[-4:-1]]
    assert [c[0] for c in cells] == ["27", "28", "29"]
    assert [c[2] for c in cells] == ["67", "68", "69"]
    assert [c[4] for c in cells] == ["truncated", "terminated", "truncated"]


def test_bytes_per_step(tmp_path: Path, store: Path, capsys: Any) -> None:
    lines, _ = inspect(capsys, store)
    with DiskStorage(store, read_only=True) as storage:
        assert storage.layout is not None
        plain, step = storage.layout.record_size, storage.nbytes / len(storage)
    said = f"{step:,.0f} bytes a step in files, {step / plain:.2f} of the plain form's {plain:,}"
    assert lines[1].strip() == said
    frames = np.zeros((200, 84, 84), np.uint8)
    frames[:, :40] = 7
    with DiskStorage(tmp_path / "coded", codecs={"x": "lz4"}) as storage:
        ReplayBuffer(storage).extend({"x": frames, "next": {"done": np.arange(200) == 199}})
    (line,) = [x for x in inspect(capsys, tmp_path / "coded")[0] if "bytes a step" in x]
    assert float(line.split(" of the plain")[0].split()[-1]) < 0.1
    assert int(line.rsplit("form's ", 1)[1].replace(",", "")) >= 84 * 84


def test_filters(store: Path, capsys: Any) -> None:
    everything = listed(capsys, store, "--limit", 0)
    assert [e["id"] for e in everything] == list(range(EPISODES))
    middle = everything[EPISODES // 2]
    for options, fits in (
        (("--min-length", 50), lambda e: e["steps"] >= 50),
        (("--max-length", 50), lambda e: e["steps"] <= 50),
        (("--min-return", middle["return"]), lambda e: e["return"] >= middle["return"]),
        (("--max-return", middle["return"]), lambda e: e["return"] <= middle["return"]),
        (("--version", 1), lambda e: e["policy_version"] == 1),
        (("--writer", middle["writer"]), lambda e: e["writer"] == middle["writer"]),
        (("--since", "1h"), lambda e: True),
        (("--until", "1h"), lambda e: False),
        (("--since", "2100-01-01"), lambda e: False),
        (("--min-length", 50, "--version", 1), lambda e: e["steps"] >= 50 and e["id"] // 10 == 1),
    ):
        expected = [e for e in everything if fits(e)]
        assert listed(capsys, store, "--limit", 0, *options) == expected, options
    assert len(listed(capsys, store, "--limit", 4)) == 4
    assert main(["inspect", str(store), "--since", "yesterday"]) == 2


def test_fields_and_leaves_of_any_size(tmp_path: Path, capsys: Any) -> None:
    fields = {"task": np.int32(0), "judge": {"votes": np.zeros(2, np.int16)}}
    row = {"text": "é", "next": {"done": True, "reward": np.float32(1)}}
    with DiskStorage(tmp_path / "store", 16, fields=fields) as storage:
        for n in range(3):
            given = {"task": n, "judge": {"votes": np.array([n, 7], np.int16)}}
            storage.default_writer.add({**row, "text": "é" * n}, fields=given)
    lines, _ = inspect(capsys, tmp_path / "store", "--verify")
    assert "and 6 in leaves of any size" in lines[0]
    assert any(line.startswith("  text: ") for line in lines)
    assert "  judge.votes: int16[2], of each episode" in lines
    assert lines[-1].split()[-3:] == ["[2,", "7]", "2"] and "task" in lines[-4]
    told = listed(capsys, tmp_path / "store")
    assert [e["task"] for e in told] == [0, 1, 2] and told[2]["judge.votes"] == [2, 7]


def test_json_without_returns(tmp_path: Path, capsys: Any) -> None:
    """Whatever reads JSON can read it."""
    fields = {"score": np.zeros(2, np.float32)}
    with DiskStorage(tmp_path / "store", 16, fields=fields) as storage:
        given = {"score": [np.inf, 0.5]}
        storage.default_writer.add({"x": 1, "next": {"done": True}}, fields=given)
    (line,), _ = inspect(capsys, tmp_path / "store", "--json")
    told = json.loads(line, parse_constant=pytest.fail)
    assert told["return"] is None and told["score"] == [None, 0.5] and told["steps"] == 1


def test_what_a_leaf_is(tmp_path: Path, capsys: Any) -> None:
    pixels = np.zeros((4, 4), np.uint8)
    example = {"pixels": pixels, "tokens": Ragged(np.int32, (2,)), "note": "", "raw": b"", "at": 0}
    DiskStorage(tmp_path / "store", 16, example=example, codecs={"pixels": "png"}).close()
    lines, _ = inspect(capsys, tmp_path / "store")
    expected = {
        "pixels: uint8[4, 4] (png)",
        "tokens: int32[*, 2]",
        "note: text of any length",
        "raw: bytes of any length",
        "at: int64[]",
    }
    assert expected <= {line.strip() for line in lines}


@pytest.mark.parametrize("options", [(), ("--verify",)])
def test_rows_are_missing(options: Any, store: Path, capsys: Any) -> None:
    shutil.rmtree(store / "extents")
    _, err = inspect(capsys, store, *options, status=2)
    assert err.startswith(f"contig inspect: {store / 'extents'} is missing")
    assert f"contig inspect --repair {store}" in err
    lines, err = inspect(capsys, store, "--repair")  # as it says
    assert lines[0] == "episode 0 is set aside: 00000000.rec is missing"
    assert f"{EPISODES} episodes were set aside by a repair" in err


def test_verifies_and_repairs(store: Path, capsys: Any) -> None:
    _, err = inspect(capsys, store, "--verify")
    assert "rows checked: whole" in err
    flip(store / "extents" / "00000000.rec", 100)
    _, err = inspect(capsys, store, "--verify", status=1)
    assert "episode 0 is set aside" in err and "damaged" in err
    inspect(capsys, store)  # looking at it changed nothing
    lines, err = inspect(capsys, store, "--repair")
    assert lines[0].startswith("episode 0 is set aside")
    assert "1 episodes were set aside by a repair" in err
    _, err = inspect(capsys, store, "--verify")  # that was all
    assert "rows checked: whole" in err
    assert inspect(capsys, store, "--repair")[0][0] == "nothing is damaged"
    flip(store / "extents" / "00000002.rec", 100)  # more of it
    _, err = inspect(capsys, store, "--verify", status=1)
    assert "1 episodes were set aside by a repair" in err
    flip(store / "extents" / "00000002.rec", 100)
    storage = DiskStorage(store)
    assert list(storage.quarantined) == [0]
    buffer = ReplayBuffer(storage, batch_size=256, seed=0)
    assert {n for _ in range(20) for n, _ in identity(buffer.sample())} == set(range(1, EPISODES))
    storage.close()


@pytest.mark.parametrize("where", ["start", "middle"])
def test_an_index_that_cannot_be_read(where: str, store: Path, capsys: Any) -> None:
    """What can be read of it is kept; the rest is set aside, not overwritten."""
    index = store / "index.sqlite"
    data = bytearray(index.read_bytes())
    at = 0 if where == "start" else 3 * 4096  # the bounds; without the salts no row is right
    data[at : at + 3000] = b"\xa7" * 3000
    index.write_bytes(data)
    _, err = inspect(capsys, store, status=2)
    assert "contig inspect --repair" in err
    with pytest.raises(ValueError, match="repair"):
        DiskStorage(store)
    before = {f.name: f.read_bytes() for f in (store / "extents").iterdir()}
    out, _ = inspect(capsys, store, "--repair")
    assert "the index could not be read" in out[0]
    (aside,) = (store / "quarantine").glob("index-*")
    assert (aside / "index.sqlite").read_bytes() == bytes(data)
    inspect(capsys, store, "--verify")
    files = (f for f in store.rglob("*") if f.suffix in (".rec", ".bin"))
    after = {f.name: f.read_bytes() for f in files}
    assert after == before, "rows are there, in use or aside"
    storage = DiskStorage(store)
    buffer = ReplayBuffer(storage, batch_size=64, seed=0)
    if where == "start":
        assert len(storage) == 0
    else:
        assert 0 < len(storage.episodes()) <= EPISODES
        for _ in range(20):
            identity(buffer.sample())
    first = len(storage)
    buffer.extend_trajectory(episode(99, 700), terminated=True)
    storage.flush()
    assert len(storage) == first + 700
    storage.close()
    reopened = DiskStorage(store)
    newest = reopened.read_episode(int(reopened.episodes()["id"][-1]))
    assert identity(newest) == [(99, t) for t in range(700)]
    reopened.close()


def test_plots(store: Path, capsys: Any, tmp_path: Path) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    inspect(capsys, store, "--plot", tmp_path / "a.png")
    image = pyplot.imread(tmp_path / "a.png")
    assert image.shape[0] > 400 and image.shape[1] > 600
    assert len(np.unique(image.reshape(-1, image.shape[2]), axis=0)) > 20, "an empty picture"


def test_what_is_no_storage(tmp_path: Path, capsys: Any) -> None:
    _, err = inspect(capsys, tmp_path, status=2)
    assert "no storage" in err
    _, err = inspect(capsys, tmp_path / "nowhere", status=2)
    assert "nowhere" in err


def test_a_storage_in_use(store: Path, capsys: Any) -> None:
    """Looking is possible; repairing is not."""
    storage = DiskStorage(store)
    assert len(listed(capsys, store, "--limit", 0)) == EPISODES
    _, err = inspect(capsys, store, "--repair", status=2)
    assert "process" in err
    storage.close()


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_checkpoints(tmp_path: Path, kind: str, capsys: Any) -> None:
    """Rows are as they are stored, in memory or on disk."""
    n, seen = 40, np.random.default_rng(0).normal(size=(41, 60))
    flags = {"reward": np.zeros(n, np.float32), "done": np.arange(n) % 10 == 9}
    rows = {"state": seen[:-1], "next": {"state": seen[1:], **flags}}
    storage: Any = LazyTensorStorage(100)
    if kind == "disk":
        storage = DiskStorage(tmp_path / "store", 100)
    with storage:
        buffer = ReplayBuffer(storage)
        buffer.extend(rows)
        buffer.save(tmp_path / "saved")
        plain = storage.layout.record_size
        form = storage.schema.shared_form  # of ten steps each, eleven observations
        once = form.row_bytes + form.slot_bytes * 44 / 40
        step = storage.nbytes / n if kind == "disk" else once
    lines, said = inspect(capsys, tmp_path / "saved", "--verify")
    assert lines[0] == f"{tmp_path / 'saved'}: a checkpoint, 40 rows, 4 episodes"
    told = f"{step:,.0f} bytes a step in files, {step / plain:.2f} of the plain form's {plain:,}"
    assert lines[1].strip() == told
    assert lines[2] == "  stored once: state, and the same below next"
    assert "  state: float64[60]" in lines
    assert said == "40 rows checked: whole\n"
    name = "records.bin" if kind == "memory" else "extents/00000000.rec"
    flip(tmp_path / "saved" / name, 9)
    assert "damaged" in inspect(capsys, tmp_path / "saved", "--verify", status=1)[1]
    for option in (("--json",), ("--min-length", 3), ("--version", 0), ("--repair",)):
        err = inspect(capsys, tmp_path / "saved", *option, status=2)[1]
        assert f"is a checkpoint, {option[0]} is for storages" in err
