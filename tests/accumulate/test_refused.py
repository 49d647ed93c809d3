"""Every error of the TrajectoryAccumulator: its type, what it says, and that nothing changed."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from contig import LayoutError
from contig.accumulate import TrajectoryAccumulator
from tests.reference import trees

F4 = np.float32


def zeros(*shape: int, dtype: Any = F4) -> np.ndarray[Any, Any]:
    return np.zeros(shape, dtype)


# -- examples -------------------------------------------------------------------------------------


@pytest.mark.parametrize("example", [[zeros(3)], (zeros(3),), zeros(3), None, trees.Pair(0, 1)])
def test_an_example_that_is_no_dict(example: Any) -> None:
    with pytest.raises(TypeError, match="expected a dict with timescale names") as error:
        TrajectoryAccumulator(example)
    assert type(example).__name__ in str(error.value)


@pytest.mark.parametrize(
    "example, says",
    [
        ({}, "no leaves"),
        ({"a": {}}, "no leaves"),
        ({"a": zeros(2), "empty": {"b": ()}}, "Timescale 'empty' has no leaves"),
        ({"a": zeros(2), "empty": None}, "Timescale 'empty' has no leaves"),
        ({"a": {"text": "hello"}}, '("a", "text")'),
        ({"a": {"x": zeros(4, 8), "y": zeros(3)}}, "same leading dimension"),
        ({"a": {"x": zeros(4, 8), "y": zeros(3)}}, '("a", "x"): 4, ("a", "y"): 3'),
        ({"a": {"x": zeros(1, 8), "y": zeros(5)}}, "same leading dimension"),
        ({"a": {"x": zeros(0), "y": zeros(1)}}, "same leading dimension"),
    ],
    ids=trees.label,
)
def test_examples_that_make_no_record(example: Any, says: str) -> None:
    with pytest.raises(ValueError) as error:
        TrajectoryAccumulator(example)
    assert says in str(error.value)


# -- names and slots ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "verb", [lambda a, n: a.add(n, 0), lambda a, n: a.is_full(n), lambda a, n: a.capacity(n)]
)
def test_an_unknown_timescale(verb: Any) -> None:
    acc = TrajectoryAccumulator({"step": zeros(2), "episode": 0.0})
    with pytest.raises(KeyError, match="no timescale 'steps'; the example has 'step', 'episode'"):
        verb(acc, "steps")


def test_past_capacity() -> None:
    acc = TrajectoryAccumulator({"transition": zeros(4, 2), "episode": 0.0, "none": zeros(0)})
    for t in range(4):
        acc.add("transition", np.full(2, t))
    before = acc.build(partial=True).record.copy()
    for t in range(4):
        acc.add("transition", np.full(2, t))
    acc.add("episode", 0.0)
    for name, n in [("transition", 4), ("episode", 1), ("none", 0)]:
        text = f"Timescale '{name}' has {n} slots, but you tried to add at index {n}"
        with pytest.raises(IndexError, match=text):
            acc.add(name, 1.0)
    assert acc.counts() == {"transition": 4, "episode": 1, "none": 0}
    assert acc.build().record.tobytes() == before.tobytes()


# -- items ----------------------------------------------------------------------------------------

Fields = namedtuple("Fields", "obs reward done")
ReorderedFields = namedtuple("ReorderedFields", "reward obs done")


def example() -> dict[str, Any]:
    return {
        "step": {
            "a": zeros(3, 2),
            "deep": (zeros(3, dtype=np.int32), {"flag": zeros(3, dtype=bool)}),
            "none": None,
            "z": Fields(zeros(3, 4), zeros(3), zeros(3, dtype=np.uint8)),
        }
    }


def item(**changed: Any) -> dict[str, Any]:
    good = {
        "a": np.ones(2, F4),
        "deep": (1, {"flag": True}),
        "none": None,
        "z": Fields(np.ones(4, F4), 1.0, 1),
    }
    return {k: v for k, v in (good | changed).items() if v is not ...}


def fields(**changed: Any) -> Fields:
    return Fields(np.ones(4, F4), 1.0, 1)._replace(**changed)


REFUSED = [
    # Structure
    (item(a=...), '("step", "a"): missing'),
    (item(b=1), '("step", "b"): not expected'),
    (item(a={"b": 1}), '("step", "a"): expected an array or number, got a dict of 1'),
    (item(a=[1.0, 2.0]), '("step", "a"): expected an array or number, got a list of 2'),
    (item(a=None), '("step", "a"): expected an array or number, got None'),
    (item(a=torch.Size([1, 2])), '("step", "a"): expected an array or number, got a Size of 2'),
    (item(none=1), '("step", "none"): expected None, got a int'),
    (item(deep=1), '("step", "deep"): expected a tuple of 2, got a int'),
    (item(deep=[1, {"flag": True}]), '("step", "deep"): expected a tuple of 2, got a list of 2'),
    (item(deep=(1, {"flag": True}, 2)), "expected a tuple of 2, got a tuple of 3"),
    (item(deep=(1,)), "expected a tuple of 2, got a tuple of 1"),
    (item(deep=(1, {})), '("step", "deep", 1, "flag"): missing'),
    (item(deep=(1, 2)), """("step", "deep", 1): expected a dict of ['flag'], got a int"""),
    (item(z=(np.ones(4), 1.0, 1)), '("step", "z"): expected a Fields'),
    (item(z=ReorderedFields(1.0, np.ones(4), 1)), '("step", "z"): expected a Fields'),
    (np.ones(2, F4), """"step": expected a dict of ['a', 'deep', 'none', 'z'], got a ndarray"""),
    (None, '"step": expected a dict'),
    # Shapes
    (item(a=1.0), '("step", "a"): expected float32[2] or float32[1, 2], got float64[]'),
    (item(a=np.ones(1)), "got float64[1]; nothing is broadcast: reshape"),
    (item(a=np.ones(3, F4)), "got float32[3]"),
    (item(a=np.ones((1, 1), F4)), "got float32[1, 1]"),
    (item(a=np.ones((2, 2), F4)), "got float32[2, 2]"),
    (item(a=np.ones((1, 1, 2), F4)), "got float32[1, 1, 2]"),
    (item(a=torch.ones(2, 1)), "got float32[2, 1]"),
    (item(z=fields(reward=np.ones((1, 1)))), '("step", "z", "reward"): expected float32[] or'),
    # Values
    (item(a=np.array([0, 1e39])), '("step", "a"): value 1e+39 of float64'),
    (item(a=np.ones(2, complex)), '("step", "a"): cannot store complex128 as float32'),
    (item(a=np.array(["x", "y"])), '("step", "a"): cannot store <U1 as float32'),
    (item(a="xy"), '("step", "a"): expected float32[2] or float32[1, 2], got str64[]'),
    (item(a=object()), '("step", "a"): expected float32[2]'),
    (item(a=torch.nn.Identity()), '("step", "a"): expected float32[2], got a Identity'),
    (item(deep=(1.5, {"flag": True})), '("step", "deep", 0): value 1.5'),
    (item(deep=(2**31, {"flag": True})), '("step", "deep", 0): value 2147483648'),
    (item(deep=(np.nan, {"flag": True})), '("step", "deep", 0): value nan'),
    (item(deep=(1, {"flag": 2})), '("step", "deep", 1, "flag"): value 2'),
    (item(deep=(2**70, {"flag": 1})), '("step", "deep", 0): cannot store object as int32'),
    (item(z=fields(done=256)), '("step", "z", "done"): value 256'),
    (item(z=fields(done=-1)), '("step", "z", "done"): value -1'),
]


@pytest.mark.parametrize("data, says", REFUSED, ids=trees.label)
@pytest.mark.parametrize("count", [0, 2])
def test_items_that_do_not_fit_change_nothing(count: int, data: Any, says: str) -> None:
    acc = TrajectoryAccumulator(example())
    for _ in range(3):
        acc.add("step", item(deep=(7, {"flag": True})))
    built = acc.build()
    for _ in range(count):
        acc.add("step", item(deep=(8, {"flag": False})))
    before = built.record.tobytes()
    with pytest.raises(ValueError) as error:
        acc.add("step", data)
    assert says in str(error.value)
    assert built.record.tobytes() == before
    assert acc.counts() == {"step": count}
    acc.add("step", item(deep=(9, {"flag": False})))
    assert built["step"]["deep"][0].tolist() == [8] * count + [9] + [7] * (2 - count)


def test_a_single_items_leaves_are_not_broadcast_either() -> None:
    acc = TrajectoryAccumulator({"end": {"obs": zeros(4), "one": zeros(1, 3), "r": 0.0}})
    good = {"obs": np.ones(4), "one": np.ones(3), "r": 1.0}
    for key, bad in [
        ("obs", 1.0),
        ("obs", np.ones(1)),
        ("obs", np.ones((1, 1, 4))),
        ("one", np.ones((1, 1))),
        ("one", np.ones((1, 1, 1, 3))),
        ("r", np.ones((1, 1))),
    ]:
        with pytest.raises(LayoutError, match="nothing is broadcast"):
            acc.add("end", good | {key: bad})
        assert not acc.is_full("end")
    acc.add("end", good)
    assert acc.is_full()


# -- building too early ---------------------------------------------------------------------------


def test_a_build_of_what_is_not_full_names_it_and_changes_nothing() -> None:
    acc = TrajectoryAccumulator({"step": zeros(4), "chunk": zeros(2), "episode": 0.0})
    acc.add("step", 1.0)
    acc.add("chunk", 1.0)
    acc.add("chunk", 2.0)
    with pytest.raises(
        ValueError, match="'step' 1 of 4, 'episode' 0 of 1; .*partial=True"
    ) as error:
        acc.build()
    assert "chunk" not in str(error.value)
    assert acc.counts() == {"step": 1, "chunk": 2, "episode": 0}
    assert acc.build(partial=True)["chunk"].tolist() == [1, 2]


def test_a_single_item_that_was_never_added_is_not_full() -> None:
    acc = TrajectoryAccumulator({"episode": {"return": zeros(1)}})
    with pytest.raises(ValueError, match="'episode' 0 of 1"):
        acc.build()
