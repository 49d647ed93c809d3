"""What holds for rows of one size, with all of theirs, holds for rows with leaves of any size, and
for those whose observations are stored once: the same tests again.

Names say which; see there. They are thinned: the soak has all of them.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import contig.tape.disk.following as following
import tests.tape.disk.test_crash as crash
import tests.tape.disk.test_faults as faulty
import tests.tape.disk.test_follow as follow
import tests.tape.disk.test_killed_tail as killed
import tests.tape.disk.test_loads as loads
import tests.tape.disk.test_names as names
import tests.tape.disk.test_powerloss as powerloss
import tests.tape.disk.test_retention as retention
from tests.tape.disk import stored
from tests.tape.disk.test_crash import victims  # noqa: F401  a fixture
from tests.tape.disk.test_faults import Faults, faults  # noqa: F401  a fixture
from tests.tape.disk.test_names import store  # noqa: F401  a fixture
from tests.tape.disk.victim import Victims

RING = 1 << 15  # bytes: there are many small files


@pytest.fixture(autouse=True, params=(stored.any_size, stored.shared), ids=("any_size", "shared"))
def _rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(following, "_POLL_S", 0.0)
    with request.param():
        yield


@pytest.mark.parametrize(("name", "after"), faulty.FAILING)
def test_rows_cannot_be_written(tmp_path: Path, faults: Faults, name: str, after: int) -> None:  # noqa: F811
    faulty.test_rows_cannot_be_written(tmp_path, faults, name, errno.ENOSPC, after, 24)


@pytest.mark.parametrize("name", ("fsync", "fsync_dir"))
def test_sync_fails(tmp_path: Path, faults: Faults, name: str) -> None:  # noqa: F811
    faulty.test_sync_fails(tmp_path, faults, name)


def test_retention_fails(tmp_path: Path, faults: Faults) -> None:  # noqa: F811
    faulty.test_retention_fails(tmp_path, faults)


def test_no_room_for_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faulty.test_no_room_for_a_checkpoint(tmp_path, monkeypatch)


def test_follows(tmp_path: Path) -> None:
    follow.test_follows(tmp_path, 24, 3)


def test_reader_of_another_capacity(tmp_path: Path) -> None:
    follow.test_reader_of_another_capacity(tmp_path, 16)


@pytest.mark.parametrize("read_only", (False, True))
def test_places_get_other_rows(
    tmp_path: Path, read_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow.test_places_get_other_rows(tmp_path, 24, read_only, monkeypatch)


@pytest.mark.parametrize(
    "call",
    (
        follow.test_checkpoint_loaded_under_a_reader,
        follow.test_follows_a_repair,
        killed.test_a_load_that_was_not_committed,
        killed.test_a_row_cut_short,
        killed.test_kills_leave_nothing,
        retention.test_checkpoint_into_a_storage_in_use,
        retention.test_empty_storage_is_saved,
        retention.test_quarantine_ends_with_what_was_there,
    ),
)
def test_again(tmp_path: Path, call: Callable[[Path], None]) -> None:
    call(tmp_path)


@pytest.mark.parametrize("rows_per_extent", (stored.EXTENT, 4 * stored.EXTENT))
def test_damaged_checkpoint_changes_nothing(tmp_path: Path, rows_per_extent: int) -> None:
    retention.test_damaged_checkpoint_changes_nothing(tmp_path, rows_per_extent)


def test_extents_swapped(store: Path) -> None:  # noqa: F811
    names.test_extents_swapped(store)


def test_an_extent_of_another_store(store: Path, tmp_path: Path) -> None:  # noqa: F811
    names.test_an_extent_of_another_store(store, tmp_path)


def test_an_older_index(store: Path, caplog: Any, capsys: Any) -> None:  # noqa: F811
    names.test_an_older_index(store, caplog, capsys)


def test_an_older_index_and_a_load(store: Path, tmp_path: Path) -> None:  # noqa: F811
    names.test_an_older_index_and_a_load(store, tmp_path)


@pytest.fixture
def places(fast_path: Path) -> dict[str, Path]:
    (fast_path / "places").mkdir()
    return loads.make_places(fast_path / "places")


LOADS = (("store", "packed"), ("again", "linked"))


@pytest.mark.parametrize(("to", "checkpoint"), LOADS)
def test_a_load_is_killed(
    places: dict[str, Path], fast_path: Path, to: str, checkpoint: str
) -> None:
    loads.test_killed(places, fast_path, to, checkpoint, 19)


def test_a_load_fails(places: dict[str, Path], fast_path: Path) -> None:
    error = OSError(errno.ENOSPC, "No space left on device")
    loads.test_a_call_fails(places, fast_path, *LOADS[1], error, 47)


@pytest.mark.soak
@pytest.mark.parametrize(("to", "checkpoint"), loads.CASES)
def test_loads_soak(places: dict[str, Path], fast_path: Path, to: str, checkpoint: str) -> None:
    loads.test_killed(places, fast_path, to, checkpoint, 1)
    for error in (OSError(errno.ENOSPC, "No space left on device"), loads._Stop()):
        loads.test_a_call_fails(places, fast_path, to, checkpoint, error, 1)


@pytest.fixture
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    if not stored.has_any_size():
        return  # it is their bytes that go round
    for known in (crash.STORES, powerloss.BOUNDS):
        for kind, options in list(known.items()):
            monkeypatch.setitem(known, kind, {**options, "blob_bytes": RING})


CRASHED = ("rows", "everything")


@pytest.mark.usefixtures("_small_files")
@pytest.mark.parametrize("kind", CRASHED)
def test_killed_at_every_event(victims: Victims, tmp_path: Path, kind: str) -> None:  # noqa: F811
    crash.crash(victims, tmp_path / "store", kind, kills=30, seed=5)


@pytest.mark.soak
@pytest.mark.usefixtures("_small_files")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", CRASHED)
def test_kills_soak(victims: Victims, tmp_path: Path, kind: str, seed: int) -> None:  # noqa: F811
    crash.crash(victims, tmp_path / "store", kind, kills=400, seed=200 + seed)


MIX = {"append": 45, "flush": 25, "fold": 6, "empty": 2, "save": 8, "load": 8, "full": 6}


def lose_power(path: Path, durability: str, bounds: str, seed: int) -> None:
    chosen = random.Random(seed)
    ops, weights = zip(*MIX.items())
    scripts = [chosen.choices(ops, weights, k=chosen.randrange(10, 30)) for _ in range(3)]
    options = powerloss.options_of(bounds, durability)
    powerloss.live_and_lose(path, chosen, scripts, options, powerloss.LOSSES)


@pytest.mark.usefixtures("_small_files")
@pytest.mark.parametrize("bounds", ("rows", "everything"))
@pytest.mark.parametrize("durability", ("durable", "committed"))
def test_power_is_lost(fast_path: Path, durability: str, bounds: str) -> None:
    lose_power(fast_path, durability, bounds, 1)


@pytest.mark.soak
@pytest.mark.usefixtures("_small_files")
@pytest.mark.parametrize("seed", range(10, 30))
@pytest.mark.parametrize("durability", ("durable", "committed"))
def test_power_soak(fast_path: Path, durability: str, seed: int) -> None:
    for bounds in ("rows", "everything"):
        lose_power(fast_path / bounds, durability, bounds, seed)
