"""`contig inspect`: what it lists, what it finds, what it sets aside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import DiskStorage, ReplayBuffer
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
    with pytest.raises(SystemExit):
        main(["inspect", str(store), "--since", "yesterday"])


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
    at = 0 if where == "start" else len(data) // 2
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
    after = {f.name: f.read_bytes() for f in store.rglob("*.rec")}
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
