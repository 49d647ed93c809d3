"""Fields of trajectories: how they come in, where they show, and what is refused."""

from __future__ import annotations

import json
import multiprocessing
import os
from typing import Any

import numpy as np
import pytest

from contig import (
    DeviceStorage,
    LayoutError,
    LazyTensorStorage,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SharedStorage,
    _native,
)
from contig.replay.ingress import Ingress
from contig.tape.entry import read_entries
from contig.tape.schema import Schema
from tests.tape import rows as made
from tests.tape.rows import rows

EXAMPLE = {"task": np.int32(0), "won": False, "judge": {"score": np.zeros(2, np.float32)}}
KINDS: dict[str, Any] = {
    "lazy": LazyTensorStorage,
    "shared": SharedStorage,
    "device": lambda capacity, ndim=1, **options: DeviceStorage(capacity, "cpu", ndim, **options),
}


def row(uid: int, letter: str = ".") -> dict[str, Any]:
    return made.row(uid, letter)


@pytest.fixture(params=KINDS)
def make(request):
    made = []

    def one(*args, **options):
        made.append(KINDS[request.param](*args, **options))
        return made[-1]

    one.kind = request.param
    yield one
    for storage in made:
        storage.close()


def column(storage: Any, name: str) -> list[Any]:
    return storage.episodes()[name].tolist()


def contents(storage: Any) -> tuple[Any, ...]:
    return (*storage.tape.snapshot(), storage.episodes().tobytes(), storage.tape.fields_changes())


# -- in ---------------------------------------------------------------------------------------


def test_they_are_columns_of_episodes(make):
    storage = make(20, fields=EXAMPLE)
    assert len(storage.episodes()) == 0
    storage.writer().extend(rows(range(4), "..t."), fields={"task": 3})
    table = storage.episodes()
    assert table.dtype["task"] == np.int32
    assert table.dtype["won"] == np.bool_
    assert table.dtype["judge.score"] == np.dtype((np.float32, (2,)))
    assert table["task"].tolist() == [3, 3]
    assert table["won"].tolist() == [False, False]
    assert table["judge.score"].tolist() == [[0, 0], [0, 0]]
    assert table["steps"].tolist() == [3, 1]


def test_what_is_given_last_counts_and_the_rest_stays(make):
    storage = make(20, fields=EXAMPLE)
    writer = storage.writer()
    writer.add(row(0), {"task": 1})
    writer.add(row(1), {"won": True, "task": 2})
    writer.add(row(2))
    writer.add(row(3, "t"), {"judge": {"score": [1, 2]}})
    assert column(storage, "task") == [2]
    assert column(storage, "won") == [True]
    assert column(storage, "judge.score") == [[1, 2]]
    writer.add(row(4))  # another trajectory has nothing of it
    assert column(storage, "task") == [2, 0]
    assert column(storage, "won") == [True, False]


def test_only_a_change_starts_a_run(make):
    """An entry's fields are those it was committed with: to change them with an append, the append
    begins a new one, of the same trajectory."""
    storage = make(20, fields=EXAMPLE)
    writer = storage.writer()
    writer.add(row(0), {"task": 1})
    for i in range(1, 5):
        writer.add(row(i), {"task": 1})
    assert len(read_entries(storage.tape)) == 1
    writer.add(row(5), {"task": 2})
    writer.add(row(6))
    entries = read_entries(storage.tape)
    assert entries["prev"].tolist() == [-1, 0]
    assert entries["before"].tolist() == [0, 5]
    assert entries["ordinal"].tolist() == [0, 0]
    tasks = storage.tape.fields_of(np.arange(2)).view(np.uint8)
    leaf = storage.fields.by_path["task",]
    first, second = (r[leaf.offset : leaf.offset + 4].view(np.int32)[0] for r in tasks)
    assert (first, second) == (1, 2)
    assert storage.episodes()["steps"].tolist() == [7]


def test_one_value_for_all_or_one_for_each_lane(make):
    storage = make(40, ndim=2, fields=EXAMPLE)
    data = {"uid": np.arange(6).reshape(3, 2), "next": {"done": np.zeros((3, 2), bool)}}
    score = np.arange(6, dtype=np.float32).reshape(3, 2)
    storage.writer().extend(
        data, fields={"task": [4, 5, 6], "won": True, "judge": {"score": score}}
    )
    assert column(storage, "task") == [4, 5, 6]
    assert column(storage, "won") == [True] * 3
    assert column(storage, "judge.score") == score.tolist()
    storage.writer().extend(data, fields=[{"task": 7}, None, {"won": True}])
    assert column(storage, "task")[3:] == [7, 0, 0]
    assert column(storage, "won")[3:] == [False, False, True]


def test_lanes_of_several_leading_dims(make):
    storage = make(40, ndim=3, fields=EXAMPLE)
    data = {"uid": np.arange(8).reshape(2, 2, 2), "next": {"done": np.zeros((2, 2, 2), bool)}}
    storage.writer().extend(data, fields={"task": np.array([[1, 2], [3, 4]])})
    assert column(storage, "task") == [1, 2, 3, 4]


def test_steps_of_envs(make):
    storage = make(40, fields=EXAMPLE)
    writer = storage.writer()
    step = {"uid": np.arange(3), "next": {"done": np.zeros(3, bool)}}
    writer.add_step(step, fields={"task": [1, 2, 3]})
    writer.add_step(step, mask=[True, False, True], fields={"task": [7, 8, 9]})
    assert column(storage, "task") == [7, 2, 9]
    writer.add_step(step, fields=[None, {"won": True}, None])
    assert column(storage, "task") == [7, 2, 9]
    assert column(storage, "won") == [False, True, False]
    others = storage.writer()
    others.add_step(step, env_ids=[5, 1, 9], fields={"task": [5, 1, 9]})
    assert column(storage, "task")[3:] == [5, 1, 9]


def test_a_whole_trajectory(make):
    storage = make(40, fields=EXAMPLE)
    storage.writer().extend_trajectory(rows(range(3), "..."), truncated=True, fields={"won": True})
    assert column(storage, "won") == [True]
    assert column(storage, "truncated") == [True]


def test_the_first_write_says_what_they_are(make):
    storage = make(20)
    assert storage.fields is None
    storage.writer().add(row(0, "t"), {"task": 3, "score": 0.5})
    assert [x.describe() for x in storage.fields.leaves] == ["float32[]", "int64[]"]
    assert column(storage, "task") == [3]
    storage.writer().add(row(1), {"score": 2.5})
    assert column(storage, "score") == [0.5, 2.5]


def test_the_first_write_of_lanes_has_one_for_each(make):
    storage = make(20, ndim=2)
    data = {"uid": np.arange(6).reshape(3, 2), "next": {"done": np.zeros((3, 2), bool)}}
    storage.writer().extend(data, fields={"task": [4, 5, 6], "score": np.zeros((3, 2)), "n": 1})
    assert {x.path: x.shape for x in storage.fields.leaves} == {
        ("n",): (),
        ("score",): (2,),
        ("task",): (),
    }
    assert column(storage, "task") == [4, 5, 6]


def test_a_refused_first_write_fixes_nothing(make):
    storage = make(20)
    with pytest.raises(LayoutError, match="'steps' already"):
        storage.writer().add(row(0), {"steps": 3})
    with pytest.raises(LayoutError, match="fields: {} has none, so it is not known what they are"):
        storage.writer().add(row(0), {})
    with pytest.raises(LayoutError, match="fields: {} has none"):
        storage.writer().add_step(rows([0, 1], ".."), fields=[None, {}])
    wrong = row(0) | {"next": {"done": True, "terminated": False, "truncated": False}}
    with pytest.raises(ValueError, match="done"):
        storage.writer().add(wrong, {"task": 1})
    assert storage.layout is None and storage.fields is None
    storage.writer().add(row(0), {"task": 3})
    assert column(storage, "task") == [3]


def test_a_first_write_that_is_too_large_fixes_nothing(make):
    storage = make(20, blob_bytes=64)
    writes = (
        lambda w: w.extend({"b": [b"x", b"x" * 65]}, fields={"task": 1}),
        lambda w: w.extend({"b": [b"x", b"x" * 65]}),
        lambda w: w.add({"b": b"x" * 65}, {"task": 1}),
        lambda w: w.add_step({"b": [b"x" * 65]}),
        lambda w: w.extend_trajectory({"a": [b"x" * 33], "b": [b"x" * 33]}, fields={"task": 1}),
    )
    for write in writes:
        with pytest.raises(ValueError, match="the storage's ring has room for 64; nothing was"):
            write(storage.writer())
        assert storage.layout is None and storage.fields is None
    storage.writer().add({"b": b"x" * 64}, {"task": 3})
    assert column(storage, "task") == [3]


@pytest.mark.parametrize("fields", [None, {"task": 1}])
def test_a_first_trajectory_that_contradicts_itself_fixes_nothing(make, fields):
    storage = make(20)
    with pytest.raises(LayoutError, match="the last row says True, the argument"):
        wrong = {"terminated": False, "truncated": False, "fields": fields}
        storage.writer().extend_trajectory(rows([0, 1], ".t"), **wrong)
    assert storage.layout is None and storage.fields is None
    storage.writer().extend_trajectory({"other": np.arange(3)}, fields={"task": 3})
    assert column(storage, "task") == [3]


def test_through_buffers_and_transforms(make):
    seen = []

    def transform(batch):
        seen.append(len(batch))
        return batch

    buffer = ReplayBuffer(make(40, fields=EXAMPLE), transform=transform)
    buffer.add(row(0), fields={"task": 1})
    buffer.extend(rows(range(1, 4), "..t"), fields={"won": True})
    step = rows(range(2), "tt")
    buffer.add_step(step, fields={"task": [8, 9]})
    buffer.extend_trajectory(rows(range(4, 6), ".t"), fields={"task": 5})
    assert column(buffer.storage, "task") == [1, 8, 9, 5]
    assert column(buffer.storage, "won") == [True, False, False, False]
    assert seen == [1, 3, 2, 2]
    assert buffer.set_fields([0, 3], {"task": 6}) == 2
    assert column(buffer.storage, "task") == [6, 8, 9, 6]


def test_members_of_an_ensemble(make):
    members = [ReplayBuffer(make(20, fields=EXAMPLE)) for _ in range(2)]
    both = ReplayBufferEnsemble(*members)
    both.extend(rows(range(3), "..t"), member=1, fields={"task": 3})
    step = rows(range(2), "tt")
    both.add_step(step, member=1, fields={"task": [4, 5]})
    assert column(members[1].storage, "task") == [3, 4, 5]
    assert both.set_fields([1], {"task": 7}, member=1) == 1
    assert column(members[1].storage, "task") == [3, 7, 5]
    assert len(members[0].storage.episodes()) == 0


def test_rows_that_do_not_fit_leave_their_fields(make):
    """Of an append that is larger than the tape, leading rows get no place; what it gave counts for
    what is left of the trajectory."""
    storage = make(4, fields=EXAMPLE)
    writer = storage.writer()
    writer.extend(rows(range(9), "." * 9), fields={"task": 3})
    assert column(storage, "task") == [3]
    writer.add(row(9), {"won": True})
    assert column(storage, "task") == [3]
    assert column(storage, "won") == [True]


# -- later ------------------------------------------------------------------------------------


def test_changing_those_of_stored_trajectories(make):
    storage = make(20, fields=EXAMPLE)
    writer = storage.writer()
    writer.extend(rows(range(6), "..t..t"), fields={"task": 1})
    writer.add(row(6))
    assert storage.set_fields([0, 2], {"won": True}) == 2
    assert column(storage, "won") == [True, False, True]
    assert column(storage, "task") == [1, 1, 0]
    assert storage.set_fields(1, {"judge": {"score": [3, 4]}, "task": 9}) == 1
    assert storage.set_fields([0, 1, 2], {"task": [5, 6, 7]}) == 3
    assert column(storage, "task") == [5, 6, 7]
    assert column(storage, "judge.score") == [[0, 0], [3, 4], [0, 0]]
    # An open one goes on with what it was given.
    writer.add(row(7))
    other = storage.writer()
    other.add(row(8))
    writer.add(row(9, "t"), {"won": False})
    assert column(storage, "task") == [5, 6, 7, 0]
    assert column(storage, "won") == [True, False, False, False]


def test_it_says_how_many_were_there(make):
    storage = make(4, fields=EXAMPLE)
    assert storage.set_fields([0, 1], {"task": 1}) == 0
    for uid in range(6):
        storage.writer().add(row(uid, "t"))
    assert storage.episodes()["id"].tolist() == [2, 3, 4, 5]
    assert storage.set_fields(range(-2, 9), {"task": 1}) == 4
    assert storage.set_fields([], {"task": 1}) == 0
    assert storage.set_fields([3], {}) == 0
    assert storage.set_fields([3, 3, 4, 1, 1], {"task": [1, 2, 3, 4, 5]}) == 2, "each counts once"


def test_changes_are_in_the_log(make):
    storage = make(40, fields=EXAMPLE)
    storage.writer().extend(rows(range(3), "ttt"))
    tape = storage.tape
    assert tape.changed_fields(0)[0] == 0
    storage.set_fields([2, 0], {"task": 4})
    storage.set_fields([2], {"task": 4})  # that is no change
    now, numbers = tape.changed_fields(0)
    assert (now, numbers.tolist(), tape.fields_changes()) == (2, [2, 0], 2)
    for i in range(_native.FIELDS_LOG - 2):
        storage.set_fields([1], {"task": i + 1})
    assert tape.changed_fields(0) == (_native.FIELDS_LOG, None)
    assert tape.changed_fields(1)[1].tolist() == [0, *[1] * (_native.FIELDS_LOG - 2)]
    assert tape.changed_fields(_native.FIELDS_LOG)[1].tolist() == []


def test_the_log_is_as_long_as_the_index_is_large(make):
    """It gets memory as it is used."""
    storage = make(1_000_000, fields=EXAMPLE)
    storage.writer().extend(rows(range(3), "ttt"))
    tape = storage.tape
    assert tape.fields_log == 1 << 17  # for 2^17 of 2^20 entries
    used = os.fstat(storage.fd).st_blocks * 512 if storage.fd >= 0 else 0
    for i in range(5000):
        storage.set_fields([i % 3], {"task": i + 1})
    assert tape.changed_fields(0)[1].tolist() == [i % 3 for i in range(5000)]
    if storage.fd >= 0:  # 8 bytes each, and at most as much again
        assert os.fstat(storage.fd).st_blocks * 512 - used <= 8 * 2 * 5000


def evict(storage: Any, uid: int) -> None:
    """Whole trajectories of as many rows as there is room for."""
    ends = "." * (storage.capacity - 1) + "t"
    storage.writer().extend(rows(range(uid, uid + storage.capacity), ends))


def test_what_was_set_is_kept_until_many_later_ones_began(make):
    """Fields of evicted rows have as many places as the log: the later trajectory has its place."""
    storage = make(4, fields=EXAMPLE)
    writer, other = storage.writer(), storage.writer()
    writer.add(row(0), {"task": 1})
    assert storage.set_fields([0], {"won": True}) == 1
    for n in range(1, _native.FIELDS_LOG):  # each takes its place, when it is evicted
        other.add(row(n, "t"))
        assert storage.set_fields([n], {"task": n}) == 1
    evict(storage, 5000)
    writer.add(row(1))
    ours = int(storage.episodes()["id"][-1])
    assert storage.episodes()[["task", "won"]][-1].tolist() == (1, True)
    assert storage.set_fields([ours], {"task": 2}) == 1
    evict(storage, 6000)
    for n in range(ours + 2, ours + 1 + _native.FIELDS_LOG):
        other.add(row(n, "t"))
    assert storage.set_fields([ours + _native.FIELDS_LOG], {"task": 3}) == 1
    evict(storage, 7000)
    writer.add(row(2))  # its place is another one's: it has what its writer knew
    assert storage.episodes()[["task", "won"]][-1].tolist() == (1, True)


def test_what_was_set_is_forgotten_with_a_checkpoint(make, tmp_path):
    """Numbers of runs may go back then: fields that were kept are not another trajectory's."""
    buffer = ReplayBuffer(make(4, fields=EXAMPLE))
    storage = buffer.storage
    storage.writer().add(row(0, "t"), {"task": 1})
    buffer.save(tmp_path / "saved")
    storage.writer().add(row(1), {"task": 2})
    assert storage.set_fields([1], {"won": True}) == 1
    evict(storage, 10)
    buffer.load(tmp_path / "saved")
    writer = storage.writer()
    writer.add(row(2), {"task": 3})
    assert storage.episodes()["id"].tolist() == [0, 1]
    evict(storage, 20)
    writer.add(row(3))
    assert storage.episodes()[["task", "won"]][-1].tolist() == (3, False)


def test_nothing_is_changed_by_what_is_refused(make):
    storage = make(20, fields=EXAMPLE)
    writer = storage.writer()
    writer.extend(rows(range(3), "..t"), fields={"task": 1})
    before = contents(storage)
    wrong = [
        ({"tsak": 1}, 'unknown field "tsak"; this storage has .*"task"'),
        ({"judge": {"points": 1}}, 'unknown field ."judge", "points".'),
        ({"judge": 1}, 'unknown field "judge"'),
        ({"task": [1, 2]}, r'"task": shape \[2\], expected \[\]'),
        ({"judge": {"score": 1.0}}, r"shape \[\], expected \[2\]"),
        ({"task": 1.5}, "1.5"),
        ({"task": 2**40}, str(2**40)),
        ({"won": 2}, "2"),
        ({"task": 1, "won": "yes"}, "won"),
    ]
    for fields, message in wrong:
        with pytest.raises(ValueError, match=message):
            writer.add(row(3), fields)
        with pytest.raises(ValueError, match=message):
            writer.extend(rows(range(2), ".."), fields=fields)
        with pytest.raises(ValueError, match=message):
            writer.extend_trajectory(rows(range(2), ".."), fields=fields)
        with pytest.raises(ValueError):
            storage.set_fields([0], fields)
    for ids in ([0.5], [0.0], "0", [True], None, storage.episodes()):
        with pytest.raises(
            TypeError, match=r'^ids: .*; give `episodes\(\)\["id"\]`, or some of it$'
        ):
            storage.set_fields(ids, {"task": 5})
    with pytest.raises(LayoutError, match="a list, but this append has one trajectory"):
        writer.add(row(3), [{"task": 1}])
    with pytest.raises(LayoutError, match=r"a list of 2, expected .* 1 lanes"):
        writer.add_step(rows([0], "."), fields=[{}, {}])
    assert contents(storage) == before


def test_a_storage_without_fields_says_so(make):
    storage = make(20)
    writer = storage.writer()
    writer.add(row(0))
    before = storage.tape.snapshot()
    for call in (
        lambda: writer.add(row(1), {"task": 1}),
        lambda: writer.extend(rows(range(2), ".."), fields={"task": 1}),
        lambda: storage.set_fields([0], {"task": 1}),
    ):
        with pytest.raises(LayoutError, match="no fields of trajectories: make it with fields="):
            call()
    assert storage.tape.snapshot() == before
    assert storage.episodes().dtype.names[-1] == "time"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"return": 0.0}, "'return' already; choose another name"),
        ({"age": 0}, "'age'"),
        ({"a": {"b": 1}, "a.b": 2}, "would both be"),
        ({f"f{i}": 0 for i in range(65)}, "65 leaves, a trajectory has at most 64"),
        ({"big": np.zeros(1025, np.float32)}, "4100 bytes, a trajectory has at most 4096"),
        (np.float32(0), "expected a dict of named values"),
        ({"a": [1, 2]}, "expected a dict of named values"),
        ({}, "fields: {} has none, .*such as .*, or leave fields= out"),
        ({"a": {}}, "fields: {'a': {}} has none"),
        ({"text": "abc"}, "text"),
    ],
)
def test_what_fields_cannot_be(make, fields, message):
    with pytest.raises(ValueError, match=message):
        make(20, fields=fields)


def test_an_empty_storage_has_their_columns(make):
    storage = make(20, fields=EXAMPLE)
    assert storage.episodes()["task"].shape == (0,)
    assert storage.episodes()["judge.score"].shape == (0, 2)


def test_the_largest_record(make):
    storage = make(20, fields={"big": np.zeros(4096, np.uint8)})
    value = np.random.default_rng(0).integers(0, 256, (2, 4096)).astype(np.uint8)
    storage.writer().add(row(0), {"big": value[0]})
    assert np.array_equal(storage.episodes()["big"], value[:1])
    assert storage.set_fields([0], {"big": value[1]}) == 1
    assert np.array_equal(storage.episodes()["big"], value[1:])
    many = make(20, fields={f"f{i}": np.int64(0) for i in range(64)})
    many.writer().add(row(0), {f"f{i}": i for i in range(0, 64, 3)})
    many.writer().add(row(0), {"f63": -1})
    table = many.episodes()
    assert [table[f"f{i}"][0] for i in range(64)] == [i if i % 3 == 0 else 0 for i in range(64)]
    assert table["f63"][1] == -1


# -- where they are known ---------------------------------------------------------------------


def test_a_schema_without_fields_is_what_it_was():
    storage = LazyTensorStorage(4, example=row(0), share_next=False)
    schema = storage.schema
    wanted = {"layout": schema.layout.to_json(), "keys": schema.boundaries.to_json()}
    assert schema.to_bytes() == json.dumps(wanted).encode()
    again = Schema.from_bytes(schema.to_bytes())
    assert again.fields is None
    with_fields = LazyTensorStorage(4, example=row(0), fields=EXAMPLE).schema
    assert Schema.from_bytes(with_fields.to_bytes()).fields == with_fields.fields


def _other_process(storage: Any, pipe: Any) -> None:
    pipe.send((str(storage.fields), storage.episodes()["task"].tolist()))
    pipe.recv()
    storage.writer().extend(rows(range(2), ".."), fields={"task": 8})
    pipe.send(storage.set_fields([0], {"task": 9}))


@pytest.mark.parametrize("known", [False, True])
def test_other_processes_know_them(make, known):
    if make.kind == "device":
        pytest.skip("it belongs to its process")
    storage = make(20, fields=EXAMPLE)
    if known:
        storage.writer().add(row(0, "t"), {"task": 2})
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_other_process, args=(storage, there)
    )
    process.start()
    described, tasks = here.recv()
    assert described == str(storage.fields)
    assert tasks == ([2] if known else [])
    here.send("go on")
    assert here.recv() == 1
    process.join(60)
    assert column(storage, "task") == ([9, 8] if known else [9])


@pytest.mark.skipif(not _native.ROBUST_LOCKS, reason="sharing needs robust locks")
def test_attaching_with_other_fields():
    with SharedStorage(20, fields=EXAMPLE, example=row(0)) as storage:
        for fields in ({"task": np.int64(0)}, {**EXAMPLE, "more": 1}):
            with pytest.raises(LayoutError, match="has other fields of trajectories"):
                SharedStorage(20, name=storage.name, fields=fields)
        with SharedStorage(20, name=storage.name) as other:
            assert other.fields == storage.fields
        with SharedStorage(20, name=storage.name, fields=EXAMPLE) as other:
            other.writer().add(row(0), {"task": 3})
        assert column(storage, "task") == [3]
    with SharedStorage(20, example=row(0)) as plain:
        with pytest.raises(LayoutError, match="no fields of trajectories: they must be known"):
            SharedStorage(20, name=plain.name, fields=EXAMPLE)
    with SharedStorage(20) as early:  # nobody has written: whoever comes first says what they are
        with SharedStorage(20, name=early.name, fields=EXAMPLE) as late:
            early.writer().add(row(0))
            with pytest.raises(LayoutError, match="no fields of trajectories: they must be known"):
                late.publish(early.layout)


@pytest.mark.skipif(not _native.ROBUST_LOCKS, reason="sharing needs robust locks")
def test_whoever_is_handed_the_way_in_knows_them():
    with SharedStorage(20, fields=EXAMPLE) as storage:
        described = json.loads(json.dumps(Ingress(storage).describe()))
        way_in = Ingress.attach(described)
        assert way_in.storage.fields == storage.fields
        way_in.add(row(0), fields={"task": 5})
        assert column(storage, "task") == [5]
        way_in.storage.close()
