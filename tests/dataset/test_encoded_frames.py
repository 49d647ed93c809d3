"""Imports that keep encoded frames encoded: the stored bytes are the file's."""

from __future__ import annotations

import io

import h5py
import numpy as np
import pytest
from PIL import Image

from contig import LayoutError, LazyTensorStorage, ReplayBuffer
from contig.dataset import from_hdf5, from_lerobot, to_hdf5
from contig.tape.decoding import stored_bytes
from tests.dataset.made_lerobot import HEIGHT, WIDTH, picture, png, write_lerobot

TOP = ("observation", "images", "top")
LENGTHS = [4, 3, 5]


def jpeg(identity: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(picture(identity)).save(out, "JPEG", quality=83)
    return out.getvalue()


def decoded(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)))


def identities() -> list[int]:
    return [100 * e + f for e, frames in enumerate(LENGTHS) for f in range(frames)]


def kept(storage, key) -> list[bytes]:
    return [bytes(x) for x in stored_bytes(storage, key, np.arange(len(storage)))]


@pytest.mark.parametrize(("name", "image"), [("jpeg:90", jpeg), ("png", png), ("png:9", png)])
@pytest.mark.parametrize("known", [True, False])
def test_lerobot_images_stay_as_they_are_in_the_file(tmp_path, name, image, known):
    path = write_lerobot(tmp_path / "set", LENGTHS, image=image)
    storage = LazyTensorStorage(100, codecs={TOP: name})
    if known:
        plain = LazyTensorStorage(100)
        from_lerobot(path, plain)
        storage.publish(plain.layout)
    assert from_lerobot(path, storage) == 3
    assert kept(storage, TOP) == [image(i) for i in identities()]
    leaf = storage.layout.by_path[TOP]
    assert (leaf.shape, leaf.codec) == ((HEIGHT, WIDTH, 3), name)
    images = ReplayBuffer(storage)[:][TOP]
    assert all(np.array_equal(x, decoded(image(i))) for x, i in zip(images, identities()))


def test_lerobot_images_of_another_format_are_encoded_anew(tmp_path):
    path = write_lerobot(tmp_path / "set", LENGTHS, image=jpeg)
    storage = LazyTensorStorage(100, codecs={TOP: "png"})
    from_lerobot(path, storage)
    assert all(x.startswith(b"\x89PNG") for x in kept(storage, TOP))
    images = ReplayBuffer(storage)[:][TOP]
    assert all(np.array_equal(x, decoded(jpeg(i))) for x, i in zip(images, identities()))
    raw = write_lerobot(tmp_path / "raw", LENGTHS, image=lambda i: picture(i).tobytes())
    storage = LazyTensorStorage(100, codecs={TOP: "zstd"})
    from_lerobot(raw, storage)
    images = ReplayBuffer(storage)[:][TOP]
    assert all(np.array_equal(x, picture(i)) for x, i in zip(images, identities()))


def test_a_damaged_image_is_named(tmp_path):
    path = write_lerobot(tmp_path / "set", [2], image=lambda i: jpeg(i)[:-40])
    with pytest.raises(LayoutError, match=r"observation.images.top: a damaged image"):
        from_lerobot(path, LazyTensorStorage(100, codecs={TOP: "jpeg:90"}))


# -- HDF5 -----------------------------------------------------------------------------------------


def write_hdf5(path, put) -> None:
    n = 9
    with h5py.File(path, "w") as file:
        file["observations/state"] = np.arange(n, dtype=np.float32)[:, None]
        put(file, n)
        file["actions"] = np.zeros((n, 2), np.float32)
        file["rewards"] = np.arange(n, dtype=np.float32)
        file["terminals"] = np.arange(n) % 3 == 2


def as_vlen(file, n) -> None:
    images = file.create_dataset("observations/top", n, h5py.vlen_dtype(np.uint8))
    for i in range(n):
        images[i] = np.frombuffer(jpeg(i), np.uint8)


def as_padded(file, n) -> None:
    longest = max(len(jpeg(i)) for i in range(n)) + 7
    rows = [np.frombuffer(jpeg(i).ljust(longest, b"\0"), np.uint8) for i in range(n)]
    file["observations/top"] = np.stack(rows)


@pytest.mark.parametrize("put", [as_vlen, as_padded])
def test_hdf5_images_stay_as_they_are_in_the_file(tmp_path, put):
    write_hdf5(tmp_path / "in.hdf5", put)
    storage = LazyTensorStorage(100, codecs={("observation", "top"): "jpeg:90"})
    assert from_hdf5(tmp_path / "in.hdf5", storage) == 3
    assert kept(storage, ("observation", "top")) == [jpeg(i) for i in range(9)]
    batch = ReplayBuffer(storage)[:]
    assert batch["observation", "top"].shape == (9, HEIGHT, WIDTH, 3)
    for number, image in zip(batch["observation", "state"][:, 0], batch["observation", "top"]):
        assert np.array_equal(image, decoded(jpeg(int(number))))
    to_hdf5(storage, tmp_path / "out.hdf5")  # pixels, for everybody
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert np.array_equal(file["observations/top"][4], decoded(jpeg(4)))


def test_hdf5_pixels_are_encoded_and_what_is_no_image_is_refused(tmp_path):
    def pixels(file, n):
        file["observations/top"] = np.stack([picture(i) for i in range(n)])

    write_hdf5(tmp_path / "pixels.hdf5", pixels)
    storage = LazyTensorStorage(100, codecs={("observation", "top"): "png"})
    from_hdf5(tmp_path / "pixels.hdf5", storage)
    images = ReplayBuffer(storage)[:]["observation", "top"]
    assert all(np.array_equal(x, picture(i)) for i, x in enumerate(images))

    def noise(file, n):
        file["observations/top"] = np.ones((n, 50), np.uint8)

    write_hdf5(tmp_path / "noise.hdf5", noise)
    with pytest.raises(LayoutError, match="no PNG"):
        from_hdf5(tmp_path / "noise.hdf5", storage)


def test_images_that_nobody_could_decode_are_not_imported(tmp_path):
    def see_through(number):
        out = io.BytesIO()
        Image.fromarray(picture(number)).save(out, "PNG", transparency=(1, 2, 3))
        return out.getvalue()

    def put(file, n):
        images = file.create_dataset("observations/top", n, h5py.vlen_dtype(np.uint8))
        for i in range(n):
            images[i] = np.frombuffer(see_through(i), np.uint8)

    write_hdf5(tmp_path / "in.hdf5", put)
    storage = LazyTensorStorage(100, codecs={("observation", "top"): "png"})
    with pytest.raises(LayoutError, match="transparent colour"):
        from_hdf5(tmp_path / "in.hdf5", storage)
    assert len(storage) == 0
    # LeRobot's say what shape they have: they are decoded to that.
    path = write_lerobot(tmp_path / "set", LENGTHS, image=see_through)
    storage = LazyTensorStorage(100, codecs={TOP: "png"})
    from_lerobot(path, storage)
    images = ReplayBuffer(storage)[:][TOP]
    assert all(np.array_equal(x, picture(i)) for x, i in zip(images, identities()))
