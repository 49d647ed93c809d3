"""A LeRobot v3 directory, written with pyarrow as that format's documentation describes it.

Frame f of episode e has the identity 100 * e + f in every feature.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import parquet

FPS, HEIGHT, WIDTH = 10, 16, 24
TASKS = ["push the block", "pick it up"]


def features() -> dict[str, Any]:
    def of(dtype: str, *shape: int, names: Any = None) -> dict[str, Any]:
        return {"dtype": dtype, "shape": list(shape), "names": names}

    number = {"timestamp": "float32", "frame_index": "int64", "episode_index": "int64"}
    number |= {"index": "int64", "task_index": "int64", "next.reward": "float32"}
    axes = ["height", "width", "channel"]
    return {
        "observation.state": of("float32", 3, names=["x", "y", "z"]),
        "observation.grid": of("float64", 2, 2),
        "observation.images.top": of("image", HEIGHT, WIDTH, 3, names=axes),
        "action": of("float32", 1),
        "next.done": of("bool", 1),
        **{name: of(dtype, 1) for name, dtype in number.items()},
    }


def picture(identity: int) -> np.ndarray[Any, Any]:
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    return np.stack([rows + identity, columns * 3, rows * columns + identity], -1).astype(np.uint8)


def png(identity: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(picture(identity)).save(out, "PNG")
    return out.getvalue()


def write_lerobot(
    path: Path,
    lengths: list[int],
    per_file: int = 2,
    image: Any = png,
    info: dict[str, Any] | None = None,
    camera: str | None = None,
    **more: Any,
) -> Path:
    """Episodes, so many in each file; the last frame of every second one has next.done.

    Args:
        image: what an image's bytes are, by identity.
        info: entries of info.json that are other than usual.
        camera: a feature that is a video.
        more: features to add: (description, a value by identity).
    """
    described = {**features(), **{name: about for name, (about, _) in more.items()}}
    if camera:
        described[camera] = {"dtype": "video", "shape": [HEIGHT, WIDTH, 3], "names": None}
    index = 0
    entries: list[dict[str, Any]] = []
    for first in range(0, len(lengths), per_file):
        rows: list[dict[str, Any]] = []
        shown: list[int] = []
        number = first // per_file
        for episode in range(first, min(first + per_file, len(lengths))):
            start, begin_s = index, len(shown) / FPS
            for frame in range(lengths[episode]):
                identity = 100 * episode + frame
                rows.append(
                    {
                        "observation.state": [identity + 0.25 * k for k in range(3)],
                        "observation.grid": [[identity, 1.0], [2.0, 3.0]],
                        "observation.images.top": {"bytes": image(identity), "path": None},
                        "action": float(identity),
                        "next.reward": float(identity),
                        "next.done": frame == lengths[episode] - 1 and episode % 2 == 0,
                        "timestamp": frame / FPS,
                        "frame_index": frame,
                        "episode_index": episode,
                        "index": index,
                        "task_index": episode % 2,
                        **{name: value(identity) for name, (_, value) in more.items()},
                    }
                )
                shown.append(identity)
                index += 1
            entry = {
                "episode_index": episode,
                "tasks": [TASKS[episode % 2]],
                "length": lengths[episode],
                "data/chunk_index": 0,
                "data/file_index": number,
                "dataset_from_index": start,
                "dataset_to_index": index,
            }
            if camera:
                of = f"videos/{camera}"
                entry |= {f"{of}/chunk_index": 0, f"{of}/file_index": number}
                entry |= {f"{of}/from_timestamp": begin_s, f"{of}/to_timestamp": len(shown) / FPS}
            entries.append(entry)
        _table(path / f"data/chunk-000/file-{number:03d}.parquet", rows, _schema(described))
        if camera:
            _video(path / f"videos/{camera}/chunk-000/file-{number:03d}.mp4", shown)
    _table(path / "meta/episodes/chunk-000/file-000.parquet", entries)
    tasks = [{"task_index": i, "__index_level_0__": text} for i, text in enumerate(TASKS)]
    _table(path / "meta/tasks.parquet", tasks)
    about = {
        "codebase_version": "v3.0",
        "robot_type": "made",
        "total_episodes": len(lengths),
        "total_frames": index,
        "total_tasks": len(TASKS),
        "chunks_size": 1000,
        "fps": FPS,
        "splits": {"train": f"0:{len(lengths)}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": described,
        **(info or {}),
    }
    (path / "meta/info.json").write_text(json.dumps(about))
    (path / "meta/stats.json").write_text("{}")
    return path


def _schema(described: dict[str, Any]) -> Any:
    fields = []
    for name, feature in described.items():
        kind, shape = feature["dtype"], feature["shape"]
        if kind == "video":
            continue
        if kind == "image":
            arrow = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        elif kind == "string":
            arrow = pa.string()
        else:
            arrow = pa.from_numpy_dtype(np.dtype(kind))
            if shape != [1]:
                for size in reversed(shape):
                    arrow = pa.list_(arrow, size) if len(shape) == 1 else pa.list_(arrow)
        fields.append((name, arrow))
    return pa.schema(fields)


def _table(path: Path, rows: list[dict[str, Any]], schema: Any = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(rows, schema), path, row_group_size=5)


def _video(path: Path, identities: list[int]) -> None:
    """Grey frames, 6 shades apart, with frames that refer to later ones."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.codec_context.max_b_frames = 2
        stream.codec_context.gop_size = 5
        stream.codec_context.qmin, stream.codec_context.qmax = 1, 2
        for identity in identities:
            grey = np.full((HEIGHT, WIDTH, 3), shade(identity), np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(grey, "rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)


def shade(identity: int) -> int:
    return 20 + identity % 100 * 20 + identity // 100 % 3 * 7
