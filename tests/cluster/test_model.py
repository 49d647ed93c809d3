"""The model of `python -m benchmarks.cluster`: what bounds what, without measuring anything."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.cluster.model import Constants, batch_parts, predict

BASE = Constants(
    row_bytes=1000,
    copy_bytes_per_s=10e9,
    shared_rows_per_s=1e6,
    tcp_rows_per_s=1e6,
    steps_per_s=1e3,
    sample_s=20e-6,
    call_s=1e-3,
    request_s=1e-4,
    network_bytes_per_s=1.25e9,
    weights_bytes=10e6,
    cores=11,
)


def test_rows_into_shards_grow_with_nodes_and_into_one_table_do_not() -> None:
    few, many = predict(BASE, 10), predict(BASE, 1000)
    assert many.ingest.per_s == pytest.approx(100 * few.ingest.per_s)
    assert few.ingest.per_s == pytest.approx(10 * 10 / (1e-3 + 1e-6))
    assert few.central.bottleneck == "actors" and many.central.bottleneck == "TCP receiver"


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"steps_per_s": 1e9, "shared_rows_per_s": 1e9}, "tape"),
        ({"steps_per_s": 10.0}, "actors"),
    ],
    ids=["tape", "actors"],
)
def test_the_bottleneck_of_ingest(changed: dict[str, float], what: str) -> None:
    assert predict(replace(BASE, **changed), 10).ingest.bottleneck == what


def test_the_bottleneck_of_batches() -> None:
    assert predict(BASE, 1).batches.bottleneck == "gather"
    assert predict(BASE, 1).batches.per_s == pytest.approx(1 / 20e-6)
    assert predict(BASE, 100).batches.bottleneck == "requests"
    assert predict(replace(BASE, row_bytes=10**6), 100).batches.bottleneck == "network"


def test_a_batch_asks_every_shard_and_takes_from_at_most_as_many_as_it_has_rows() -> None:
    for shards, requests in ((1, 0), (3, 4), (1000, 999 + 255)):
        assert batch_parts(BASE, shards)["requests"] == pytest.approx(requests * 1e-4)


def test_weights_leave_by_one_card() -> None:
    assert predict(BASE, 11).weights.per_s == pytest.approx(12.5)
    assert predict(BASE, 11).weights.bottleneck == "network"
