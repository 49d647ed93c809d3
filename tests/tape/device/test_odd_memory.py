"""Arrays and tensors whose memory torch or numpy cannot read as it is: their values are stored."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from contig import DeviceStorage, LazyTensorStorage, ReplayBuffer

torch = pytest.importorskip("torch")

STORAGES = [lambda: DeviceStorage(20, "cpu"), lambda: LazyTensorStorage(20)]
KINDS = pytest.mark.parametrize("make", STORAGES, ids=["device", "host"])


def rows(x: Any, reward: Any = None) -> Any:
    n = len(x)
    reward = np.zeros(n, np.float32) if reward is None else reward
    return {"x": x, "next": {"reward": reward, "done": np.zeros(n, bool)}}


def stored(storage: Any, n: int) -> Any:
    return ReplayBuffer(storage, output="numpy")[:n]


UNALIGNED = """
import numpy as np
from contig import DeviceStorage, ReplayBuffer

for name in ("i4", "f8", "c8", "c16"):
    for shift in (1, 4, 8):
        for shape in ((5,), (10, 4)):
            dtype, size = np.dtype(name), int(np.prod(shape))
            memory = np.zeros(size * dtype.itemsize + 32, np.uint8)
            start = (shift - memory.ctypes.data) % 16
            x = memory[start : start + size * dtype.itemsize].view(dtype).reshape(shape)
            x[...] = np.arange(size).reshape(shape)
            done = np.zeros(len(x), bool)
            storage = DeviceStorage(20, "cpu")
            storage.writer().extend({"x": x, "next": {"reward": done * 0.0, "done": done}})
            assert (ReplayBuffer(storage, output="numpy")[:]["x"] == x).all()
"""


def test_unaligned_arrays_of_any_dtype() -> None:
    """In a process of its own: torch takes alignment for granted, and such a read may end it."""
    subprocess.run([sys.executable, "-c", UNALIGNED], check=True, timeout=100)


@KINDS
@pytest.mark.parametrize("n", [1, 3])
def test_columns_of_packed_records(make: Any, n: int) -> None:
    """Their stride is a record's, which is no multiple of an item; of one row, too."""
    records = np.zeros(n, [("x", "f4"), ("z", "c8"), ("reward", "f4"), ("done", "?")])
    records["x"], records["z"] = np.arange(n) + 1, np.arange(n) * 1j
    data = {"x": records["x"], "z": records["z"]}
    data["next"] = {"reward": records["reward"], "done": records["done"]}
    for verb in ("extend", "add_step"):
        with make() as storage:
            getattr(storage.writer(), verb)(data)
            found = stored(storage, n)
            np.testing.assert_array_equal(found["x"], records["x"])
            np.testing.assert_array_equal(found["z"], records["z"])


@KINDS
def test_reversed_arrays(make: Any) -> None:
    with make() as storage:
        storage.writer().extend(rows(np.arange(5.0)[::-1]))
        assert stored(storage, 5)["x"].tolist() == [4, 3, 2, 1, 0]


@KINDS
def test_conjugated_and_negated_tensors(make: Any) -> None:
    """Torch sets a bit instead of changing numbers."""
    z = torch.arange(5).to(torch.complex64) * (1 + 2j)
    x, reward = z.conj(), z.conj().imag
    assert x.is_conj() and reward.is_neg()
    for verb in ("extend", "add_step"):
        with make() as storage:
            getattr(storage.writer(), verb)(rows(x, reward))
            storage.flush()
            found = stored(storage, 5)
            np.testing.assert_array_equal(found["x"], x.resolve_conj().numpy())
            np.testing.assert_array_equal(found["next", "reward"], reward.resolve_neg().numpy())
    with make() as storage:
        storage.writer().add({"x": x[1], "next": {"reward": reward[1], "done": False}})
        assert stored(storage, 1)["x"].tolist() == [1 - 2j]
