"""What importers and exporters share: whole trajectories out of a storage, and optional libraries.

storage  ->  Episode, one at a time  ->  a file of another format
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import numpy as np

from ..convert import as_array, is_tensor
from ..errors import CodecError, LayoutError
from ..layout import Layout
from ..lazy import install_hint
from ..ragged import Ragged
from ..tape import Storage
from ..tape.episodes import field_column
from ..tree import Path, show_path

__all__ = [
    "Episode",
    "OnEpisode",
    "Tally",
    "check_plain_keys",
    "complete",
    "episodes_of",
    "fields_in",
    "need",
    "nested",
    "on_host",
    "storage_of",
    "without",
]

Array = np.ndarray[Any, Any]
#: Called with (episodes done, episodes in all) after each one.
OnEpisode = Callable[[int, int], None]

_FLAGS = ("terminated", "truncated")
_ALL_FIELDS = "fields"


class Tally:
    """What became of the trajectories of an export; an `on_episode` that also counts.

    Args:
        on_episode: called as well.

    Attributes:
        trajectories, rows: that were written.
        left: ids of those that were complete, and could not be read when it was their turn:
            damaged, or evicted meanwhile.
    """

    def __init__(self, on_episode: OnEpisode | None = None) -> None:
        self._then = on_episode
        self.trajectories = self.rows = 0
        self.left: list[int] = []

    def __call__(self, done: int, total: int) -> None:
        if self._then is not None:
            self._then(done, total)


class Episode(NamedTuple):
    """One complete trajectory.

    Attributes:
        id: of `storage.episodes()`.
        columns: arrays ``[T, ...]`` by path; of leaves of any size, a Ragged.
        fields: of the trajectory, by path.
    """

    id: int
    terminated: bool
    truncated: bool
    columns: dict[Path, Any]
    fields: dict[Path, Array]

    @property
    def steps(self) -> int:
        return len(next(iter(self.columns.values())))

    def ends(self, flag: str) -> Array:
        """`terminated` or `truncated` of each row, bool ``[T]``: set at the last one only."""
        out = np.zeros(self.steps, bool)
        out[-1] = getattr(self, flag)
        return out

    def tree(self, name: str, paths: tuple[Path, ...]) -> Any:
        """What is at the first of some paths: an array, or nested dicts of arrays.

        Raises:
            LayoutError: nothing is there.
        """
        for path in paths:
            found = subtree(self.columns, path)
            if found is not None:
                return found
        raise LayoutError(
            f"{name}: missing; the data has {', '.join(show_path(p) for p in self.columns)}"
        )

    def check_plain(self, what: str) -> None:
        """Raises LayoutError if a leaf is of any size, or the trajectory has fields."""
        for path, column in self.columns.items():
            if isinstance(column, Ragged):
                raise LayoutError(
                    f"{show_path(path)}: {what} has no leaves of any size; leave it out with "
                    f'drop=["{".".join(map(str, path))}"], or export to parquet'
                )
        for path in self.fields:
            raise LayoutError(
                f"{show_path(path)}: {what} has no place for fields of trajectories; leave them "
                'out with drop=["fields"], or export to parquet'
            )

    def check_no_others(self, known: Collection[Path], what: str) -> None:
        """Raises LayoutError if a leaf is not at, or below, one of some paths."""
        for path in self.columns:
            if not any(path[: len(place)] == place for place in known):
                raise LayoutError(
                    f"{show_path(path)}: {what} has no place for it; leave it out with "
                    f'drop=["{".".join(map(str, path))}"]'
                )

    def check_ends(self, what: str) -> None:
        """Raises LayoutError if a row before the last one says that an episode ends there."""
        for flag in (*_FLAGS, "done"):
            for path in (("next", flag), (flag,)):
                column = self.columns.get(path)
                if column is not None and np.any(column[:-1]):
                    raise LayoutError(
                        f"episode {self.id}: {show_path(path)} is set before the last row; {what} "
                        "cuts there"
                    )


def subtree(columns: dict[Path, Array], path: Path) -> Any:
    """The leaf at a path, or the nested dicts below it; None if there is nothing."""
    if path in columns:
        return columns[path]
    below = {p[len(path) :]: array for p, array in columns.items() if p[: len(path)] == path}
    return nested(below) if below else None


def nested(leaves: dict[Path, Any]) -> dict[Any, Any]:
    """Nested dicts from leaves by path.

    Raises:
        LayoutError: a leaf is where another path goes through.
    """
    out: dict[Any, Any] = {}
    for path, leaf in leaves.items():
        node = out
        for key in path[:-1]:
            node = node.setdefault(key, {})
            if not isinstance(node, dict):
                break
        if not isinstance(node, dict) or path[-1] in node:
            raise LayoutError(f"{show_path(path)}: it is there twice, or below another leaf")
        node[path[-1]] = leaf
    return out


def complete(storage: Storage) -> Array:
    """Entries of `storage.episodes()` that can be exported: whole, and not set aside as damaged."""
    found = storage.episodes()
    aside = storage.quarantined
    return found[found["complete"] & ~np.isin(found["id"], list(aside))]


def episodes_of(
    source: Any, drop: Collection[str] = (), on_episode: OnEpisode | None = None
) -> Iterator[Episode]:
    """Complete trajectories of a storage or a ReplayBuffer, one by one, oldest first.

    Those that are evicted meanwhile, or turn out to be damaged, are left out; a `Tally` as
    `on_episode` knows them.

    Args:
        drop: leaves to leave out, such as "next.value"; with a name, all that is below it. With
            "fields", those of trajectories.

    Raises:
        LayoutError: there is none, or nothing has a name of `drop`.
    """
    storage = storage_of(source)
    entries = complete(storage)
    if not len(entries):
        raise LayoutError("there is no complete trajectory to export")
    tally = on_episode if isinstance(on_episode, Tally) else Tally(on_episode)
    no_fields = storage.fields is not None and _ALL_FIELDS in drop
    kept = [name for name in drop if not (no_fields and name == _ALL_FIELDS)]
    for done, entry in enumerate(entries, 1):
        try:
            batch = storage.read_episode(int(entry["id"]))
        except (KeyError, CodecError):  # evicted, or damaged
            batch = None
        if batch is not None and len(batch) == entry["steps"]:
            leaves = {leaf.path: on_host(batch[leaf.path]) for leaf in batch.layout.leaves}
            over, late = (bool(entry[flag]) for flag in _FLAGS)
            fields = {} if no_fields else fields_in(entry, storage.fields)
            yield Episode(int(entry["id"]), over, late, without(leaves, kept), fields)
            tally.trajectories += 1  # the writer has come back for the next one
            tally.rows += len(batch)
        else:
            tally.left.append(int(entry["id"]))
        tally(done, len(entries))


def on_host(column: Any) -> Any:
    """A column that files can be written of: rows of a storage on a device are tensors."""
    return as_array(column) if is_tensor(column) else column


def fields_in(entry: Any, fields: Layout | None) -> dict[Path, Array]:
    """The fields of a trajectory, by its entry of `storage.episodes()`."""
    if fields is None:
        return {}
    return {x.path: np.asarray(entry[field_column(x.path)]) for x in fields.leaves}


def without(columns: dict[Path, Any], drop: Collection[str]) -> dict[Path, Any]:
    """Leaves without those of some names, and what is below them.

    Raises:
        LayoutError: nothing has that name.
    """
    gone: set[Path] = set()
    for name in drop:
        keys = name.split(".")
        found = {p for p in columns if [str(k) for k in p[: len(keys)]] == keys}
        if not found:
            known = ", ".join(".".join(map(str, p)) for p in columns)
            raise LayoutError(f'drop=["{name}"]: there is no such leaf; the data has {known}')
        gone |= found
    return {path: array for path, array in columns.items() if path not in gone}


def check_plain_keys(columns: Collection[Path], separator: str, what: str) -> None:
    """Raises LayoutError unless paths survive as names: strings joined by a separator."""
    for path in columns:
        for key in path:
            if not isinstance(key, str) or not key or separator in key:
                raise LayoutError(
                    f"{show_path(path)}: {what} names leaves by keys joined with {separator!r}, "
                    f"and {key!r} is none; rename it"
                )


def need(module: str, package: str, extra: str) -> Any:
    """A module of an optional library.

    Raises:
        ImportError: it is not installed, with what to do.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"this format needs {package}: {install_hint(extra)}") from error


def storage_of(source: Any) -> Storage:
    """The storage of a buffer, or a storage itself."""
    found = getattr(source, "storage", source)
    if not isinstance(found, Storage):
        raise TypeError(f"expected a storage or a ReplayBuffer, got {type(source).__name__}")
    return found
