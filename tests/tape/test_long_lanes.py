"""Many rows at once: where nothing happens they are taken together (native/tape/trajectories.cpp,
native/tape/slots.cpp), and what is stored is what single rows would have left.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contig import LazyTensorStorage, Storage
from tests.tape.observations import batch_bytes

Array = np.ndarray[Any, Any]
KINDS = (np.bool_, np.uint8, np.float32, np.float64, np.int64)
NAMES = ("steps", "return", "terminated", "truncated", "policy_version", "traj_id", "first")


def some(rng: np.random.Generator, rows: int, share: float) -> Array:
    return rng.random(rows) < share


def marked(rng: np.random.Generator, rows: int, share: float, marks: str, kind: Any) -> Any:
    """Rows whose marks are `marks`: d(one), t(erminated and truncated), i(nit), v(ersion), n(ames
    of trajectories); rewards that no other rows sum up to."""
    next_: dict[str, Array] = {
        "reward": (2.0 ** -np.arange(rows % 13, rows % 13 + rows)).astype(np.float32)
    }
    data: dict[str, Any] = {"step": np.arange(rows), "next": next_}
    ends = some(rng, rows, share)
    if "t" in marks:
        truncated = ends & some(rng, rows, 0.5)
        next_["terminated"], next_["truncated"] = (
            (ends & ~truncated).astype(kind),
            truncated.astype(kind),
        )
    if "d" in marks:
        next_["done"] = ends.astype(kind)
    if "i" in marks:
        data["is_init"] = some(rng, rows, share).astype(kind)
    told = data["collector"] = {}
    if "v" in marks:
        told["policy_version"] = np.cumsum(some(rng, rows, share)).astype(np.int64)
    if "n" in marks:
        told["traj_ids"] = (np.cumsum(some(rng, rows, share)) % 7).astype(np.int64)
    if not told:
        del data["collector"]
    return data


def row_of(data: Any, i: int) -> Any:
    return {k: row_of(v, i) if isinstance(v, dict) else v[i] for k, v in data.items()}


def cut(data: Any, start: int, stop: int) -> Any:
    return {
        k: cut(v, start, stop) if isinstance(v, dict) else v[start:stop] for k, v in data.items()
    }


def told(storage: Storage) -> list[tuple[Any, ...]]:
    table = storage.episodes()
    return [tuple(episode[name] for name in NAMES) for episode in table[np.argsort(table["first"])]]


@settings(deadline=None, max_examples=150)
@given(
    st.integers(0, 2**32),
    st.integers(2, 400),
    st.sampled_from((0.0, 0.005, 0.03, 0.4, 1.0)),
    st.sampled_from(("d", "t", "dt", "dti", "dtv", "dtn", "n", "dtivn", "i")),
    st.sampled_from(KINDS),
)
def test_one_by_one_or_at_once(seed: int, rows: int, share: float, marks: str, kind: Any) -> None:
    rng = np.random.default_rng(seed)
    data = marked(rng, rows, share, marks, kind)
    single, pieces = LazyTensorStorage(rows), LazyTensorStorage(rows)
    writer = single.writer()
    for i in range(rows):
        writer.add(row_of(data, i))
    writer, at = pieces.writer(), 0
    while at < rows:
        upto = min(rows, at + int(rng.integers(1, 200)))
        writer.extend(cut(data, at, upto))
        at = upto
    assert told(pieces) == told(single)
    assert batch_bytes(pieces.gather(np.arange(rows))[0]) == batch_bytes(
        single.gather(np.arange(rows))[0]
    )


@pytest.mark.parametrize("leaves", ((17,), (2,), (300,), (5, 3), (300, 2)), ids=str)
@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 200),
    share=st.sampled_from((0.0, 0.02, 0.3, 1.0)),
)
def test_what_leads_on_is_stored_once(
    leaves: tuple[int, ...], seed: int, rows: int, share: float
) -> None:
    """Any byte of a row's observation may be another one than that of what the step before it led
    to; and each is stored as often as there are different ones side by side."""
    rng = np.random.default_rng(seed)
    breaks = some(rng, rows, share)
    stays = some(rng, rows, share / 2)  # a step that led nowhere else
    data: dict[str, Any] = {"next": {"done": np.zeros(rows, np.bool_)}}
    different = np.zeros(rows, np.bool_)
    still = np.ones(rows, np.bool_)
    for number, size in enumerate(leaves):
        walk = np.full((rows + 1, size), 1000.0 * number, np.float32)
        walk += (np.arange(rows + 1) - np.concatenate(([0], np.cumsum(stays))))[:, None]
        now, after = walk[:-1].copy(), walk[1:].copy()
        for i in np.flatnonzero(breaks):
            if rng.random() < 0.7:  # one byte of it
                now[i].view(np.uint8)[rng.integers(4 * size)] ^= rng.integers(
                    1, 256, dtype=np.uint8
                )
        data[f"leaf{number}"], data["next"][f"leaf{number}"] = now, after
        different[1:] |= (now[1:].view(np.uint32) != after[:-1].view(np.uint32)).any(1)
        still &= (now.view(np.uint32) == after.view(np.uint32)).all(1)
    shared = LazyTensorStorage(1000, share_next=True)
    plain = LazyTensorStorage(1000, share_next=False)
    for storage in (shared, plain):
        storage.writer().extend(data)
    assert batch_bytes(shared.gather(np.arange(rows))[0]) == batch_bytes(
        plain.gather(np.arange(rows))[0]
    )
    assert shared.tape.slots_given == 1 + different.sum() + (~still).sum()
