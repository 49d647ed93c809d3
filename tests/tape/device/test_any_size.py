"""Leaves of any size and with codecs in a DeviceStorage, beside storages in host memory."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from contig import (
    Batch,
    Blob,
    ChunkSampler,
    CodecError,
    DeviceStorage,
    HindsightRelabel,
    LayoutError,
    LazyTensorStorage,
    NStepSampler,
    Ragged,
    ReplayBuffer,
)
from contig.batch import stack_batches
from contig.convert import transfers
from contig.tape.decoding import stored_bytes
from contig.testing import OrderedStreams, episode, identity
from contig.testing.any_size import EXAMPLE as STEPS
from contig.testing.any_size import check_any_size, with_any_size
from tests.codecs.frames import ALL, LOSSLESS, H, W, check, codecs, pixels, rows
from tests.codecs.test_storages import SAMPLERS, WAYS, fill, leaves
from tests.reference.any_size import EXAMPLE, Ring, Row, columns
from tests.reference.any_size import check as check_rows
from tests.replay.test_any_size import Buffers

torch = pytest.importorskip("torch")

from tests.tape.device.races import Races  # noqa: E402
from tests.tape.device.rows import Valueless, goals  # noqa: E402


class DeviceBuffers(Buffers):
    @staticmethod
    def storage_of(capacity: int, ring: int, example: Any = None) -> DeviceStorage:
        return DeviceStorage(capacity, "cpu", example=example, blob_bytes=ring)


TestDeviceBuffers = DeviceBuffers.TestCase
TestDeviceBuffers.settings = settings(max_examples=25, stateful_step_count=20)


@pytest.mark.parametrize("ring", range(1, 30, 3))
def test_rings_are_lapped_at_every_offset(ring):
    model, known = Ring(8, ring), {}
    with DeviceStorage(8, "cpu", example=EXAMPLE, blob_bytes=ring) as storage:
        buffer = ReplayBuffer(storage, output="numpy")
        for uid in range(60):
            row = Row(uid, uid * 3 % (ring + 1))
            if row.nbytes <= ring:
                known[uid] = row
                model.append([row])
                buffer.add(row.tree())
            assert check_rows(buffer[:], known) == [r.uid for r in model.there()]


# -- what a sample is ------------------------------------------------------------------------------


def test_a_batch_has_columns_and_its_tensors_are_of_the_device():
    with DeviceStorage(40, "cpu", example=STEPS) as storage:
        storage.writer().extend(with_any_size(episode(1, 9)))
        batch, _ = storage.gather(np.arange(9))
        assert torch.is_tensor(batch["observation"])
        assert type(batch["tokens"]) is Ragged and type(batch["image"]) is Blob
        out = batch.to("cpu")
        tokens = batch["tokens"]
        assert out["tokens"].is_nested
        assert out["tokens"].values().tolist() == tokens.values.tolist()
        assert out["tokens"].offsets().tolist() == tokens.offsets.tolist()
        assert list(out["note"]) == list(batch["note"])
        table = batch.to_tensordict()
        assert table["tokens"].is_nested and list(table["note"]) == list(batch["note"])
        for other in (
            batch[np.array([4, 0, 2])],
            batch[3:6],
            stack_batches([batch[:2], batch[5:]]),
            batch.with_leaves({"more": np.arange(9)}),
            batch.with_leaves({"tokens": Ragged(tokens.values + 0, tokens.offsets)}),
            batch.host(),
        ):
            check_any_size(other)
        added = batch.with_leaves({"new": Blob.of([b"%d" % i for i in range(9)])})
        assert [int(x) for x in added["new"]] == list(range(9))
        assert added[2:4]["new"][0] == b"2"


def test_a_leaf_with_a_codec_is_a_tensor_of_the_device():
    with DeviceStorage(40, "cpu", codecs=codecs("png")) as storage:
        fill(ReplayBuffer(storage))
        head, tail, _, _ = storage.tape.snapshot()
        batch, _ = storage.gather(np.arange(tail, head))
        assert torch.is_tensor(batch["pixels"]) and torch.is_tensor(batch["next", "pixels"])
        leaf = batch.layout.by_path["pixels",]
        assert (leaf.shape, leaf.dtype, leaf.codec) == ((H, W, 3), np.uint8, None)
        assert storage.layout.by_path["pixels",].codec == "png"
        check(batch.host())
        check({k: batch.to("cpu")[k].numpy() for k in ("pixels", "t", ("next", "pixels"))})
        raw = stored_bytes(storage, "pixels", [head - 1])
        assert raw[0][:4] == b"\x89PNG"
        assert storage.blob_bytes < 2 * len(batch) * H * W * 3 * 2


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("name", ["zstd", "jpeg:90"])
def test_samples_are_those_of_host_memory(name, sampler):
    storages = (
        LazyTensorStorage(40, codecs=codecs(name), share_next=False),
        DeviceStorage(40, "cpu", codecs=codecs(name)),
    )
    here, there = (
        ReplayBuffer(x, SAMPLERS[sampler](), batch_size=8, seed=3, output="numpy") for x in storages
    )
    fill(here)
    fill(there)
    for _ in range(3):
        expected, found = leaves(here.sample()), leaves(there.sample())
        assert found.keys() == expected.keys()
        for path, column in expected.items():
            assert np.array_equal(found[path], column, equal_nan=column.dtype.kind == "f"), path


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_in(way, known, late):
    example = rows(0) if known else None
    options = {"example": example, "codecs": codecs("lz4"), "late": late}
    with DeviceStorage(40, "cpu", 2, **options) as storage:
        buffer = ReplayBuffer(storage, batch_size=8, seed=0, output="numpy")
        WAYS[way](buffer)
        WAYS[way](buffer)
        storage.flush()
        everything = buffer[:]
        assert everything["t"].tolist() == [*range(6), *range(6)]
        check(everything)


@pytest.mark.parametrize("name", ALL)
def test_encoded_frames_stay_as_they_are(name):
    with (
        LazyTensorStorage(40, codecs=codecs(name), share_next=False) as one,
        DeviceStorage(40, "cpu", codecs=codecs(name), example=rows(0)) as other,
    ):
        one.writer().extend(rows(np.arange(6)))
        frames = stored_bytes(one, "pixels", np.arange(6))
        given = {**rows(np.arange(6)), "pixels": frames}
        other.writer().extend(given)
        other.writer().extend({**given, "pixels": list(frames)})
        assert list(stored_bytes(other, "pixels", np.arange(12))) == [*frames, *frames]
        here, there = one.gather(np.arange(6))[0], other.gather(np.arange(6, 12))[0].host()
        for path in (("pixels",), ("next", "pixels")):
            assert np.array_equal(here[path], there[path])


def test_n_steps_take_the_last_rows_next_leaves():
    with DeviceStorage(60, "cpu", codecs=codecs("zstd")) as storage:
        buffer = ReplayBuffer(storage, NStepSampler(3, 0.5), batch_size=16, seed=0, output="numpy")
        fill(buffer)
        batch = buffer.sample()
        assert np.array_equal(batch["pixels"], pixels(batch["t"]))
        last = batch["t"] + batch["steps_to_next_obs"]
        assert np.array_equal(batch["next", "pixels"], pixels(last))
        assert len(set((last - batch["t"]).tolist())) > 1


def test_hindsight_with_goals_that_are_encoded():
    """What a sampler changes is a leaf with a codec, which is nowhere as it is."""
    wanted = {("desired_goal",): "zstd", ("next", "achieved_goal"): "lz4"}
    batches = []
    for storage in (
        LazyTensorStorage(100, codecs=wanted, share_next=False),
        DeviceStorage(100, "cpu", codecs=wanted),
    ):
        for n in range(5):
            storage.writer().extend(goals(n, 8))
        relabel = HindsightRelabel(reward_fn=lambda a, g, rows: (a - g).sum(-1))
        batches.append(
            ReplayBuffer(storage, relabel, batch_size=16, seed=2, output="numpy").sample()
        )
    here, there = (leaves(batch) for batch in batches)
    assert (here["desired_goal",] >= 0).any()
    for path, column in here.items():
        assert np.array_equal(there[path], column), path


def test_chunks_of_a_leaf_with_a_codec():
    batches = []
    for storage in (
        LazyTensorStorage(60, codecs={"action": "zstd"}, share_next=False),
        DeviceStorage(60, "cpu", codecs={"action": "zstd"}),
    ):
        for n in range(6):
            storage.writer().extend(episode(n, 7))
        sampler = ChunkSampler(chunk=4, keys=["action"])
        batches.append(
            ReplayBuffer(storage, sampler, batch_size=16, seed=1, output="numpy").sample()
        )
    here, there = (leaves(batch) for batch in batches)
    for path, column in here.items():
        assert np.array_equal(there[path], column), path


def test_rows_in_a_list_keep_tensors_where_they_are():
    example = {"tokens": Ragged(np.int32), "x": np.zeros(3, np.float32), "next": {"done": False}}
    storage = Valueless(20, example=example)
    one = {"x": torch.empty(3, device="meta"), "next": {"done": False}}
    tokens = [np.arange(n, dtype=np.int32) for n in (2, 0, 1)]
    storage.writer().extend([{**one, "tokens": x} for x in tokens[:2]])
    storage.writer().add({**one, "tokens": tokens[2]})
    batch, _ = storage.gather(np.arange(3))
    assert [x.tolist() for x in batch["tokens"]] == [[0, 1], [], [0]]
    assert batch["x"].is_meta


def test_lanes_of_lists_of_arrays():
    lanes = [[Row(3 * lane + t, t, 2, lane + t) for t in range(3)] for lane in range(2)]
    known = {r.uid: r for lane in lanes for r in lane}
    given = columns([r for lane in lanes for r in lane])
    given["uid"] = given["uid"].reshape(2, 3)
    given["blob"], given["text"] = ([x[:3], x[3:]] for x in (given["blob"], given["text"]))
    below = given["next"]
    below |= {k: np.reshape(below[k], (2, 3)) for k in ("done", "reward")}
    below["tokens"] = [below["tokens"][:3], below["tokens"][3:]]
    for late in (False, True):
        with DeviceStorage(20, "cpu", 2, example=EXAMPLE, late=late) as storage:
            storage.writer().extend(given)
            storage.flush()
            assert check_rows(storage.gather(np.arange(6))[0], known) == list(range(6))
            assert storage.episodes()["steps"].tolist() == [3, 3]


@pytest.mark.parametrize("given", [Blob.of([b"a", b"", b"cc"]), Ragged.of([np.arange(2), []])])
def test_a_row_may_be_one_leaf(given):
    example = Blob() if isinstance(given, Blob) else Ragged(np.int64)
    with DeviceStorage(9, "cpu", example=example) as storage:
        storage.writer().extend(given)
        found = storage.gather(np.arange(len(given)))[0].host()[()]
        assert found.values.tolist() == given.values.tolist()
        assert found.offsets.tolist() == given.offsets.tolist()


# -- refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_a_row_too_large_for_the_ring_changes_nothing(late, known):
    options = {"blob_bytes": 100, "late": late}
    with DeviceStorage(20, "cpu", **options) as storage:
        writer = storage.writer()
        good = {"uid": np.arange(2), "x": [b"a", b"bb"], "next": {"done": np.zeros(2, bool)}}
        if known:
            writer.extend(good)
            storage.flush()
        for verb in (writer.extend, writer.add_step, writer.extend_trajectory):
            with pytest.raises(ValueError, match='"x": row 1 has 101 bytes.*blob_bytes'):
                verb({**good, "x": [b"a", b"b" * 101]})
        assert len(storage) == 2 * known and (storage.layout is not None) == known
        writer.extend(good)
        storage.flush()
        found, _ = storage.gather(np.arange(2))
        assert list(found["x"]) == [b"a", b"bb"] and found["uid"].tolist() == [0, 1]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("verb", ["add", "extend", "extend_trajectory", "add_step"])
def test_fields_that_are_refused_fix_no_layout(verb, late):
    wrong: list[Any] = [{"nope": 1}, {"task": 0.5}, {"task": np.zeros(7)}, [{"task": 1}] * 5]
    row = {"uid": np.int64(1), "x": b"ab", "next": {"done": False}}
    many = {"uid": np.arange(2), "x": [b"a", b"bb"], "next": {"done": np.zeros(2, bool)}}
    with DeviceStorage(20, "cpu", late=late, fields={"task": np.int32(0)}) as storage:
        write = getattr(storage.writer(), verb)
        for fields in wrong:
            with pytest.raises(ValueError, match="fields|task"):
                write(row if verb == "add" else many, fields=fields)
            assert storage.layout is None and len(storage) == 0
    with DeviceStorage(20, "cpu", late=late) as storage:  # whose fields are not known yet, either
        with pytest.raises(ValueError, match="list of 5"):
            storage.writer().add_step(many, fields=[{"task": 1}] * 5)
        assert storage.layout is None and storage.fields is None


def test_dtypes_that_torch_does_not_have():
    with pytest.raises(LayoutError, match='"x": torch has no datetime'):
        DeviceStorage(5, "cpu", example={"x": np.datetime64("2020-01-01"), "b": Blob()})


def test_options_are_checked():
    for wrong in (0, "5", 1.5):
        with pytest.raises(ValueError, match="blob_bytes"):
            DeviceStorage(10, "cpu", blob_bytes=wrong)
    with pytest.raises(ValueError, match="codecs"):
        DeviceStorage(10, "cpu", codecs={"x": "nothing"})
    with pytest.raises(LayoutError, match="codecs: no leaf"):
        DeviceStorage(10, "cpu", codecs={"y": "zstd"}, example={"x": np.zeros(3)})


def test_what_cannot_be_decoded_is_drawn_no_more():
    codec = DeviceStorage(1, "cpu", codecs={"p": "zstd"}).codecs["p",]
    good = [codec.encode(np.full((4,), n, np.int32)) for n in range(6)]
    with DeviceStorage(20, "cpu", codecs={"p": "zstd"}) as storage:
        buffer = ReplayBuffer(storage, batch_size=32, seed=0, output="numpy")
        done = np.zeros(6, bool)
        buffer.extend({"p": np.stack([np.full(4, n, np.int32) for n in range(6)]), "done": done})
        place = int(storage.records.by_path["p",].offset)
        record = np.empty((1, storage.records.record_size), np.uint8)
        storage.tape.gather_records(np.array([3]), record.reshape(-1))
        at, length = record[0, place : place + 16].view(np.int64)
        assert length == len(good[3])
        segment = storage._segment
        ring = np.asarray(segment.map_data(*storage.tape.blob_range)).reshape(-1).view(np.uint8)
        ring[at : at + length] ^= 0xFF
        batch = buffer.sample()
        assert set(batch["p"][:, 0].tolist()) == {0, 1, 2, 4, 5}
        assert storage.undecodable == 1
        with pytest.raises(CodecError):
            buffer[[3]]


# -- checkpoints -----------------------------------------------------------------------------------


def kinds(name: str) -> dict[str, Any]:
    return {
        "lazy": lambda: LazyTensorStorage(40, codecs=codecs(name), share_next=False),
        "device": lambda: DeviceStorage(40, "cpu", codecs=codecs(name)),
        "new": lambda: DeviceStorage(40, "cpu"),
    }


@pytest.mark.parametrize("source", ["lazy", "device"])
@pytest.mark.parametrize("target", ["lazy", "device", "new"])
@pytest.mark.parametrize("name", LOSSLESS[:2])
def test_checkpoints_go_from_one_kind_to_the_other(source, target, name, tmp_path):
    with kinds(name)[source]() as one, kinds(name)[target]() as other:
        fill(ReplayBuffer(one))
        ReplayBuffer(one, output="numpy").save(tmp_path / "saved")
        if target != "new":
            fill(ReplayBuffer(other))  # in place of rows that are there
        buffer = ReplayBuffer(other, seed=0, output="numpy")
        buffer.load(tmp_path / "saved")
        everything = buffer[:]
        assert everything["t"].tolist() == ReplayBuffer(one, output="numpy")[:]["t"].tolist()
        check(everything)
        assert other.codecs["pixels",].name == name
        buffer.extend(rows(np.arange(58, 61)))
        check(buffer[:])
        check(buffer.sample(9))


def test_a_checkpoint_with_other_codecs_is_refused(tmp_path: Path) -> None:
    with DeviceStorage(40, "cpu", codecs={"pixels": "zstd"}) as one:
        fill(ReplayBuffer(one))
        ReplayBuffer(one).save(tmp_path / "saved")
    with DeviceStorage(40, "cpu") as other:
        other.writer().extend(rows(np.arange(5)))
        with pytest.raises(LayoutError):
            ReplayBuffer(other).load(tmp_path / "saved")
        assert len(other) == 5
        check(ReplayBuffer(other, output="numpy")[:])


def test_a_smaller_ring_takes_the_newest_rows(tmp_path: Path) -> None:
    known = {uid: Row(uid, 10) for uid in range(30)}
    with DeviceStorage(40, "cpu", example=EXAMPLE) as one:
        one.writer().extend(columns(list(known.values())))
        ReplayBuffer(one).save(tmp_path / "saved")
    with DeviceStorage(40, "cpu", blob_bytes=105) as other:
        buffer = ReplayBuffer(other, output="numpy")
        buffer.load(tmp_path / "saved")
        assert check_rows(buffer[:], known) == list(range(20, 30))


# -- streams and threads ---------------------------------------------------------------------------


def test_decoded_leaves_are_used_behind_their_copy(monkeypatch):
    streams = OrderedStreams()
    monkeypatch.setattr(transfers, "streams_of", lambda device: streams)
    monkeypatch.setattr(transfers, "_shared", {})
    storage = DeviceStorage(40, "cpu", codecs=codecs("lz4"))
    buffer = ReplayBuffer(storage, batch_size=8, seed=0)
    fill(buffer)
    buffer.sample()
    streams.calls.clear()
    with Races(streams, storage.memory.rows):
        with streams.on(streams.side()):
            batch = buffer.draw()
        out = buffer._output(batch)
        seen = {key: out[key].clone() for key in ("pixels", "t", ("next", "pixels"))}
    assert "finish" not in {name for name, _ in streams.calls}
    check({key: np.asarray(value) for key, value in seen.items()})


def test_readers_and_a_writer_at_once():
    """What is decoded outside the lock is of its row, or lost."""
    with DeviceStorage(12, "cpu", codecs=codecs("lz4"), example=rows(0)) as storage:
        writer, stop, failed = storage.writer(), threading.Event(), []
        writer.extend(rows(np.arange(8)))

        def read() -> None:
            try:
                while not stop.is_set():
                    head, tail, _, _ = storage.tape.snapshot()
                    seqs = np.arange(tail, head)
                    batch, lost = storage.gather(seqs)
                    batch = batch.host()[np.flatnonzero(seqs >= lost)]
                    assert batch["t"].tolist() == seqs[seqs >= lost].tolist()
                    check(batch)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        for at in range(8, 1200, 4):
            writer.extend(rows(np.arange(at, at + 4)))
        stop.set()
        for thread in threads:
            thread.join()
    assert not failed, failed[0]


def test_an_episode_is_read():
    with DeviceStorage(40, "cpu", example=STEPS) as storage:
        for n in range(3):
            storage.writer().extend_trajectory(with_any_size(episode(n, 4)))
        table = storage.episodes()
        read = storage.read_episode(int(table["id"][1]))
        assert check_any_size(read) == identity(read) == [(1, t) for t in range(4)]
        assert isinstance(read, Batch)
