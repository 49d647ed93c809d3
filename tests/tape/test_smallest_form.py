"""Of several ways to store observations once, which is taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from contig import LayoutError, LazyTensorStorage, ReplayBuffer
from contig.tape.fits import bytes_per_step
from tests.tape.test_sharing import Array, frames, shared, stacks, steps, wrote


def beside(alone: Array, below: Array) -> dict[str, Any]:
    """Steps of stacks that are not below next, and of others that are."""
    return {**steps(below[:-1], below[1:]), "camera": alone}


def vectors(n: int, width: int) -> Array:
    return np.random.default_rng(0).normal(size=(n, width)).astype(np.float32)


@pytest.mark.parametrize(("width", "once"), [(9, "camera"), (300, "observation")])
def test_stacks_beside_next_observations_the_smaller_form(width: int, once: str) -> None:
    """Both at a time are not stored once."""
    camera, _ = stacks(frames(44, 6, 5), 4)
    rows = beside(camera, vectors(41, width))
    storage = wrote(rows, stack={"camera": 4})
    assert set(shared(storage)) == {(once,)}
    got = ReplayBuffer(storage)[:]
    np.testing.assert_array_equal(got["camera"], camera)
    np.testing.assert_array_equal(got["next", "observation"], rows["next"]["observation"])
    storage.close()


def test_both_at_a_time_cannot_be_asked_for() -> None:
    rows = beside(stacks(frames(44, 6, 5), 4)[0], vectors(41, 9))
    with LazyTensorStorage(100, stack={"camera": 4}, share_next=True) as storage:
        with pytest.raises(LayoutError, match='"camera" is not below next.*share_next=True out'):
            storage.default_writer.extend(rows)
        assert storage.schema is None
    del rows["next"]["observation"]
    storage = wrote(rows, stack={"camera": 4}, share_next=True)  # there is nothing else
    assert set(shared(storage)) == {("camera",)}
    storage.close()


@pytest.mark.parametrize("share_next", [None, True])
def test_stacks_of_a_few_bytes(share_next: bool | None) -> None:
    tiny, following = stacks(frames(42, 3), 2)
    rows = beside(stacks(frames(44, 6, 5), 4)[0], vectors(41, 9))
    rows = {
        **rows,
        "tiny": tiny,
        "next": {**rows["next"], "tiny": following, "camera": rows["camera"]},
    }
    storage = wrote(rows, stack={"tiny": 2, "camera": 4}, share_next=share_next)
    assert {x.path[0]: x.frames for x in shared(storage).values()} == {
        "observation": 1,
        "camera": 4,
        "tiny": 2,
    }
    np.testing.assert_array_equal(ReplayBuffer(storage)[:]["next", "tiny"], following)
    storage.close()
    storage = wrote(rows, stack={"tiny": 2}, share_next=share_next)
    assert ("observation",) in shared(storage)
    storage.close()


@pytest.mark.parametrize(("k", "width", "expected"), [(8, 4, 1), (16, 2, 1), (4, 8, 1), (4, 30, 4)])
def test_stacks_that_do_not_pay_leave_the_rest_as_it_is(k: int, width: int, expected: int) -> None:
    """References to small frames may be more than the frames."""
    rows = steps(*stacks(frames(40 + k, width), k))
    storage = wrote(rows)
    assert shared(storage)[("observation",)].frames == expected
    sizes = {}
    for name, options in {"once": {"stack": {}}, "plain": {"share_next": False}}.items():
        other = wrote(rows, **options)
        sizes[name] = bytes_per_step(other.schema)
        other.close()
    assert bytes_per_step(storage.schema) <= min(sizes.values())
    storage.close()


def test_stacks_that_were_asked_for_are_stored_once() -> None:
    """Unless rows are smaller in the plain form; then next observations are, if that pays."""
    rows = steps(*stacks(frames(48, 6), 8))
    storage = wrote(rows)
    assert shared(storage)[("observation",)].frames == 1
    storage.close()
    storage = wrote(rows, stack={"observation": 8})
    assert shared(storage)[("observation",)].frames == 8
    storage.close()
    storage = wrote(steps(*stacks(frames(48, 4), 8)), stack={"observation": 8})
    assert shared(storage)[("observation",)].frames == 1
    storage.close()


def test_of_several_stacks_those_that_pay() -> None:
    """A row has references for the largest of them."""
    many, following = stacks(frames(104, 3), 64)
    camera, further = stacks(frames(44, 20, 20), 4)
    rows = steps(camera, further)
    rows = {**rows, "many": many, "next": {**rows["next"], "many": following}}
    storage = wrote(rows)
    assert {x.path[0]: x.frames for x in shared(storage).values()} == {"many": 1, "observation": 4}
    storage.close()
