"""Ray Data: every episode once, bit by bit, there and back; and what happens meanwhile."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contig import DiskStorage, LayoutError, LazyTensorStorage, ReplayBuffer, SharedStorage
from contig.dataset import from_checkpoint, from_ray_dataset, to_ray_dataset
from contig.dataset.stored_episodes import open_stored, plan_of
from contig.tape.episodes import EPISODE
from tests.dataset.tapes import assert_same, fill, filled, flat

pytestmark = [
    # Ray's own: its context sets what it has deprecated, and its threads leave pipes open.
    pytest.mark.filterwarnings("ignore:.use_[a-z0-9_]+. is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Use 'expr' instead of 'fn':UserWarning"),
]


@pytest.fixture(scope="module")
def ray(tmp_path_factory):
    import ray

    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(
        "local",  # and never somebody else's that runs here
        num_cpus=2,
        object_store_memory=100 << 20,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    yield ray
    ray.shutdown()
    patch.undo()


def odd(ids):
    """Leaves whose bits are easily lost; `ids` are whose they are."""
    count = len(ids)
    nans = np.full(count, 0x7FC0_0000, np.uint32) | (ids.astype(np.uint32) & 0xFFFF)
    zeros = np.where(ids % 2, -0.0, 0.0)
    return {
        "nan": nans.view(np.float32),
        "zero": zeros,
        "flag": ids % 3 == 0,
        "flags": np.stack([ids % 2 == 0, ids % 5 == 0, ids % 7 == 0], 1),
        "half": ids.astype(ml_dtypes.bfloat16),
        "halves": np.repeat(ids[:, None], 3, 1).astype(ml_dtypes.bfloat16),
        "f16": ids.astype(np.float16),
        "image": (np.arange(4 * 6 * 3) + ids[:, None]).astype(np.uint8).reshape(count, 4, 6, 3),
        "wave": (ids + 1j * np.arange(count)).astype(np.complex64),
        "big": ids.astype(np.uint64) + np.uint64(2**63),
        "small": (ids % 100).astype(np.int8)[:, None],
    }


def fill_odd(storage, lengths):
    writer = storage.writer()
    for number, count in enumerate(lengths):
        ids = 1000 * number + np.arange(count)
        row = {"observation": odd(ids), "next": {"reward": ids.astype(np.float32)}}
        writer.extend_trajectory(
            row,
            terminated=number % 2 == 0,
            truncated=number % 3 == 0 or number % 2 == 1,
            traj_id=7000 + number,
            policy_version=number // 2,
        )
    return storage


def contents(storage):
    """Every episode by its `traj_id`, with all its bits."""
    out = {}
    for entry in storage.episodes():
        batch = storage.read_episode(int(entry["id"]))
        leaves = {
            leaf.path: (leaf.dtype, leaf.shape, np.asarray(batch[leaf.path]).tobytes())
            for leaf in batch.layout.leaves
        }
        fields = ("steps", "terminated", "truncated", "complete", "policy_version")
        assert int(entry["traj_id"]) not in out, "it is there twice"
        out[int(entry["traj_id"])] = (*(entry[f].item() for f in fields), leaves)
    return out


@pytest.fixture(params=["storage", "linked", "packed"])
def stored(request, tmp_path):
    """A directory, and a storage with what is in it: in many extents, some episodes in several."""
    lengths = [1, 700, 3, 50, *[5] * 30, 2, 400, 9]
    if request.param == "packed":
        storage = fill_odd(LazyTensorStorage(5000), lengths)
        ReplayBuffer(storage).save(tmp_path / "checkpoint")
        yield tmp_path / "checkpoint", storage
        return
    with DiskStorage(tmp_path / "tape", rows_per_extent=1) as storage:
        fill_odd(storage, lengths)
        assert len(list((tmp_path / "tape/extents").glob("*.rec"))) > 2
        if request.param == "linked":
            ReplayBuffer(storage).save(tmp_path / "checkpoint")
            yield tmp_path / "checkpoint", storage
        else:
            yield storage, storage


# -- without Ray -----------------------------------------------------------------------------------


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=60),
    st.integers(1, 64),
    st.integers(1, 80),
)
def test_every_episode_is_in_one_group(lengths, rows_per_extent, wanted):
    from contig.dataset.ray_source import groups

    entries = np.zeros(len(lengths), EPISODE)
    entries["id"] = np.arange(len(lengths))
    entries["steps"] = lengths
    entries["first"] = np.cumsum(lengths) - lengths
    parts = groups(entries, rows_per_extent, wanted)
    assert np.concatenate(parts).tolist() == entries.tolist()
    assert 1 <= len(parts) <= min(wanted, len(lengths)) and all(len(p) for p in parts)
    extents = [set((p["first"] // rows_per_extent).tolist()) for p in parts]
    if len(set().union(*extents)) >= wanted:  # an extent belongs to one task
        assert len(parts) == wanted
        assert all(not a & b for a, b in itertools.pairwise(extents))


def test_plans(stored):
    source, storage = stored
    plan = plan_of(source)
    assert plan.layout == storage.layout
    with open_stored(plan.path, plan.stamp) as opened:
        for entry in plan.entries:
            columns = opened.columns(entry)
            batch = storage.read_episode(int(entry["id"]))
            for path, values in columns.items():
                assert values.tobytes() == np.asarray(batch[path]).tobytes(), path
    with pytest.raises(FileNotFoundError, match="no such directory on this machine"):
        plan_of("/no/such")
    with pytest.raises(TypeError, match="other processes cannot read it: save"):
        plan_of(LazyTensorStorage(10))
    with pytest.raises(TypeError, match="expected a DiskStorage, its directory.*got int"):
        plan_of(3)


def test_episodes_between_those_of_others(tmp_path):
    """Steps of three envs, one by one: every episode has as many runs as steps, over extents."""
    with DiskStorage(tmp_path / "tape", rows_per_extent=1) as storage:
        writer = storage.writer()
        for t in range(400):
            env = np.arange(3)
            row = {"x": (1000 * env + t)[:, None].repeat(9, 1), "next": {"reward": env * 1.0}}
            row["next"]["terminated"] = np.array([t == 399, t % 50 == 49, False])
            writer.add_step(row)
        storage.flush()
        ReplayBuffer(storage).save(tmp_path / "checkpoint")
        expected = [1000 + 50 * n + np.arange(50) for n in range(8)] + [np.arange(400)]
        for source in (storage, tmp_path / "checkpoint"):
            plan = plan_of(source)
            assert len(plan.entries) == 9  # the third env's is open
            with open_stored(plan.path, plan.stamp) as opened:
                found = [opened.columns(entry)["x",][:, 4].tolist() for entry in plan.entries]
            assert sorted(found) == sorted(x.tolist() for x in expected)
        back = LazyTensorStorage(2000)
        assert from_checkpoint(tmp_path / "checkpoint", back) == 9


def test_what_is_missing_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(ImportError, match=r"needs ray.data.: .*pip install '..ray.'"):
        to_ray_dataset("/nowhere")


def test_another_checkpoint_is_not_read_for_the_first(tmp_path):
    ReplayBuffer(filled([3])).save(tmp_path / "checkpoint")
    plan = plan_of(tmp_path / "checkpoint")
    ReplayBuffer(filled([4])).save(tmp_path / "checkpoint")
    with pytest.raises(LayoutError, match="another checkpoint took its place"):
        with open_stored(plan.path, plan.stamp):
            pass


def test_what_a_dataset_cannot_hold(tmp_path):
    for name, value, expected in (
        ("steps", lambda i: i, "steps: the table has a column of its own"),
        ("a.b", lambda i: i, "names leaves by keys joined with"),
        ("empty", lambda i: np.zeros((len(i), 0)), "cannot hold float64 .0."),
        ("x:bfloat16", lambda i: i, "ends like that of a column of bits"),
    ):
        path = tmp_path / f"tape-{expected[:5]}"
        with DiskStorage(path) as storage:
            fill(storage, **{name: value})
            with pytest.raises(LayoutError, match=expected):
                to_ray_dataset(storage)
    with pytest.raises(LayoutError, match="nothing.*there is no such leaf"):
        to_ray_dataset(path, drop=["nothing"])
    with DiskStorage(tmp_path / "none", example={"a": 0.0}) as storage:
        with pytest.raises(LayoutError, match="no complete episode"):
            to_ray_dataset(storage)


# -- with it ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [False, True], ids=["episodes", "rows"])
def test_there_and_back(ray, stored, rows):
    source, storage = stored
    dataset = to_ray_dataset(source, rows=rows, blocks=4)
    back = LazyTensorStorage(5000)
    assert from_ray_dataset(dataset, back) == 37
    assert contents(back) == contents(storage)
    assert dataset.count() == (1315 if rows else 37)


def test_columns(ray, tmp_path):
    with DiskStorage(tmp_path / "tape") as storage:
        fill_odd(storage, [3, 5])
        dataset = to_ray_dataset(storage, drop=["observation.image"])
        first = min(dataset.take_all(), key=lambda row: row["episode"])
        known = ("episode", "traj_id", "steps", "return", "terminated", "policy_version")
        assert [first[name] for name in known] == [0, 7000, 3, 3.0, True, 0]
        assert first["next.reward"].tolist() == [0.0, 1.0, 2.0]
        assert first["observation.halves:bfloat16"].shape == (3, 3)
        assert "observation.image" not in first
        dataset = to_ray_dataset(storage, rows=True)
        rows = sorted(dataset.take_all(), key=lambda row: (row["episode"], row["step"]))
        assert [row["next.reward"] for row in rows] == [0, 1, 2, 1000, 1001, 1002, 1003, 1004]
        assert [row["truncated"] for row in rows] == [False, False, True] + [False] * 4 + [True]
        assert rows[3]["observation.image"].shape == (4, 6, 3)


def test_rows_in_any_order(ray, tmp_path):
    with DiskStorage(tmp_path / "tape", rows_per_extent=1) as storage:
        fill_odd(storage, [300, 20, *[7] * 20])
        dataset = to_ray_dataset(storage, rows=True, blocks=3).random_shuffle(seed=3)
        back = LazyTensorStorage(1000)
        assert from_ray_dataset(dataset.repartition(7), back) == 22
        assert contents(back) == contents(storage)
        # Python's own functions make new blocks; what was not touched stays as it was.
        episodes = to_ray_dataset(storage).map_batches(lambda batch: batch, batch_format="numpy")
        back = LazyTensorStorage(1000)
        assert from_ray_dataset(episodes, back) == 22
        assert contents(back) == contents(storage)


def test_rows_that_are_missing_or_there_twice(ray, tmp_path):
    with DiskStorage(tmp_path / "tape") as storage:
        flat([3, 5], storage)
        dataset = to_ray_dataset(storage, rows=True)
        few = dataset.filter(lambda row: row["episode"] == 0 or row["step"] != 4)
        with pytest.raises(
            LayoutError, match="1 episodes are not whole.*episode 1: 4 rows came, and"
        ):
            from_ray_dataset(few, LazyTensorStorage(100))
        few = dataset.filter(lambda row: row["step"] != 1)
        with pytest.raises(LayoutError, match="2 episodes are not whole.* 2 rows of 3 came"):
            from_ray_dataset(few, LazyTensorStorage(100))
        with pytest.raises(LayoutError, match="no dataset of to_ray_dataset: it lacks terminated"):
            from_ray_dataset(ray.data.range(3), LazyTensorStorage(100))


def test_to_shared_memory_in_parallel(ray, stored):
    source, storage = stored
    with SharedStorage(capacity=5000) as shared:
        assert from_ray_dataset(to_ray_dataset(source, blocks=4), shared) == 37
        assert contents(shared) == contents(storage)
        writers = {int(w) for w in shared.episodes()["writer"]}
        assert len(writers) > 1


def test_a_killed_task_is_not_done_again(ray, tmp_path, monkeypatch):
    """What it had appended is there once; who waits is told."""
    from contig.dataset import ray_data

    plain, claimed = ray_data._append_blocks, str(tmp_path / "claimed")

    class Part:
        def __init__(self, part):
            self.part = part

        def iter_batches(self, **options):
            for table in self.part.iter_batches(**options):
                yield table  # comes back when it is appended
                try:
                    os.close(os.open(claimed, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
                os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(ray_data, "_append_blocks", lambda part, to: plain(Part(part), to))
    with DiskStorage(tmp_path / "tape", rows_per_extent=1) as storage:
        fill_odd(storage, [10] * 40)
        expected = contents(storage)
        with SharedStorage(capacity=5000) as shared:
            with pytest.raises(ray.exceptions.WorkerCrashedError):
                from_ray_dataset(to_ray_dataset(storage, blocks=8), shared)
            found = contents(shared)
            assert found and found.items() <= expected.items()


def test_evicted_and_damaged_meanwhile(ray, tmp_path):
    with DiskStorage(tmp_path / "tape", 200, rows_per_extent=1) as storage:
        fill_odd(storage, [10] * 15)
        expected = contents(storage)
        dataset = to_ray_dataset(storage, blocks=4)
        strict = to_ray_dataset(storage, blocks=4, strict=True)
        storage.quarantine({12: "set aside by a test"})
        for _ in range(8):  # evicts the first ones
            fill_odd(storage, [10])
        storage.flush()
        kept = {int(i) for i in storage.episodes()["id"]} - {12}
        back = LazyTensorStorage(1000)
        count = from_ray_dataset(dataset, back)
        found = contents(back)
        assert found == {7000 + i: expected[7000 + i] for i in range(15) if i in kept}
        assert count == len(found) < 14
        with pytest.raises(Exception, match="episodes are left out, evicted or found damaged"):
            from_ray_dataset(strict, LazyTensorStorage(1000))


def test_damage_that_is_found_when_it_is_read(tmp_path, caplog):
    from contig.dataset.ray_source import Form, _read

    with DiskStorage(tmp_path / "tape", rows_per_extent=1) as storage:
        flat([8] * 200, storage)
    plan = plan_of(tmp_path / "tape")
    wanted = np.float32(2001).tobytes() * 3  # an observation of the third episode
    files = sorted((tmp_path / "tape" / "extents").iterdir())
    first = next(file for file in files if wanted in file.read_bytes())
    content = first.read_bytes()
    at = content.index(wanted)
    first.write_bytes(content[:at] + b"\xff" + content[at + 1 :])
    blocks = list(_read(plan.path, plan.stamp, plan.entries, Form(True, (), False)))
    seen = {e for block in blocks for e in block["episode"].to_pylist()}
    assert seen == set(plan.entries["id"].tolist()) - {int(plan.entries["id"][2])}
    assert "1 of 200 episodes are left out" in caplog.text
    with pytest.raises(LayoutError, match="1 of 200 episodes are left out"):
        list(_read(plan.path, plan.stamp, plan.entries, Form(True, (), True)))


def test_a_storage_that_is_written_to_is_read_as_it_was(ray, tmp_path):
    with DiskStorage(tmp_path / "tape") as storage:
        flat([3, 5, 1], storage)
        expected = filled_copy(storage)
        dataset = to_ray_dataset(ReplayBuffer(storage))
        flat([4, 4], storage)
        back = LazyTensorStorage(100)
        assert from_ray_dataset(dataset, ReplayBuffer(back)) == 3
        assert_same(expected, back)


def filled_copy(storage):
    copy = LazyTensorStorage(100)
    for entry in storage.episodes():
        copy.writer().extend_trajectory(storage.read_episode(int(entry["id"])))
    return copy
