"""Steps of many envs, added together: whatever some of them do, what comes out is what went in.

Most steps are compared with what is stored all at once (native/tape/slots.cpp); these make some of
them differ, so that each way out of that is taken.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from contig import LazyTensorStorage
from tests.tape.observations import batch_bytes

Array = np.ndarray[Any, Any]
ENVS, STEPS = 64, 60
ROOM = 10_000  # a sixteenth of it is how far behind frames may be that rows refer to

FORMS = {
    "one vector": {"observation": (17,)},  # as in its slot: one piece of memory
    "two leaves": {"observation": (5,), "goal": (3,)},
    "stacks": {"observation": (4, 3, 3)},
    "stacks last": {"observation": (3, 3, 4)},
}


class Envs:
    """Observations with the env, the episode and the step in every element."""

    def __init__(self, form: str) -> None:
        self.form, self.t = FORMS[form], 0
        self.axis = {"stacks": 0, "stacks last": -1}.get(form)
        self.episode = np.zeros(ENVS, np.int64)
        self.began = np.zeros(ENVS, np.int64)

    def observe(self, ahead: int) -> dict[str, Array]:
        out = {}
        at = self.t - self.began + ahead
        for number, (name, shape) in enumerate(self.form.items()):
            values = 1e6 * number + 1e4 * np.arange(ENVS) + 100 * self.episode + at
            if self.axis is None:
                column = np.repeat(values[:, None], shape[0], 1)
            else:  # frames of 4 steps, the first of an episode once more before it
                back = np.maximum(at[:, None] - np.arange(3, -1, -1), 0)
                frames = (values - at)[:, None] + back
                column = np.repeat(frames[:, :, None], 9, 2).reshape(ENVS, 4, 3, 3)
                column = column if self.axis == 0 else np.moveaxis(column, 1, -1)
            out[name] = np.ascontiguousarray(column, np.float32)
        return out

    def step(self, ends: Array) -> dict[str, Any]:
        row = {
            **self.observe(0),
            "next": {
                **self.observe(1),
                "reward": np.full(ENVS, self.t, np.float32),
                "done": ends,
            },
        }
        self.t += 1
        self.episode[ends] += 1
        self.began[ends] = self.t
        return row


def none(_: int) -> list[int]:
    return []


EVENTS: dict[str, Any] = {
    "nothing": none,
    "one is another": lambda t: [17] if t % 7 == 3 else [],
    "the first is": lambda t: [0] if t % 5 == 2 else [],
    "the last is": lambda t: [ENVS - 1] if t % 5 == 2 else [],
    "every second one": lambda t: list(range(0, ENVS, 2)) if t % 4 == 1 else [],
    "all": lambda t: list(range(ENVS)) if t % 6 == 5 else [],
}


@pytest.mark.parametrize("capacity", [ROOM, 1000], ids=["all", "evicting"])
@pytest.mark.parametrize("what", list(EVENTS))
@pytest.mark.parametrize("how", ["resets", "teleports", "lands elsewhere", "pauses"])
@pytest.mark.parametrize("form", list(FORMS))
def test_envs_that_do_something_else(form: str, how: str, what: str, capacity: int) -> None:
    stack = {"stack": {"observation": 4}} if form.startswith("stacks") else {}
    pair = [LazyTensorStorage(capacity, **options) for options in (stack, {"share_next": False})]
    envs = Envs(form)
    for t in range(STEPS):
        some = EVENTS[what](t)
        ends = np.zeros(ENVS, np.bool_)
        ends[some if how == "resets" else []] = True
        row = envs.step(ends)
        mask = np.ones(ENVS, np.bool_)
        if how == "teleports":  # not where the step before led to, in the same trajectory
            for column in (row["observation"], row["next"]["observation"]):
                column[some] += 0.5 if t % 2 else -0.0
        elif how == "lands elsewhere":  # and goes on as if it had not
            row["next"]["observation"][some] -= 0.5
        elif how == "pauses" and len(some) < ENVS:
            mask[some] = False
        for storage in pair:
            storage.default_writer.add_step(row, mask=mask)
    shared, plain = pair
    assert len(shared) == len(plain)
    head, tail, _, _ = shared.tape.snapshot()
    seqs = np.arange(tail, head)
    assert batch_bytes(shared.gather(seqs)[0]) == batch_bytes(plain.gather(seqs)[0])


@pytest.mark.parametrize("form", list(FORMS))
def test_they_are_stored_once(form: str) -> None:
    stack = {"stack": {"observation": 4}} if form.startswith("stacks") else {}
    storage = LazyTensorStorage(ROOM, **stack)
    envs = Envs(form)
    for _ in range(STEPS):
        storage.default_writer.add_step(envs.step(np.zeros(ENVS, np.bool_)))
    assert storage.schema is not None and storage.schema.sharing is not None
    # One for each step, and one more for each env, to which stacks have nothing to add.
    assert storage.tape.slots_given == ENVS * (STEPS + 1)
