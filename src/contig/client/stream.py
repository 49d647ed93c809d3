"""StreamWriter: a trajectory sent step by step, to a tape near or far."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from .._native import RunFlag
from ..convert import plain_tree
from ..errors import LayoutError
from ..layout import as_bytes
from ..process import lifetime
from ..tape.boundaries import fill_flags
from ..tape.ending import End, last_version, record_columns, zero_flags
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
        record, stamped = self._pack(step)
        if self._traj_id is None:
            self._traj_id = self._tape.next_id()
        self._flush(0)
        self._held = (record, stamped if policy_version is None else policy_version)

    def end_episode(self, *, terminated: bool | None = None, truncated: bool | None = None) -> None:
        """Ends the trajectory at the step appended last.

        Without arguments it is as that step's own flags say; it is truncated if they say nothing.
        """
        if self._held is None:
            raise ValueError("end_episode before any step")
        schema, told = self._tape.schema, End(terminated, truncated)
        columns = record_columns(schema, self._held[0])
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

    def _pack(self, step: Any) -> tuple[Array, int]:
        """A step as a record, and the policy's version that it carries."""
        schema = self._tape.schema
        given, _ = schema.layout.columns(plain_tree(step)[0], 0, schema.flag_paths)
        columns = [None if c is None else c[None] for c in given]
        if not zero_flags(schema, columns, 1):  # else `end_episode` will say
            fill_flags(schema.layout, schema.boundaries.flags, columns)
        record = schema.layout.join([as_bytes(c) for c in columns], 1)
        return record, last_version(schema, columns)

    def _flush(self, end: int, wait: bool = True) -> None:
        if self._held is None or self._traj_id is None:
            return
        record, version = self._held
        flags = end | (0 if self._began else RunFlag.BEGINS)
        self._tape.send_part(record, flags, self._traj_id, version, wait)
        self._began = True
