"""Leaves of any size in rows that are learned from: carried along, or named in an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from contig import (
    GAE,
    Batch,
    Blob,
    GRUModule,
    Ragged,
    pad_slices,
    per_trajectory,
    set_recurrent_mode,
    split_trajectories,
    unpad_slices,
)
from contig.convert import jagged_parts, text_of
from tests.learn.rows import join, trajectory

LENGTHS = (3, 1, 4)
FORMS = ("batch", "dict", "torch", "tensordict")
PADDED = [["100", "101", "102", ""], ["200", "", "", ""], ["300", "301", "302", "303"]]


def tokens(state: float) -> Any:
    return np.full((int(state) % 3, 2), state, np.int32)


def rows(form: str = "batch") -> Any:
    """Every leaf of any size says its row's state."""
    ends = ("terminated", "truncated", "open")
    data = join(*(trajectory(i + 1, n, e) for i, (n, e) in enumerate(zip(LENGTHS, ends))))
    names = [str(int(s)) for s in data["state"]]
    data["text"] = Blob.of(names)
    data["frame"] = Blob.of([x.encode() for x in names])
    data["tokens"] = Ragged.of([tokens(s) for s in data["state"]])
    data["next"]["tokens"] = Ragged.of([tokens(s) for s in data["next"]["state"]])
    batch = Batch.from_tree(data)
    made = {"dict": batch.tree, "torch": batch.torch, "tensordict": batch.to_tensordict}
    return made[form]() if form in made else batch


def shown(data: Any) -> tuple[list[Any], list[Any], list[Any]]:
    """Text, bytes and tokens of rows, flat."""
    text, frame, ragged = (data.get(k) for k in ("text", "frame", "tokens"))
    if not isinstance(text, Blob):
        text, frame = text_of(text, ("text",)), text_of(frame, ("frame",))
        if data.ndim > 1:
            text, frame = sum(map(list, text), []), sum(map(list, frame), [])  # noqa: RUF017
    if ragged is not None and not isinstance(ragged, Ragged):
        ragged = Ragged(*jagged_parts(ragged))
    return list(text), [x.decode() for x in frame], [] if ragged is None else list(ragged)


def check(data: Any, expected: list[str]) -> None:
    text, frame, ragged = shown(data)
    assert text == frame == expected
    for name, row in zip(expected, ragged):
        assert np.array_equal(row, tokens(float(name)) if name else np.empty((0, 2)))


def without(data: Any, form: str) -> Any:
    """What a TensorDict cannot have in two dims."""
    return data.exclude("tokens", ("next", "tokens")) if form == "tensordict" else data


@pytest.mark.parametrize("form", FORMS)
def test_slices_padded_and_back(form: str) -> None:
    data = without(rows(form), form)
    padded = pad_slices(data)
    assert isinstance(padded, (dict, type(data)))
    check(padded, ["100", "101", "102", "102", *["200"] * 4, *PADDED[2]])
    back = unpad_slices(padded)
    check(back, [x for lane in PADDED for x in lane if x])
    if form != "tensordict":
        assert len(back["next", "tokens"] if form != "dict" else back["next"]["tokens"]) == 8


@pytest.mark.parametrize("form", FORMS)
def test_trajectories_padded_with_empty_rows(form: str) -> None:
    with pytest.warns(UserWarning, match="Flat rows need no padding"):
        out = split_trajectories(without(rows(form), form))
    check(out, [x for lane in PADDED for x in lane])


@pytest.mark.parametrize("form", FORMS)
def test_one_trajectory_after_another(form: str) -> None:
    data = rows(form)
    assert per_trajectory(data)["length"].tolist() == list(LENGTHS)
    seen: list[list[str]] = []

    def look(mine: Any) -> int:
        check(mine, shown(mine)[0])
        seen.append(shown(mine)[0])
        return len(seen)

    assert per_trajectory(data, look).tolist() == [1, 2, 3]
    assert seen == [[x for x in lane if x] for lane in PADDED]


@pytest.mark.parametrize("form", ["batch", "dict"])
def test_lists_of_trajectories(form: str) -> None:
    out = split_trajectories(rows(form), as_nested=True)
    for mine, lane in zip(out, PADDED, strict=True):
        check(mine, [x for x in lane if x])


def test_what_tensors_cannot_hold_is_named() -> None:
    for form in ("torch", "tensordict"):
        with pytest.raises(ValueError, match=r'"frame": .* leave it out'):
            split_trajectories(rows(form), as_nested=True)
    with pytest.raises(ValueError, match=r'tokens"\)?: .* data.exclude'):
        pad_slices(rows("tensordict"))
    short = {**rows("dict"), "text": Blob.of(["a"])}
    with pytest.raises(ValueError, match=r'"text": shape \[1\], expected the batch\'s \[8\]'):
        pad_slices(short)


@pytest.mark.parametrize("form", FORMS)
def test_modules_leave_what_they_do_not_read(form: str) -> None:
    gru = GRUModule(
        1, 4, in_keys=["seen", "hidden", "is_init"], out_keys=["out", ("next", "hidden")]
    )
    more = {"seen": np.zeros((8, 1), np.float32), "hidden": np.zeros((8, 1, 4), np.float32)}
    data = rows("batch").with_leaves(more)
    made = {"dict": data.tree, "torch": data.torch, "tensordict": data.to_tensordict}
    data = made[form]() if form in made else data
    if isinstance(data, dict):
        data["odd"] = ["neither", "array", "nor column"]
    with set_recurrent_mode(True):
        out = gru(data)
    assert out["out"].shape == (8, 4)
    check(out, [x for lane in PADDED for x in lane if x])
    if isinstance(data, dict):
        assert out["odd"] == data["odd"]


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_value_nets_have_them_in_both_calls(form: str, once: bool) -> None:
    """A net that reads nothing but tokens: state s has s % 3 of them."""

    def worth(data: Any) -> Any:
        ragged = data["tokens"]
        if isinstance(ragged, Ragged):
            return ragged.lengths.astype(np.float32)
        lengths = np.diff(jagged_parts(ragged)[1]).astype(np.float32)
        return torch.from_numpy(lengths if form == "torch" else lengths[:, None])

    data = rows(form)
    out = GAE(gamma=0.9, lmbda=0.8, value_net=worth, single_call=once)(data)
    plain = rows("dict")
    state, after = plain["state"], plain["next"]["state"]
    stored = {
        **{k: v for k, v in plain.items() if k not in ("text", "frame", "tokens")},
        "state_value": (state % 3).astype(np.float32),
        "next": {
            **{k: v for k, v in plain["next"].items() if k != "tokens"},
            "state_value": (after % 3).astype(np.float32),
        },
    }
    expected = GAE(gamma=0.9, lmbda=0.8)(stored)["advantage"]
    assert np.allclose(np.asarray(out["advantage"]).reshape(-1), expected.reshape(-1))
