"""Rows that carry their identity: which episode, which step.

A row that ends up in the wrong place shows as a wrong value, and one look says whose it is:

    observation  (episode, t)        next.observation  (episode, t + 1)
    action       1000 * episode + t  next.reward       1000 * episode + t + 1
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..batch import Batch

__all__ = ["Array", "Step", "episode", "first", "identity", "interleaved", "raises", "row"]

Array = np.ndarray[Any, Any]
Step = tuple[int, int]  # episode, t

SCALE = 1000


def episode(
    number: int,
    length: int,
    *,
    start: int = 0,
    end: str | None = "terminated",
    version: int = 0,
    ids: bool = True,
) -> dict[str, Any]:
    """Steps `start` to `start + length` of an episode, ``[length, ...]``.

    Args:
        number: of the episode; also its trajectory id.
        length: rows.
        start: step of the first row.
        end: "terminated", "truncated", or None where the episode goes on.
        version: the policy's, of all rows.
        ids: with `("collector", "traj_ids")`; without, only done flags mark the end.
    """
    last = np.zeros(length, bool)
    last[-1:] = end is not None
    return _rows(np.full(length, number), np.arange(start, start + length), last, end, version, ids)


def row(number: int, t: int, *, end: str | None = None, version: int = 0) -> dict[str, Any]:
    """One row, without a leading dim."""
    return first(episode(number, 1, start=t, end=end, version=version))


def interleaved(
    numbers: Sequence[int], length: int, *, end: str | None = "terminated", version: int = 0
) -> Iterator[dict[str, Any]]:
    """The steps of several episodes at once, ``[len(numbers), ...]`` each, for `add_step`."""
    who = np.asarray(numbers)
    for t in range(length):
        last = np.full(len(who), end is not None and t == length - 1)
        yield _rows(who, np.full(len(who), t), last, end, version, True)


def identity(batch: Batch | Any) -> list[Step]:
    """Which step each row of a flat batch is, checked in every leaf that says so."""
    who = np.asarray(batch["observation"]).astype(np.int64)
    number, t = who[:, 0], who[:, 1]
    action = np.asarray(batch["action"])
    first = action if action.ndim == 1 else action[:, 0]  # of a chunk
    np.testing.assert_array_equal(first, SCALE * number + t)
    return list(zip(number.tolist(), t.tolist()))


@contextlib.contextmanager
def raises(*expected: type[BaseException], match: str = "") -> Iterator[None]:
    """Asserts that the block raises one of these, with a text that contains `match`."""
    try:
        yield
    except expected as error:
        assert match in str(error), f"{type(error).__name__} without {match!r}: {error}"
        return
    names = ", ".join(e.__name__ for e in expected)
    raise AssertionError(f"expected {names}, nothing was raised")


def _rows(
    number: Array, t: Array, last: Array, end: str | None, version: int, ids: bool
) -> dict[str, Any]:
    observation = np.empty((len(t), 2), np.float32)
    observation[:, 0], observation[:, 1] = number, t
    after = observation.copy()
    after[:, 1] += 1
    action = SCALE * number + t.astype(np.float64)
    terminated = last if end == "terminated" else np.zeros(len(t), bool)
    collector: dict[str, Any] = {"policy_version": np.full(len(t), version, np.int64)}
    if ids:
        collector["traj_ids"] = number.astype(np.int64)
    return {
        "observation": observation,
        "action": action,
        "next": {
            "observation": after,
            "reward": action + 1,
            "done": last,
            "terminated": terminated,
            "truncated": last & ~terminated,
        },
        "collector": collector,
    }


def first(tree: dict[str, Any], t: int = 0) -> dict[str, Any]:
    """Returns row `t` of some rows; the first one by default."""
    return {k: first(v, t) if isinstance(v, dict) else v[t] for k, v in tree.items()}
