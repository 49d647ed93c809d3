"""Frames of games in sb3-extra-buffers, in the peers' environment.

    python -m benchmarks.peer_sb3_extra

Its CompressedReplayBuffer keeps `next_obs`, too, so that a sample of 128 of its transitions is as
many frames as 256 of ours. Prints microseconds and bytes per frame as JSON, by method; of a method
whose library is missing, why.
"""

from __future__ import annotations

import argparse
import itertools
import json
from typing import Any

import numpy as np
from gymnasium import spaces
from sb3_extra_buffers.compressed import CompressedReplayBuffer

from benchmarks.frames import SIDE, game_frames
from benchmarks.timing import Effort, best_us

METHODS = ("none", "rle", "rle-jit", "gzip1", "igzip0", "zstd3", "lz4-frame/0")


def measured(method: str, frames: Any, effort: Effort) -> dict[str, float]:
    buffer = CompressedReplayBuffer(
        len(frames) - 1,
        spaces.Box(0, 255, (1, SIDE, SIDE), np.uint8),
        spaces.Discrete(4),
        device="cpu",
        compression_method=method,
    )
    action, reward, done = np.zeros((1, 1), np.int64), np.zeros(1), np.zeros(1, bool)

    def fill() -> None:
        for now, after in itertools.pairwise(frames):
            buffer.add(now[None, None], after[None, None], action, reward, done, [{}])

    once = Effort(repeats=1, seconds_per_repeat=0.0)
    stored = len(frames) - 1
    written_us = best_us(fill, once) / stored / 2
    nbytes = np.mean([len(x) for x in buffer.observations[:, 0]])
    sample_us = best_us(lambda: buffer.sample(128), effort)
    return {"bytes": float(nbytes), "write_us": written_us, "sample_us": sample_us}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    frames = game_frames(400 if quick else 4000)
    found: dict[str, Any] = {}
    for method in METHODS:
        try:
            found[method] = measured(method, frames, Effort.of(quick))
        except Exception as error:  # a library is missing, or the method has another name
            found[method] = f"{type(error).__name__}: {error}"[:200]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
