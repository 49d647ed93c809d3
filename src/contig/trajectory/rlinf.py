"""RLinf's directory format: reading and writing it.

    metadata.json                    trajectory_format, size, total_samples, counter, seed
    trajectory_index.json            an entry per trajectory, and their order
    trajectory_{id}_{weights}.pt     torch.save of a dict of [T, B, ...] tensors; or .pkl, a pickle

Files are written before the index that lists them, and the directory appears whole. Reading runs
nothing: `pt` goes through torch's restricted loader, `pkl` through ours.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import LayoutError
from ..tape.disk import files
from ..unpickle import check_torch, load_arrays
from .entry import TrajectoryEntry
from .folder import CONTIG, METADATA, new_directory, read_json, write_json
from .trajectory import BOOTSTRAPPED

__all__ = ["FORMATS", "INDEX", "RlinfDirectory", "export_rlinf", "read_rlinf"]

log = logging.getLogger("contig.trajectory")

FORMATS = ("pt", "pkl")
INDEX = "trajectory_index.json"
_NAMED = 10  # of missing files, in the log


class RlinfDirectory(NamedTuple):
    """A directory as its metadata and index describe it.

    Attributes:
        entries: trajectories whose files were there.
        missing: trajectories that are listed without a file: of a run longer than its window, RLinf
            lists all and copies the window.
    """

    path: Path
    metadata: dict[str, Any]
    entries: list[TrajectoryEntry]
    format: str
    missing: list[TrajectoryEntry]

    def load(self, entry: TrajectoryEntry) -> dict[str, Any]:
        """The fields of one trajectory.

        Raises:
            LayoutError: the file holds something else, or is damaged.
        """
        path = self.path / _file_name(entry, self.format)
        try:
            fields = _load(path, self.format)
        except pickle.UnpicklingError as error:
            raise LayoutError(f"{path}: {error}") from error
        except (RuntimeError, ValueError, EOFError, KeyError) as error:
            raise LayoutError(f"{path} is damaged: {error}") from error
        if not isinstance(fields, dict):
            raise LayoutError(f"{path}: expected a dict of fields, got {type(fields).__name__}")
        known = {k: v for k, v in fields.items() if v is not None}
        describe = {
            "max_episode_length": entry.max_episode_length,
            "model_weights_id": entry.model_weights_id,
        }
        return {**_unflattened(known, entry.shape), **describe}


def _unflattened(fields: dict[str, Any], shape: tuple[int, ...]) -> dict[str, Any]:
    """Fields with their first two dims. RLinf keeps rows flat in memory, and saves a field flat
    whose bootstrap rows do not let it find T and B: ``[(T + E) * B, ...]``."""
    if len(shape) < 2 or shape[1] < 1:
        return fields
    steps, envs = shape[:2]
    out = dict(fields)
    sizes = {name: tuple(getattr(fields.get(name), "shape", ())) for name in BOOTSTRAPPED}
    # Of one env both look alike; but from memory, flags have lost their bootstrap rows.
    kept = any(size and size[0] != steps for name, size in sizes.items() if name != "prev_values")
    for name, size in sizes.items():
        whole = len(size) > 1 and size[1] == envs and steps <= size[0] <= 2 * steps
        rows, rest = divmod(size[0], envs) if size else (0, 0)
        whole = whole and (envs > 1 or kept or len(size) == len(shape))
        if whole or rest or not steps < rows <= 2 * steps:
            continue
        out[name] = fields[name].reshape(rows, envs, *size[1:])
    return out


def _load(path: Path, form: str) -> Any:
    if form == "pkl":
        with files.open_stream(path) as file:
            return load_arrays(file)
    import torch

    with files.open_stream(path) as file:
        check_torch(file)
        return torch.load(file, map_location="cpu", weights_only=True)


def read_rlinf(path: Path) -> RlinfDirectory:
    """Reads what a directory says of itself.

    Trajectories that are listed without a file are left out, and named in the log.

    Raises:
        FileNotFoundError: it is none, or has none of the files that it lists.
        LayoutError: its metadata or index is damaged.
    """
    metadata, index = read_json(path / METADATA), read_json(path / INDEX)
    form = metadata.get("trajectory_format", "pt")
    if form not in FORMATS:
        raise LayoutError(f"{path / METADATA}: trajectory_format {form!r}, expected pt or pkl")
    try:
        listed = index["trajectory_index"]
        order = index.get("trajectory_id_list", index.get("trajectory_uuid_list"))
        keys = list(listed) if order is None else [str(key) for key in order]
        entries = [_entry(listed[key], key) for key in keys]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise LayoutError(f"{path / INDEX} is damaged: {error!r}") from error
    found = {id(entry): files.is_file(path / _file_name(entry, form)) for entry in entries}
    there = [entry for entry in entries if found[id(entry)]]
    missing = [entry for entry in entries if not found[id(entry)]]
    if missing:
        names = [_file_name(entry, form) for entry in missing]
        if not there:
            raise FileNotFoundError(
                f"{path}: {INDEX} lists {len(missing)} trajectories, and none is there; the first "
                f"is {names[0]}"
            )
        log.warning(
            "%s: %d of %d listed trajectories are not there, and are left out: %s%s",
            path,
            len(missing),
            len(entries),
            ", ".join(names[:_NAMED]),
            f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "",
        )
    return RlinfDirectory(path, metadata, there, form, missing)


def _entry(info: dict[str, Any], key: str) -> TrajectoryEntry:
    number = int(info.get("trajectory_id", key if key.isdigit() else -1))
    return TrajectoryEntry(
        uuid=str(info.get("uuid", "" if key.isdigit() else key)),
        trajectory_id=number,
        num_samples=int(info["num_samples"]),
        shape=tuple(int(n) for n in info.get("shape", ())),
        max_episode_length=int(info.get("max_episode_length", 0)),
        model_weights_id=str(info.get("model_weights_id", "")),
    )


def _file_name(entry: TrajectoryEntry, form: str) -> str:
    weights = entry.model_weights_id
    if os.path.basename(weights) != weights or "\0" in weights:
        raise LayoutError(f"model_weights_id {weights!r} cannot be part of a file's name")
    return f"trajectory_{entry.trajectory_id}_{weights}.{form}"


def export_rlinf(
    path: Path,
    trajectories: Iterable[tuple[TrajectoryEntry, dict[str, Any]]],
    form: str,
    metadata: dict[str, Any],
    live: Iterable[Path] = (),
) -> None:
    """Writes a directory that RLinf loads.

    Args:
        trajectories: entries, each with the fields of its trajectory, tensors ``[T, B, ...]``.
        metadata: trajectory_counter and seed.
        live: directories of storages that are in use.

    Raises:
        FileExistsError: something else than an earlier export is there.
    """
    import torch

    index: dict[str, Any] = {}
    samples = 0
    with new_directory(path, live) as folder:
        for entry, fields in trajectories:
            image = io.BytesIO()
            if form == "pt":
                torch.save(fields, image)
            else:
                pickle.dump(fields, image)
            files.write(folder / _file_name(entry, form), image.getbuffer())
            index[str(entry.trajectory_id)] = entry.public()
            samples += entry.num_samples
        order = [int(key) for key in index]
        about = {"trajectory_format": form, "size": len(index), "total_samples": samples}
        about["exporter"] = CONTIG  # so that a later one may replace it
        write_json(folder / METADATA, {**about, **metadata})
        write_json(folder / INDEX, {"trajectory_index": index, "trajectory_id_list": order})
