"""Trajectories one by one, and slices with a time dim of fixed length."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from contig import (
    Batch,
    LazyTensorStorage,
    ReplayBuffer,
    SliceSampler,
    pad_slices,
    per_trajectory,
    split_trajectories,
    unpad_slices,
)
from tests.learn.rows import join, trajectory

LENGTHS = (3, 1, 4)


def data() -> dict[str, Any]:
    ends = ("terminated", "truncated", "open")
    return join(*(trajectory(i + 1, n, e) for i, (n, e) in enumerate(zip(LENGTHS, ends))))


def forms() -> list[Any]:
    batch = Batch.from_tree(data())
    return [batch, batch.tree(), batch.torch(), batch.to_tensordict()]


def split(rows: Any, **options: Any) -> Any:
    with pytest.warns(UserWarning, match="Flat rows need no padding"):
        return split_trajectories(rows, **options)


# -- split ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", range(4))
def test_padded(form: int) -> None:
    rows = forms()[form]
    out = split(rows)
    assert isinstance(rows, dict) == isinstance(out, dict)
    assert isinstance(out, (dict, type(rows)))
    mask = np.asarray(out["mask"])
    assert mask.tolist() == [[True] * n + [False] * (4 - n) for n in LENGTHS]
    assert np.array_equal(out["collector", "mask"], mask)
    state = np.asarray(out["state"])
    assert state.tolist() == [[100, 101, 102, 0], [200, 0, 0, 0], [300, 301, 302, 303]]
    assert np.asarray(out["next", "done"]).reshape(3, 4).sum(1).tolist() == [1, 1, 0]


def test_each_mark_is_enough() -> None:
    rows = data()
    for keep in ("ids", "init", "done"):
        part: dict[str, Any] = {"state": rows["state"], "next": {"done": np.zeros(8, bool)}}
        if keep == "ids":
            part["collector"] = rows["collector"]
        elif keep == "init":
            part["is_init"] = rows["is_init"]
        else:
            part["next"]["done"] = rows["next"]["done"]
        assert np.asarray(split(part)["mask"]).sum(1).tolist() == list(LENGTHS)


def test_lanes_are_cut_at_their_ends() -> None:
    rows = Batch.from_tree(trajectory(1, 6, "open")).reshape(2, 3)
    rows["collector", "traj_ids"][1] = 2
    assert split(rows)["state"].tolist() == [[100, 101, 102], [103, 104, 105]]


@pytest.mark.parametrize("form", [2, 3])
def test_nested_tensors(form: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        out = split_trajectories(forms()[form], as_nested=True)
    parts = [p.reshape(-1).tolist() for p in out["state"].unbind()]
    assert parts == [[100, 101, 102], [200], [300, 301, 302, 303]]
    assert out["state"].is_nested and out["next", "reward"].is_nested


def test_nested_is_nested_also_for_one() -> None:
    for form in (
        Batch.from_tree(trajectory(1, 3, "open")).torch(),
        TensorDict(
            {"x": torch.arange(3), "next": {"done": torch.zeros(3, 1, dtype=torch.bool)}}, [3]
        ),
    ):
        out = split_trajectories(form, as_nested=True)
        leaf = out["state"] if "state" in out else out["x"]
        assert leaf.is_nested and len(leaf.unbind()) == 1


@pytest.mark.parametrize("form", [0, 1])
def test_nested_numpy_is_a_list(form: int) -> None:
    out = split_trajectories(forms()[form], as_nested=True)
    assert [p["state"].tolist() for p in out] == [[100, 101, 102], [200], [300, 301, 302, 303]]
    assert isinstance(out[0], (Batch, dict))


def test_rows_without_marks_raise() -> None:
    with pytest.raises(KeyError, match="looked for.*traj_ids.*there are"):
        split_trajectories({"x": np.zeros(3)})
    with pytest.raises(ValueError, match='"x": shape'):
        split_trajectories({"x": np.zeros(2), "is_init": np.zeros(3, bool)})


@pytest.mark.parametrize("form", range(4))
def test_keys_of_other_names(form: int) -> None:
    """TorchRL's keywords: what is named decides alone."""
    other = np.array([0, 0, 1, 1, 1, 1, 2, 2])
    flags = np.array([0, 0, 0, 0, 1, 0, 0, 1], bool)
    made = data()
    made["robot"] = {"run": other}
    made["next"]["over"], made["over"] = flags, ~flags
    batch = Batch.from_tree(made)
    rows = [batch, batch.tree(), batch.torch(), batch.to_tensordict()][form]

    def lengths(**options: Any) -> Any:
        with pytest.warns(UserWarning, match="Flat rows need no padding"):
            out = split_trajectories(rollout_tensordict=rows, **options)
        mask = np.asarray(out["mask"])
        state = np.asarray(out["state"]).reshape(mask.shape)
        assert state[mask].tolist() == np.asarray(rows["state"]).reshape(-1).tolist()
        return mask.sum(1).tolist()

    assert lengths() == list(LENGTHS)
    assert lengths(trajectory_key=("robot", "run")) == [2, 4, 2]
    assert lengths(done_key="over") == lengths(done_key=("next", "over")) == [5, 3]
    assert lengths(trajectory_key=("robot", "run"), done_key="over") == [2, 4, 2]
    nested = split_trajectories(
        rollout_tensordict=rows, as_nested=True, trajectory_key=("robot", "run")
    )
    parts = nested["state"].unbind() if form > 1 else [part["state"] for part in nested]
    assert [len(part) for part in parts] == [2, 4, 2]
    with pytest.raises(KeyError, match='looked for .*"robot", "id"'):
        split_trajectories(rows, trajectory_key=("robot", "id"))
    with pytest.raises(KeyError, match='looked for .*"end"'):
        split_trajectories(rows, done_key="end")


def test_a_prefix_says_where_ids_and_mask_are() -> None:
    rows = {"x": np.arange(5), "meta": {"traj_ids": np.array([7, 7, 8, 8, 8])}}
    out = split(rows, prefix="meta")
    assert out["x"].tolist() == [[0, 1, 0], [2, 3, 4]] and "mask" not in out
    assert out["meta", "mask"].sum(1).tolist() == [2, 3]


def test_rows_are_given_once() -> None:
    for wrong in ({}, {"data": data(), "rollout_tensordict": data()}):
        with pytest.raises(TypeError, match="expected rows, as data or as rollout_tensordict"):
            split_trajectories(**wrong)


# -- aggregates -----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", range(4))
def test_returns_and_lengths(form: int) -> None:
    out = per_trajectory(forms()[form])
    assert out["traj_ids"].tolist() == [1, 2, 3]
    assert out["length"].tolist() == list(LENGTHS)
    assert out["return"].tolist() == [303, 200, 300 + 301 + 302 + 303]


def test_rows_of_one_id_belong_together_wherever_they_are() -> None:
    a, b = trajectory(7, 4, "open"), trajectory(3, 4, "truncated")
    mixed = Batch.from_tree(join(a, b))[np.array([0, 4, 1, 5, 2, 6, 3, 7])]
    out = per_trajectory(mixed)
    assert out["traj_ids"].tolist() == [7, 3] and out["length"].tolist() == [4, 4]
    steps = per_trajectory(mixed, lambda rows: rows["state"])
    assert steps.tolist() == [a["state"].tolist(), b["state"].tolist()]


@pytest.mark.parametrize("form", range(4))
def test_a_function_of_each(form: int) -> None:
    def about(rows: Any) -> dict[str, Any]:
        return {"last": rows["next", "state"][-1], "n": len(rows["state"])}

    out = per_trajectory(forms()[form], about)
    assert out["last"].tolist() == [103, 201, 304] and out["n"].tolist() == list(LENGTHS)


def test_without_ids_and_with_several_rewards() -> None:
    rows = data()
    del rows["collector"]
    rows["next"]["reward"] = np.stack([rows["state"], np.ones(8)], -1)
    out = per_trajectory(rows)
    assert "traj_ids" not in out
    assert out["return"].tolist() == [[303, 3], [200, 1], [1206, 4]]
    assert per_trajectory({"is_init": np.zeros(0, bool)})["length"].tolist() == []


# -- slices ---------------------------------------------------------------------------------------


def sampled(pad: bool = False) -> Batch:
    sampler = SliceSampler(slice_len=4, pad_output=pad)
    buffer = ReplayBuffer(LazyTensorStorage(100), sampler, batch_size=32, seed=3)
    for i in range(6):
        buffer.extend_trajectory(trajectory(i + 1, 1 + i, ("terminated", "truncated")[i % 2]))
    found: Batch = buffer.sample()
    return found


def test_padding_is_that_of_the_sampler() -> None:
    flat, padded = sampled(), sampled(pad=True)
    out = pad_slices(flat, 4)
    assert out.shape == (8, 4) and len(flat) < 32
    for path in padded.layout.by_path:
        want = padded[path].reshape(8, 4, *padded[path].shape[1:])
        np.testing.assert_array_equal(out[path], want, str(path))
    back = unpad_slices(padded)
    for path in flat.layout.by_path:
        np.testing.assert_array_equal(back[path], flat[path])


@pytest.mark.parametrize("form", range(4))
def test_there_and_back(form: int) -> None:
    flat = sampled()
    rows = [flat, flat.tree(), flat.torch(), flat.to_tensordict()][form]
    out = pad_slices(rows)
    assert tuple(out["state"].shape) == (8, 4)
    back = unpad_slices(out)
    for path in flat.layout.by_path:
        np.testing.assert_array_equal(np.asarray(back[path]).reshape(-1), flat[path].reshape(-1))
    assert ("collector", "mask") in out.keys(True) if form == 3 else "mask" in out["collector"]


def test_slices_of_one_row() -> None:
    rows = {"x": np.arange(3), "is_init": np.ones(3, bool)}
    out = pad_slices(rows)
    assert out["x"].shape == (3, 1)
    assert unpad_slices(out)["x"].tolist() == [0, 1, 2]


def test_slices_that_do_not_fit_raise() -> None:
    rows = data()
    with pytest.raises(ValueError, match="length 2: there is a slice of 4 rows"):
        pad_slices(rows, 2)
    with pytest.raises(ValueError, match="padded already"):
        pad_slices(pad_slices(rows))
    with pytest.raises(KeyError, match="not padded"):
        unpad_slices(rows)


def test_gradients_go_through() -> None:
    rows = Batch.from_tree(data()).torch()
    rows["state"] = rows["state"].requires_grad_()
    unpad_slices(pad_slices(rows))["state"].sum().backward()
    assert rows["state"].grad.tolist() == [1] * 8
