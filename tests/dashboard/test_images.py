"""Which leaves are images, and PNG files against another decoder."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from contig.dashboard.images import image_form, png


@pytest.mark.parametrize(
    ("shape", "dtype", "form"),
    [
        ((48, 64, 3), np.uint8, (48, 64, 2, 3)),
        ((3, 48, 64), np.uint8, (48, 64, 0, 3)),
        ((4, 84, 84), np.uint8, (84, 84, 0, 1)),
        ((84, 84, 1), np.uint8, (84, 84, 2, 1)),
        ((32, 32), np.uint8, (32, 32, None, 1)),
        ((32, 32, 3), np.float32, (32, 32, 2, 3)),
        ((17,), np.float32, None),
        ((4, 4), np.uint8, None),
        ((9, 9), np.float32, None),
        ((32, 32, 3), np.int64, None),
        ((30, 32, 32), np.uint8, None),
        ((2, 3, 32, 32), np.uint8, None),
        ((), np.float32, None),
    ],
)
def test_forms(shape, dtype, form):
    assert image_form(shape, dtype) == form


@pytest.mark.parametrize("colours", [1, 3])
@pytest.mark.parametrize("size", [(1, 1), (7, 30), (64, 3)])
def test_png(colours, size):
    pixels = np.random.default_rng(0).integers(0, 256, (*size, colours), np.uint8)
    decoded = np.asarray(Image.open(io.BytesIO(png(pixels))))
    assert np.array_equal(decoded.reshape(*size, colours), pixels)
