"""Lanes of rows with leaves of any size: fields are for lanes, whichever leaf comes first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from contig import (
    Blob,
    DeviceStorage,
    LayoutError,
    LazyTensorStorage,
    Ragged,
    RemoteReplayBuffer,
    ReplayBuffer,
    Server,
    TcpTransport,
)

ROW = {"b": Blob(), "x": Ragged(np.int32), "y": 0}
ROWS = {
    "b": [[b"00", b"01"], [b"10", b"11"]],
    "x": [[[0], [0, 0]], [[1], []]],
    "y": np.array([[0, 1], [10, 11]]),
}
FLAT = {
    "b": Blob.of([b"00", b"01", b"10", b"11"]),
    "x": Ragged.of([np.int32([0]), np.int32([0, 0]), np.int32([1]), np.int32([])]),
    "y": ROWS["y"],
}
PIXELS = {"p": np.zeros((2, 2), np.uint8)}
CODED = {"codecs": {"p": "lz4"}}
# Each has two lanes of two rows.
ALONE = {
    "lists": ({"x": Ragged(np.int32)}, ROWS["x"]),
    "an empty row first": ({"x": Ragged(np.int32)}, [[[], [1]], [[2], [3]]]),
    "only empty rows": ({"x": Ragged(np.int32, (3,))}, [[[], []], [[], []]]),
    "arrays": ({"x": Ragged(np.int32)}, [[np.int32([1]), np.int32([2, 3])]] * 2),
    "one array": ({"x": Ragged(np.int32, (5,))}, np.zeros((2, 2, 4, 5), np.int32)),
    "bytes": ({"x": Blob()}, ROWS["b"]),
    "an array of bytes": ({"x": Blob()}, np.array(ROWS["b"], object)),
}


def written(storage: Any, rows: Any, fields: Any) -> tuple[list[int], list[int]]:
    storage.writer().extend(rows, fields=fields)
    table = storage.episodes()
    return table["t"].tolist(), table["steps"].tolist()


KINDS: dict[str, Any] = {
    "lazy": LazyTensorStorage,
    "device": lambda capacity, **options: DeviceStorage(capacity, "cpu", **options),
}


@pytest.fixture(params=KINDS)
def made(request: Any) -> Any:
    def make(example: Any, fields: Any = {"t": 0}, **options: Any) -> Any:  # noqa: B006
        return KINDS[request.param](50, ndim=2, example=example, fields=fields, **options)

    return make


@pytest.mark.parametrize("known", [True, False], ids=["example", "first write"])
@pytest.mark.parametrize("rows", [ROWS, FLAT], ids=["lists", "flat"])
def test_fields_are_for_lanes(made: Any, rows: Any, known: bool) -> None:
    if not known:
        rows = {**rows, "x": FLAT["x"]}  # lists of numbers are a tree, if nobody says otherwise

    def storage() -> Any:
        return made(ROW) if known else made(None, None)

    assert written(storage(), rows, {"t": [1, 2]}) == ([1, 2], [2, 2])
    assert written(storage(), rows, [{"t": 1}, None]) == ([1, 0], [2, 2])
    assert written(storage(), rows, {"t": 5}) == ([5, 5], [2, 2])


@pytest.mark.parametrize("rows", [ROWS, FLAT], ids=["lists", "flat"])
def test_another_count_than_lanes_is_refused(made: Any, rows: Any) -> None:
    storage = made(ROW)
    with pytest.raises(LayoutError, match=r'"t": shape \[4\], expected \[\], or \[2\]'):
        storage.writer().extend(rows, fields={"t": [1, 2, 3, 4]})
    with pytest.raises(LayoutError, match=r"a list of 4, expected .* 2 lanes"):
        storage.writer().extend(rows, fields=[{"t": 1}] * 4)
    assert len(storage) == 0


@pytest.mark.parametrize("example, column", ALONE.values(), ids=ALONE)
def test_without_a_leaf_of_fixed_size(made: Any, example: Any, column: Any) -> None:
    assert written(made(example), {"x": column}, {"t": [1, 2]}) == ([1, 2], [2, 2])
    one = (
        column.reshape(-1, *column.shape[2:])
        if hasattr(column, "shape")
        else [*column[0], *column[1]]
    )
    assert written(made(example), {"x": one}, {"t": 7}) == ([7], [4])


def test_leaves_with_codecs(made: Any) -> None:
    pixels = np.arange(16, dtype=np.uint8).reshape(2, 2, 2, 2)
    encoder = made(PIXELS, **CODED).codecs["p",]
    encoded = [[encoder.encode(row) for row in lane] for lane in pixels]
    flat = Blob.of([*encoded[0], *encoded[1]])
    for column in (pixels, encoded, flat):
        for more in ({"y": ROWS["y"]}, {}):
            if not more and column is flat:
                continue  # nobody says how many lanes there are
            storage = made({**PIXELS, **{k: 0 for k in more}}, **CODED)
            rows = {"p": column, **more}
            assert written(storage, rows, {"t": [1, 2]}) == ([1, 2], [2, 2])
            first, second = (int(x) for x in storage.episodes()["id"])
            assert np.array_equal(storage.read_episode(first)["p"], pixels[0])
            assert np.array_equal(storage.read_episode(second)["p"], pixels[1])
    assert written(made(PIXELS, **CODED), {"p": encoded[0]}, {"t": 3}) == ([3], [2])


def test_over_the_wire() -> None:
    storage = LazyTensorStorage(50, ndim=2, example=ROW, fields={"t": 0})
    buffer = ReplayBuffer(storage, batch_size=6)
    with (
        Server(buffer=buffer, transport=TcpTransport()) as server,
        RemoteReplayBuffer("127.0.0.1", server.port) as far,
    ):
        for rows in (ROWS, FLAT):
            far.extend(rows, fields={"t": [1, 2]})
            far.extend(rows, fields=[{"t": 3}, None])
            with pytest.raises(LayoutError, match=r'"t": shape \[4\]'):
                far.extend(rows, fields={"t": [1, 2, 3, 4]})
    assert buffer.storage.episodes()["t"].tolist() == [1, 2, 3, 0] * 2
