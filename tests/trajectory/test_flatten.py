"""From ``[T, B, ...]`` to rows: t * B + b, without bootstrap rows; and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contig import LayoutError, Trajectory
from contig.trajectory.trajectory import flatten_trajectory
from tests.trajectory.made import identity, made, with_extra


@given(epochs=st.integers(0, 4), each=st.integers(1, 5), envs=st.integers(1, 4))
def test_rows(epochs: int, each: int, envs: int) -> None:
    steps = each * max(epochs, 1)
    flat = flatten_trajectory(made(7, steps, envs, epochs))
    assert flat.rows == steps * envs and flat.shape == (steps, envs, 1)
    for t in range(steps):
        for b in range(envs):
            row = t * envs + b
            assert flat.columns["actions",][row].tolist() == [7, t, b]
            for name in ("rewards", "dones", "prev_values"):
                assert flat.columns[name,][row].tolist() == [7000 + 10 * t + b], name
    assert (flat.max_episode_length, flat.model_weights_id) == (17, "w")


def test_which_rows_are_dropped() -> None:
    # two epochs of two steps: flags have a row before each epoch, values one after it
    flags = np.array([9, 0, 1, 9, 2, 3])[:, None]
    values = np.array([0, 1, 9, 2, 3, 9])[:, None]
    fields = {name: flags for name in ("dones", "terminations", "truncations")}
    flat = flatten_trajectory({**fields, "prev_values": values, "rewards": np.zeros((4, 1))})
    for name in (*fields, "prev_values"):
        assert flat.columns[name,].tolist() == [0, 1, 2, 3], name


def test_with_extra_is_what_it_says() -> None:
    rows = with_extra(np.arange(4.0)[:, None], 2, first=True)
    assert rows.ravel().tolist() == [-1, 0, 1, -1, 2, 3]


def test_shape_is_that_of_log_probabilities_or_rewards() -> None:
    fields = {"actions": np.zeros((3, 2, 5)), "rewards": np.zeros((3, 2, 1))}
    assert flatten_trajectory(fields).shape == (3, 2, 1)
    assert flatten_trajectory({**fields, "prev_logprobs": np.zeros((3, 2, 7))}).shape == (3, 2, 7)
    assert flatten_trajectory({"dones": np.zeros((3, 2))}).shape == (3, 2)


def test_absent() -> None:
    fields = {"rewards": np.zeros((2, 1)), "actions": None, "curr_obs": {}, "next_obs": {"x": None}}
    assert list(flatten_trajectory(fields).columns) == [("rewards",)]


def test_other_dataclasses() -> None:
    @dataclasses.dataclass
    class Theirs:
        rewards: Any
        model_weights_id: str = "abc"
        max_episode_length: int = 3

    flat = flatten_trajectory(Theirs(torch.ones(2, 2)))
    assert flat.rows == 4 and (flat.max_episode_length, flat.model_weights_id) == (3, "abc")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "without a field"),
        ({"rewards": np.zeros(4)}, r"\"rewards\": shape \[4\], expected \[T, B"),
        ({"rewards": np.zeros((0, 4))}, "no steps"),
        ({"rewards": np.zeros((4, 0))}, "no steps"),
        ({"rewards": np.zeros((4, 2)), "actions": np.zeros((5, 2))}, '"actions": shape'),
        ({"rewards": np.zeros((4, 2)), "curr_obs": {"x": np.zeros((4, 3))}}, r'"curr_obs", "x"'),
        ({"rewards": np.zeros((4, 2)), "dones": np.zeros((3, 2))}, "or one more per epoch"),
        ({"rewards": np.zeros((4, 2)), "dones": np.zeros((7, 2))}, "into 3 epochs"),
        ({"rewards": np.zeros((4, 2)), "prev_values": np.zeros((5, 3))}, '"prev_values": shape'),
    ],
)
def test_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(LayoutError, match=text):
        flatten_trajectory(fields)


@pytest.mark.parametrize("value", ["text", [1, 2], np.array([b"a"]), np.array([[None]])])
def test_what_is_no_array(value: Any) -> None:
    with pytest.raises(ValueError, match='"task"'):
        flatten_trajectory({"rewards": np.zeros((1, 1)), "task": value})


def test_no_trajectory() -> None:
    with pytest.raises(TypeError, match="expected a Trajectory or a mapping of fields, got int"):
        flatten_trajectory(3)


# -- interventions ------------------------------------------------------------------------------


def flags_of(acted: np.ndarray[Any, Any]) -> torch.Tensor:
    return torch.from_numpy(np.repeat(acted[..., None], 3, -1))


@given(
    seed=st.integers(0, 99),
    epochs=st.integers(0, 2),
    each=st.integers(1, 4),
    envs=st.integers(1, 4),
)
def test_extraction(seed: int, epochs: int, each: int, envs: int) -> None:
    steps = each * max(epochs, 1)
    acted = np.random.default_rng(seed).random((steps, envs)) < 0.4
    found = made(5, steps, envs, epochs, intervene_flags=flags_of(acted)).extract_intervene_traj()
    assert len(found) == int(acted.any(0).sum())
    for env, part in zip(np.flatnonzero(acted.any(0)), found):
        assert isinstance(part.actions, torch.Tensor)
        expected = identity(5, steps, envs)[acted[:, env], env][:, None]
        assert np.array_equal(part.actions.numpy(), expected)
        assert np.array_equal(part.curr_obs["states"].numpy(), expected)
        flat = flatten_trajectory(part)
        for name in ("rewards", "dones", "prev_values"):
            value = 5000 + expected[:, 0, 1] * 10 + expected[:, 0, 2]
            assert flat.columns[name,].ravel().tolist() == value.tolist(), name
        assert (part.max_episode_length, part.model_weights_id) == (15, "w")
        assert bool(part.intervene_flags.all())


def test_extraction_any_or_all() -> None:
    flags = torch.zeros(2, 1, 3, dtype=torch.bool)
    flags[0, 0, 0] = True
    flags[1] = True
    trajectory = made(0, 2, 1, intervene_flags=flags)
    assert trajectory.extract_intervene_traj()[0].rewards.shape == (2, 1, 1)
    assert trajectory.extract_intervene_traj("all")[0].rewards.ravel().tolist() == [10]
    with pytest.raises(ValueError, match="mode"):
        trajectory.extract_intervene_traj("some")


def test_extraction_of_nothing() -> None:
    assert Trajectory(rewards=np.zeros((2, 2))).extract_intervene_traj() == []
    none = Trajectory(rewards=np.zeros((2, 2)), intervene_flags=np.zeros((2, 2), bool))
    assert none.extract_intervene_traj() == []
