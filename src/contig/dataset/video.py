"""Frames of video files, read in the order of time. Needs PyAV."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LayoutError
from ..lazy import install_hint
from .images import in_shape

__all__ = ["Video"]

Array = np.ndarray[Any, Any]


class Video:
    """Reads frames by time; going on in a file needs no seeking. One thread at a time.

    Args:
        fps: frames per second; a frame is at most half of one away from its time.
    """

    def __init__(self, fps: float) -> None:
        self._half_s = 0.5 / fps
        self._file: Path | None = None
        self._frames: Iterator[tuple[float, Array]] = iter(())
        self._ahead: tuple[float, Array] | None = None  # decoded, and not asked for yet

    def read(self, file: Path, times_s: Array, shape: Any) -> Array:
        """Frames at some times, which rise: uint8 ``[n, *shape]``.

        Raises:
            ImportError: PyAV is not installed.
            LayoutError: the file is damaged, too short, or of another size.
        """
        passed = self._ahead is not None and self._ahead[0] > times_s[0] + self._half_s
        if file != self._file or passed:
            self._file, self._ahead = file, None
            self._frames = _decoded(file, float(times_s[0]) - self._half_s)
        out = [in_shape(self._at(float(t), file), shape, str(file)) for t in times_s]
        return np.stack(out)

    def _at(self, time_s: float, file: Path) -> Array:
        while self._ahead is None or self._ahead[0] < time_s - self._half_s:
            self._ahead = next(self._frames, None)
            if self._ahead is None:
                raise LayoutError(f"{file}: it ends before {time_s:.3f} s; the file is cut short")
        if self._ahead[0] > time_s + self._half_s:
            raise LayoutError(f"{file}: no frame at {time_s:.3f} s; next is {self._ahead[0]:.3f} s")
        return self._ahead[1]


def _decoded(file: Path, start_s: float) -> Iterator[tuple[float, Array]]:
    """(time, frame ``[height, width, 3]``) from some time on."""
    try:
        import av
    except ImportError as error:
        raise ImportError(
            f"{file}: videos need PyAV: {install_hint('video')}, or leave the camera out with skip="
        ) from error
    try:
        with av.open(str(file)) as container:
            stream = container.streams.video[0]
            unit_s = stream.time_base
            if unit_s is not None and start_s > 0:
                container.seek(int(start_s / unit_s), stream=stream)
            for frame in container.decode(stream):
                if frame.time is not None and frame.time >= start_s:
                    yield frame.time, frame.to_ndarray(format="rgb24")
    except (av.FFmpegError, OSError, IndexError) as error:  # no video stream: IndexError
        raise LayoutError(f"{file}: missing, damaged, or no video: {error}") from error
