"""Features of a LeRobot dataset: what a leaf is there, and its columns in the files."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from ..errors import LayoutError
from ..lazy import install_hint
from .episodes import need
from .lerobot_stats import Stats, of_images, of_numbers
from .video_writer import choose_encoder

__all__ = ["CONTIG_SHAPE", "Feature", "describe_features", "implied_features"]

Array = np.ndarray[Any, Any]

# A key of a feature: the leaf's own shape, where LeRobot has another, [1] for a number.
CONTIG_SHAPE = "contig_shape"
_CHANNELS = (1, 3, 4)
_MOST_DIMS = 5  # that LeRobot takes


class Feature:
    """One feature.

    Args:
        name: its name.
        column: of an episode, ``[T, ...]``.

    Attributes:
        encoder: of the videos that it is in, or None.
        info: of those videos.
    """

    def __init__(self, name: str, column: Array) -> None:
        self.name, self.dtype, self.shape = name, column.dtype, column.shape[1:]
        self.encoder: str | None = None
        self.info: dict[str, Any] | None = None
        self.is_image = (
            self.dtype == np.uint8
            and len(self.shape) == 3
            and 0 not in self.shape
            and (self.shape[-1] in _CHANNELS or self.shape[0] in _CHANNELS)
        )
        if self.is_image:
            return
        if self.dtype.kind not in "biuf" or self.dtype.name == "float128":
            raise LayoutError(f'{name}: LeRobot has no {self.dtype}; drop=["{name}"]')
        if 0 in self.shape or len(self.shape) > _MOST_DIMS:
            raise LayoutError(f'{name}: LeRobot has no shape {list(self.shape)}; drop=["{name}"]')

    @property
    def _channels_last(self) -> bool:
        return self.shape[-1] in _CHANNELS

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of an image."""
        high, wide = self.shape[:2] if self._channels_last else self.shape[1:]
        return int(high), int(wide)

    @property
    def channels(self) -> int:
        return int(self.shape[-1] if self._channels_last else self.shape[0])

    def frames(self, column: Array) -> Array:
        """Images as ``[T, height, width, channels]``."""
        return column if self._channels_last else np.moveaxis(column, 1, -1)

    def about(self) -> dict[str, Any]:
        """Its entry in info.json."""
        kind, names = self.dtype.name, None
        if self.is_image:
            kind = "image" if self.encoder is None else "video"
            axes = ["height", "width", "channels"]
            names = axes if self._channels_last else [axes[2], *axes[:2]]
        out = {"dtype": kind, "shape": list(self.shape) or [1], "names": names}
        if self.shape in ((), (1,)):
            out[CONTIG_SHAPE] = list(self.shape)
        return out if self.info is None else {**out, "info": self.info}

    def stats(self, column: Array) -> Stats:
        return of_images(self.frames(column)) if self.is_image else of_numbers(column)

    def arrow(self, column: Array) -> Any:
        """Its column in the data files."""
        arrow = need("pyarrow", "pyarrow", "lerobot")
        if self.is_image:
            images = [{"bytes": _png(x), "path": None} for x in self.frames(column)]
            return arrow.array(images, arrow.struct([("bytes", "binary"), ("path", "string")]))
        flat = arrow.array(np.ascontiguousarray(column).reshape(-1))
        if self.shape in ((), (1,)):
            return flat
        if len(self.shape) == 1:
            return arrow.FixedSizeListArray.from_arrays(flat, self.shape[0])
        for size in reversed(self.shape):
            offsets = np.arange(0, len(flat) + 1, size, dtype=np.int32)
            flat = arrow.ListArray.from_arrays(offsets, flat)
        return flat


def describe_features(
    columns: dict[str, Array], video: bool | str | None, fps: float
) -> dict[str, Feature]:
    """Features by name; those that are to be videos have an encoder.

    Raises:
        LayoutError: a leaf that LeRobot cannot have.
        ImportError: videos were asked for, and PyAV is not installed.
    """
    found = {name: Feature(name, column) for name, column in columns.items()}
    for name, feature in found.items():
        if video is False or not feature.is_image or feature.channels != 3:
            continue
        feature.encoder = choose_encoder(
            video if isinstance(video, str) else None, *feature.size, fps
        )
        if feature.encoder is None and video:
            raise ImportError(
                f"{name}: no encoder for videos of {feature.size[0]} x {feature.size[1]}: "
                f"{install_hint('video')}, or video=False"
            )
    return found


def implied_features(episode: int, first: int, times: Array, tasks: Array) -> dict[str, Array]:
    """The features that LeRobot has in every dataset."""
    steps = np.arange(len(times))
    return {
        "timestamp": times,
        "frame_index": steps,
        "episode_index": np.full(len(times), episode),
        "index": first + steps,
        "task_index": tasks,
    }


def _png(image: Array) -> bytes:
    pillow = need("PIL.Image", "Pillow", "lerobot")
    out = io.BytesIO()
    pixels = image[..., 0] if image.shape[-1] == 1 else image
    pillow.fromarray(np.ascontiguousarray(pixels)).save(out, "PNG")
    return out.getvalue()
