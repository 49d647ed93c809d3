"""Slices by one native call are those that come step by step: the same seed, the same bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from contig import LazyTensorStorage, NothingEligibleError, ReplayBuffer, SliceSampler
from contig.sample import Draw, Index, Request, Rng
from tests.replay.test_at_once import FORMS, columns, episode, forbidden, forms, vectors


class Asked(SliceSampler):
    """Has to be asked: it might draw anything."""

    def draw(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        return super().draw(index, rng, request)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "strict": {"strict_length": True},
    "over steps": {"over": "steps"},
    "complete": {"complete_only": True},
    "span": {"span": True},
    "no init": {"init_key": None},
    "other init": {"init_key": ("marks", "first")},
    "no truncated": {"truncated_key": None},
    "truncated at the root": {"truncated_key": "truncated"},
    "nothing": {"init_key": None, "truncated_key": None},
}
options = pytest.mark.parametrize("option", OPTIONS)


def flagged(rows: Any, where: str, shape: tuple[int, ...]) -> Any:
    """Rows with done flags elsewhere, or of another shape."""
    done = rows["next"].pop("done")
    if where != "nowhere":
        flags = rows if where == "root" else rows["next"]
        flags["done"] = done.reshape(-1, *shape)
        flags["terminated"] = (done & (rows["number"] % 2 == 0)).reshape(-1, *shape)
    return rows


@forms
@options
def test_as_step_by_step(form: str, option: str) -> None:
    observations, told, _ = FORMS[form]
    rng = np.random.default_rng(1)
    storage = LazyTensorStorage(300, **told)
    lengths = rng.integers(1, 60, 20)  # past the capacity
    rows = (episode(observations, int(n), rng, i) for i, n in enumerate(lengths))
    at_once = ReplayBuffer(storage, SliceSampler(slice_len=5, **OPTIONS[option]), seed=7)
    asked = ReplayBuffer(storage, Asked(slice_len=5, **OPTIONS[option]), seed=7)
    drawn = 0
    for part in rows:
        at_once.extend(part)
        try:
            other = asked.sample(50)
        except NothingEligibleError:
            with pytest.raises(NothingEligibleError):
                at_once.sample(50)
            continue
        one = at_once.sample(50)
        assert one.layout == other.layout and one.extras == other.extras
        assert columns(one) == columns(other)
        drawn += 1
    assert drawn > 10 and at_once.state() == asked.state()


@pytest.mark.parametrize("where", ["root", "next", "nowhere"])
@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("option", ["plain", "no truncated", "truncated at the root"])
def test_flags_of_every_kind(where: str, shape: tuple[int, ...], option: str) -> None:
    rng = np.random.default_rng(2)
    storage = LazyTensorStorage(200)
    pair = [
        ReplayBuffer(storage, sampler(slice_len=5, **OPTIONS[option]), seed=7)
        for sampler in (SliceSampler, Asked)
    ]
    for number in range(12):
        part = flagged(episode(vectors, int(rng.integers(1, 60)), rng, number), where, shape)
        if where == "nowhere":
            pair[0].extend_trajectory(part, terminated=number % 2 == 0, truncated=number % 3 == 0)
        else:
            pair[0].extend(part)
        one, other = (b.sample(50) for b in pair)
        assert columns(one) == columns(other)


@forms
def test_who_is_asked(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    observations, told, one_call = FORMS[form]
    sampler = SliceSampler(slice_len=5)
    monkeypatch.setattr(SliceSampler, "_marked", forbidden)
    buffer = ReplayBuffer(LazyTensorStorage(100, **told), sampler, batch_size=20, seed=0)
    buffer.extend(episode(observations, 40, np.random.default_rng(1), 0))
    if one_call:
        assert len(buffer.sample()) == 20
    else:
        with pytest.raises(AssertionError, match="was asked"):
            buffer.sample()


def test_those_that_do_more_are_asked() -> None:
    assert SliceSampler(slice_len=3).at_once() is not None
    for more in (
        Asked(slice_len=3),
        SliceSampler(slice_len=3, pad_output=True),
        SliceSampler(slice_len=3, burn_in=2),
        SliceSampler(slice_len=3, where=("steps", ">", 3)),
        SliceSampler(slice_len=3, fields=("task",)),
    ):
        assert more.at_once() is None


def test_unknown_bounds_are_said() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(10), SliceSampler(slice_len=2), batch_size=2)
    buffer.extend({"observation": np.zeros((4, 2), np.float32)})
    with pytest.raises(NothingEligibleError, match="where trajectories end"):
        buffer.sample()
