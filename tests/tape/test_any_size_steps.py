"""`add_step` with leaves of any size, in every form that `extend` takes, some rows left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from contig import Batch, Blob, LazyTensorStorage, Ragged

EXAMPLE = {"data": Blob(), "note": Blob(text=True), "tokens": Ragged(np.int32), "uid": 0}
ENVS = 5


def tokens(uid: int) -> list[int]:
    return list(range(uid, uid + uid % 4))


def step(first: int) -> dict[str, Any]:
    uids = range(first, first + ENVS)
    return {
        "data": [bytes([u]) * (u % 3) for u in uids],
        "note": ["é" * (u % 2) for u in uids],
        "tokens": [np.array(tokens(u), np.int32) for u in uids],
        "uid": np.array(uids),
        "next": {"done": np.zeros(ENVS, bool)},
    }


def columns(data: dict[str, Any]) -> dict[str, Any]:
    made = {"data": Blob.of(data["data"]), "note": Blob.of(data["note"])}
    return {**data, **made, "tokens": Ragged.of(data["tokens"])}


def objects(data: dict[str, Any]) -> dict[str, Any]:
    def of(rows: list[Any]) -> Any:
        out = np.empty(len(rows), object)
        out[:] = rows
        return out

    return {k: of(v) if isinstance(v, list) else v for k, v in data.items()}


def pairs(data: dict[str, Any]) -> dict[str, Any]:
    made = Ragged.of(data["tokens"])
    return {**data, "tokens": (made.values, made.offsets)}


def nested(data: dict[str, Any]) -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    parts = [torch.as_tensor(x) for x in data["tokens"]]
    return {**data, "tokens": torch.nested.nested_tensor(parts, layout=torch.jagged)}


FORMS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "lists": lambda data: data,
    "lists of lists": lambda data: {**data, "tokens": [x.tolist() for x in data["tokens"]]},
    "lists of tuples": lambda data: {**data, "tokens": [tuple(x) for x in data["tokens"]]},
    "columns": columns,
    "a batch": lambda data: Batch.from_tree(columns(data)),
    "object arrays": objects,
    "values and offsets": pairs,
    "nested tensors": nested,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ids", [None, [4, 0, 2, 9, 7]])
def test_forms(form: str, ids: list[int] | None) -> None:
    storage = LazyTensorStorage(100, example={**EXAMPLE, "next": {"done": False}})
    writer = storage.writer()
    written = []
    for first in range(0, 40, ENVS):
        mask = np.array([True, first % 2 == 0, True, False, True])
        writer.add_step(FORMS[form](step(first)), ids, mask)
        written += (np.arange(first, first + ENVS)[mask]).tolist()
    found, _ = storage.gather(np.arange(len(storage)))
    assert found["uid"].tolist() == written
    assert [x.tolist() for x in found["tokens"]] == [tokens(u) for u in written]
    assert list(found["data"]) == [bytes([u]) * (u % 3) for u in written]
    assert list(found["note"]) == ["é" * (u % 2) for u in written]
    assert len(storage.episodes()) == ENVS - 1


def test_lists_of_lists_with_fields() -> None:
    storage = LazyTensorStorage(100, example={"t": Ragged(np.int32)}, fields={"a": 0})
    writer = storage.writer()
    given = {"fields": {"a": [4, 5]}}
    for more in ({}, {"mask": [True, True]}, {"env_ids": [0, 1]}, {"mask": [False, True]}):
        writer.add_step({"t": [[1, 2], [3]]}, **more, **given)
    found, _ = storage.gather(np.arange(len(storage)))
    assert [x.tolist() for x in found["t"]] == [[1, 2], [3]] * 3 + [[3]]
    assert storage.episodes()["a"].tolist() == [4, 5]
