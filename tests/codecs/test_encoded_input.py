"""Rows that come as bytes somebody else encoded: checked, and stored as they are."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from contig import Batch, Blob, DeviceStorage, LayoutError, LazyTensorStorage, ReplayBuffer
from contig.codecs import codec_of, encode_rows
from contig.tape.decoding import stored_bytes
from tests.codecs.frames import H, W, pixels, rows


def jpeg(number, **options):
    out = io.BytesIO()
    Image.fromarray(pixels(number)).save(out, "JPEG", quality=77, **options)
    return out.getvalue()


def decoded(data):
    return np.asarray(Image.open(io.BytesIO(data)))


def given(encoded, numbers):
    return {**rows(np.asarray(numbers)), "pixels": encoded}


def objects(values):
    out = np.empty(len(values), object)
    out[:] = values
    return out


FORMS = {
    "a list": lambda x: x,
    "a tuple": tuple,
    "an object array": objects,
    "a Blob": Blob.of,
    "arrays of bytes": lambda x: objects([np.frombuffer(b, np.uint8) for b in x]),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("known", [True, False])
def test_many_rows_of_jpeg_are_stored_as_they_are(form, known):
    encoded = [jpeg(i) for i in range(6)]
    # A tuple is a container, and arrays may be rows of anything, until the leaf is known.
    example = rows(0) if known or form in ("a tuple", "arrays of bytes") else None
    storage = LazyTensorStorage(40, example=example, codecs={"pixels": "jpeg:90"})
    buffer = ReplayBuffer(storage, batch_size=4, seed=0)
    buffer.extend(given(FORMS[form](encoded), range(6)))
    buffer.extend_trajectory(given(FORMS[form](encoded), range(6)), truncated=True)
    assert [bytes(x) for x in stored_bytes(storage, "pixels", np.arange(12))] == encoded * 2
    batch = buffer.sample()
    for number, frame in zip(batch["t"], batch["pixels"]):
        assert np.array_equal(frame, decoded(encoded[number]))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("form", [bytes, bytearray, memoryview])
def test_one_row_of_jpeg(form, known):
    storage = LazyTensorStorage(
        40, example=rows(0) if known else None, codecs={"pixels": "jpeg:90"}
    )
    buffer = ReplayBuffer(storage, batch_size=4, seed=0)
    if not known:
        buffer.add({**rows(0), "pixels": jpeg(0)})
    buffer.add({**rows(1), "pixels": form(jpeg(1, progressive=True))})
    buffer.add(rows(2))  # pixels are encoded here
    assert bytes(stored_bytes(storage, "pixels", [1 - known])[0]) == jpeg(1, progressive=True)
    assert storage.layout.by_path["pixels",].shape == (H, W, 3)
    assert len(buffer.sample()["pixels"]) == 4


@pytest.mark.parametrize("name", ["zstd", "lz4", "png", "qoi"])
def test_bytes_of_other_codecs(name):
    encoded = encode_rows(codec_of(name), pixels(np.arange(6)))
    storage = LazyTensorStorage(40, example=rows(0), codecs={"pixels": name})
    buffer = ReplayBuffer(storage, batch_size=4, seed=0)
    buffer.extend(given(encoded, range(6)))
    assert np.array_equal(buffer[:]["pixels"], pixels(np.arange(6)))


@pytest.mark.parametrize("more", [{}, {"note": Blob()}], ids=["coded", "any size"])
@pytest.mark.parametrize("kind", ["lazy", "device"])
@pytest.mark.parametrize("name", ["zstd", "lz4"])
def test_rows_in_a_list_keep_zeros_at_their_ends(name, kind, more):
    """An array of bytes would not; blocks of lz4 may well end with some."""
    example = {"x": np.zeros(64, np.int32), "next": {"done": False}, **more}
    options = {"example": example, "codecs": {"x": name}}
    storage = (
        LazyTensorStorage(9, **options) if kind == "lazy" else DeviceStorage(9, "cpu", **options)
    )
    arrays = [np.full(64, n, np.int32) << 8 for n in range(3)]
    encoded = [codec_of(name).encode(x) for x in arrays]
    assert name == "zstd" or all(x.endswith(b"\0") for x in encoded)
    note = {key: b"a\0" for key in more}
    forms = (bytes, bytearray, lambda x: Blob.of([x]))
    made = [{"x": f(x), "next": {"done": False}, **note} for f, x in zip(forms, encoded)]
    storage.writer().extend(made)
    assert [bytes(x) for x in stored_bytes(storage, "x", np.arange(3))] == encoded
    batch = ReplayBuffer(storage, output="numpy")[:]
    assert np.array_equal(batch["x"], arrays)
    assert all(list(batch[key]) == [b"a\0"] * 3 for key in more)


def test_gray_images_say_their_shape_without_a_channel():
    out = io.BytesIO()
    Image.fromarray(pixels(0)[..., 0]).save(out, "PNG")
    storage = LazyTensorStorage(8, codecs={"x": "png"})
    ReplayBuffer(storage, batch_size=1).add({"x": out.getvalue(), "t": 0})
    assert storage.layout.by_path["x",].shape == (H, W)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda: jpeg(0)[:-10], "cut short"),
        (lambda: b"hello", "no JPEG"),
        (lambda: encode_rows(codec_of("png"), pixels(np.arange(1)))[0], "no JPEG"),
        (lambda: encode_rows(codec_of("jpeg:90"), np.zeros((1, 9, 9, 3), np.uint8))[0], "9, 9, 3"),
        (lambda: encode_rows(codec_of("jpeg:90"), np.zeros((1, H, W), np.uint8))[0], "12, 10, 1"),
        (lambda: "a text", '"pixels"'),
    ],
)
def test_bytes_that_are_none_of_the_leaf_are_refused_and_change_nothing(wrong, text):
    storage = LazyTensorStorage(8, example=rows(0), codecs={"pixels": "jpeg:90"})
    buffer = ReplayBuffer(storage, batch_size=1)
    buffer.add({**rows(0), "pixels": jpeg(0)})
    with pytest.raises(ValueError, match=text):
        buffer.add({**rows(1), "pixels": wrong()})
    with pytest.raises(ValueError, match=text):
        buffer.extend(given([jpeg(1), wrong()], range(2)))
    with pytest.raises(ValueError, match=text):
        buffer.extend_trajectory(given([jpeg(1), wrong()], range(2)), truncated=True)
    assert len(buffer) == 1


def test_first_bytes_that_say_no_shape_need_an_example():
    (data,) = encode_rows(codec_of("zstd"), pixels(np.arange(1)))
    buffer = ReplayBuffer(LazyTensorStorage(8, codecs={"pixels": "zstd"}), batch_size=1)
    with pytest.raises(
        LayoutError, match="does not say what shape it has; give the storage an exa"
    ):
        buffer.add({**rows(0), "pixels": data})
    assert buffer.storage.layout is None


def test_a_batch_with_bytes_in_place_of_the_leaf():
    encoded = [jpeg(i) for i in range(3)]
    storage = LazyTensorStorage(8, example=rows(0), codecs={"pixels": "jpeg:90"})
    buffer = ReplayBuffer(storage, batch_size=1)
    buffer.extend(Batch.from_tree(given(Blob.of(encoded), range(3)), 1))
    assert [bytes(x) for x in stored_bytes(storage, "pixels", np.arange(3))] == encoded


def test_stored_bytes_of_what_is_not_there():
    storage = LazyTensorStorage(2, example=rows(0), codecs={"pixels": "lz4"})
    buffer = ReplayBuffer(storage, batch_size=1)
    for i in range(3):
        buffer.add(rows(i))
    with pytest.raises(KeyError, match='no leaf "t" with a codec'):
        stored_bytes(storage, "t", [1])
    for gone in (0, 3):
        with pytest.raises(IndexError, match="rows 1 to 2 are stored"):
            stored_bytes(storage, "pixels", [gone])
