"""Leaves with codecs that are to be stored once: what works, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import DiskStorage, LayoutError, LazyTensorStorage, ReplayBuffer, SharedStorage
from contig.layout import Layout
from contig.tape.encoding import codecs_of
from contig.tape.fits import bytes_per_step
from contig.tape.sharing import Sharing
from tests.tape.test_sharing import shared, stacks, steps

BELOW = ("next", "observation")


def rows(n: int = 40, **more: Any) -> dict[str, Any]:
    """Steps of stacked frames that an encoder makes smaller."""
    seen = np.zeros((n + 4, 12, 10), np.uint8)
    seen[np.arange(n + 4), 3, 5] = np.arange(n + 4)
    given = steps(*stacks(seen, 4), ends=range(9, n, 10))
    state = np.random.default_rng(0).normal(size=(n + 1, 6))
    if more.get("state"):
        given = {**given, "state": state[:-1], "next": {**given["next"], "state": state[1:]}}
    return given


def one(given: Any) -> Any:
    return {k: one(v) if isinstance(v, dict) else v[0] for k, v in given.items()}


def everything(storage: Any) -> Any:
    return ReplayBuffer(storage)[np.arange(40)]


def sharing_of(storage: Any) -> Sharing:
    found = storage.schema.sharing
    assert isinstance(found, Sharing)
    return found


@pytest.mark.parametrize("asked", [{"share_next": True}, {"stack": {"observation": 4}}])
@pytest.mark.parametrize("kind", [LazyTensorStorage, SharedStorage])
def test_a_codec_below_next_too_means_the_same(kind: Any, asked: dict[str, Any]) -> None:
    given, found = rows(), []
    for codecs in ({"observation": "lz4"}, {"observation": "lz4", BELOW: "lz4"}):
        with kind(100, codecs=codecs, **asked) as storage:
            buffer = ReplayBuffer(storage, batch_size=64, seed=3)
            buffer.extend(given)
            assert set(storage.codecs) == {("observation",), BELOW}
            batch = buffer.sample()
            np.testing.assert_array_equal(
                batch["observation"], given["observation"][batch["index"]]
            )
            np.testing.assert_array_equal(
                batch[BELOW], given["next"]["observation"][batch["index"]]
            )
            found.append((sharing_of(storage), storage.nbytes))
    assert found[0] == found[1]
    assert found[0][0].codec == "lz4" and found[0][0].leaves[0].frames == 4


def test_an_example_is_as_good() -> None:
    codecs = {"observation": "lz4", BELOW: "lz4"}
    given = rows()
    with LazyTensorStorage(
        100, example=one(given), codecs=codecs, stack={"observation": 4}
    ) as storage:
        assert sharing_of(storage).codec == "lz4"
        storage.default_writer.extend(given)
        np.testing.assert_array_equal(everything(storage)[BELOW], given["next"]["observation"])


def test_a_stack_that_is_not_below_next_beside_leaves_that_are() -> None:
    given = rows(state=True)
    del given["next"]["observation"]
    with LazyTensorStorage(100, codecs={"observation": "lz4"}, stack={"observation": 4}) as storage:
        storage.default_writer.extend(given)
        assert set(shared(storage)) == {("observation",)}
        assert sharing_of(storage).codec == "lz4"
        np.testing.assert_array_equal(everything(storage)["observation"], given["observation"])


REFUSED = [
    # what is asked for; what the message says
    (
        {"codecs": {"observation": "zstd"}, "share_next": True},
        r'"observation" has zstd.*codecs={"observation": "lz4"}, or leave share_next=True out',
    ),
    (
        {"codecs": {"observation": "zstd", BELOW: "zstd"}, "stack": {"observation": 4}},
        r'"observation" has zstd.*codecs={"observation": "lz4"}, or leave stack= out',
    ),
    (
        {"codecs": {"observation": "lz4", BELOW: "zstd"}, "share_next": True},
        r'\("next", "observation"\) has zstd',
    ),
    ({"codecs": {"observation": "lz4:9"}, "share_next": True}, r'"observation" has lz4:9'),
    ({"codecs": {BELOW: "lz4"}, "share_next": True}, r'"observation" has no codec'),
    ({"codecs": {"observation": "qoi"}, "stack": {"observation": 4}}, r'"observation" has qoi'),
]


@pytest.mark.parametrize(("asked", "match"), REFUSED)
@pytest.mark.parametrize("kind", [LazyTensorStorage, SharedStorage])
def test_codecs_that_cannot_be(kind: Any, asked: dict[str, Any], match: str) -> None:
    with pytest.raises(LayoutError, match=match):
        kind(100, example=one(rows()), **asked)
    with kind(100, **asked) as storage:
        with pytest.raises(LayoutError, match=match):
            storage.default_writer.extend(rows())
        assert storage.schema is None and len(storage) == 0


@pytest.mark.parametrize("asked", [x for x, _ in REFUSED])
def test_on_disk(asked: dict[str, Any], tmp_path: Path) -> None:
    with DiskStorage(tmp_path / "a", 100, **asked) as storage:
        with pytest.raises(LayoutError, match="has (lz4|zstd|qoi).*: on disk, that is not encoded"):
            storage.default_writer.extend(rows())
        assert storage.schema is None
    with pytest.raises(LayoutError, match="on disk, that is not encoded"):
        DiskStorage(tmp_path / "b", 100, example=one(rows()), **asked)


def test_all_that_is_stored_once_or_none() -> None:
    given = rows(state=True)
    both = r'"state" has no codec.*codecs={"observation": "lz4", "state": "lz4"}'
    with LazyTensorStorage(100, codecs={"observation": "lz4"}, share_next=True) as storage:
        with pytest.raises(LayoutError, match=both):
            storage.default_writer.extend(given)
    codecs = {"observation": "lz4", "state": "lz4"}
    with LazyTensorStorage(100, codecs=codecs, share_next=True) as storage:
        storage.default_writer.extend(given)
        assert sharing_of(storage).codec == "lz4"
        assert set(shared(storage)) == {("observation",), ("state",)}


@pytest.mark.parametrize("codec", ["lz4", "zstd:3", "png"])
@pytest.mark.parametrize("share_next", [None, False])
@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_codecs_of_observations_are_for_next_ones_too(
    codec: str, share_next: bool | None, kind: str, tmp_path: Path
) -> None:
    """Or a buffer with a codec would be larger than one without."""
    given = moving_dot()
    sizes = []
    for n, codecs in enumerate(({}, {"observation": codec}, {"observation": codec, BELOW: codec})):
        options: dict[str, Any] = {"codecs": codecs, "share_next": share_next, "stack": {}}
        if kind == "memory":
            storage: Any = LazyTensorStorage(100, **options)
        else:
            storage = DiskStorage(tmp_path / str(n), 100, **options)
        with storage:
            storage.default_writer.extend(given)
            assert {x: c.name for x, c in storage.codecs.items()} == (
                {("observation",): codec, BELOW: codec} if codecs else {}
            )
            batch = everything(storage)
            np.testing.assert_array_equal(batch["observation"], given["observation"])
            np.testing.assert_array_equal(batch[BELOW], given["next"]["observation"])
            sizes.append(bytes_per_step(storage.schema) + storage.blob_bytes // 40)
    assert sizes[1] == sizes[2] < sizes[0] / 2


def moving_dot() -> dict[str, Any]:
    seen = np.zeros((41, 64, 64), np.uint8)
    seen[np.arange(41), 30, np.arange(41)] = 255
    return steps(seen[:-1], seen[1:], ends=range(9, 40, 10))


def test_lossy_codecs_change_only_what_they_were_given_for() -> None:
    given = moving_dot()
    with LazyTensorStorage(100, codecs={"observation": "jpeg:50"}) as storage:
        storage.default_writer.extend(given)
        assert set(storage.codecs) == {("observation",)}
        np.testing.assert_array_equal(everything(storage)[BELOW], given["next"]["observation"])


def test_next_ones_of_another_form_have_none() -> None:
    given = moving_dot()
    given["next"]["observation"] = given["next"]["observation"][:, ::2].copy()
    with LazyTensorStorage(100, codecs={"observation": "zstd"}) as storage:
        storage.default_writer.extend(given)
        assert set(storage.codecs) == {("observation",)}


def test_stores_whose_next_ones_have_no_codec_stay_so(tmp_path: Path) -> None:
    """As those that were made before."""
    given, codecs = moving_dot(), {"observation": "zstd"}
    layout = Layout(one(given)).with_codecs(codecs_of(codecs))
    with DiskStorage(tmp_path / "store", 100) as storage:
        storage.publish(layout)
        storage.default_writer.extend(given)
        assert set(storage.codecs) == {("observation",)}
        ReplayBuffer(storage).save(tmp_path / "saved")
    with DiskStorage(tmp_path / "store", 100, example=one(given), codecs=codecs) as storage:
        assert set(storage.codecs) == {("observation",)}
        storage.default_writer.extend(given)
        np.testing.assert_array_equal(everything(storage)[BELOW], given["next"]["observation"])
    for kind in (
        lambda: LazyTensorStorage(100, codecs=codecs),
        lambda: DiskStorage(tmp_path / "b", codecs=codecs),
    ):
        with kind() as storage:
            ReplayBuffer(storage).load(tmp_path / "saved")
            assert set(storage.codecs) == {("observation",)}
            np.testing.assert_array_equal(everything(storage)[BELOW], given["next"]["observation"])


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_what_nobody_asked_for_is_encoded_row_by_row(codec: str) -> None:
    given = rows(state=True)
    codecs = {"observation": codec, BELOW: codec}
    for asked in ({}, {"stack": {}}, {"stack": {"state": (2, 0)}}):
        with LazyTensorStorage(100, codecs=codecs, **asked) as storage:
            storage.default_writer.extend(given)
            assert set(shared(storage)) == {("state",)}
            assert sharing_of(storage).codec is None
            np.testing.assert_array_equal(everything(storage)[BELOW], given["next"]["observation"])
