"""Rows that can be checked by themselves, and what must hold for groups of them.

Every word of a row's payload is a hash of the row's other fields, so a row made of two others, or
of an old and a new one, is found out wherever the seam lies.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.tape.rows import hashed

PAYLOAD = 40  # words: five cache lines
FIELDS = ("writer", "traj", "step", "append", "size", "pos")
ENVS = 3
LONGEST = 40  # rows of a trajectory

Tree = dict[str, Any]


def payload(fields: np.ndarray, done: np.ndarray) -> np.ndarray:
    """``[n, PAYLOAD]`` from fields ``[n, 6]`` and done flags ``[n]``."""
    return hashed(fields, done, PAYLOAD)


def tree(fields: np.ndarray, done: np.ndarray, ids: bool) -> Tree:
    """Rows ``[n, ...]`` as a buffer takes them."""
    words = payload(fields, done)
    out: Tree = {
        "fields": np.ascontiguousarray(fields),
        "payload": words,
        "check": np.bitwise_xor.reduce(words, axis=1),
        "next": {"reward": np.ones(len(fields), np.float32), "done": done},
    }
    if ids:
        out["collector"] = {"traj_ids": fields[:, 1].copy()}
    return out


def example(ids: bool) -> Tree:
    one = tree(np.zeros((1, len(FIELDS)), np.int64), np.zeros(1, bool), ids)
    return rows_of(one, slice(0, 1), single=True)


def rows_of(rows: Tree, which: slice, single: bool = False) -> Tree:
    def take(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: take(v) for k, v in value.items()}
        return value[which.start] if single else value[which]

    return take(rows)


class Script:
    """What one writer appends, endlessly: (method, rows, rows as a tree).

    Lane 0 is written by `add` and `extend`, which with ids also interleaves trajectories row by
    row; `add_step` has lanes of its own. `big`: rows of the largest `extend`.
    """

    def __init__(self, writer: int, seed: int, ids: bool, big: int = 12) -> None:
        self.writer, self.ids, self.big = writer, ids, big
        self.random = random.Random(seed)
        self.appends = 0
        self.trajectories = 0
        self.lanes = [self._fresh() for _ in range(2 * ENVS)]

    def _fresh(self) -> list[int]:
        self.trajectories += 1
        return [self.writer << 20 | self.trajectories, 0]

    def _row(self, lane: int) -> tuple[int, int, bool]:
        traj, step = self.lanes[lane]
        done = step + 1 >= LONGEST or self.random.random() < 0.06
        self.lanes[lane] = self._fresh() if done else [traj, step + 1]
        return traj, step, done

    def _plan(self) -> tuple[str, list[int]]:
        kind = self.random.choice(("add", "add", "add_step", "add_step", "extend", "whole"))
        if kind == "add":
            return kind, [0]
        if kind == "add_step":
            return kind, list(range(ENVS, 2 * ENVS))
        if kind == "whole":
            return kind, []
        n = self.random.randint(1, self.big)
        if self.ids:
            return kind, [self.random.randrange(ENVS) for _ in range(n)]
        return kind, [0] * n

    def blocks(self, at_once: int = 200) -> Iterator[tuple[str, int, Tree]]:
        while True:
            table: list[tuple[Any, ...]] = []
            ops: list[tuple[str, int, int]] = []
            for _ in range(at_once):
                kind, lanes = self._plan()
                start = len(table)
                if kind == "whole":
                    traj, n = self._fresh()[0], self.random.randint(1, min(self.big, LONGEST))
                    rows = [(traj, i, i == n - 1) for i in range(n)]
                else:
                    rows = [self._row(lane) for lane in lanes]
                for pos, (traj, step, done) in enumerate(rows):
                    table.append((self.writer, traj, step, self.appends, len(rows), pos, done))
                self.appends += 1
                ops.append((kind, start, len(table)))
            numbers = np.array(table, np.int64)
            everything = tree(
                np.ascontiguousarray(numbers[:, :6]), numbers[:, 6].astype(bool), self.ids
            )
            for kind, start, end in ops:
                yield (
                    kind,
                    end - start,
                    rows_of(everything, slice(start, end), single=kind == "add"),
                )


def append(writer: Any, kind: str, rows: Tree) -> int:
    """Appends what a Script said; returns the first seq."""
    if kind == "add":
        return int(writer.add(rows))
    if kind == "add_step":
        return int(writer.add_step(rows)[0])
    if kind == "whole":
        return int(writer.extend_trajectory(rows)[0])
    return int(writer.extend(rows)[0])


# -- checks: each returns what is wrong, or nothing ------------------------------------------------


def torn(batch: Any) -> str | None:
    """Rows that are not as they were written."""
    fields, words = np.asarray(batch["fields"]), np.asarray(batch["payload"])
    # A slice's end may be marked as truncated, which changes `done`; the stored one is implied.
    done = np.asarray(batch["next", "done"])
    good = (words == payload(fields, done)).all(1)
    if ("collector", "slice_end") in batch:
        cut = np.asarray(batch["collector", "slice_end"])
        good |= cut & (words == payload(fields, np.zeros_like(done))).all(1)
    good &= np.bitwise_xor.reduce(words, axis=1) == np.asarray(batch["check"])
    if ("collector", "traj_ids") in batch:
        good &= np.asarray(batch["collector", "traj_ids"]) == fields[:, 1]
    if good.all():
        return None
    bad = int(np.flatnonzero(~good)[0])
    return f"torn row: {dict(zip(FIELDS, fields[bad].tolist()))} of {int((~good).sum())} bad"


def broken(fields: np.ndarray, ends: np.ndarray) -> str | None:
    """Groups of rows, `ends` true on the last row of each, that are not steps of one trajectory."""
    same = (fields[1:, 0] == fields[:-1, 0]) & (fields[1:, 1] == fields[:-1, 1])
    next_step = fields[1:, 2] == fields[:-1, 2] + 1
    wrong = ~(same & next_step) & ~ends[:-1]
    if not wrong.any():
        return None
    bad = int(np.flatnonzero(wrong)[0])
    return f"slice broken between {fields[bad].tolist()} and {fields[bad + 1].tolist()}"


def partial(fields: np.ndarray, from_start: bool) -> str | None:
    """Consecutive rows of the tape that are not whole appends (the first one may be trimmed)."""
    writer, number, size, pos = fields[:, 0], fields[:, 3], fields[:, 4], fields[:, 5]
    first = np.r_[True, (writer[1:] != writer[:-1]) | (number[1:] != number[:-1])]
    if np.any(pos[first][0 if from_start else 1 :] != 0):
        return "an append without its first rows"
    if np.any((np.diff(pos) != 1) & ~first[1:]):
        return "an append with rows missing inside"
    last = np.r_[first[1:], True]
    if np.any(pos[last] != size[last] - 1):
        bad = int(np.flatnonzero(last & (pos != size - 1))[0])
        return f"an append without its last rows: {dict(zip(FIELDS, fields[bad].tolist()))}"
    return None
