"""Steps like the one before take a short way in: nobody may notice but by the time it takes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from contig import LayoutError, QueueRolloutStorage, RolloutStorage
from contig.rollout.repeat import Repeat

N, T = 3, 6
NAMES = ("observations", "actions", "rewards", "dones", "values", "actions_log_prob")
MORE = ("distribution_params", "time_outs")


def step(k: int, kind: str = "tensor", flags: Any = torch.int64, **change: Any) -> Any:
    """A step whose values say its number."""
    whole = torch.full((N, 2), float(k))
    obs = {
        "tensor": lambda: whole,
        "dict": lambda: {"b": whole, "a": {"c": whole + 0.5}},
        "tensordict": lambda: TensorDict({"b": whole, "a": {"c": whole + 0.5}}, [N]),
    }[kind]()
    out = {
        "observations": obs,
        "actions": torch.full((N, 1), 10.0 + k),
        "rewards": torch.full((N,), 20.0 + k),
        "dones": torch.tensor([k % 2, 0, 1]).to(flags),
        "values": torch.full((N, 1), 30.0 + k),
        "actions_log_prob": torch.full((N,), 40.0 + k),
        "distribution_params": (torch.full((N, 1), 50.0 + k), torch.full((N, 2), 60.0 + k)),
    }
    return RolloutStorage.Transition(**{**out, **change})


def made(kind: str = "tensor", cls: Any = RolloutStorage, **options: Any) -> Any:
    return cls(N, T, step(0, kind).observations, None, (1,), seed=0, **options)


def written(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each step that a repeat was asked for: whether it took it."""
    out: list[bool] = []
    write = Repeat.write

    def watched(self: Repeat, row: int, transition: Any) -> bool:
        out.append(write(self, row, transition))
        return out[-1]

    monkeypatch.setattr(Repeat, "write", watched)
    return out


def flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value if isinstance(value, tuple) else [value[k] for k in sorted(value.keys())]
    return [t for part in parts for t in flat(part)]


def same(a: Any, b: Any, names: tuple[str, ...] = NAMES) -> None:
    for name in names:
        for x, y in zip(flat(getattr(a, name)), flat(getattr(b, name)), strict=True):
            assert x.dtype == y.dtype and torch.equal(x, y), name


def looked_over(storage: Any, steps: list[Any]) -> Any:
    """Each step written the long way."""
    for one in steps:
        storage._repeat = None
        storage.add_transitions(one)
    return storage


@pytest.mark.parametrize("kind", ["tensor", "dict", "tensordict"])
@pytest.mark.parametrize("dones", [torch.int64, torch.bool, torch.uint8, torch.int32])
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_both_ways_store_the_same(
    kind: str, dones: Any, mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [step(k, kind, dones) for k in range(T)]
    with mode():
        other = looked_over(made(kind), steps)
        took = written(monkeypatch)
        ours = made(kind)
        for _ in range(3):
            for one in steps:
                ours.add_transitions(one)
            same(ours, other, (*NAMES, "distribution_params"))
            ours.clear()
    assert took == [True] * (3 * T - 1)


CHANGES: dict[str, dict[str, Any]] = {
    "flags in another dtype": {"dones": torch.tensor([True, False, True])},
    "flags in floats": {"dones": torch.tensor([1.0, 0.0, 1.0])},
    "a reward with its dim": {"rewards": torch.full((N, 1), 5.0)},
    "a reward of whole numbers": {"rewards": torch.full((N,), 5)},
    "half precision": {"values": torch.full((N, 1), 3.5, dtype=torch.float16)},
    "strided": {"actions": torch.rand(N, 4)[:, ::4]},
    "a list of parameters": {"distribution_params": [torch.ones(N, 1), torch.ones(N, 2)]},
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_step_in_another_form_within_a_rollout(what: str) -> None:
    steps = [step(k, **(CHANGES[what] if k in (2, 3) else {})) for k in range(T)]
    other = looked_over(made(), steps)
    ours = made()
    for one in steps:
        ours.add_transitions(one)
    same(ours, other, (*NAMES, "distribution_params"))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a flag that is none": ({"dones": torch.tensor([0, 2, 1])}, "expected 0 or 1"),
    "a negative flag": ({"dones": torch.tensor([0, -1, 1])}, "expected 0 or 1"),
    "a shape": ({"actions": torch.ones(N, 2)}, "shape"),
    "a dtype": ({"observations": torch.ones(N, 2, dtype=torch.complex64)}, "complex64"),
    "less": ({"values": None}, "missing at this step"),
    "more": ({"time_outs": torch.zeros(N, dtype=torch.bool)}, "given at this step"),
    "no tensor": ({"rewards": np.zeros(N)}, "expected a tensor"),
    "other leaves": ({"observations": {"x": torch.ones(N, 2)}}, "expected the tensors"),
    "fewer parameters": ({"distribution_params": (torch.ones(N, 1),)}, "expected the tensors"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_is_refused_after_steps_that_fit(what: str) -> None:
    change, message = REFUSED[what]
    ours = made()
    for k in range(3):
        ours.add_transitions(step(k))
    before = copy.deepcopy(ours)
    with pytest.raises(LayoutError, match=message):
        ours.add_transitions(step(3, **change))
    assert ours.step == 3
    same(ours, before)


def test_every_step_needs_room_and_a_finite_value_if_asked() -> None:
    ours = made()
    for k in range(T):
        ours.add_transitions(step(k))
    with pytest.raises(OverflowError):
        ours.add_transitions(step(T))
    ours.clear()
    ours.check_finite = True  # from now on
    with pytest.raises(ValueError, match="rewards.*env 1"):
        ours.add_transitions(step(0, rewards=torch.tensor([0.0, float("nan"), 0.0])))


def test_a_rollout_may_bring_other_fields_than_the_one_before() -> None:
    ours = made()
    for k in range(T):
        ours.add_transitions(step(k))
    ours.clear()
    late = torch.zeros(N, dtype=torch.bool)
    for k in range(T):
        ours.add_transitions(step(k, time_outs=late, distribution_params=None))
    batch = next(ours.mini_batch_generator(1, 1))
    assert getattr(batch, "distribution_params", None) is None
    assert ours.time_outs.shape == (T, N, 1)


def test_returns_of_earlier_steps_are_not_taken_for_those_of_new_ones() -> None:
    ours = made()
    for k in range(4):
        ours.add_transitions(step(k))
    ours.compute_returns(torch.zeros(N), 0.9, 0.9)
    ours.add_transitions(step(4))
    with pytest.raises(LayoutError, match="those of earlier steps"):
        next(ours.mini_batch_generator(1, 1))


def test_what_was_assigned_counts_until_a_step_comes() -> None:
    ours = made()
    for k in range(3):
        ours.add_transitions(step(k))
    ours.mu = torch.ones(T, N, 1)
    assert next(ours.mini_batch_generator(1, 1)).old_mu is not None
    ours.add_transitions(step(3))
    assert next(ours.mini_batch_generator(1, 1)).old_mu is None


def test_a_storage_that_grows_is_written_where_it_is() -> None:
    ours = made(cls=QueueRolloutStorage, buffer_dilation_ratio=2)
    other = made(cls=QueueRolloutStorage, buffer_dilation_ratio=2)
    for _ in range(4):
        for k in range(T):
            ours.add_transitions(step(k))
            looked_over(other, [step(k)])
        same(ours, other)
        ours.clear()
        other.clear()


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_writes_to_its_own_tensors(twin: Any) -> None:
    ours = made()
    for k in range(3):
        ours.add_transitions(step(k))
    ours._random = None  # a generator is not pickled
    other = twin(ours)
    other.add_transitions(step(3))
    assert ours.step == 3 and float(ours.rewards[3].sum()) == 0
    assert torch.equal(other.rewards[3], torch.full((N, 1), 23.0))


@pytest.mark.parametrize("pair", [False, True])
def test_hidden_states(pair: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def states(k: int) -> Any:
        one = torch.full((1, N, 4), float(k))
        return ((one, one + 1) if pair else one), None

    ours, other = made(), made()
    looked_over(other, [step(k, hidden_states=states(k)) for k in range(T)])
    took = written(monkeypatch)
    for _ in range(2):
        for k in range(T):
            ours.add_transitions(step(k, hidden_states=states(k)))
        for x, y in zip(ours.hidden.kept[0].tensors, other.hidden.kept[0].tensors, strict=True):
            assert torch.equal(x, y)
        ours.clear()
    assert took == [True] * (2 * T - 1)
    ours.add_transitions(step(0, hidden_states=states(0)))
    with pytest.raises(LayoutError, match="missing at this step"):
        ours.add_transitions(step(1))


def test_rows_of_long_rollouts_are_not_all_kept_as_objects() -> None:
    steps = 3000
    ours = RolloutStorage(N, steps, (2,), None, (1,))
    for k in range(steps):
        ours.add_transitions(step(k))
    assert ours._repeat is not None and ours._repeat._views is None
    assert torch.equal(ours.rewards[:, 0, 0], torch.arange(20.0, 20 + steps))
