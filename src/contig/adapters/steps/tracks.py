"""Which trajectory of each env is being written: SB3 says it by `done`, or changes its mind later.

SB3 marks the last step of a buffer as done when it is going to reset its envs, and goes on with an
unfinished episode after a buffer was loaded. A tape keeps what was written, and a writer what it
has open: so the last step is taken back and written anew, and a new writer goes on with runs that
are there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._native import Continue, Lanes, RunFlag
from ...keys import DONE, TERMINATED, TRUNCATED
from ...tape import LazyTensorStorage, Writer
from ...tape.entry import flags_of, read_entries
from ...tape.rewind import take_back

__all__ = ["Tracks"]

Array = np.ndarray[Any, Any]
_BEGINS = RunFlag.BEGINS
(_NEXT, _DONE) = DONE
_EACH_ROW, _IF_OPEN = Lanes.EACH_ROW, Continue.IF_OPEN


class Tracks:
    """Writes the steps of a buffer's envs. Not thread-safe.

    Attributes:
        steps: written so far.
        first: the seq of the first row since the buffer was made or emptied.
        begun: of each env, the step at which its trajectory begins; `steps` if none is open.
    """

    def __init__(self, storage: LazyTensorStorage, n_envs: int) -> None:
        self._storage, self._envs = storage, n_envs
        self._writer: Writer = storage.writer()
        self.steps = self.first = 0
        self.begun: Array = np.zeros(n_envs, np.int64)
        self._all_go_on = bytes(n_envs)  # flags of a step that ends nothing

    def add(self, step: Any, done: Array) -> None:
        """A step of all envs, and where a trajectory ends with it."""
        self._writer.add_step(step)
        self.steps += 1
        self.begun[done] = self.steps

    @property
    def packs(self) -> bool:
        """Whether `add_given` takes what fits; not before `add` was called once."""
        return self._writer._plan is not None

    def add_given(self, step: Any) -> bool:
        """`add` of arrays that the native packer takes as they stand, after its checks of names,
        shapes, dtypes and the number of envs. False: it does not, and nothing was written."""
        writer = self._writer
        # As the writer's `add_step` does it, without the seqs that it returns: they take as long as
        # the append itself. Without a plan the storage is closed, or nothing is written yet.
        done = step[_NEXT][_DONE]
        if (plan := writer._plan) is None or type(done) is not np.ndarray:
            return False
        if writer._native.extend(plan, step, 1, _EACH_ROW, _IF_OPEN, None) < 0:
            return False
        self.steps += 1
        if done.tobytes() != self._all_go_on:
            self.begun[done] = self.steps
        return True

    def seqs(self, steps: Any, envs: Array) -> Array:
        return np.asarray(self.first + steps * self._envs + envs)

    def behind(self, steps: Array, envs: Any) -> Array:
        """Rows that are so many steps behind the newest of their env."""
        newest = self.first + (self.steps - 1) * self._envs
        # These are arrays of every sample: each operation takes as long as a hundred rows.
        rows = steps if self._envs == 1 else steps * self._envs - envs
        return np.asarray(newest - rows)

    def slots(self, seqs: Array) -> Array:
        """``step * n_envs + env`` of rows, in a ring that has room for all."""
        return np.asarray(seqs - self.first)

    @property
    def _tail(self) -> int:
        return int(self._storage.tape.snapshot()[1])

    @property
    def open(self) -> Array:
        """Envs whose trajectory goes on: a mask."""
        return self.begun < self.steps

    def end(self, done: Array, truncated: Array) -> None:
        """Ends trajectories with the last step, which is written anew.

        Args:
            done, truncated: flags of the last step of each env, bool ``[n_envs]``.
        """
        runs = self._last_runs()
        begins = (flags_of(runs) & _BEGINS != 0) & (runs["first"] >= self._tail)
        rows = take_back(self._storage, int(runs["first"].min()))
        self._go_on(runs["prev"], ~begins)
        last = slice(len(rows) - self._envs, None)
        rows[DONE][last] = done | truncated
        rows[TRUNCATED][last] = truncated
        rows[TERMINATED][last] = done & ~truncated
        for at in range(0, len(rows), self._envs):
            self._writer.add_step(rows[at : at + self._envs])
        self.begun[done | truncated] = self.steps

    def _last_runs(self) -> Array:
        """The run that the last row of each env lies in, as entries of the index."""
        entries = read_entries(self._storage.tape)
        last = self.seqs(np.int64(self.steps - 1), np.arange(self._envs))
        return entries.take(np.searchsorted(entries["first"], last, side="right") - 1)

    def _go_on(self, runs: Array, going: Array) -> None:
        """A new writer, which goes on with the envs' trajectories behind these runs.

        What is gone of them, because it was evicted, does not begin anew.
        """
        self._writer = self._storage.writer()
        for env in np.flatnonzero(going).tolist():
            self._writer.adopt(env, int(runs[env]) % 2**64)  # NONE leads to nothing

    def empty(self) -> None:
        """Forgets every row."""
        self._storage.empty()
        self._writer = self._storage.writer()
        self.first = int(self._storage.tape.snapshot()[0])
        self.steps = 0
        self.begun[:] = 0

    def state(self) -> dict[str, Any]:
        return {"steps": self.steps, "begun": self.begun, "first": self.first}

    def load(self, state: dict[str, Any]) -> None:
        """After the storage has its rows."""
        self.steps, self.first = state["steps"], state["first"]
        self.begun = np.array(state["begun"], np.int64)
        if self.open.any():
            self._go_on(self._last_runs()["number"], self.open)
