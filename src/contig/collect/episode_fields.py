"""Fields of trajectories that collectors take from an environment's info, at an episode's end.

They travel in the batch, in leaves below `fields` that are zeros but for the last row of each
episode; what writes the batch takes them off it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..batch import Batch
from ..convert import as_array, cast
from ..errors import LayoutError
from ..keys import DONE, FIELDS
from ..layout import Layout, ShapeDtype
from ..tape import Storage
from ..tape.fields import RowFields, fields_layout
from ..tree import Path, flatten, show_path
from .specs import nest

__all__ = ["EpisodeFields", "episode_fields", "pieces_with_fields", "row_fields"]

Array = np.ndarray[Any, Any]


class EpisodeFields:
    """What an episode's last info says of it.

    Args:
        given: an example of the fields, whose names are keys of the info; or a function of the info
            that returns them. It is called once with an empty info, to learn what they are.

    Attributes:
        layout: of the fields.
    """

    def __init__(self, given: Mapping[str, Any] | Callable[[Any], Any]) -> None:
        self._read = given if callable(given) else None
        self.layout = fields_layout(given if self._read is None else self._called(self._read, {}))

    @staticmethod
    def _called(read: Callable[[Any], Any], info: Any) -> Any:
        try:
            return read(info)
        except (KeyError, IndexError) as error:
            raise LayoutError(
                f"fields: the function failed for info {info!r}: {error!r}; it is called with an "
                "empty info at first, so give defaults: info.get(key, default)"
            ) from error

    @property
    def leaves(self) -> dict[Path, ShapeDtype]:
        """The leaves of a row that carry them."""
        return {(*FIELDS, *x.path): ShapeDtype(x.shape, x.dtype) for x in self.layout.leaves}

    def of(self, info: Any) -> dict[Path, Array]:
        """What an info says, by the paths of a row.

        Raises:
            LayoutError: a field is missing, unknown, or does not fit.
        """
        if self._read is None:
            return {
                (*FIELDS, *x.path): self._fit(x, _find(info, x.path)) for x in self.layout.leaves
            }
        out = {}
        paths, values, _ = flatten(self._called(self._read, info))
        for path, value in zip(paths, values):
            leaf = self.layout.by_path.get(path)
            if leaf is None:
                known = ", ".join(show_path(x.path) for x in self.layout.leaves)
                raise LayoutError(
                    f"fields: the function returned {show_path(path)}, which it did not for an "
                    f"empty info; that was {known}"
                )
            out[(*FIELDS, *path)] = self._fit(leaf, value)
        return out

    @staticmethod
    def _fit(leaf: Any, value: Any) -> Array:
        array = as_array(value, leaf.path)
        if array.shape != leaf.shape:
            raise LayoutError(
                f"fields: {show_path(leaf.path)}: the episode's info has shape "
                f"{list(array.shape)}, expected {list(leaf.shape)}"
            )
        return np.asarray(cast(array, leaf.dtype, leaf.path))


def episode_fields(given: Any) -> EpisodeFields | None:
    """What the `fields` argument of a collector means."""
    return EpisodeFields(given) if given is not None else None


def _find(info: Any, path: Path) -> Any:
    value = info
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            there = ", ".join(map(repr, value)) if isinstance(value, Mapping) else repr(value)
            raise LayoutError(
                f"fields: {show_path(path)}: the info of an episode's end has no {key!r}, only "
                f"{there or 'nothing'}; give a function of the info where it may be missing"
            )
        value = value[key]
    return value


def _carried(batch: Any) -> list[Path]:
    """The leaves of a batch that carry fields."""
    if not isinstance(batch, Batch):
        return []
    return [p for p in batch.extras if p[: len(FIELDS)] == FIELDS]


def row_fields(batch: Any, storage: Storage) -> RowFields | None:
    """The fields that a batch carries, for a storage, which gets them if it has nothing yet; None:
    it carries none.

    Raises:
        LayoutError: the storage has no fields, or other ones.
    """
    paths = _carried(batch)
    if not paths:
        return None
    if storage.schema is None and storage.fields is None:
        leaves = batch.layout.by_path
        of = {p[len(FIELDS) :]: ShapeDtype(leaves[p].shape, leaves[p].dtype) for p in paths}
        storage.bind_fields(Layout(nest(of)))
    return RowFields.of(storage.fields, batch[FIELDS], batch[DONE])


def pieces_with_fields(batch: Any) -> list[tuple[Any, Any]]:
    """A batch in pieces of single lanes, each with the fields (or None) that all of it has: for who
    can give fields to a whole append only. Rows have ids, so that pieces of a trajectory join."""
    paths = _carried(batch)
    if not paths or not batch[DONE].any():
        return [(batch, None)]
    lanes = batch.reshape(-1, batch.shape[-1])
    out = []
    for number in range(len(lanes)):
        lane = lanes[number]
        ends = np.flatnonzero(lane[DONE]) + 1
        for first, last in zip([0, *ends], [*ends, len(lane)]):
            if first == last:
                continue
            fields = None
            if last in ends:
                fields = nest({p[len(FIELDS) :]: lane[p][last - 1] for p in paths})
            out.append((lane[first:last], fields))
    return out
