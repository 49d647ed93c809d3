"""LeRobot datasets, version 3, as trajectories on a tape.

    meta/info.json                                   features, frames per second, path templates
    meta/episodes/chunk-000/file-000.parquet         a row per episode: where its frames are
    data/chunk-000/file-000.parquet                  frames of many episodes; images inside
    videos/<camera>/chunk-000/file-000.mp4           frames of many episodes

Needs pyarrow; Pillow for compressed images; PyAV for videos.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from ..batch import Batch
from ..codecs import Codec, decode_rows
from ..convert import cast
from ..errors import LayoutError
from ..keys import DONE
from ..ragged import Blob
from ..tree import Path
from .episodes import need, nested, storage_of
from .images import decode_image, encoded_image
from .lerobot_features import CONTIG_SHAPE
from .video import Video

__all__ = ["from_lerobot", "lerobot_tasks"]

Array = np.ndarray[Any, Any]

_IMAGES = ("png", "jpeg")  # what images in such files are
_CHUNK_ROWS = 128  # frames in memory at once
# What a tape knows without a column.
_IMPLIED = ("episode_index", "frame_index", "index")
# Features of shape [1] that are a number per row here; elsewhere it stays a vector.
_NUMBERS = ("next", "timestamp", "task_index")
_DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_TEMPLATE_FIELDS = ("chunk_index", "file_index", "video_key")
_TEMPLATE_WIDTH = re.compile(r"0?\d?d?")
_VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"


def from_lerobot(path: str | FilePath, target: Any, *, skip: Collection[str] = ()) -> int:
    """Appends the episodes of a LeRobot v3 directory to a storage or a ReplayBuffer, some frames at
    a time.

    Feature names are paths: ``observation.state`` is ``("observation", "state")``. Images and
    videos are uint8 in the declared shape. `timestamp` and `task_index` stay; `lerobot_tasks` has
    the tasks' texts. An episode whose last frame has ``next.done`` (and not ``next.truncated``) is
    terminated, any other truncated: recording stopped there. Images of a leaf that the storage
    keeps with the codec png or jpeg are stored as the file has them, byte for byte, if they are of
    that format.

    Args:
        skip: features to leave out.

    Returns:
        how many episodes.

    Raises:
        LayoutError: another version, damaged or missing files, a feature that is not numbers or
            images; the text names file and feature. Episodes before it have been appended.
        ImportError: a library is missing, with what to do.
    """
    storage = storage_of(target)
    source = _Directory(FilePath(path), skip, storage.codecs)
    writer, count = storage.writer(), 0
    for episode in source.episodes():
        first = True
        for columns in source.frames(episode):
            if storage.layout is None and source.coded:
                storage.define(nested(source.decoded(columns)), 1)
            writer.extend(Batch.from_tree(nested(columns), 1), continues=not first)
            first = False
        count += 1
    return count


def lerobot_tasks(path: str | FilePath) -> dict[int, str]:
    """The tasks' texts by `task_index`."""
    file = FilePath(path) / "meta" / "tasks.parquet"
    table = _table(file)
    text = next((n for n in table.column_names if n != "task_index"), None)
    if "task_index" not in table.column_names or text is None:
        raise LayoutError(f"{file}: columns {table.column_names}, expected task_index and a text")
    return dict(zip(table["task_index"].to_pylist(), table[text].to_pylist()))


class _Directory:
    """What a directory says of itself, and its frames."""

    def __init__(self, path: FilePath, skip: Collection[str], codecs: Mapping[Path, Codec]) -> None:
        self.path = path
        file = path / "meta" / "info.json"
        try:
            self.info = json.loads(file.read_bytes())
            self.features: dict[str, Any] = dict(self.info["features"])
            version, self.fps = str(self.info["codebase_version"]), float(self.info["fps"])
        except FileNotFoundError:
            raise FileNotFoundError(f"{file}: missing; expected a LeRobot v3 directory") from None
        except (ValueError, LookupError, TypeError) as error:
            raise LayoutError(f"{file} is damaged: {error!r}") from error
        if not version.startswith("v3"):
            raise LayoutError(
                f"{file}: version {version}, expected v3; LeRobot converts older datasets "
                "(lerobot.datasets.v30.convert_dataset_v21_to_v30)"
            )
        for name in skip:
            if name not in self.features:
                raise LayoutError(f"skip: no feature {name}; it has {', '.join(self.features)}")
        self.kept = {
            name: feature
            for name, feature in self.features.items()
            if name not in skip and name not in _IMPLIED
        }
        if not self.kept:
            raise LayoutError(f"{file}: no features are left to import")
        for name, feature in self.kept.items():
            self._check(name, feature)
        self.videos = {
            name: Video(self.fps) for name, f in self.kept.items() if f["dtype"] == "video"
        }
        # Images that are kept as the files have them: codec and shape.
        self.coded: dict[Path, tuple[Codec, tuple[int, ...]]] = {}
        for name, feature in self.kept.items():
            leaf: Path = tuple(name.split("."))
            if feature["dtype"] == "image" and leaf in codecs and codecs[leaf].kind in _IMAGES:
                self.coded[leaf] = codecs[leaf], tuple(feature["shape"])
        self._rows: Iterator[Any] = iter(())
        self._file: FilePath | None = None
        self._left: Any = None  # rows of the file that were read ahead

    def _check(self, name: str, feature: Any) -> None:
        where = f"{self.path / 'meta' / 'info.json'}: {name}"
        if not isinstance(feature, dict):
            raise LayoutError(f"{where} is {feature!r:.80}, expected a dtype and a shape")
        kind, shape = feature.get("dtype"), feature.get("shape")
        if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
            raise LayoutError(f"{where} has shape {shape!r}, expected a list of numbers")
        if kind in ("image", "video"):
            return
        try:
            numeric = isinstance(kind, str) and np.dtype(kind).kind in "biuf"
        except TypeError:
            numeric = False
        if not numeric:
            raise LayoutError(
                f'{where} is {kind}; a tape holds numbers: leave it out with skip=["{name}"]'
            )

    def decoded(self, columns: dict[Path, Any]) -> dict[Path, Any]:
        """The first row of some columns, as one that says its shape: `[1, ...]` of each."""
        out = {path: column[:1] for path, column in columns.items()}
        for path, (codec, shape) in self.coded.items():
            out[path] = np.empty((1, *shape), np.uint8)
            decode_rows(codec, columns[path].values, columns[path].offsets[:2], out[path], path)
        return out

    def episodes(self) -> Iterator[dict[str, Any]]:
        """Rows of the episodes' files, in order."""
        files = (self.path / "meta" / "episodes").glob("chunk-*/file-*.parquet")
        found = sorted(files, key=lambda file: [(len(p), p) for p in file.parts[-2:]])
        if not found:
            raise LayoutError(
                f"{self.path / 'meta' / 'episodes'}: no chunk-000/file-000.parquet; the dataset "
                "has no episodes, or is not complete"
            )
        wanted = ["episode_index", "length", "data/chunk_index", "data/file_index"]
        for camera in self.videos:
            of = f"videos/{camera}"
            wanted += [f"{of}/chunk_index", f"{of}/file_index", f"{of}/from_timestamp"]
        for file in found:
            table = _table(file)
            missing = [name for name in wanted if name not in table.column_names]
            if missing:
                raise LayoutError(f"{file}: no column {missing[0]}")
            yield from table.select(wanted).to_pylist()

    def frames(self, episode: dict[str, Any]) -> Iterator[dict[Path, Any]]:
        """Columns of an episode, some rows at a time."""
        number, length = int(episode["episode_index"]), int(episode["length"])
        template = str(self.info.get("data_path") or _DATA_PATH)
        file = self._at(template, episode, "data")
        read = 0
        while read < length:
            table = self._take(file, min(_CHUNK_ROWS, length - read), number)
            read += len(table)
            yield self._columns(table, episode, file, last=read == length)

    def _at(self, template: str, episode: dict[str, Any], of: str, **more: str) -> FilePath:
        try:
            _check_template(template)
            name = template.format(
                chunk_index=int(episode[f"{of}/chunk_index"]),
                file_index=int(episode[f"{of}/file_index"]),
                **more,
            )
            out = (self.path / name).resolve()
        except (LookupError, ValueError, OSError) as error:
            raise LayoutError(f"{self.path}: path template {template!r}: {error!r}") from error
        if not out.is_relative_to(self.path.resolve()):
            raise LayoutError(f"{self.path}: path template {template!r} leads out of the dataset")
        return out

    def _take(self, file: FilePath, count: int, episode: int) -> Any:
        """The file's next rows, at most so many; all of this episode."""
        if file != self._file:
            self._file, self._left = file, None
            wanted = {"episode_index", "timestamp", *self.kept} - self.videos.keys()
            self._rows = _batches(file, sorted(wanted))
        if self._left is None or not len(self._left):
            self._left = next(self._rows, None)
        if self._left is None:
            raise LayoutError(f"{file}: too few rows for episode {episode}; the file is cut short")
        out, self._left = self._left[:count], self._left[count:]
        found = set(out["episode_index"].to_pylist()) - {episode}
        if found:
            raise LayoutError(
                f"{file}: rows of episode {found.pop()} where meta/episodes has episode {episode}"
            )
        return out

    def _columns(
        self, table: Any, episode: dict[str, Any], file: FilePath, last: bool
    ) -> dict[Path, Any]:
        out: dict[Path, Any] = {}
        for name, feature in self.kept.items():
            path: Path = tuple(name.split("."))
            if name in self.videos:
                of = f"videos/{name}"
                template = str(self.info.get("video_path") or _VIDEO_PATH)
                clip = self._at(template, episode, of, video_key=name)
                begin = float(episode[f"{of}/from_timestamp"])
                times = begin + table["timestamp"].to_numpy().astype(np.float64)
                out[path] = self.videos[name].read(clip, times, feature["shape"])
            elif path in self.coded:
                where = f"{file}: {name}"
                stored = _present(table[name].combine_chunks(), where).to_pylist()
                codec, shape = self.coded[path]
                images = (encoded_image(x, codec, shape, where, self.path) for x in stored)
                out[path] = Blob.of(list(images), text=False)
            else:
                where = f"{file}: {name}"
                out[path] = _values(table[name].combine_chunks(), feature, where, self.path)
                own = feature.get(CONTIG_SHAPE, [] if path[0] in _NUMBERS else [1])
                if out[path].shape[1:] == (1,) and own == []:
                    out[path] = out[path][:, 0]
        return _with_ends(out, last)


def _check_template(template: str) -> None:
    """Raises ValueError unless a path template from a file is harmless to format.

    A width such as ``{file_index:09999999999d}`` would take all memory, and a field such as
    ``{video_key.__class__}`` reaches into objects.
    """
    for _, field, spec, conversion in string.Formatter().parse(template):
        if field is None:
            continue
        if field not in _TEMPLATE_FIELDS or conversion:
            raise ValueError(f"field {field!r}, expected one of {', '.join(_TEMPLATE_FIELDS)}")
        if not _TEMPLATE_WIDTH.fullmatch(spec or ""):
            raise ValueError(f"format {spec!r} of {field}, expected one such as 03d")


def _with_ends(columns: dict[Path, Any], last: bool) -> dict[Path, Any]:
    """Columns with `terminated` and `truncated`, one of which is set at the very last row only."""
    rows = len(next(iter(columns.values())))
    over, late = (
        columns.pop(("next", flag), np.zeros(rows, bool)).reshape(rows, -1).any(1)
        for flag in ("terminated", "truncated")
    )
    done = columns.pop(DONE, np.zeros(rows, bool)).reshape(rows, -1).any(1)
    ends = np.zeros(rows, bool)
    ends[-1] = last
    terminated = ends & (over | (done & ~late))
    columns["next", "terminated"] = terminated
    columns["next", "truncated"] = ends & ~terminated
    return columns


def _table(file: FilePath) -> Any:
    arrow = need("pyarrow", "pyarrow", "lerobot")
    parquet = need("pyarrow.parquet", "pyarrow", "lerobot")
    try:
        with parquet.ParquetFile(file) as opened:
            return opened.read()
    except FileNotFoundError:
        raise
    except (OSError, arrow.ArrowInvalid) as error:
        raise LayoutError(f"{file} is damaged: {error}") from error


def _batches(file: FilePath, columns: list[str]) -> Iterator[Any]:
    """Tables of some rows each."""
    arrow = need("pyarrow", "pyarrow", "lerobot")
    parquet = need("pyarrow.parquet", "pyarrow", "lerobot")
    try:
        with parquet.ParquetFile(file) as opened:
            missing = [n for n in columns if n not in opened.schema_arrow.names]
            if missing:
                raise LayoutError(f"{file}: no column {missing[0]}, which meta/info.json lists")
            for batch in opened.iter_batches(_CHUNK_ROWS, columns=columns):
                yield arrow.Table.from_batches([batch])
    except FileNotFoundError as error:
        raise LayoutError(f"{file}: missing; meta/episodes lists it") from error
    except (OSError, arrow.ArrowInvalid) as error:
        raise LayoutError(f"{file} is damaged: {error}") from error


def _present(column: Any, where: str) -> Any:
    """The column, if no value of it is missing."""
    if column.null_count:
        raise LayoutError(f"{where}: a value is missing")
    return column


def _values(column: Any, feature: dict[str, Any], where: str, root: FilePath) -> Array:
    """A column as ``[rows, *shape]``."""
    arrow = need("pyarrow", "pyarrow", "lerobot")
    rows, shape = len(_present(column, where)), tuple(feature["shape"])
    if feature["dtype"] == "image":
        return np.stack([decode_image(x, shape, where, root) for x in column.to_pylist()])
    flat = column.storage if isinstance(column.type, arrow.BaseExtensionType) else column
    while arrow.types.is_list(flat.type) or arrow.types.is_fixed_size_list(flat.type):
        flat = flat.flatten()
    if arrow.types.is_nested(flat.type):
        raise LayoutError(f"{where} is {flat.type}, expected numbers or lists of them")
    if flat.null_count or len(flat) != rows * int(np.prod(shape)):
        raise LayoutError(f"{where}: {len(flat)} numbers in {rows} rows of shape {list(shape)}")
    values = flat.to_numpy(zero_copy_only=False).reshape(rows, *shape)
    return cast(values, np.dtype(feature["dtype"]), tuple(where.rpartition(" ")[2].split(".")))
