"""Rows that know who they are: `uid` says which row it is, `obs` and `action` repeat it."""

from __future__ import annotations

from typing import Any

import numpy as np

from contig import Storage


def rows(uids: Any, letters: str | None = None, /, **leaves: Any) -> dict[str, Any]:
    """A tree of rows ``[N, ...]``.

    Args:
        uids: of the rows, any shape.
        letters: one per row, "." or one of t, u, b (terminated, truncated, both); it becomes
            the three flags below next.
        leaves: more leaves, cast to nothing.
    """
    uids = np.asarray(uids, np.int64)
    tree: dict[str, Any] = {
        "uid": uids,
        "obs": np.stack([uids, uids + 0.25], -1).astype(np.float32),
        "next": {"obs": np.stack([uids, uids + 0.75], -1).astype(np.float32)},
    }
    if letters is not None:
        ends = np.array(list(letters)).reshape(uids.shape)
        terminated, truncated = np.isin(ends, ["t", "b"]), np.isin(ends, ["u", "b"])
        tree["next"] |= {
            "done": terminated | truncated,
            "terminated": terminated,
            "truncated": truncated,
        }
    for key, value in leaves.items():
        tree[key] = {**tree.get(key, {}), **value} if isinstance(value, dict) else value
    return tree


def row(uid: int, letter: str | None = None, /, **leaves: Any) -> dict[str, Any]:
    """One row, without a batch dim."""
    tree = rows([uid], letter)

    def first(node: Any) -> Any:
        return {k: first(v) if isinstance(v, dict) else v[0] for k, v in node.items()}

    out = first(tree)
    for key, value in leaves.items():
        out[key] = {**out.get(key, {}), **value} if isinstance(value, dict) else value
    return out


def pieces(storage: Storage) -> list[list[int]]:
    """The uids of each trajectory, as `read_episode` gives them; other leaves must agree."""
    out = []
    for id in storage.episodes()["id"]:
        batch = storage.read_episode(id)
        uids = batch["uid"]
        np.testing.assert_array_equal(batch["obs"][..., 0], uids.astype(np.float32))
        np.testing.assert_array_equal(batch["obs"][..., 1], (uids + 0.25).astype(np.float32))
        np.testing.assert_array_equal(
            batch["next", "obs"][..., 1], (uids + 0.75).astype(np.float32)
        )
        out.append(uids.tolist())
    return out
