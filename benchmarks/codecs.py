"""Leaves with codecs: what is stored, and how long it takes to write and to sample.

    python -m benchmarks.codecs              some two minutes
    python -m benchmarks.codecs --quick      shows that everything runs

Games: frames [84, 84] uint8 (benchmarks/frames.py) written in trajectories of 100 and sampled 256
at a time, under each codec, beside the same buffer without one and beside sb3-extra-buffers, which
runs in the peers' environment; where it is not installed, its rows say so. Cameras: frames
480x640x3 as JPEG of quality 90, encoded into the buffer and given as bytes that are JPEG already,
sampled 32 at a time; beside decoding by Pillow and by torchvision in one loop, one thread. Frames
per second and core: by the process's own time, whichever threads spent it.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.frames import SIDE, camera_frames, game_frames
from benchmarks.table import aligned, number
from benchmarks.timing import Effort, best_us
from contig import LazyTensorStorage, RandomSampler, ReplayBuffer

BATCH, EPISODE = 256, 100
GAME_CODECS = (None, "lz4", "lz4:9", "zstd:1", "zstd", "png", "jpeg:90")
COLOUR_CODECS = (None, "lz4", "zstd", "qoi", "png", "jpeg:90")
CAMERAS = 32  # frames of a batch


def buffer_of(frames: Any, codec: str | None, batch: int) -> ReplayBuffer:
    """A buffer with room for all frames as they are."""
    example = {"pixels": frames[0], "next": {"reward": np.float32(0), "done": False}}
    codecs = {} if codec is None else {"pixels": codec}
    more = {"codecs": codecs, "blob_bytes": max(frames.nbytes, 1 << 20)} if codecs else {}
    storage = LazyTensorStorage(len(frames), example=example, **more)
    return ReplayBuffer(storage, RandomSampler(), batch_size=batch, seed=0)


def fill(buffer: ReplayBuffer, pixels: Any) -> None:
    """All frames, in trajectories."""
    for at in range(0, len(pixels), EPISODE):
        rows = pixels[at : at + EPISODE]
        n = len(rows)
        flags = {"reward": np.ones(n, np.float32), "done": np.arange(n) == n - 1}
        buffer.extend_trajectory({"pixels": rows, "next": flags})


def row_bytes(frames: Any, codec: str | None) -> float:
    """Bytes of a frame as it is stored."""
    if codec is None:
        return float(frames[0].nbytes)
    from contig.codecs import codec_of, encode_rows

    some = np.ascontiguousarray(frames[:: max(1, len(frames) // 500)])
    return float(np.mean([len(x) for x in encode_rows(codec_of(codec), some)])) + 16


def seconds(function: Callable[[], Any]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def games(frames: Any, codecs: tuple[str | None, ...], effort: Effort) -> list[list[str]]:
    """A table of codecs: the first is none, which the others are compared with."""
    rows = [["codec", "bytes/frame", "of raw", "write us/frame", "sample 256 us", "of raw"]]
    raw: tuple[float, float] | None = None
    for codec in codecs:
        buffer = buffer_of(frames, codec, BATCH)
        written = seconds(lambda b=buffer: fill(b, frames)) / len(frames) * 1e6  # type: ignore[misc]
        nbytes = row_bytes(frames, codec)
        took = best_us(lambda b=buffer: b.sample().tree(), effort)  # type: ignore[misc]
        raw = raw or (nbytes, took)
        rows.append(
            [
                codec or "none",
                f"{nbytes:,.0f}",
                f"{nbytes / raw[0]:.1%}",
                number(written),
                number(took),
                f"{took / raw[1]:.1f}x",
            ]
        )
    return rows


def peers(python: Path, quick: bool) -> list[list[str]] | str:
    """The same of sb3-extra-buffers, or why not."""
    if not python.exists():
        return f"not run: there is no {python}"
    command = [str(python), "-W", "ignore", "-m", "benchmarks.peer_sb3_extra"]
    done = subprocess.run(
        command + (["--quick"] if quick else []), capture_output=True, text=True, check=False
    )
    if done.returncode:
        missing = "sb3_extra_buffers" in done.stderr
        return "not installed there" if missing else f"failed: {done.stderr[-300:]}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    rows = [["sb3-extra-buffers", "bytes/frame", "of raw", "write us/frame", "sample 256 us"]]
    for method, figures in found.items():
        if isinstance(figures, str):
            rows.append([method, "failed", "", "", figures])
            continue
        nbytes = figures["bytes"]
        share = f"{nbytes / SIDE**2:.1%}"
        us = [number(figures["write_us"]), number(figures["sample_us"])]
        rows.append([method, f"{nbytes:,.0f}", share, *us])
    return rows


# -- cameras ---------------------------------------------------------------------------------------


def jpegs(frames: Any) -> list[bytes]:
    from PIL import Image

    out = []
    for frame in frames:
        file = io.BytesIO()
        Image.fromarray(frame).save(file, "JPEG", quality=90)
        out.append(file.getvalue())
    return out


def rate(function: Callable[[], Any], frames: int, repeats: int) -> tuple[float, float]:
    """Frames a second, and a second of one core's time; the best of some repeats."""
    function()
    walls, cores = [], []
    for _ in range(repeats):
        wall, core = time.perf_counter(), time.process_time()
        function()
        walls.append(time.perf_counter() - wall)
        cores.append(time.process_time() - core)
    return frames / min(walls), frames / min(cores)


def pillow_loop(encoded: list[bytes], out: Any) -> None:
    from PIL import Image

    for place, data in zip(out, encoded):
        place[:] = np.asarray(Image.open(io.BytesIO(data)))


def torchvision_loop() -> Callable[[list[bytes], Any], None] | str:
    try:
        import torch
        from torchvision.io import decode_jpeg
    except Exception as error:  # it is there, but for another torch
        return f"not run, its wheels need a torch with CUDA: {error}"[:100]

    def loop(encoded: list[bytes], out: Any) -> None:
        for place, data in zip(out, encoded):
            pixels = decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8))
            place[:] = pixels.permute(1, 2, 0).numpy()

    return loop


def cameras(frames: Any, repeats: int) -> list[list[str]]:
    """Frames per second into a buffer and out of it, beside loops that only decode."""
    encoded = jpegs(frames)
    buffer = buffer_of(frames, "jpeg:90", CAMERAS)
    given = np.empty(len(encoded), object)
    given[:] = encoded
    n = len(frames)
    cases: list[tuple[str, Callable[[], Any], int]] = [
        ("into the buffer, pixels", lambda: fill(buffer, frames), n),
        ("into the buffer, JPEG already", lambda: fill(buffer, given), n),
        ("out of it, 32 at a time", buffer.sample, CAMERAS),
    ]
    out = np.empty_like(frames[:CAMERAS])
    some = encoded[:CAMERAS]
    cases.append(("decoding by Pillow", lambda: pillow_loop(some, out), len(some)))
    loop = torchvision_loop()
    if not isinstance(loop, str):
        cases.append(("decoding by torchvision", lambda: loop(some, out), len(some)))
    rows = [["480x640 JPEG", "frames/s", "frames/s per core", "of Pillow"]]
    found = {name: rate(function, count, repeats) for name, function, count in cases}
    pillow = found["decoding by Pillow"][1]
    for name, (wall, core) in found.items():
        rows.append([name, number(wall), number(core), f"{core / pillow:.2f}x"])
    if isinstance(loop, str):
        rows.append(["decoding by torchvision", loop, "", ""])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure leaves with codecs.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--peers-python", type=Path, default=Path(".venv-peers/bin/python"))
    arguments = parser.parse_args()
    quick = arguments.quick
    effort = Effort.of(quick)
    frames = game_frames(1000 if quick else 20_000)
    print(f"frames of games, [{SIDE}, {SIDE}] uint8, {len(frames):,} of them:\n")
    print(aligned(games(frames, GAME_CODECS, effort)), "\n")
    found = peers(arguments.peers_python, quick)
    print(f"sb3-extra-buffers: {found}\n" if isinstance(found, str) else aligned(found) + "\n")
    colour = np.stack([frames[: len(frames) // 4] // d for d in (1, 2, 3)], -1)
    print(f"the same in colour, [{SIDE}, {SIDE}, 3] uint8, {len(colour):,} of them:\n")
    print(aligned(games(colour, COLOUR_CODECS, effort)), "\n")
    print(aligned(cameras(camera_frames(CAMERAS if quick else 100), 2 if quick else 5)))


if __name__ == "__main__":
    main()
