"""Rows whose pixels carry their number, so that a frame of another row shows."""

from __future__ import annotations

from typing import Any

import numpy as np

H, W = 12, 10
LOSSLESS = ["zstd", "lz4", "png", "qoi"]
ALL = [*LOSSLESS, "jpeg:90"]


def pixels(numbers: Any) -> np.ndarray[Any, Any]:
    """uint8 ``[*numbers.shape, 12, 10, 3]``: the number in every channel, and a gradient."""
    n = np.asarray(numbers)
    y, x, c = np.mgrid[:H, :W, :3]
    base = n[..., None, None, None]
    return (base * (3 + 2 * c) + y * 7 + x * 5 * (base % 3 + 1)).astype(np.uint8)


def rows(numbers: Any, done: Any = None) -> dict[str, Any]:
    """Rows with identity: pixels of the number, next pixels of the number after it."""
    n = np.asarray(numbers)
    ends = np.zeros(n.shape, bool) if done is None else np.asarray(done)
    return {
        "pixels": pixels(n),
        "t": n.astype(np.int64),
        "next": {
            "pixels": pixels(n + 1),
            "reward": n.astype(np.float32),
            "done": ends,
        },
    }


def codecs(name: str) -> dict[Any, str]:
    return {"pixels": name, ("next", "pixels"): name}


def check(batch: Any, exact: bool = True) -> None:
    """Every frame is of its row."""
    for key, numbers in (("pixels", batch["t"]), (("next", "pixels"), batch["t"] + 1)):
        expected = pixels(numbers)
        if exact:
            assert np.array_equal(batch[key], expected), key
        else:
            assert np.abs(batch[key].astype(int) - expected).mean() < 40, key
