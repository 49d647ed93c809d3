"""Frames that look like those of games and cameras, the same ones at every run."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

SIDE = 84  # of a game's frames, as agents see them
HEIGHT, WIDTH = 480, 640  # of a camera's


def game_frames(n: int, seed: int = 0) -> Array:
    """uint8 ``[n, 84, 84]``: a still background with bars and bricks, of which some are gone; a
    paddle, a ball and three sprites that move a little from frame to frame, and a score."""
    draw = np.random.default_rng(seed)
    background = np.zeros((SIDE, SIDE), np.uint8)
    background[:8], background[8:10], background[-6:] = 87, 142, 107
    background[:, :3] = background[:, -3:] = 142
    bricks = np.ones((6, 13), bool)
    shapes = [draw.integers(0, 2, (8, 6)).astype(bool) for _ in range(3)]
    shades = draw.integers(100, 255, 3)
    places = draw.uniform(20, 60, (4, 2))
    speeds = draw.uniform(-2, 2, (4, 2))
    out = np.empty((n, SIDE, SIDE), np.uint8)
    for i in range(n):
        frame = out[i]
        frame[:] = background
        for row, column in zip(*np.nonzero(bricks)):
            frame[16 + 3 * row : 19 + 3 * row, 3 + 6 * column : 9 + 6 * column] = 60 + 25 * row
        for place, shape, shade in zip(places, shapes, shades):
            y, x = place.astype(int)
            frame[y : y + 8, x : x + 6][shape] = shade
        y, x = places[3].astype(int)
        frame[y : y + 2, x : x + 2] = 236
        frame[76:78, x : x + 10] = 200
        for digit, value in enumerate(f"{i % 1000:03d}"):
            frame[1:7, 30 + 8 * digit : 30 + 8 * digit + 1 + int(value) // 2] = 214
        places += speeds
        speeds[(places < 4) | (places > SIDE - 14)] *= -1
        np.clip(places, 4, SIDE - 14, out=places)
        if draw.random() < 0.05:
            bricks[draw.integers(6), draw.integers(13)] = False
        if not bricks.any() or i % 500 == 499:
            bricks[:] = True
    return out


def camera_frames(n: int, seed: int = 0) -> Array:
    """uint8 ``[n, 480, 640, 3]``: soft shapes, edges, and a sensor's noise."""
    draw = np.random.default_rng(seed)
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.float32)
    out = np.empty((n, HEIGHT, WIDTH, 3), np.uint8)
    for i in range(n):
        image = np.stack(
            [
                120 + 60 * np.sin(x / 90 + i / 7 + c) + 40 * np.cos(y / 60 * (c + 1))
                for c in range(3)
            ],
            -1,
        )
        for _ in range(6):
            top, left = draw.integers(0, HEIGHT - 80), draw.integers(0, WIDTH - 120)
            image[top : top + 80, left : left + 120] += draw.uniform(-60, 60, 3)
        image += draw.normal(0, 3, image.shape)
        out[i] = np.clip(image, 0, 255)
    return out
