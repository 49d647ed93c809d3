"""HDF5 files with arrays of rows, as D4RL has them. Needs h5py."""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import Any

import numpy as np

from ..errors import LayoutError
from ..trajectory.trajectory import nested
from ..tree import Path
from .optional import need, storage_of

__all__ = ["from_hdf5"]

_CHUNK_ROWS = 1 << 16
_PLACES = {
    "observations": ("observation",),
    "actions": ("action",),
    "rewards": ("next", "reward"),
    "terminals": ("next", "terminated"),
    "timeouts": ("next", "truncated"),
    "next_observations": ("next", "observation"),
}
_NEEDED = ("observations", "actions", "rewards", "terminals")


def from_hdf5(path: str | FilePath, target: Any) -> int:
    """Appends the trajectories of a file to a storage or a ReplayBuffer, some rows at a time.

    Rows are cut where `terminals` or `timeouts` are set; the rows behind the last of these are a
    trajectory that was cut (truncated). Other arrays with as many rows are leaves of their own.

    Returns:
        how many trajectories.

    Raises:
        LayoutError: an array is missing, or has another number of rows.
    """
    h5py = need("h5py", "h5py")
    writer = storage_of(target).writer()
    with h5py.File(path, "r") as file:
        columns = _columns(h5py, file, str(path))
        rows = columns["observation",].shape[0]
        count, start = 0, 0
        while start < rows:
            end = _end_of(columns, start, rows)
            piece: dict[Path, Any] = {p: np.asarray(c[start:end]) for p, c in columns.items()}
            for flag in ("terminated", "truncated"):
                given = piece.get(("next", flag))
                zeros = np.zeros(end - start, bool)
                piece["next", flag] = zeros if given is None else given.reshape(-1) != 0
            if not piece["next", "terminated"][-1]:
                piece["next", "truncated"][-1] = True
            writer.extend_trajectory(nested(piece))
            count, start = count + 1, end
    return count


def _columns(h5py: Any, file: Any, where: str) -> dict[Path, Any]:
    for name in _NEEDED:
        if name not in file:
            raise LayoutError(
                f"{where}: no {name}; it has {', '.join(sorted(file)) or 'nothing'}; expected "
                f"{', '.join(_NEEDED)} and, if there are any, timeouts and next_observations"
            )
    rows = file["observations"].shape[0]
    out: dict[Path, Any] = {}

    def visit(name: str, node: Any) -> None:
        if not isinstance(node, h5py.Dataset) or node.dtype.kind not in "biuf":
            return
        aligned = len(node.shape) > 0 and node.shape[0] == rows
        if name in _PLACES and not aligned:
            raise LayoutError(f"{where}: {name} has shape {list(node.shape)}, expected {rows} rows")
        if aligned:
            out[_PLACES.get(name, tuple(name.split("/")))] = node

    file.visititems(visit)
    return out


def _end_of(columns: dict[Path, Any], start: int, rows: int) -> int:
    """Where the trajectory that begins at `start` ends; reads flags only."""
    at = start
    while at < rows:
        over = np.zeros(min(_CHUNK_ROWS, rows - at), bool)
        for flag in ("terminated", "truncated"):
            if ("next", flag) in columns:
                over |= columns["next", flag][at : at + len(over)].reshape(-1) != 0
        found = np.flatnonzero(over)
        if len(found):
            return at + int(found[0]) + 1
        at += len(over)
    return rows
