"""Parquet and Arrow files that others rewrote or made: what is a trajectory, the columns say."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from contig import Blob, LayoutError, LazyTensorStorage, Ragged, ReplayBuffer
from contig.cli.main import main
from contig.dataset import from_parquet, to_parquet
from tests.dataset.tapes import assert_same, filled, flat, lengths

FRAMES = [3, 5, 1, 40, 2]


def as_parquet(table, path, rows):
    parquet.write_table(table, path, row_group_size=rows)


def as_arrow(table, path, rows):
    with ipc.new_file(str(path), table.schema) as writer:
        for batch in table.combine_chunks().to_batches(max_chunksize=rows):
            writer.write_batch(batch)


WRITES = pytest.mark.parametrize("write", [as_parquet, as_arrow])


@pytest.fixture
def ours(tmp_path):
    """A file of ours, as a table."""
    to_parquet(flat(FRAMES), tmp_path / "ours.parquet")
    return parquet.read_table(tmp_path / "ours.parquet")


def refused(path, match, **options):
    storage = LazyTensorStorage(1000)
    with pytest.raises(LayoutError, match=match):
        from_parquet(path, storage, **options)
    assert len(storage) == 0 and not len(storage.episodes())


@WRITES
@pytest.mark.parametrize("rows", [1, 2, 7, 1000])
@pytest.mark.parametrize("make", [filled, flat])
def test_row_groups_mean_nothing(tmp_path, write, rows, make):
    source = make(FRAMES)
    to_parquet(source, tmp_path / "a")
    write(parquet.read_table(tmp_path / "a"), tmp_path / "b", rows)
    back = LazyTensorStorage(1000)
    assert from_parquet(tmp_path / "b", back) == len(FRAMES)
    assert_same(source, back)


def test_leaves_of_any_size_in_other_row_groups(tmp_path):
    source = LazyTensorStorage(100)
    for number in range(3):
        rows = [np.full((i % 3, 2), 10 * number + i, np.int32) for i in range(4)]
        words = [f"{number}-{i}" * i for i in range(4)]
        step = {"points": Ragged.of(rows), "text": Blob.of(words, text=True)}
        source.writer().extend_trajectory(step)
    to_parquet(source, tmp_path / "a")
    as_parquet(parquet.read_table(tmp_path / "a"), tmp_path / "b", 5)
    back = LazyTensorStorage(100)
    assert from_parquet(tmp_path / "b", back) == 3
    mine, theirs = ReplayBuffer(source)[:], ReplayBuffer(back)[:]
    assert list(mine["text"]) == list(theirs["text"])
    assert all(np.array_equal(a, b) for a, b in zip(mine["points"], theirs["points"]))


@WRITES
def test_rows_that_are_not_in_order(tmp_path, ours, write):
    n = len(ours)
    first, rest = ours.slice(0, 3), ours.slice(3)
    cases = {
        "mixed": (ours.take(np.random.default_rng(1).permutation(n)), "row "),
        "a row is missing": (pa.concat_tables([ours.slice(0, 5), ours.slice(6)]), "row 5"),
        "the first rows are missing": (
            ours.slice(1),
            "row 0, of episode 0: expected step 0, got 1",
        ),
        "a row is there twice": (ours.take([0, 1, 1, *range(2, n)]), "row 2.*step 2, got 1"),
        "backwards": (ours.take(np.arange(n)[::-1]), "row 0"),
        "an episode in two places": (
            pa.concat_tables([first.slice(0, 2), rest, first.slice(2)]),
            "other episodes lie between",
        ),
        "two files as one": (pa.concat_tables([first, first]), "row 3"),
    }
    for table, match in cases.values():
        for rows in (4, 1000):
            write(table, tmp_path / "bad", rows)
            refused(tmp_path / "bad", match)
    ends = ours["terminated"].to_numpy().copy()
    ends[1] = True
    at = ours.column_names.index("terminated")
    write(ours.set_column(at, "terminated", pa.array(ends)), tmp_path / "bad", 2)
    refused(tmp_path / "bad", "row 2, of episode 0: the row before it ended it")
    at = ours.column_names.index("step")
    for steps in ([str(x) for x in range(n)], [0.5 * x for x in range(n)]):
        write(ours.set_column(at, "step", pa.array(steps)), tmp_path / "bad", 1000)
        refused(tmp_path / "bad", "column 'step' is .*expected the whole numbers of steps")
    lacking = pa.array([None, *ours["step"].to_pylist()[1:]])
    write(ours.set_column(ours.column_names.index("step"), "step", lacking), tmp_path / "bad", 2)
    refused(tmp_path / "bad", "column 'step' lacks 1 values")


def theirs(**more):
    """A table of another program: three episodes with names, which count steps from 1."""
    steps = [2, 4, 3]
    number = np.repeat(np.arange(3), steps)
    t = np.concatenate([np.arange(1, k + 1) for k in steps])
    who = 1000 * number + t
    obs = np.stack([who, who + 0.5], 1).astype(np.float32)
    return pa.table({
        "run": [f"run-{i}" for i in number],
        "t": t,
        "obs": list(obs),
        "act": pa.array(who.astype(np.int32)),
        "rew": pa.array(who.astype(np.float32)),
        "over": pa.array(np.isin(np.arange(9), [1, 8])),
        "camera": pa.array([{"pixels": [i] * 4, "gain": i / 2} for i in range(9)]),
        "what": [f"task {i}" for i in number],
        "boxes": [[[i, i + 1]] * (i % 3) for i in range(9)],
        **more,
    })  # fmt: skip


COLUMNS = {
    "run": "episode",
    "t": "step",
    "over": "terminated",
    "obs": "observation",
    "act": "action",
    "rew": ("next", "reward"),
    "camera.pixels": "pixels",
    "what": "task",
}


@WRITES
@pytest.mark.parametrize("rows", [2, 1000])
def test_a_table_of_another_program(tmp_path, write, rows):
    write(theirs(), tmp_path / "table", rows)
    storage = LazyTensorStorage(100)
    assert from_parquet(tmp_path / "table", storage, columns=COLUMNS) == 3
    assert lengths(storage) == [(2, True, False), (4, False, False), (3, True, False)]
    batch = ReplayBuffer(storage)[:]
    who = np.array([1, 2, 1001, 1002, 1003, 1004, 2001, 2002, 2003])
    assert np.array_equal(batch["action"], who) and batch["action"].dtype == np.int32
    assert np.array_equal(batch["next", "reward"], who)
    assert np.array_equal(batch["observation"], np.stack([who, who + 0.5], 1))
    assert np.array_equal(batch["pixels"], np.arange(9)[:, None].repeat(4, 1))
    assert list(batch["task"]) == [f"task {i // 1000}" for i in who]


def test_how_a_trajectory_of_it_ended(tmp_path):
    as_parquet(theirs(), tmp_path / "table", 4)
    for columns, ends in (
        ({"run": "episode", "rew": "a"}, [(2, False, True), (4, False, True), (3, False, True)]),
        (
            {"run": "episode", "rew": "a", "over": "next.terminated"},
            [(2, True, False), (4, False, True), (3, True, False)],
        ),
    ):
        storage = LazyTensorStorage(100)
        assert from_parquet(tmp_path / "table", storage, columns=columns) == 3
        assert lengths(storage) == ends


def test_lists_of_lists(tmp_path):
    as_parquet(theirs(), tmp_path / "table", 4)
    storage = LazyTensorStorage(100)
    from_parquet(tmp_path / "table", storage, columns={"run": "episode", "boxes": "boxes"})
    found = list(ReplayBuffer(storage)[:]["boxes"])
    assert [x.tolist() for x in found] == [[[i, i + 1]] * (i % 3) for i in range(9)]


def test_what_columns_must_say(tmp_path, ours):
    as_parquet(theirs(), tmp_path / "table", 4)
    file = tmp_path / "table"
    refused(file, r"lacks contig.shapes .*columns=\{.*it has the columns 'run', 't'")
    refused(file, "say which one is the episode", columns={"obs": "observation"})
    refused(file, "say which ones are leaves", columns={"run": "episode"})
    refused(file, "no column 'pos'", columns={"run": "episode", "pos": "observation"})
    refused(file, "both 'episode'", columns={"run": "episode", "t": "episode", "obs": "o"})
    twice = {"run": "episode", "t": "o", "obs": "o"}
    refused(file, "two columns are .*'obs' the second", columns=twice)
    when = pa.array(np.arange(9), pa.timestamp("s"))
    as_parquet(theirs(when=when), file, 4)
    refused(file, "column 'when' is timestamp", columns={"run": "episode", "when": "w"})
    gap = pa.array([1.0, None, *range(7)])
    as_parquet(theirs(gap=gap), file, 4)
    refused(file, "column 'gap' lacks 1 values", columns={"run": "episode", "gap": "g"})
    inner = pa.array([[1.0, None]] * 9)
    as_parquet(theirs(inner=inner), file, 4)
    refused(file, "lists that lack values", columns={"run": "episode", "inner": "g"})
    as_parquet(ours.replace_schema_metadata(None), file, 4)
    refused(file, 'columns={"episode": "episode"')
    columns = {n: n for n in ours.column_names}
    back = LazyTensorStorage(1000)
    assert from_parquet(file, back, columns=columns) == len(FRAMES)
    assert_same(flat(FRAMES), back)


def test_from_the_command_line(tmp_path, capsys):
    as_parquet(theirs(), tmp_path / "table.parquet", 4)
    words = [f"{k}={v if isinstance(v, str) else '.'.join(v)}" for k, v in COLUMNS.items()]
    arguments = ["import", str(tmp_path / "table.parquet"), str(tmp_path / "tape")]
    assert main(arguments) == 2
    assert "--columns run=episode" in capsys.readouterr().err
    assert main([*arguments, "--columns", *words]) == 0
    assert "3 trajectories" in capsys.readouterr().out
    assert main([*arguments, "--columns", "obs"]) == 2
    assert "COLUMN=LEAF" in capsys.readouterr().err
    (tmp_path / "x.h5").write_bytes(b"")
    assert main(["import", str(tmp_path / "x.h5"), str(tmp_path / "b"), "--columns", "a=b"]) == 2
    assert "Parquet and Arrow" in capsys.readouterr().err
