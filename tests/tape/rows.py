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


# -- rows that can be checked by themselves --------------------------------------------------------


def mixed(x: Any) -> Any:
    """Each word's bits over all of it (splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def hashed(fields: Any, done: Any, words: int) -> Any:
    """``[n, words]`` of int64 from fields ``[n, k]`` and done flags ``[n]``: a row made of two
    others, or of an old and a new one, is found out wherever the seam lies."""
    key = np.zeros(len(fields), np.uint64)
    for column in (*np.asarray(fields).T, np.asarray(done)):
        key = mixed(key + column.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15))
    return mixed(key[:, None] + np.arange(words, dtype=np.uint64)[None]).view(np.int64)
