"""StreamWriter: a trajectory sent step by step, to a tape near or far."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from .. import _native
from ..convert import plain_tree
from ..errors import LayoutError
from ..layout import Layout, as_bytes
from ..process import lifetime
from ..tape.boundaries import fill_flags
from ..tape.ending import End, record_columns, zero_flags
from ..tape.fields import Given, pack_fields
from ..tape.schema import Schema
from ..wire import log

__all__ = ["StepTarget", "StreamWriter", "TrajectoryPart"]

Array = np.ndarray[Any, Any]
_ENDED = int(_native.RunFlag.TERMINATED | _native.RunFlag.TRUNCATED)


class TrajectoryPart(NamedTuple):
    """A packed row of a trajectory.

    Attributes:
        record: the row.
        flags: as on the wire.
        traj_id: of the trajectory.
        version: of the policy; -1: what the row says.
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

    def check(self) -> None:
        """Raises if nothing can be sent any more."""

    def next_id(self) -> int:
        """A trajectory id that nobody else has."""

    def send_part(self, part: TrajectoryPart, wait: bool = True) -> None:
        """A packed row of one trajectory. `wait`: until there is room."""


class _Step(NamedTuple):
    """A step that waits for what comes behind it."""

    record: Array
    flags: int
    traj_id: int
    version: int
    fields: Given | None
    blobs: Array | None


class StreamWriter:
    """Sends a trajectory step by step. For one thread.

    Trajectories begin and end where the steps' own marks say so, as in every writer, and where
    `end_episode` is called. A done step is sent at once. Of an open trajectory the newest step
    stays here until the next one comes or the episode ends, because the end is a mark of the last
    step. It goes out with `close` of the writer or its client, and when the writer is dropped or
    the process ends.

    Args:
        tape: where finished steps go; `client.writer()` makes one.
    """

    def __init__(self, tape: StepTarget) -> None:
        self._tape = tape
        own = tape.schema.boundaries.traj_key is not None
        self._runs = _native.EnvRuns(tape.schema.marks, own)
        self._held: _Step | None = None
        self._spare_id: int | None = None  # for the next trajectory
        self._done: End | None = None  # of the last step, if it ended its trajectory
        lifetime.watch_steps(self)

    def append(self, step: Any, *, policy_version: int | None = None, fields: Any = None) -> None:
        """Appends one step to the open trajectory; a done step ends it and is sent at once.

        Without `policy_version` it is what the step itself says, if its layout has such a leaf.
        `fields` are some of the trajectory's, a mapping; what is given last counts.

        Raises:
            LayoutError: the step or a field does not fit; nothing changes.
        """
        record, blobs = self._pack(step)
        given = self._given(fields)
        self._tape.check()
        self._flush()
        if self._spare_id is None:
            self._spare_id = self._tape.next_id()
        flags, traj_id = self._runs.tell_row(record, self._spare_id)
        version = -1 if policy_version is None else policy_version
        self._held, self._done = _Step(record, flags, traj_id, version, given, blobs), None
        if flags & _ENDED:
            try:
                self._flush()
            finally:
                self._held = None  # it was sent, or the caller has it
            schema = self._tape.schema
            self._done = End.of_last_row(schema, record_columns(schema, record))

    def end_episode(
        self,
        *,
        terminated: bool | None = None,
        truncated: bool | None = None,
        fields: Any = None,
    ) -> None:
        """Ends the trajectory at the step appended last, perhaps with some of its fields.

        Without arguments it is truncated. A done step has ended its trajectory already: behind one
        this only checks that the arguments agree with it.
        """
        told = End(terminated, truncated)
        if self._held is None:
            self._check_ended(told, fields)
            return
        schema, given = self._tape.schema, self._given(fields)
        end = End(bool(terminated), bool(truncated) or not terminated)
        end.write(schema, record_columns(schema, self._held.record))
        self._held = self._held._replace(fields=overlaid(schema.fields, self._held.fields, given))
        self._flush(end.flags)

    def _check_ended(self, told: End, fields: Any) -> None:
        """Checks the arguments of `end_episode` behind a step that was done."""
        if self._done is None:
            raise ValueError("end_episode before any step")
        wrong = told.contradicted(self._done)
        if wrong is not None:
            raise LayoutError(
                f"end_episode({wrong}={getattr(told, wrong)}), but the last step says "
                f"{getattr(self._done, wrong)}: make them agree, or leave the argument out"
            )
        if fields is not None:
            raise ValueError(
                "end_episode(fields=): the last step was done, so it was sent and its trajectory "
                "has ended: give append(step, fields=) what is to come with it"
            )
        self._done = None

    def close(self) -> None:
        """Sends the step that is held; the trajectory stays open."""
        self._flush()

    def close_now(self) -> None:
        """Sends the step that is held, whether or not there is room: the client is being closed."""
        try:
            self._flush(wait=False)
        finally:
            self._held = None

    def send_held(self) -> None:
        """At the process's end: the step that is held, whether or not there is room."""
        try:
            self.close_now()
        except Exception as error:
            log.warning("the newest step of a StreamWriter was not sent: %s", error)

    __del__ = send_held

    def forget(self) -> None:
        """Forgets the held step and its trajectory in a forked child: the parent sends them."""
        self._held, self._spare_id, self._done = None, None, None
        self._runs.let_go()

    def __enter__(self) -> StreamWriter:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def _pack(self, step: Any) -> tuple[Array, Array | None]:
        """A step as a record, and its bytes of leaves of any size."""
        schema = self._tape.schema
        given, _ = schema.layout.columns(plain_tree(step)[0], 0, schema.flag_paths)
        columns = [c[None] if isinstance(c, np.ndarray) else c for c in given]
        if not zero_flags(schema, columns, 1):  # else `end_episode` will say
            fill_flags(schema.layout, schema.boundaries.flags, columns)
        return packed_row(schema.layout, columns)

    def _given(self, fields: Any) -> Given | None:
        return None if fields is None else pack_fields(self._tape.schema.fields, fields)

    def _flush(self, end: int = 0, wait: bool = True) -> None:
        """Sends the step that is held; `end`: the flags of its trajectory's end, if it is here."""
        step = self._held
        if step is None:
            return
        told = (step.flags | end, step.traj_id, step.version)
        self._tape.send_part(TrajectoryPart(step.record, *told, step.fields, step.blobs), wait)
        self._runs.commit(end)
        self._held = None
        if step.traj_id == self._spare_id:
            self._spare_id = None


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
