"""Leaves with codecs through storages and samplers, beside the same rows without."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from contig import (
    Batch,
    FifoSampler,
    LayoutError,
    LazyTensorStorage,
    LifoSampler,
    NStepSampler,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SamplerWithoutReplacement,
    SharedStorage,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    WindowSampler,
)
from contig.codecs import codec_of, encode_rows
from contig.tape.decoding import stored_bytes
from tests.codecs.frames import ALL, LOSSLESS, H, W, check, codecs, pixels, rows

STORAGES = {"lazy": LazyTensorStorage, "shared": SharedStorage}
SAMPLERS = {
    "uniform": RandomSampler,
    "without replacement": SamplerWithoutReplacement,
    "slices": lambda: SliceSampler(slice_len=4),
    "padded slices": lambda: SliceSampler(slice_len=8, pad_output=True),
    "slices with burn-in": lambda: SliceSampler(slice_len=4, burn_in=2),
    "slices without replacement": lambda: SliceSamplerWithoutReplacement(slice_len=4),
    "priorities": lambda: PrioritizedSampler(alpha=0.6, beta=0.4),
    "priorities of slices": lambda: PrioritizedSliceSampler(slice_len=4, alpha=0.6, beta=0.4),
    "n steps": lambda: NStepSampler(3, 0.9),
    "window": lambda: WindowSampler(last_rows=20),
    "fifo": FifoSampler,
    "lifo": LifoSampler,
}


def fill(buffer):
    """Trajectories of 5 and 3 steps that lap a ring of 40, the last one open."""
    for first in range(0, 56, 8):
        n = np.arange(first, first + 8)
        buffer.extend(rows(n, (n % 8 == 4) | (n % 8 == 7)))
    buffer.extend(rows(np.arange(56, 58)))


def leaves(batch):
    return {path: np.asarray(batch[path]) for path in list(batch.keys())}


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("name", ALL)
def test_samples_are_those_of_a_buffer_without_codecs(name, sampler):
    plain, coded = (
        ReplayBuffer(LazyTensorStorage(40, codecs=given), SAMPLERS[sampler](), batch_size=8, seed=3)
        for given in (None, codecs(name))
    )
    fill(plain)
    fill(coded)
    for _ in range(3):
        expected, found = leaves(plain.sample()), leaves(coded.sample())
        assert found.keys() == expected.keys()
        for path, column in expected.items():
            if name == "jpeg:90" and "pixels" in path:
                encoded = encode_rows(codec_of(name), column)
                again = np.empty_like(column)
                for place, data in zip(again, encoded):
                    codec_of(name).decode(memoryview(data), place)
                assert np.array_equal(found[path], again), path
            else:
                assert np.array_equal(found[path], column, equal_nan=column.dtype.kind == "f"), path


@pytest.mark.parametrize("kind", STORAGES)
@pytest.mark.parametrize("name", ALL)
def test_batches_show_the_leaf_as_it_was_given(name, kind):
    with STORAGES[kind](40, codecs=codecs(name)) as storage:
        buffer = ReplayBuffer(storage, batch_size=8, seed=0)
        fill(buffer)
        batch = buffer.sample()
        leaf = batch.layout.by_path["pixels",]
        assert (leaf.shape, leaf.dtype, leaf.codec) == ((H, W, 3), np.uint8, None)
        assert storage.layout.by_path["pixels",].codec == name
        assert {p: c.name for p, c in storage.codecs.items()} == {
            ("pixels",): name,
            ("next", "pixels"): name,
        }
        check(batch, exact=name != "jpeg:90")
        check(buffer[:], exact=name != "jpeg:90")
        newest = storage.episodes()[-1]
        check(storage.read_episode(newest["id"]), exact=name != "jpeg:90")


# -- ways in ---------------------------------------------------------------------------------------


def rows_of_envs(n):
    return rows(np.arange(n))


WAYS = {
    "add": lambda b: [b.add(rows(i)) for i in range(6)],
    "extend": lambda b: b.extend(rows(np.arange(6))),
    "lanes": lambda b: b.extend(rows(np.arange(6).reshape(2, 3))),
    "trajectory": lambda b: b.extend_trajectory(rows(np.arange(6)), truncated=True),
    "envs": lambda b: b.add_step(rows(np.arange(6))),
    "some envs": lambda b: b.add_step(rows(np.arange(8)), mask=np.arange(8) < 6),
    "a Batch": lambda b: b.extend(Batch.from_tree(rows(np.arange(6)), 1)),
    "a TensorDict": lambda b: b.extend(TensorDict(rows(np.arange(6)), [6])),
    "rows in a list": lambda b: b.extend([Batch.from_tree(rows(i), 0) for i in range(6)]),
    "tensors": lambda b: b.extend(
        {
            "pixels": torch.from_numpy(pixels(np.arange(6))),
            "t": torch.arange(6),
            "next": {
                "pixels": torch.from_numpy(pixels(np.arange(1, 7))),
                "reward": torch.arange(6.0),
                "done": torch.zeros(6, dtype=torch.bool),
            },
        }
    ),
    "strided": lambda b: b.extend(
        {**rows(np.arange(6)), "pixels": np.repeat(pixels(np.arange(6)), 2, 2)[:, :, ::2]}
    ),
}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_in(way, known):
    example = rows(0) if known else None
    storage = LazyTensorStorage(40, ndim=2, example=example, codecs=codecs("lz4"))
    buffer = ReplayBuffer(storage, batch_size=8, seed=0)
    WAYS[way](buffer)
    WAYS[way](buffer)  # and again, now that packers are known
    everything = buffer[:]
    assert everything["t"].tolist() == [*range(6), *range(6)]
    check(everything)


def test_values_are_cast_as_without_a_codec():
    storage = LazyTensorStorage(40, example=rows(0), codecs=codecs("zstd"))
    buffer = ReplayBuffer(storage, batch_size=8)
    given = rows(np.arange(4))
    given["pixels"] = given["pixels"].astype(np.float64)
    buffer.extend(given)
    one = rows(4)
    one["pixels"] = one["pixels"].astype(np.int32).tolist()
    buffer.add(one)
    check(buffer[:])
    given["pixels"] += 0.5
    with pytest.raises(ValueError, match='"pixels"'):
        buffer.extend(given)
    assert len(buffer) == 5


@pytest.mark.parametrize("kind", ["zstd", "lz4"])
def test_other_dtypes_and_containers(kind):
    storage = LazyTensorStorage(20, codecs={1: kind, ("a", "b"): kind} and {(1,): kind})
    buffer = ReplayBuffer(storage, batch_size=4, seed=0)
    data = (np.arange(6), np.random.default_rng(0).normal(size=(6, 5, 2)))
    buffer.extend(data)
    buffer.add((np.int64(6), np.ones((5, 2))))
    batch = buffer.sample()
    assert batch[1,].dtype == np.float64
    for number, values in zip(batch[0,], batch[1,]):
        assert np.array_equal(values, np.ones((5, 2)) if number == 6 else data[1][number])


def test_outputs_and_transforms_have_decoded_rows():
    seen = []

    class Both:
        def on_write(self, batch):
            seen.append(batch["pixels"].shape)
            return batch.with_leaves({"pixels": 255 - batch["pixels"]})

        def on_sample(self, batch):
            seen.append(batch["pixels"].shape)
            return batch

    storage = LazyTensorStorage(40, codecs={"pixels": "png"})
    buffer = ReplayBuffer(storage, batch_size=4, transform=Both(), output="torch", seed=0)
    buffer.extend(rows(np.arange(6)))
    buffer.add(rows(6))
    out = buffer.sample()
    assert seen == [(6, H, W, 3), (1, H, W, 3), (4, H, W, 3)]
    assert np.array_equal(255 - out["pixels"].numpy(), pixels(out["t"].numpy()))
    tensors = ReplayBuffer(storage, batch_size=4, output="tensordict").sample()
    assert tensors["pixels"].shape == (4, H, W, 3)


def test_an_ensemble_of_buffers_with_and_without_codecs():
    members = []
    for name in (None, "lz4", "png"):
        storage = LazyTensorStorage(40, codecs=codecs(name) if name else None)
        members.append(ReplayBuffer(storage, batch_size=4, seed=0))
        fill(members[-1])
    batch = ReplayBufferEnsemble(*members, sample_from_all=True, batch_size=12).sample()
    assert len(batch) == 12
    check(batch)


@pytest.mark.parametrize("name", LOSSLESS)
def test_a_checkpoint_keeps_encoded_bytes(name, tmp_path):
    storage = LazyTensorStorage(40, codecs=codecs(name))
    buffer = ReplayBuffer(storage, batch_size=8, seed=1)
    fill(buffer)
    buffer.save(tmp_path / "saved")
    before = [bytes(x) for x in stored_bytes(storage, "pixels", np.arange(20, 58))]
    other = ReplayBuffer(LazyTensorStorage(40), batch_size=8, seed=2)
    other.load(tmp_path / "saved")
    assert [bytes(x) for x in stored_bytes(other.storage, "pixels", np.arange(20, 58))] == before
    assert other.storage.codecs == storage.codecs
    expected, found = leaves(buffer.sample()), leaves(other.sample())
    assert all(np.array_equal(found[p], column) for p, column in expected.items())
    wrong = ReplayBuffer(LazyTensorStorage(40, codecs=codecs("zstd:19")), batch_size=8)
    with pytest.raises(LayoutError, match="codec zstd:19, but it has"):
        wrong.load(tmp_path / "saved")


# -- bounds ----------------------------------------------------------------------------------------


def test_rows_go_when_their_bytes_do_not_fit():
    noise = np.random.default_rng(0).integers(0, 255, (30, 40, 40), np.uint8)  # 1.6 kB each
    storage = LazyTensorStorage(30, codecs={"x": "lz4"}, blob_bytes=16_500)
    buffer = ReplayBuffer(storage, batch_size=4, seed=0)
    for i in range(30):
        buffer.add({"x": noise[i], "i": np.int64(i)})
    assert len(buffer) == 10
    assert buffer[:]["i"].tolist() == list(range(20, 30))
    assert np.array_equal(buffer[:]["x"], noise[20:])
    with pytest.raises(ValueError):
        small = ReplayBuffer(LazyTensorStorage(30, codecs={"x": "lz4"}, blob_bytes=1000))
        small.add({"x": noise[0], "i": np.int64(0)})


# -- what is refused -------------------------------------------------------------------------------


def test_codecs_that_a_storage_cannot_have():
    for given, error, text in (
        ({"pixels": "gif"}, ValueError, "codecs: \"pixels\": codec 'gif': unknown"),
        ("zstd", TypeError, "expected names by leaf"),
        ({"frames": "zstd"}, LayoutError, 'codecs: no leaf "frames"; there are'),
        ({"pixels": "qoi", "t": "png"}, LayoutError, '"t": codec png for int64'),
        ({("next", "done"): "zstd"}, LayoutError, "says where trajectories begin and end"),
        ({("next", "reward"): "lz4"}, LayoutError, "leave it without a codec"),
    ):
        with pytest.raises(error, match=text):
            LazyTensorStorage(10, example=rows(0), codecs=given)
        if error is LayoutError:
            buffer = ReplayBuffer(LazyTensorStorage(10, codecs=given), batch_size=2)
            with pytest.raises(error, match=text):
                buffer.add(rows(0))
            assert len(buffer) == 0 and buffer.storage.layout is None


def test_a_refused_append_changes_nothing():
    storage = LazyTensorStorage(10, codecs=codecs("png"))
    buffer = ReplayBuffer(storage, batch_size=2)
    buffer.extend(rows(np.arange(3)))
    for wrong in (
        {**rows(np.arange(3)), "pixels": np.zeros((3, H, W), np.uint8)},
        {**rows(np.arange(3)), "pixels": np.zeros((2, H, W, 3), np.uint8)},
        {**rows(np.arange(3)), "pixels": [b"", b"", b""]},
        {k: v for k, v in rows(np.arange(3)).items() if k != "pixels"},
    ):
        with pytest.raises(ValueError, match='"pixels"'):
            buffer.extend(wrong)
        with pytest.raises(ValueError, match='"pixels"'):
            buffer.extend_trajectory(wrong, truncated=True)
    with pytest.raises(ValueError, match='"pixels": shape'):
        buffer.add({**rows(0), "pixels": np.zeros((H, W), np.uint8)})
    assert buffer[:]["t"].tolist() == [0, 1, 2]
    check(buffer[:])


def test_a_name_with_other_codecs_is_refused_and_with_none_is_taken():
    with SharedStorage(20, codecs=codecs("lz4")) as first:
        ReplayBuffer(first, batch_size=2).extend(rows(np.arange(6)))
        with pytest.raises(LayoutError, match="stored with lz4, asked for zstd"):
            SharedStorage(20, first.name, codecs={"pixels": "zstd"})
        with SharedStorage(20, first.name, example=rows(0)) as second:
            buffer = ReplayBuffer(second, batch_size=4, seed=0)
            buffer.extend(rows(np.arange(6, 9)))
            check(buffer.sample())
            check(ReplayBuffer(first, batch_size=4)[:])
