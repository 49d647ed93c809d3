"""Ray Data, both ways: a storage on disk or a checkpoint as a `ray.data.Dataset`, read in parallel.

Needs ray[data].
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from ..errors import LayoutError
from ..tape import SharedStorage, Storage, Writer
from .episodes import Array, need, storage_of
from .ray_blocks import (
    about_of,
    check_layout,
    columns_of,
    decoded,
    field_names,
    fields_of,
    is_rows,
    split_episodes,
)
from .stored_episodes import plan_of

__all__ = ["from_ray_dataset", "to_ray_dataset"]

_WRITERS = 4  # tasks that append at the same time


def to_ray_dataset(
    source: Any,
    *,
    rows: bool = False,
    drop: Collection[str] = (),
    strict: bool = False,
    blocks: int | None = None,
) -> Any:
    """The complete episodes of a storage on disk, or of a checkpoint, as a `ray.data.Dataset`.

    Which episodes it has is decided now; they are read when the dataset is, by tasks that open the
    directory themselves, each the episodes that begin in some extents. So every node needs to see
    it under this path. Each episode is there once; their order is Ray's.

    Columns are `episode` (its id), `traj_id`, `terminated`, `truncated`, `policy_version`, and one
    per leaf, named by its path (``next.reward``). Of episodes also `steps` and `return`; leaves are
    tensors ``[T, ...]``. Of rows also `step`; the flags are set in an episode's last row. Numbers
    that Arrow does not know are there as bits, under a name that says so (``half:bfloat16``).
    Fields of trajectories are columns ``fields.<name>``.

    Args:
        source: a DiskStorage or a ReplayBuffer with one, whose rows are committed first; or the
            path of its directory, or of a checkpoint of any storage.
        rows: a row per step, instead of one per episode.
        drop: leaves to leave out, by name.
        strict: whether an episode is an error that was evicted, or found to be damaged, before it
            was read; else it is left out and the task's log says so.
        blocks: how many tasks read; None: as many as Ray thinks right.

    Raises:
        LayoutError: there is no complete episode, or a leaf that the dataset cannot hold.
    """
    data = need("ray.data", "ray[data]", "ray")
    if isinstance(drop, str):
        raise TypeError(f"drop={drop!r}: expected a list of names")
    plan = plan_of(source)
    check_layout(plan.layout, field_names(plan.entries), drop)
    from .ray_source import EpisodeDatasource, Form

    datasource = EpisodeDatasource(plan, Form(rows, tuple(drop), strict))
    return data.read_datasource(datasource, override_num_blocks=blocks)


def from_ray_dataset(dataset: Any, target: Any) -> int:
    """Appends the episodes of a dataset of `to_ray_dataset`, or of one with such columns, to a
    storage or a ReplayBuffer, each in one append, in the order in which they come.

    Of rows, those of an episode may come in any order and from any number of blocks: an episode is
    appended when all are there. Episodes go to a `SharedStorage` from several tasks on this node;
    none of them is done again if it fails, so that no episode is there twice. Otherwise blocks
    stream through this process.

    Returns:
        how many episodes.

    Raises:
        LayoutError: rows of an episode are missing or there twice, or columns do not fit; episodes
            that came before are there.
    """
    need("ray.data", "ray[data]", "ray")
    storage = storage_of(target)
    if isinstance(storage, SharedStorage) and not is_rows(dataset.columns() or ()):
        return _append_in_tasks(dataset, storage)
    writer, count = storage.writer(), 0
    joining = _Joining()
    for table in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
        if not len(table):
            continue
        columns = columns_of(table)
        if not is_rows(table.column_names):
            count += _append(storage, writer, columns)
            continue
        for about, leaves in joining.take(columns):
            _write(writer, about, leaves, fields_of(leaves, -1) if _has_fields(storage) else None)
            count += 1
    joining.check_empty()
    return count


def _has_fields(storage: Storage) -> bool:
    """Whether columns of that name are fields there, and no leaves."""
    return storage.schema is None or storage.fields is not None


def _append(storage: Storage, writer: Writer, columns: dict[str, Array]) -> int:
    count = 0
    for about, leaves in split_episodes(columns):
        _write(writer, about, leaves, fields_of(leaves, None) if _has_fields(storage) else None)
        count += 1
    return count


def _write(writer: Writer, about: dict[str, Any], leaves: dict[str, Array], fields: Any) -> None:
    writer.extend_trajectory(
        decoded(leaves),
        terminated=bool(about["terminated"]),
        truncated=bool(about["truncated"]),
        traj_id=about.get("traj_id"),
        policy_version=about.get("policy_version"),
        fields=fields,
    )


def _append_in_tasks(dataset: Any, storage: Storage) -> int:
    ray = need("ray", "ray[data]", "ray")
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    # They wait for tasks that read, and must not take their place. What one that died had appended
    # stays: done again, it would be there twice.
    append = ray.remote(_append_blocks).options(num_cpus=0, max_retries=0, scheduling_strategy=here)
    parts = dataset.streaming_split(_WRITERS)
    running = [append.remote(part, storage) for part in parts]
    waiting = running
    try:
        while waiting:  # for any of them: others wait for one that has died
            done, waiting = ray.wait(waiting)
            ray.get(done)
        return sum(ray.get(running))
    except BaseException:
        for task in waiting:
            ray.cancel(task)
        raise


def _append_blocks(part: Any, storage: Storage) -> int:
    """In a task: storages in shared memory are pickled by name."""
    writer, count = storage.writer(), 0
    for table in part.iter_batches(batch_size=None, batch_format="pyarrow"):
        if len(table):
            is_rows(table.column_names)
            count += _append(storage, writer, columns_of(table))
    return count


class _Joining:
    """Rows of episodes, until all of an episode are there."""

    def __init__(self) -> None:
        self._parts: dict[int, list[dict[str, Array]]] = {}

    def take(self, columns: dict[str, Array]) -> Iterator[tuple[dict[str, Any], dict[str, Array]]]:
        """Takes rows in; gives the episodes that are whole now."""
        order = np.lexsort((columns["step"], columns["episode"]))
        ids = columns["episode"][order]
        cuts = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1], True])
        for start, end in itertools.pairwise(cuts):
            mine = {name: values[order[start:end]] for name, values in columns.items()}
            episode = int(ids[start])
            self._parts.setdefault(episode, []).append(mine)
            if self._is_whole(episode):
                whole = _joined(self._parts.pop(episode), episode)
                yield about_of(whole, -1), whole

    def _is_whole(self, episode: int) -> bool:
        parts = self._parts[episode]
        last = _last_step(parts)
        return last is not None and sum(len(p["step"]) for p in parts) > last

    def check_empty(self) -> None:
        """Raises LayoutError if there are episodes that lack rows."""
        for episode, parts in self._parts.items():
            last, rows = _last_step(parts), sum(len(p["step"]) for p in parts)
            of = "" if last is None else f" of {last + 1}"
            raise LayoutError(
                f"{len(self._parts)} episodes are not whole, such as episode {episode}: {rows} "
                f"rows{of} came{', and none that ends it' if last is None else ''}; rows that were "
                "filtered cannot become episodes"
            )


def _last_step(parts: list[dict[str, Array]]) -> int | None:
    for part in parts:
        ends = np.flatnonzero(part["terminated"] | part["truncated"])
        if len(ends):
            return int(part["step"][ends[-1]])
    return None


def _joined(parts: list[dict[str, Array]], episode: int) -> dict[str, Array]:
    names = parts[0].keys()
    if any(part.keys() != names for part in parts):
        raise LayoutError(f"episode {episode}: its rows do not have the same columns")
    whole = (
        {n: np.concatenate([p[n] for p in parts]) for n in names} if len(parts) > 1 else parts[0]
    )
    order = np.argsort(whole["step"], kind="stable")
    whole = {name: values[order] for name, values in whole.items()}
    if not np.array_equal(whole["step"], np.arange(len(order))):
        raise LayoutError(
            f"episode {episode}: steps {whole['step'].tolist()[:10]}..., expected "
            "each from 0 on, once; are these several datasets with the same ids?"
        )
    return whole
