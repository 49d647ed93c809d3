"""The frames that are being read: a slot per env, so that one gather makes a row of every env.

slot 0   f f f f f . .      a piece of env 0's trajectory
slot 1   f f f f f f f      of env 1's
cursor       ^
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..convert import as_array, to_torch
from ..errors import LayoutError
from .frames import Frames

__all__ = ["FrameSlots"]

Tensor = torch.Tensor


class FrameSlots:
    """Slots of frames for some envs.

    Args:
        frames: an example: fields, shapes and dtypes.
        num_envs: slots.
        device: where.
    """

    def __init__(self, frames: Frames, num_envs: int, device: torch.device) -> None:
        self.num_envs, self.device = num_envs, device
        self.slot = len(frames["observation"])
        self.fields: dict[str, Tensor] = {}
        self._dtypes = {name: array.dtype for name, array in frames.items()}
        for name, array in frames.items():
            shape, dtype = array.shape[1:], to_torch(np.empty(0, array.dtype)).dtype
            self.fields[name] = torch.zeros(num_envs, self.slot, *shape, dtype=dtype, device=device)
        self._look()

    def _look(self) -> None:
        """Keeps the fields as arrays, and flat: making such views takes longer than a row does."""
        self._flat = {name: field.flatten(0, 1) for name, field in self.fields.items()}
        self._host: dict[str, np.ndarray[Any, Any]] = {}
        self._rows: dict[str, np.ndarray[Any, Any]] = {}
        if self.device.type == "cpu":
            self._host = {name: as_array(field) for name, field in self.fields.items()}
            self._rows = {name: as_array(field) for name, field in self._flat.items()}

    def put(self, env: int, frames: Frames, where: str) -> None:
        """Fills one slot.

        Raises:
            LayoutError: other fields, shapes or dtypes than the first piece had.
        """
        if frames.keys() != self.fields.keys():
            odd = sorted(frames.keys() ^ self.fields.keys())[0]
            raise LayoutError(
                f"{where}: {odd} is {'here' if odd in frames else 'missing'}, unlike in the first "
                "file that was read; all trajectories of a dataset have the same fields"
            )
        rows = len(frames["observation"])
        if rows > self.slot:
            self._grow(rows)
        for name, array in frames.items():
            mine = self.fields[name]
            if array.shape[1:] != tuple(mine.shape[2:]):
                raise LayoutError(
                    f"{where}: {name} has shape {list(array.shape)}, expected "
                    f"[{rows}, {', '.join(map(str, mine.shape[2:]))}] as in the first file"
                )
            if array.dtype != self._dtypes[name]:
                raise LayoutError(
                    f"{where}: {name} is {array.dtype}, {self._dtypes[name]} in the first file"
                )
            if self._host:
                self._host[name][env, :rows] = array
            else:
                mine[env, :rows] = to_torch(np.ascontiguousarray(array))

    def slot_of(self, env: int, rows: int) -> dict[str, Tensor]:
        """The first frames of a slot, by field; views."""
        return {name: field[env, :rows] for name, field in self.fields.items()}

    def _grow(self, rows: int) -> None:
        for name, old in self.fields.items():
            new = old.new_zeros((self.num_envs, rows, *old.shape[2:]))
            new[:, : self.slot] = old
            self.fields[name] = new
        self.slot = rows
        self._look()

    def index(self, envs: np.ndarray[Any, Any], cursor: np.ndarray[Any, Any]) -> Tensor:
        """Where the rows at these cursors are."""
        return torch.from_numpy(envs * self.slot + cursor).to(self.device)

    def read(self, name: str, index: Tensor, out: Tensor | None = None) -> Tensor:
        """Rows of a field, into `out` if given."""
        flat = self._flat[name]
        if out is None or out.dtype != flat.dtype or not out.is_contiguous():
            out = flat.new_empty((len(index), *flat.shape[1:]))
        if self._rows:
            # One thread: torch's wait for each other, which takes longer than so small a gather.
            rows = self._rows[name]
            plain = as_array(out) if rows.dtype.isbuiltin == 2 else out.numpy()
            np.take(rows, index.numpy(), 0, plain, "clip")
            return out
        return torch.index_select(flat, 0, index, out=out)
