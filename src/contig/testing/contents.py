"""What a storage holds, in forms that tests compare."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..batch import Batch
from ..tape import Storage
from .steps import Array, Step, identity

__all__ = ["contents", "joined", "rows_at", "stacked", "steps_of"]


def contents(storage: Storage) -> tuple[int, bytes, dict[int, bytes]]:
    """Everything a reader can see, in a form that can be compared."""
    table = storage.episodes()
    rows = {int(i): _bytes(storage.read_episode(int(i))) for i in table["id"]}
    return len(storage), table.tobytes(), rows


def _bytes(batch: Batch) -> bytes:
    return b"".join(np.ascontiguousarray(batch[p]).tobytes() for p in batch.keys())  # noqa: SIM118


def rows_at(storage: Storage, seqs: Array) -> list[Step]:
    """Which steps lie at these seqs, none of them evicted."""
    batch, lost = storage.gather(np.ascontiguousarray(seqs, np.int64))
    assert lost == 0, f"rows below {lost} are gone"
    return identity(batch)


def steps_of(storage: Storage) -> list[Step]:
    """The rows of all episodes, one episode after another."""
    out: list[Step] = []
    for number in storage.episodes()["id"]:
        out += identity(storage.read_episode(int(number)))
    return out


def joined(trees: list[Any]) -> Any:
    """Trees of rows, one after another."""
    return _merge(trees, np.concatenate)


def stacked(trees: list[Any]) -> Any:
    """Trees of rows as lanes of one."""
    return _merge(trees, np.stack)


def _merge(trees: list[Any], how: Any) -> Any:
    if isinstance(trees[0], dict):
        return {k: _merge([t[k] for t in trees], how) for k in trees[0]}
    return how(trees)
