"""Minari datasets, both ways. Needs minari."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from ..errors import LayoutError
from ..keys import DONE, REWARD, TERMINATED, TRUNCATED
from ..tape.disk import files
from .episodes import Episode, OnEpisode, check_plain_keys, episodes_of, need, storage_of
from .hdf5 import check_own_data
from .writing_process import WritingProcess

__all__ = ["from_minari", "to_minari"]

_BUFFERED = 64  # episodes handed to minari at once
_FLAGS = (DONE, TERMINATED, TRUNCATED)
_LEAVES = (("observation",), ("action",), ("next", "observation"), REWARD)


def from_minari(dataset: Any, target: Any) -> int:
    """Appends the episodes of a Minari dataset to a storage or a ReplayBuffer, one at a time.

    Args:
        dataset: a `minari.MinariDataset`, or the id of one on this machine.

    Returns:
        how many episodes.
    """
    minari = need("minari", "minari", "minari")
    if isinstance(dataset, str):
        dataset = minari.load_dataset(dataset)
    _check_files(dataset)
    writer = storage_of(target).writer()
    count = 0
    for episode in dataset.iterate_episodes():
        after = {
            "observation": _rows(episode.observations, slice(1, None)),
            "reward": np.asarray(episode.rewards),
            "terminated": np.asarray(episode.terminations, bool),
            "truncated": np.asarray(episode.truncations, bool),
        }
        over = after["terminated"] | after["truncated"]
        if not over[-1]:
            after["truncated"] = after["truncated"].copy()
            after["truncated"][-1] = True  # recording stopped there
        writer.extend_trajectory(
            {
                "observation": _rows(episode.observations, slice(None, -1)),
                "action": _rows(episode.actions, slice(None)),
                "next": after,
            }
        )
        count += 1
    return count


def _check_files(dataset: Any) -> None:
    """Raises LayoutError if a dataset's HDF5 files have data in other files."""
    h5py = need("h5py", "h5py", "minari")
    for path in sorted(FilePath(dataset.storage.data_path).glob("*.hdf5")):
        with h5py.File(path, "r") as file:
            check_own_data(file, str(path))


def _rows(node: Any, part: slice) -> Any:
    if isinstance(node, Mapping):
        return {key: _rows(child, part) for key, child in node.items()}
    if isinstance(node, tuple):
        return tuple(_rows(child, part) for child in node)
    return np.asarray(node)[part]


def to_minari(
    source: Any,
    dataset_id: str,
    *,
    drop: Collection[str] = (),
    on_episode: OnEpisode | None = None,
    **about: Any,
) -> Any:
    """Makes a Minari dataset of the complete trajectories of a storage or a ReplayBuffer.

    Leaves `observation`, `action`, ``("next", "observation")`` and ``("next", "reward")`` are
    written, arrays or nested dicts of such; Minari has no place for others. A process of its own
    writes it: the HDF5 library does not survive a full disk.

    Args:
        dataset_id: such as "cartpole/mine-v0".
        drop: leaves to leave out, by name.
        on_episode: called with (done, total) after each trajectory.
        about: more for `minari.create_dataset_from_buffers`: spaces, author, description.

    Returns:
        the `minari.MinariDataset`.

    Raises:
        LayoutError: a leaf is missing, or there is another one, or a next observation is not the
            next row's observation, which Minari cannot hold.
        StorageFull: the disk is full; nothing is left of a dataset that was not there before.
    """
    minari = need("minari", "minari", "minari")
    dumps = need("cloudpickle", "cloudpickle", "minari").dumps
    path = FilePath(need("minari.storage", "minari", "minari").get_dataset_path(dataset_id))
    made = next((p for p in reversed([path, *path.parents]) if not files.lexists(p)), None)
    writing: WritingProcess | None = None
    try:
        for number, episode in enumerate(episodes_of(source, drop, on_episode)):
            buffer = _buffer(minari, number, episode)
            if writing is None:
                about.setdefault("action_space", _space(buffer.actions))
                about.setdefault("observation_space", _space(buffer.observations))
                writing = WritingProcess(str(path), _Dataset, dataset_id, about, dumps=dumps)
            writing.write(buffer)
        if writing is not None:
            writing.finish()
    except BaseException:
        if writing is not None:
            writing.close()
            if made is not None:
                files.remove_tree(made)
        raise
    if writing is None:
        return None
    writing.close()
    return minari.load_dataset(dataset_id)


class _Dataset:
    """The dataset, in the process that writes it."""

    def __init__(self, name: str, about: dict[str, Any]) -> None:
        self._name, self._about = name, about
        self._minari = need("minari", "minari", "minari")
        self._dataset: Any = None
        self._buffered: list[Any] = []

    def write(self, episode: Any) -> None:
        self._buffered.append(episode)
        if len(self._buffered) == _BUFFERED:
            self._flush()

    def close(self) -> None:
        if self._buffered:
            self._flush()

    def _flush(self) -> None:
        if self._dataset is None:
            self._dataset = self._minari.create_dataset_from_buffers(
                dataset_id=self._name, buffer=self._buffered, **self._about
            )
        else:
            self._dataset.update_dataset_from_buffer(self._buffered)
        self._buffered = []


def _buffer(minari: Any, number: int, episode: Episode) -> Any:
    episode.check_plain("a Minari dataset")
    episode.check_no_others((*_LEAVES, *_FLAGS), "a Minari dataset")
    check_plain_keys(episode.columns, "/", "a Minari dataset")
    episode.check_ends("Minari")
    before, action, after, reward = (episode.tree(".".join(p), (p,)) for p in _LEAVES)
    return minari.data_collector.EpisodeBuffer(
        id=number,
        observations=_joined(before, after, episode.id),
        actions=action,
        rewards=list(reward),
        terminations=list(episode.ends("terminated")),
        truncations=list(episode.ends("truncated")),
    )


def _joined(now: Any, after: Any, episode: int) -> Any:
    """Observations ``[T + 1]`` of those before and after each step."""
    if isinstance(now, Mapping):
        return {key: _joined(child, after[key], episode) for key, child in now.items()}
    if not np.array_equal(now[1:], after[:-1]):
        raise LayoutError(
            f"episode {episode}: a next observation differs from the next row's observation; "
            "Minari stores each observation once"
        )
    return np.concatenate((now, after[-1:]))


def _space(node: Any) -> Any:
    spaces = need("gymnasium", "gymnasium", "minari").spaces
    if isinstance(node, Mapping):
        return spaces.Dict({key: _space(child) for key, child in node.items()})
    low, high = -np.inf, np.inf
    if node.dtype.kind == "b":
        low, high = 0, 1
    elif node.dtype.kind in "iu":
        low, high = np.iinfo(node.dtype).min, np.iinfo(node.dtype).max
    return spaces.Box(low, high, node.shape[1:], node.dtype)
