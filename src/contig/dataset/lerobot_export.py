"""Trajectories as a LeRobot dataset, version 3; see `contig.dataset.lerobot` for its files.

    episode ──▶ numbers and images ──▶ data/chunk-000/file-000.parquet, a row group each
            ──▶ cameras            ──▶ videos/<camera>/chunk-000/file-000.mp4, one after another
            ──▶ where they are, and statistics ──▶ meta/episodes/chunk-000/file-000.parquet

Needs pyarrow; Pillow for images; PyAV for videos.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ..arguments import number
from ..errors import LayoutError
from ..keys import DONE, TERMINATED, TRUNCATED
from ..replay import folder
from ..tape.disk import DiskStorage, files
from .episodes import Episode, OnEpisode, check_plain_keys, episodes_of, need, storage_of
from .lerobot_features import Feature, describe_features, implied_features
from .lerobot_stats import Stats, joined
from .video_writer import VideoWriter

__all__ = ["to_lerobot"]

Array = np.ndarray[Any, Any]

_VERSION = "v3.0"
_FILES_PER_CHUNK = 1000
_DATA_MB, _VIDEO_MB = 100, 200  # a file is ended when it has so much
_EPISODES = 100  # of which what is known is written at once
_TASK = ("task_index",)
_TIME = ("timestamp",)
_FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}"


def to_lerobot(
    source: Any,
    path: str | Path,
    *,
    fps: float = 30.0,
    tasks: str | Mapping[int, str] = "",
    robot_type: str | None = None,
    video: bool | str | None = None,
    drop: Collection[str] = (),
    on_episode: OnEpisode | None = None,
) -> int:
    """Writes the complete trajectories of a storage or a ReplayBuffer as a LeRobot v3 directory.

    A leaf is a feature, named by its path: ``("observation", "state")`` is ``observation.state``.
    How an episode ended is in ``next.terminated``, ``next.truncated`` and ``next.done``. uint8 of
    shape ``[height, width, channels]``, or channels first, with 1, 3 or 4 of them, is an image. The
    directory is there when it is complete; `from_lerobot` reads it back, bit by bit unless images
    are videos.

    Args:
        fps: frames per second: a frame's timestamp is its number in the episode over that.
        tasks: what is to be done, in words: one text for all, or texts by number. The number is a
            trajectory's field `task_index`, or the leaf of that name.
        robot_type: as LeRobot has it in its info.
        video: whether images of three channels are videos, which are smaller, and not exact. None:
            if there is an encoder (PyAV) for their size; True: they must be; False: they are PNG in
            the data files, exactly. A name is that of an FFmpeg encoder; "libx264rgb" is exact.
        drop: leaves to leave out, by name.
        on_episode: called with (done, total) after each trajectory.

    Returns:
        how many trajectories.

    Raises:
        LayoutError: there is none, or a leaf that the format cannot hold.
        FileExistsError: something else than an earlier export is there.
        ImportError: a library is missing, with what to do.
    """
    fps = number("fps", fps, 1e-3, 1e6)
    storage = storage_of(source)
    live = [storage.path] if isinstance(storage, DiskStorage) else []
    with folder.new_directory(Path(path), _KIND, live) as place:
        with _Dataset(place, fps, _texts(tasks), video) as dataset:
            for episode in episodes_of(storage, drop, on_episode):
                dataset.add(episode)
            dataset.finish(robot_type)
    return dataset.episodes


def _texts(tasks: str | Mapping[int, str]) -> dict[int, str]:
    found = {0: tasks} if isinstance(tasks, str) else {int(k): v for k, v in dict(tasks).items()}
    for key, text in found.items():
        if not isinstance(text, str):
            raise TypeError(f"tasks[{key}]: expected a text, got {text!r}")
    if len(set(found.values())) < len(found):
        raise ValueError("tasks: a text is there twice; LeRobot tells tasks apart by their texts")
    return found


class _Dataset:
    """A directory that is being filled."""

    def __init__(
        self, path: Path, fps: float, tasks: dict[int, str], video: bool | str | None
    ) -> None:
        self.path, self._fps, self._tasks, self._video = path, fps, tasks, video
        # As LeRobot numbers them: from 0 on.
        self._numbers = {key: i for i, key in enumerate(sorted(tasks))}
        self._features: dict[str, Feature] = {}
        self._cameras: dict[str, _Clips] = {}
        self._data = _Tables(path / "data", _DATA_MB << 20)
        self._about = _Tables(path / "meta" / "episodes", _DATA_MB << 20)
        self._waiting: list[dict[str, Any]] = []  # of episodes that were written
        self._stats: dict[str, Stats] = {}
        self.episodes = self._frames = 0

    def __enter__(self) -> _Dataset:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for part in (self._data, self._about, *self._cameras.values()):
            part.close()

    def add(self, episode: Episode) -> None:
        columns, task = self._columns(episode)
        if not self._features:
            self._begin(columns)
        if self._features.keys() != columns.keys():
            raise LayoutError(f"episode {episode.id}: it has other leaves than those before it")
        arrow = need("pyarrow", "pyarrow", "lerobot")
        first, steps = self._frames, episode.steps
        about: dict[str, Any] = {
            "episode_index": self.episodes,
            "tasks": [self._tasks[n] for n in task],
            "length": steps,
            "dataset_from_index": first,
            "dataset_to_index": first + steps,
        }
        stats = {name: self._features[name].stats(column) for name, column in columns.items()}
        table = arrow.table(
            {n: self._features[n].arrow(c) for n, c in columns.items() if n not in self._cameras}
        )
        about |= self._data.place("data")
        self._data.write(table)
        for name, clips in self._cameras.items():
            frames = self._features[name].frames(columns[name])
            about |= clips.add(frames, f"videos/{name}")
        for name, found in stats.items():
            about |= {f"stats/{name}/{k}": v.tolist() for k, v in found.items()}
            self._stats[name] = joined(self._stats.get(name), found)
        self._waiting.append(about)
        self.episodes, self._frames = self.episodes + 1, first + steps
        if len(self._waiting) >= _EPISODES:
            self._write_waiting()

    def _columns(self, episode: Episode) -> tuple[dict[str, Array], list[int]]:
        """The features of an episode by name, and the numbers of its tasks."""
        fields = dict(episode.fields)
        told = fields.pop(_TASK, None)
        episode._replace(fields=fields).check_plain("LeRobot's format")
        episode.check_ends("a LeRobot episode")
        check_plain_keys(episode.columns, ".", "LeRobot's format")
        columns, steps = dict(episode.columns), episode.steps
        numbers = columns.pop(_TASK, np.full(steps, 0 if told is None else told)).reshape(-1)
        if len(numbers) != steps or numbers.dtype.kind not in "iu":
            raise LayoutError("task_index: expected a whole number for each row")
        unknown = sorted(set(numbers.tolist()) - set(self._tasks))
        if unknown:
            raise LayoutError(
                f"episode {episode.id}: task_index {unknown[0]}, and tasks= has texts for "
                f"{', '.join(map(str, self._tasks))}"
            )
        times = (np.arange(steps) / self._fps).astype(np.float32)
        _check_times(columns.pop(_TIME, times), times, self._fps)
        late, over = episode.ends("truncated"), episode.ends("terminated")
        columns |= {TERMINATED: over, TRUNCATED: late, DONE: over | late}
        named = {".".join(map(str, path)): column for path, column in columns.items()}
        for name in implied_features(0, 0, times, numbers):
            if name in named:
                raise LayoutError(
                    f'{name}: LeRobot has a feature of its own of that name; drop=["{name}"]'
                )
        places = np.array([self._numbers[n] for n in numbers.tolist()])
        named |= implied_features(self.episodes, self._frames, times, places)
        return named, list(dict.fromkeys(numbers.tolist()))

    def _begin(self, columns: dict[str, Array]) -> None:
        self._features = describe_features(columns, self._video, self._fps)
        for name, feature in self._features.items():
            if feature.encoder is not None:
                self._cameras[name] = _Clips(self.path / "videos" / name, feature, self._fps)

    def _write_waiting(self) -> None:
        arrow = need("pyarrow", "pyarrow", "lerobot")
        place = self._about.place("meta/episodes")
        rows = [{**about, **place} for about in self._waiting]
        self._about.write(arrow.Table.from_pylist(rows, self._about.schema))
        self._waiting = []

    def finish(self, robot_type: str | None) -> None:
        """Writes what is known of the whole."""
        if not self.episodes:
            raise LayoutError("all trajectories were evicted before they could be written")
        if self._waiting:
            self._write_waiting()
        for part in (self._data, self._about, *self._cameras.values()):
            part.close()
        meta = self.path / "meta"
        _write_tasks(meta / "tasks.parquet", [self._tasks[key] for key in sorted(self._tasks)])
        stats = {n: {k: v.tolist() for k, v in s.items()} for n, s in self._stats.items()}
        files.write_new(meta / "stats.json", json.dumps(stats, indent=4).encode())
        fps = self._fps
        info = {
            "codebase_version": _VERSION,
            "robot_type": robot_type,
            "total_episodes": self.episodes,
            "total_frames": self._frames,
            "total_tasks": len(self._tasks),
            "chunks_size": _FILES_PER_CHUNK,
            "data_files_size_in_mb": _DATA_MB,
            "video_files_size_in_mb": _VIDEO_MB,
            "fps": int(fps) if fps.is_integer() else fps,
            "splits": {"train": f"0:{self.episodes}"},
            "data_path": f"data/{_FILE}.parquet",
            "video_path": f"videos/{{video_key}}/{_FILE}.mp4" if self._cameras else None,
            "features": {name: feature.about() for name, feature in self._features.items()},
        }
        files.write_new(meta / "info.json", json.dumps(info, indent=4).encode())


class _Numbered(ABC):
    """Files one after another, each ended when it is large enough."""

    def __init__(self, path: Path, nbytes: int, suffix: str) -> None:
        self._path, self._nbytes, self._suffix = path, nbytes, suffix
        self._number = 0
        self.file: Path | None = None  # that is being written

    def place(self, of: str) -> dict[str, int]:
        """Where what is written next will be."""
        if self.file is not None and self._size(self.file) >= self._nbytes:
            self.close()
            self._number += 1
        chunk, file = divmod(self._number, _FILES_PER_CHUNK)
        if self.file is None:
            name = _FILE.format(chunk_index=chunk, file_index=file) + self._suffix
            self.file = self._path / name
            files.make_dir(self.file.parent)
            self._open(self.file)
        return {f"{of}/chunk_index": chunk, f"{of}/file_index": file}

    def close(self) -> None:
        if self.file is not None:
            self._end()
            files.sync(self.file)
            self.file = None

    @abstractmethod
    def _open(self, file: Path) -> None:
        """Begins a file."""

    @abstractmethod
    def _size(self, file: Path) -> int:
        """Bytes it has by now."""

    @abstractmethod
    def _end(self) -> None:
        """Ends it."""


class _Tables(_Numbered):
    """Parquet files."""

    def __init__(self, path: Path, nbytes: int) -> None:
        super().__init__(path, nbytes, ".parquet")
        self.schema: Any = None  # of the first table, and so of all
        self._writer: Any = None

    def write(self, table: Any) -> None:
        """Appends a row group, to the file of the last `place`."""
        if self._writer is None:
            self.schema = self.schema or table.schema
            parquet = need("pyarrow.parquet", "pyarrow", "lerobot")
            self._writer = parquet.ParquetWriter(str(self.file), self.schema)
        self._writer.write_table(table, row_group_size=max(len(table), 1))

    def _open(self, file: Path) -> None:
        files.write_new(file, b"")

    def _size(self, file: Path) -> int:
        return files.size(file)

    def _end(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class _Clips(_Numbered):
    """Video files of one camera."""

    def __init__(self, path: Path, feature: Feature, fps: float) -> None:
        super().__init__(path, _VIDEO_MB << 20, ".mp4")
        self._feature, self._fps = feature, fps
        self._writer: VideoWriter | None = None

    def add(self, frames: Array, of: str) -> dict[str, Any]:
        """Appends an episode; where it is."""
        place: dict[str, Any] = dict(self.place(of))
        assert self._writer is not None
        begin = self._writer.frames
        self._writer.add(frames)
        self._feature.info = self._writer.about
        times = (begin / self._fps, self._writer.frames / self._fps)
        return place | {f"{of}/from_timestamp": times[0], f"{of}/to_timestamp": times[1]}

    def _open(self, file: Path) -> None:
        feature = self._feature
        assert feature.encoder is not None
        self._writer = VideoWriter(file, feature.encoder, *feature.size, self._fps)

    def _size(self, file: Path) -> int:
        return 0 if self._writer is None else self._writer.nbytes

    def _end(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _check_times(stored: Array, times: Array, fps: float) -> None:
    stored = stored.reshape(-1)
    if stored.shape != times.shape or np.abs(stored - times).max() > 1e-3:
        raise LayoutError(
            f'timestamp: not those of {fps:g} frames per second; give their fps=, or drop=["'
            'timestamp"]'
        )


def _write_tasks(file: Path, texts: list[str]) -> None:
    """As pandas writes a frame whose index is the texts."""
    arrow = need("pyarrow", "pyarrow", "lerobot")
    parquet = need("pyarrow.parquet", "pyarrow", "lerobot")

    def column(name: str, kind: str, numpy_kind: str) -> dict[str, Any]:
        types = {"pandas_type": kind, "numpy_type": numpy_kind, "metadata": None}
        return {"name": name, "field_name": name, **types}

    about = {
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": [column("task_index", "int64", "int64"), column("task", "unicode", "object")],
        "pandas_version": "2.0.0",
    }
    table = arrow.table({"task_index": np.arange(len(texts)), "task": arrow.array(texts, "string")})
    parquet.write_table(table.replace_schema_metadata({"pandas": json.dumps(about)}), file)
    files.sync(file)


def _fault(path: Path) -> str | None:
    """Why a directory is no export of ours, or None."""
    try:
        features = json.loads(files.read(path / "meta" / "info.json"))["features"]
        ours = "contig_shape" in features["index"]
    except (OSError, ValueError, LookupError, TypeError):
        ours = False
    return None if ours else "meta/info.json there is not that of an export of contig"


_KIND = folder.Kind(
    "a LeRobot dataset of contig's",
    "meta/info.json",
    re.compile(
        r"(meta|data|videos)/|meta/(info|stats)\.json(\.tmp)?|meta/tasks\.parquet|meta/episodes/"
        r"|(meta/episodes|data|videos/[^/]+)/chunk-\d+/(file-\d+\.(parquet|mp4))?|videos/[^/]+/"
    ),
    _fault,
)
