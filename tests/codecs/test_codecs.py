"""One row and many, encoded and decoded, without a storage."""

from __future__ import annotations

import multiprocessing
import pickle
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from contig import CodecError, LayoutError
from contig.codecs import check_encoded, check_leaf, codec_of, decode_rows, encode_rows

LOSSLESS = ["zstd", "zstd:1", "zstd:-3", "zstd:22", "lz4", "lz4:9", "png", "png:9", "qoi"]


def there_and_back(name, rows, **changes):
    """Rows encoded, put one after another, and decoded into a column of another colour."""
    encoded = encode_rows(codec_of(name), rows)
    offsets = np.cumsum([0, *map(len, encoded)])
    out = np.full_like(rows, 77)
    decode_rows(codec_of(name), b"".join(encoded), offsets, out, ("pixels",))
    return out


def images(dtype, channels):
    sides = st.tuples(st.integers(1, 9), st.integers(1, 9))
    shapes = st.tuples(st.integers(1, 5), sides, st.sampled_from(channels))
    return shapes.flatmap(lambda s: hnp.arrays(dtype, (s[0], *s[1], *s[2])))


@pytest.mark.parametrize("name", ["zstd", "zstd:19", "lz4", "lz4:9"])
@given(
    hnp.arrays(
        st.sampled_from([np.uint8, np.float32, np.int64, np.bool_, np.float16]),
        hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=6),
    )
)
@settings(max_examples=40, deadline=None)
def test_compressed_leaves_of_any_kind_come_back(name, rows):
    assert there_and_back(name, rows).tobytes() == rows.tobytes()


@given(images(np.uint8, [(), (1,), (3,), (4,)]))
@settings(max_examples=60, deadline=None)
def test_png_gives_back_the_same_pixels(rows):
    assert np.array_equal(there_and_back("png", rows), rows)


@given(images(np.uint16, [(), (1,), (3,), (4,)]))
@settings(max_examples=40, deadline=None)
def test_png_of_16_bits_gives_back_the_same_pixels(rows):
    assert np.array_equal(there_and_back("png:0", rows), rows)


@given(images(np.uint8, [(3,), (4,)]))
@settings(max_examples=60, deadline=None)
def test_qoi_gives_back_the_same_pixels(rows):
    assert np.array_equal(there_and_back("qoi", rows), rows)


@pytest.mark.parametrize("channels", [(), (1,), (3,)])
def test_jpeg_gives_back_nearly_the_same(channels):
    ramp = np.linspace(0, 255, 40 * 48).reshape(1, 40, 48, *[1 for _ in channels])
    rows = np.broadcast_to(ramp, (3, 40, 48, *channels)).astype(np.uint8)
    rows = np.ascontiguousarray(rows)
    out = there_and_back("jpeg:95", rows)
    assert np.abs(out.astype(int) - rows).max() < 12
    assert np.abs(out.astype(int) - rows).max() > 0  # so it is a lossy one


@pytest.mark.parametrize("name", [*LOSSLESS, "jpeg:90"])
def test_codecs_say_whether_they_lose_something(name):
    codec = codec_of(name)
    assert codec.lossless == (name != "jpeg:90")
    assert codec.name == name and codec.kind == name.split(":")[0]
    other = pickle.loads(pickle.dumps(codec))
    assert other == codec and hash(other) == hash(codec)
    assert other.encode(np.ones((8, 8, 3), np.uint8)) == codec.encode(np.ones((8, 8, 3), np.uint8))


@pytest.mark.parametrize("name", [*LOSSLESS, "jpeg:90"])
def test_a_row_cut_short_anywhere_is_refused(name):
    rng = np.random.default_rng(3)
    row = rng.integers(0, 40, (1, 11, 13, 3), np.uint8)
    (whole,) = encode_rows(codec_of(name), row)
    for length in range(len(whole)):
        with pytest.raises(CodecError, match=r'"pixels": row 0 of 1'):
            decode_rows(
                codec_of(name), whole[:length], np.array([0, length]), row.copy(), ("pixels",)
            )


@pytest.mark.parametrize("name", ["zstd", "lz4", "png", "jpeg:90", "qoi"])
@given(data=st.binary(max_size=60))
@settings(max_examples=40, deadline=None)
def test_bytes_of_something_else_are_refused(name, data):
    out = np.zeros((1, 12, 12, 3), np.uint8)
    with pytest.raises(CodecError, match="was damaged, or encoded by"):
        decode_rows(codec_of(name), data, np.array([0, len(data)]), out, ("a", "b"))


@pytest.mark.parametrize("name", ["zstd", "lz4", "png", "jpeg:90", "qoi"])
def test_a_row_of_another_shape_is_refused_and_named(name):
    rows = encode_rows(codec_of(name), np.ones((2, 8, 9, 3), np.uint8))
    good = encode_rows(codec_of(name), np.ones((2, 8, 8, 3), np.uint8))
    frames = [good[0], rows[0], good[1]]
    out = np.zeros((3, 8, 8, 3), np.uint8)
    with pytest.raises(CodecError, match=r'"pixels": row 1 of 3, .* is no .* of uint8\[8, 8, 3\]'):
        decode_rows(
            codec_of(name), b"".join(frames), np.cumsum([0, *map(len, frames)]), out, ("pixels",)
        )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("zip", "unknown; there are zstd, lz4, png, qoi, jpeg"),
        ("", "unknown"),
        ("jpeg", "say its quality, as in 'jpeg:90'"),
        ("jpeg:0", "from 1 to 100"),
        ("jpeg:101", "from 1 to 100"),
        ("jpeg:", "from 1 to 100"),
        ("png:10", "from 0 to 9"),
        ("zstd:fast", "from -7 to 22"),
        ("zstd: 3", "from -7 to 22"),
        ("zstd:+3", "from -7 to 22"),
        ("lz4:0", "from 1 to 12"),
        ("qoi:1", "qoi has no levels; write 'qoi'"),
        (3, "expected a name"),
        (None, "expected a name"),
    ],
)
def test_names_that_are_none(name, text):
    with pytest.raises(ValueError, match=text):
        codec_of(name)


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "text"),
    [
        ("png", (4, 84, 84), np.uint8, "zstd and lz4 take any shape"),
        ("png", (3, 84, 84), np.uint8, "move the channels to the end, or take another"),
        ("png", (84,), np.uint8, r"png holds \[height, width\], \[height, width, 1\]"),
        ("png", (84, 84, 2), np.uint8, "png holds"),
        ("png", (0, 84), np.uint8, "png holds"),
        ("png", (84, 84), np.float32, "png holds uint8 or uint16; zstd and lz4 take any dtype"),
        ("jpeg:90", (84, 84, 4), np.uint8, r"jpeg holds .*\[height, width, 3\]"),
        ("jpeg:90", (84, 84), np.uint16, "jpeg holds uint8;"),
        ("jpeg:90", (65536, 1), np.uint8, "up to 65535 pixels a side"),
        ("qoi", (84, 84), np.uint8, r"qoi holds \[height, width, 3\], \[height, width, 4\]"),
        ("zstd", (3, 0), np.uint8, "nothing to encode"),
        ("lz4", (0,), np.uint8, "nothing to encode"),
    ],
)
def test_leaves_that_a_codec_cannot_hold(name, shape, dtype, text):
    with pytest.raises(LayoutError, match=text) as error:
        check_leaf(codec_of(name), shape, np.dtype(dtype), ("next", "pixels"))
    assert '("next", "pixels")' in str(error.value) and name in str(error.value)


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("zstd", "zstandard", "zstd"),
        ("lz4", "lz4.block", "lz4"),
        ("png", "imagecodecs", "images"),
        ("jpeg:90", "imagecodecs", "images"),
        ("qoi", "imagecodecs", "images"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(name, module, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)  # importing it fails
    with pytest.raises(ImportError, match=rf"codec '{name}' needs .*'\.\[{extra}\]'"):
        check_leaf(codec_of(name), (8, 8, 3), np.dtype(np.uint8), ("pixels",))


# -- bytes that somebody else encoded -------------------------------------------------------------


@pytest.mark.parametrize("name", ["zstd", "lz4", "png", "jpeg:90", "qoi"])
def test_encoded_bytes_are_taken_if_they_are_of_the_leaf(name):
    (data,) = encode_rows(codec_of(name), np.ones((1, 8, 9, 3), np.uint8))
    u8 = np.dtype(np.uint8)
    check_encoded(codec_of(name), data, (8, 9, 3), u8, ("pixels",))
    check_encoded(codec_of(name), memoryview(data), (8, 9, 3), u8, ("pixels",))
    for shape in ((9, 9, 3), (8, 9), (8, 9, 4)):
        with pytest.raises(LayoutError, match=r'"pixels": bytes for codec'):
            check_encoded(codec_of(name), data, shape, u8, ("pixels",))
    for length in range(len(data)):
        if name != "zstd" or length < 6:  # its header says nothing of its end
            with pytest.raises(LayoutError, match=r'"pixels": bytes for codec'):
                check_encoded(codec_of(name), data[:length], (8, 9, 3), u8, ("pixels",))


@pytest.mark.parametrize("name", ["zstd", "lz4", "png", "jpeg:90", "qoi"])
@given(data=st.binary(max_size=80))
@settings(max_examples=60, deadline=None)
def test_bytes_of_anything_are_refused_in_words(name, data):
    with pytest.raises(LayoutError, match=r'"pixels": bytes for codec'):
        check_encoded(codec_of(name), data, (8, 9, 3), np.dtype(np.uint8), ("pixels",))


def test_headers_that_pillow_writes_are_understood():
    from io import BytesIO

    from PIL import Image

    rng = np.random.default_rng(0)
    for mode, shape in (("L", (31, 17)), ("RGB", (31, 17, 3)), ("RGBA", (31, 17, 4))):
        pixels = rng.integers(0, 255, shape, np.uint8)
        for form, name, options in (
            ("PNG", "png", {}),
            ("JPEG", "jpeg:90", {"quality": 80}),
            ("JPEG", "jpeg:90", {"progressive": True, "comment": b"\xff\xd9"}),
        ):
            if form == "JPEG" and mode == "RGBA":
                continue
            file = BytesIO()
            Image.fromarray(pixels, mode if pixels.dtype != np.uint8 else None).save(
                file, form, **options
            )
            data = file.getvalue()
            check_encoded(codec_of(name), data, shape, pixels.dtype, ("pixels",))
            out = np.zeros((1, *shape), np.uint8)
            decode_rows(codec_of(name), data, np.array([0, len(data)]), out, ("pixels",))
            assert np.array_equal(out[0], np.asarray(Image.open(BytesIO(data))))
            if form == "JPEG":  # as cameras pad it
                check_encoded(codec_of(name), data + bytes(9), shape, pixels.dtype, ("pixels",))
                with pytest.raises(LayoutError, match="cut short"):
                    check_encoded(codec_of(name), data[:-1], shape, pixels.dtype, ("pixels",))


def test_images_that_are_to_be_decoded_first():
    from io import BytesIO

    from PIL import Image

    palette = BytesIO()
    Image.fromarray(np.zeros((8, 8), np.uint8)).convert("P").save(palette, "PNG")
    four = BytesIO()
    Image.new("CMYK", (8, 8)).save(four, "JPEG")
    u8 = np.dtype(np.uint8)
    with pytest.raises(LayoutError, match="with a palette"):
        check_encoded(codec_of("png"), palette.getvalue(), (8, 8), u8, ("pixels",))
    with pytest.raises(LayoutError, match=r"8-bit \[8, 8, 4\], expected 8-bit \[8, 8, 3\]"):
        check_encoded(codec_of("jpeg:90"), four.getvalue(), (8, 8, 3), u8, ("pixels",))


# -- threads and processes ------------------------------------------------------------------------


def big(seed):
    return np.random.default_rng(seed).integers(0, 9, (7, 120, 110, 3), np.uint8)


@pytest.mark.parametrize("name", ["zstd", "lz4", "png", "qoi"])
def test_rows_by_several_threads_are_in_their_order(name):
    assert np.array_equal(there_and_back(name, big(1)), big(1))


@pytest.mark.parametrize("name", ["zstd", "png"])
def test_the_earliest_bad_row_is_named_whichever_thread_had_it(name):
    rows = big(2)
    encoded = encode_rows(codec_of(name), rows)
    for bad in ({6}, {0}, {1, 6}):
        frames = [data[: len(data) // 2] if i in bad else data for i, data in enumerate(encoded)]
        offsets = np.cumsum([0, *map(len, frames)])
        with pytest.raises(CodecError, match=f"row {min(bad)} of 7"):
            decode_rows(codec_of(name), b"".join(frames), offsets, rows.copy(), ("x",))


def test_many_threads_at_once_do_not_mix_rows():
    wrong = []

    def work(seed):
        for _ in range(5):
            for name in ("zstd", "lz4", "png", "qoi"):
                if not np.array_equal(there_and_back(name, big(seed)), big(seed)):
                    wrong.append((seed, name))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def _child(queue):
    queue.put(all(np.array_equal(there_and_back(n, big(3)), big(3)) for n in ("zstd", "png")))


def test_a_forked_child_has_threads_of_its_own():
    assert np.array_equal(there_and_back("png", big(3)), big(3))  # so the pool is there
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(queue,))
    child.start()
    try:
        assert queue.get(timeout=60)
    finally:
        child.join(60)
        child.kill()
