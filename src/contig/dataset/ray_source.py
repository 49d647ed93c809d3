"""The Datasource: which task of Ray Data reads which episodes. Imports ray.data."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from ray.data import DataContext, Datasource
from ray.data.block import BlockMetadata
from ray.data.datasource import ReadTask

from ..errors import LayoutError
from ..tape.episodes import EPISODE
from .episodes import Array
from .ray_blocks import Stored, episodes_block, rows_block
from .stored_episodes import Plan, open_stored

__all__ = ["EpisodeDatasource", "Form", "groups"]

log = logging.getLogger("contig.dataset")

_BLOCK_BYTES = 128 << 20
_NAMED = 10


class Form(NamedTuple):
    """What a dataset is to be.

    Attributes:
        rows: a row per step, else per episode.
        drop: leaves that are left out.
        strict: whether an episode that cannot be read any more is an error.
    """

    rows: bool
    drop: tuple[str, ...]
    strict: bool


class EpisodeDatasource(Datasource):
    """Episodes of a directory. Each task opens it to read; it is given a path and entries."""

    def __init__(self, plan: Plan, form: Form) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._plan, self._form = plan, form

    def get_name(self) -> str:
        return "Contig"

    def estimate_inmemory_data_size(self) -> int | None:
        return int(self._plan.entries["steps"].sum()) * self._plan.layout.record_size

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        limit = {} if per_task_row_limit is None else {"per_task_row_limit": per_task_row_limit}
        out = []
        for part in groups(self._plan.entries, self._plan.rows_per_extent, parallelism):
            steps = int(part["steps"].sum())
            read = functools.partial(_read, self._plan.path, self._plan.stamp, part, self._form)
            about = _metadata(
                num_rows=steps if self._form.rows else len(part),
                size_bytes=steps * self._plan.layout.record_size,
            )
            out.append(ReadTask(read, about, **limit))
        return out


def _metadata(**known: Any) -> BlockMetadata:
    """Versions of Ray have different fields, of which we know two."""
    fields = [f for f in dataclasses.fields(BlockMetadata) if f.init]
    unknown = {f.name: None for f in fields if f.default is dataclasses.MISSING}
    return BlockMetadata(**{**unknown, **known})


def groups(entries: Array, rows_per_extent: int, wanted: int) -> list[Array]:
    """Episodes in about as many parts as are wanted: whole extents, by the episodes that begin
    there, or, if there are fewer extents, parts of them with about as many rows."""
    wanted = max(min(wanted, len(entries)), 1)
    extent = entries["first"] // rows_per_extent
    starts = np.flatnonzero(np.r_[True, extent[1:] != extent[:-1]])
    if len(starts) < wanted:
        ends = np.cumsum(entries["steps"])
        cuts = np.searchsorted(ends, ends[-1] * np.arange(1, wanted) / wanted)
    else:
        cuts = np.array([part[0] for part in np.array_split(starts, wanted)[1:]], np.int64)
    return [part for part in np.split(entries, np.unique(cuts)) if len(part)]


def _read(path: str, stamp: int, planned: Array, form: Form) -> Iterator[Any]:
    """Blocks of some episodes; those that are not there any more as planned are left out."""
    make = rows_block if form.rows else episodes_block
    most = DataContext.get_current().target_max_block_size or _BLOCK_BYTES
    left: list[int] = []
    with open_stored(path, stamp) as stored:
        pending: list[Stored] = []
        nbytes = 0
        now = {int(e["id"]): e for e in stored.entries()}
        for entry in planned:
            there = now.get(int(entry["id"]))
            # A checkpoint that was loaded meanwhile may have brought others with these ids.
            same = there is not None and _about(there) == _about(entry)
            leaves = stored.columns(entry) if same else None
            if leaves is None:
                left.append(int(entry["id"]))
                continue
            pending.append(Stored(entry, leaves))
            nbytes += int(entry["steps"]) * stored.layout.record_size
            if nbytes >= most:
                yield make(pending, form.drop)
                pending, nbytes = [], 0
        if left:
            _report(path, left, len(planned), form.strict)
        if pending:
            yield make(pending, form.drop)


def _about(entry: Array) -> list[Any]:
    """What of an episode never changes; fields do."""
    return [entry[name].tobytes() for name in EPISODE.names or ()]


def _report(path: str, left: list[int], planned: int, strict: bool) -> None:
    ids = ", ".join(map(str, left[:_NAMED])) + (" ..." if len(left) > _NAMED else "")
    text = (
        f"{path}: {len(left)} of {planned} episodes are left out, evicted or found damaged since "
        f"the dataset was made: {ids}"
    )
    if strict:
        raise LayoutError(text)
    log.warning("%s", text)
