"""StreamWriter: a trajectory sent step by step, to a tape near or far."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from .. import wire
from ..convert import plain_tree
from ..errors import LayoutError
from ..layout import as_bytes
from ..process import lifetime
from ..tape.boundaries import fill_flags
from ..tape.schema import Schema
from ..wire import log

__all__ = ["StepTarget", "StreamWriter"]

Array = np.ndarray[Any, Any]


class StepTarget(Protocol):
    """Where steps go."""

    schema: Schema

    def next_id(self) -> int:
        """A trajectory id that nobody else has. Raises if nothing can be sent any more."""

    def send_part(
        self, record: Array, flags: int, traj_id: int, version: int, wait: bool = True
    ) -> None:
        """Packed rows of one trajectory; flags as on the wire. `wait`: until there is room."""


class StreamWriter:
    """Sends a trajectory step by step. For one thread.

    The newest step stays here until the next one comes or the episode ends, because the end is a
    mark of the last step. It goes out with `close`, and when the writer is dropped or the process
    ends; after its client was closed it cannot, and that is said on the log.
    """

    def __init__(self, tape: StepTarget) -> None:
        self._tape = tape
        self._held: tuple[Array, int] | None = None
        self._traj_id: int | None = None
        self._began = False
        lifetime.watch_steps(self)

    def append(self, step: Any, *, policy_version: int | None = None) -> None:
        """One step of the current trajectory; the first one begins it.

        Without `policy_version` it is what the step itself says, if its layout has such a leaf.

        Raises:
            LayoutError: the step does not fit; nothing changes.
        """
        record = self._pack(step)
        if self._traj_id is None:
            self._traj_id = self._tape.next_id()
        self._flush(0)
        if policy_version is None:
            policy_version = _version(self._tape.schema, record)
        self._held = (record, policy_version)

    def end_episode(self, *, terminated: bool | None = None, truncated: bool | None = None) -> None:
        """Ends the trajectory at the step appended last.

        Without arguments it is as that step's own flags say; it is truncated if they say nothing.
        """
        if self._held is None:
            raise ValueError("end_episode before any step")
        record, _ = self._held
        said = _ended(self._tape.schema, record)
        if terminated is None and truncated is None:
            terminated, truncated = said
        for name, value, row in (
            ("terminated", terminated, said[0]),
            ("truncated", truncated, said[1]),
        ):
            if any(said) and value is not None and bool(value) != row:
                raise LayoutError(
                    f"end_episode({name}={value}), but the last step says {row}: make them agree, "
                    "or leave the argument out"
                )
        if any(said):
            terminated, truncated = said
        terminated, truncated = bool(terminated), bool(truncated) or not terminated
        _set_flags(self._tape.schema, record, terminated, truncated)
        self._flush(wire.TERMINATED * terminated | wire.TRUNCATED * truncated)
        self._held, self._traj_id, self._began = None, None, False

    def close(self) -> None:
        """Sends the step that is held; the trajectory stays open."""
        self._flush(0)
        self._held = None

    def send_held(self) -> None:
        """At the process's end: the step that is held, whether or not there is room."""
        try:
            self._flush(0, wait=False)
        except Exception as error:
            log.warning("the newest step of a StreamWriter was not sent: %s", error)
        self._held = None

    __del__ = send_held

    def forget(self) -> None:
        """In a forked child: what is held is the parent's to send."""
        self._held, self._traj_id, self._began = None, None, False

    def __enter__(self) -> StreamWriter:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def _pack(self, step: Any) -> Array:
        schema = self._tape.schema
        tree = plain_tree(step)[0]
        columns, _ = schema.layout.columns(tree, 0, schema.flag_paths)
        filled = [None if c is None else c[None] for c in columns]
        given = {x.path for x, c in zip(schema.layout.leaves, columns) if c is not None}
        if schema.flag_paths.isdisjoint(given):  # `end_episode` will say
            for i, leaf in enumerate(schema.layout.leaves):
                if filled[i] is None:
                    filled[i] = np.zeros((1, *leaf.shape), leaf.dtype)
        fill_flags(schema.layout, schema.boundaries.flags, filled)
        return schema.layout.join([as_bytes(c) for c in filled], 1)

    def _flush(self, end: int, wait: bool = True) -> None:
        if self._held is None or self._traj_id is None:
            return
        record, version = self._held
        flags = end | (0 if self._began else wire.BEGINS)
        self._tape.send_part(record, flags, self._traj_id, version, wait)
        self._began = True


def _set_flags(schema: Schema, record: Array, terminated: bool, truncated: bool) -> None:
    """Writes how a trajectory ended into its last row, where the row has such leaves."""
    parent = schema.boundaries.flags
    if parent is None:
        return
    said = {"terminated": terminated, "truncated": truncated, "done": terminated or truncated}
    for flag, value in said.items():
        path = (*parent, flag)
        if path in schema.flag_paths:
            leaf = _leaf(schema, record, path)
            leaf[...] = leaf | value if leaf.dtype == bool else value


def _leaf(schema: Schema, record: Array, path: Any) -> Array:
    node = schema.layout.unpack(record.reshape(1, -1))
    for key in path:
        node = node[key]
    return np.asarray(node)


def _ended(schema: Schema, record: Array) -> tuple[bool, bool]:
    """How a row's own flags say that its trajectory ended: terminated, truncated."""
    parent = schema.boundaries.flags
    if parent is None:
        return False, False
    paths = [(*parent, flag) for flag in ("terminated", "truncated")]
    terminated, truncated = (
        bool(_leaf(schema, record, p).any()) if p in schema.layout.by_path else False for p in paths
    )
    return terminated, truncated


def _version(schema: Schema, record: Array) -> int:
    path = schema.boundaries.version
    return -1 if path is None else int(_leaf(schema, record, path).reshape(-1)[0])
