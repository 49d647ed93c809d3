"""StreamWriter: a trajectory sent step by step, to a tape near or far."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from .._native import RunFlag
from ..convert import plain_tree
from ..errors import LayoutError
from ..layout import Layout, as_bytes
from ..process import lifetime
from ..tape.boundaries import fill_flags
from ..tape.ending import End, last_version, record_columns, zero_flags
from ..tape.fields import Given, pack_fields
from ..tape.schema import Schema
from ..wire import log

__all__ = ["StepTarget", "StreamWriter", "TrajectoryPart"]

Array = np.ndarray[Any, Any]


class TrajectoryPart(NamedTuple):
    """A packed row of a trajectory.

    Attributes:
        record: the row.
        flags: as on the wire.
        traj_id, version: of the trajectory and of the policy.
        fields: of the trajectory, those that are given; None: none are.
        blobs: bytes of its leaves of any size; None: its layout has none.
    """

    record: Array
    flags: int
    traj_id: int
    version: int
    fields: Given | None = None
    blobs: Array | None = None


class StepTarget(Protocol):
    """Where steps go."""

    schema: Schema

    def next_id(self) -> int:
        """A trajectory id that nobody else has. Raises if nothing can be sent any more."""

    def send_part(self, part: TrajectoryPart, wait: bool = True) -> None:
        """A packed row of one trajectory. `wait`: until there is room."""


class _Step(NamedTuple):
    """A step that waits for what comes behind it."""

    record: Array
    version: int
    fields: Given | None
    blobs: Array | None


class StreamWriter:
    """Sends a trajectory step by step. For one thread.

    The newest step stays here until the next one comes or the episode ends, because the end is a
    mark of the last step. It goes out with `close`, and when the writer is dropped or the process
    ends; after its client was closed it cannot, and that is said on the log.

    Args:
        tape: where finished steps go; `client.writer()` makes one.
    """

    def __init__(self, tape: StepTarget) -> None:
        self._tape = tape
        self._held: _Step | None = None
        self._traj_id: int | None = None
        self._began = False
        lifetime.watch_steps(self)

    def append(self, step: Any, *, policy_version: int | None = None, fields: Any = None) -> None:
        """One step of the current trajectory; the first one begins it.

        Without `policy_version` it is what the step itself says, if its layout has such a leaf.
        `fields` are some of the trajectory's, a mapping; what is given last counts.

        Raises:
            LayoutError: the step or a field does not fit; nothing changes.
        """
        record, blobs, stamped = self._pack(step)
        given = self._given(fields)
        if self._traj_id is None:
            self._traj_id = self._tape.next_id()
        self._flush(0)
        version = stamped if policy_version is None else policy_version
        self._held = _Step(record, version, given, blobs)

    def end_episode(
        self,
        *,
        terminated: bool | None = None,
        truncated: bool | None = None,
        fields: Any = None,
    ) -> None:
        """Ends the trajectory at the step appended last, perhaps with some of its fields.

        Without arguments it is as that step's own flags say; it is truncated if they say nothing.
        """
        if self._held is None:
            raise ValueError("end_episode before any step")
        schema, told = self._tape.schema, End(terminated, truncated)
        given = self._given(fields)
        columns = record_columns(schema, self._held.record)
        last = End.of_last_row(schema, columns)
        wrong = told.contradicted(last)
        if wrong is not None:
            raise LayoutError(
                f"end_episode({wrong}={getattr(told, wrong)}), but the last step says "
                f"{getattr(last, wrong)}: make them agree, or leave the argument out"
            )
        end = told.closing(last)
        end = End(bool(end.terminated), bool(end.truncated) or not end.terminated)
        end.write(schema, columns)
        self._held = self._held._replace(fields=overlaid(schema.fields, self._held.fields, given))
        self._flush(end.flags)
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

    def _pack(self, step: Any) -> tuple[Array, Array | None, int]:
        """A step as a record, its bytes of leaves of any size, and the policy's version that it
        carries."""
        schema = self._tape.schema
        given, _ = schema.layout.columns(plain_tree(step)[0], 0, schema.flag_paths)
        columns = [c[None] if isinstance(c, np.ndarray) else c for c in given]
        if not zero_flags(schema, columns, 1):  # else `end_episode` will say
            fill_flags(schema.layout, schema.boundaries.flags, columns)
        record, blobs = packed_row(schema.layout, columns)
        return record, blobs, last_version(schema, columns)

    def _given(self, fields: Any) -> Given | None:
        return None if fields is None else pack_fields(self._tape.schema.fields, fields)

    def _flush(self, end: int, wait: bool = True) -> None:
        if self._held is None or self._traj_id is None:
            return
        step = self._held
        flags = end | (0 if self._began else RunFlag.BEGINS)
        told = (flags, self._traj_id, step.version)
        part = TrajectoryPart(step.record, *told, step.fields, step.blobs)
        self._tape.send_part(part, wait)
        self._began = True


def packed_row(layout: Layout, columns: list[Any]) -> tuple[Array, Array | None]:
    """One row of columns ``[1, ...]`` as a record, and its bytes of leaves of any size."""
    if not layout.variable:
        return layout.join([as_bytes(c) for c in columns], 1), None
    fixed, _, (blobs,) = layout.apart(columns)
    values, at = [], 0
    for value, offsets, size, _ in blobs:
        values.append(value[int(offsets[0]) * size : int(offsets[1]) * size])
    places = iter(values)
    others = iter(fixed)
    every = []
    for leaf in layout.leaves:
        if leaf.variable:
            n = len(next(places))
            every.append(np.array([at, n], np.uint64).view(np.uint8))
            at += n
        else:
            every.append(next(others))
    return layout.join(every, 1), np.concatenate(values)


def overlaid(layout: Layout | None, first: Given | None, then: Given | None) -> Given | None:
    """What is given if something was given before."""
    if first is None or then is None or layout is None:
        return first if then is None else then
    record = first[0].copy()
    for number, leaf in enumerate(layout.leaves):
        if int(then[1][0]) >> number & 1:
            place = slice(leaf.offset, leaf.offset + leaf.nbytes)
            record[:, place] = then[0][:, place]
    return record, first[1] | then[1]
