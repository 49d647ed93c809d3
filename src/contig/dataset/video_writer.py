"""Video files, written frame by frame. Needs PyAV."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LayoutError
from ..lazy import install_hint

__all__ = ["ENCODERS", "VideoWriter", "choose_encoder"]

Array = np.ndarray[Any, Any]

# Those that are tried, in this order: LeRobot's own, and what every player knows.
ENCODERS = ("libsvtav1", "libx264", "mpeg4")
# A key frame at every second one, so that any frame is found with little decoding.
_OPTIONS: Mapping[str, dict[str, str]] = {
    "libsvtav1": {"g": "2", "crf": "30", "preset": "8"},
    "libx264": {"g": "2", "crf": "23"},
    "libx264rgb": {"g": "2", "crf": "0"},  # exact
    "mpeg4": {"g": "2", "qmin": "2", "qmax": "5"},
}


def choose_encoder(asked: str | None, height: int, width: int, fps: float) -> str | None:
    """The encoder for frames of some size: the one asked for, or the first that works.

    Returns:
        its name, or None: PyAV, or an encoder for that size, is not there, and none was asked for.

    Raises:
        ImportError: PyAV is not installed, and an encoder was asked for.
        LayoutError: that encoder is not there, or cannot take such frames.
    """
    try:
        import av
    except ImportError as error:
        if asked is None:
            return None
        raise ImportError(f"videos need PyAV: {install_hint('video')}") from error
    why = ""
    for name in ENCODERS if asked is None else (asked,):
        try:
            writer = VideoWriter(io.BytesIO(), name, height, width, fps)
            writer.add(np.zeros((3, height, width, 3), np.uint8))
            writer.close()
            return name
        except (av.FFmpegError, ValueError) as error:  # unknown, or not of this size
            why = str(error)
    if asked is None:
        return None
    raise LayoutError(f"video={asked!r}: it cannot encode frames of {height} x {width}: {why}")


@contextmanager
def _scheduled_as_before() -> Iterator[None]:
    """Undoes what SVT-AV1 does when it is opened by root: it makes its threads and the one that
    calls real-time ones. From then on nothing else gets a core while they, or any process that is
    started from them, have work.
    """
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():  # not Linux
        yield
        return
    before = set(os.listdir(tasks))
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        for task in (0, *(int(x) for x in set(os.listdir(tasks)) - before)):
            try:
                os.sched_setscheduler(task, policy, parameters)
            except ProcessLookupError:  # it has ended
                pass


class VideoWriter:
    """One file: frame n is at n / fps seconds. One thread at a time.

    Args:
        file: a path, or something to write to.
        encoder: its name in FFmpeg.
        height, width: of a frame.
        fps: frames per second.

    Attributes:
        frames, nbytes: so many were written; an encoder may hold some back.
    """

    def __init__(self, file: Path | Any, encoder: str, height: int, width: int, fps: float) -> None:
        import av

        if encoder == "libsvtav1":
            os.environ.setdefault("SVT_LOG", "1")  # it prints its settings, past FFmpeg's log
        where = str(file) if isinstance(file, Path) else file
        self._container = av.open(where, "w", format="mp4")
        try:
            rate = Fraction(fps).limit_denominator(65535)
            options = dict(_OPTIONS.get(encoder, {}))
            stream: Any = self._container.add_stream(encoder, rate=rate, options=options)
            stream.height, stream.width = height, width
            stream.pix_fmt = "rgb24" if encoder.endswith("rgb") else "yuv420p"
            stream.codec_context.max_b_frames = 0
            with _scheduled_as_before():
                stream.codec_context.open()
        except BaseException:
            self._container.close()
            raise
        self._stream, self._rate = stream, rate
        self.frames = self.nbytes = 0

    @property
    def about(self) -> dict[str, Any]:
        """What LeRobot says of such a file."""
        context = self._stream.codec_context
        return {
            "video.height": context.height,
            "video.width": context.width,
            "video.codec": context.codec.canonical_name,
            "video.pix_fmt": context.pix_fmt,
            "video.is_depth_map": False,
            "video.fps": float(self._rate) if self._rate.denominator > 1 else int(self._rate),
            "video.channels": 3,
            "has_audio": False,
        }

    def add(self, frames: Array) -> None:
        """Appends frames, uint8 ``[n, height, width, 3]``."""
        import av

        for pixels in frames:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), "rgb24")
            frame.pts, frame.time_base = self.frames, 1 / self._rate
            self._write(self._stream.encode(frame))
            self.frames += 1

    def close(self) -> None:
        """Ends the file: from then on it can be played."""
        try:
            if self.frames:
                self._write(self._stream.encode(None))
        finally:
            self._container.close()

    def _write(self, packets: list[Any]) -> None:
        for packet in packets:
            self.nbytes += packet.size
            self._container.mux(packet)
