"""Leaves with codecs from clients: encoded where the row is made, sent and stored so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from contig import (
    LayoutError,
    LazyTensorStorage,
    RemoteReplayBuffer,
    ReplayBuffer,
    SharedStorage,
)
from contig.codecs import codec_of, encode_rows
from contig.tape.decoding import stored_bytes
from tests.client.scripts import writing
from tests.client.serving import HOST, client, serving
from tests.codecs.frames import H, W, check, codecs, pixels, rows


def write(writer: Any) -> None:
    """60 rows, by every verb."""
    for n in range(5):
        writer.add(rows(n, n == 4))
    writer.extend(rows(np.arange(5, 20), np.arange(5, 20) % 5 == 4))
    writer.extend_trajectory(rows(np.arange(20, 40)), truncated=True)
    for n in range(40, 60, 5):
        writer.add_step(rows(np.arange(n, n + 5)), np.arange(5))


@pytest.mark.parametrize("name", ["lz4", "png"])
@pytest.mark.parametrize("kind", ["tcp", "remote", "shared"])
@pytest.mark.parametrize("process", [False, True])
def test_what_clients_write(kind: str, name: str, process: bool) -> None:
    storage = SharedStorage(500, example=rows(0), codecs=codecs(name))
    buffer = ReplayBuffer(storage, batch_size=16, seed=0)
    with serving(buffer, process=process) as server, writing(kind, server) as far:
        write(far)
    everything = buffer[:]
    order = np.argsort(everything["t"])
    assert everything["t"][order].tolist() == list(range(60))
    check(everything)
    # Encoded by the client: the same bytes as here.
    expected = encode_rows(codec_of(name), pixels(everything["t"]))
    assert [bytes(x) for x in stored_bytes(storage, "pixels", np.arange(60))] == expected
    storage.close()


@pytest.mark.parametrize("process", [False, True])
def test_samples_from_afar_are_decoded(process: bool) -> None:
    storage = SharedStorage(500, example=rows(0), codecs=codecs("zstd"))
    buffer = ReplayBuffer(storage, batch_size=16, seed=0)
    with serving(buffer, process=process) as server:
        with RemoteReplayBuffer(HOST, server.port) as far:
            write(far)
            far.flush(60)
            batch = far.sample()
            assert batch["pixels"].shape == (16, H, W, 3)
            check(batch)
    storage.close()


@pytest.mark.parametrize("process", [False, True])
def test_a_table_without_a_layout_takes_the_first_clients(process: bool) -> None:
    """The client does not know of codecs, and need not: the storage does."""
    with SharedStorage(100, codecs=codecs("lz4")) as storage:
        buffer = ReplayBuffer(storage, batch_size=4, seed=0)
        with serving(buffer, process=process) as server:
            with client(server, rows(0)) as far:
                far.send_trajectory(rows(np.arange(6)), truncated=True)
                far.wait(60)
            assert {c.name for c in storage.codecs.values()} == {"lz4"}
            with client(server, rows(0)) as far:
                far.send_trajectory(rows(np.arange(6, 9)), truncated=True)
                far.wait(60)
            assert buffer[:]["t"].tolist() == list(range(9))
            check(buffer[:])


def test_bytes_that_are_encoded_already_and_what_is_refused() -> None:
    encoded = encode_rows(codec_of("jpeg:60"), pixels(np.arange(4)))
    storage = LazyTensorStorage(100, example=rows(0), codecs={"pixels": "jpeg:90"})
    buffer = ReplayBuffer(storage, batch_size=4)
    with serving(buffer) as server, client(server) as far:
        far.send_trajectory({**rows(np.arange(4)), "pixels": encoded}, truncated=True)
        for wrong in (b"no image", np.zeros((H, W), np.uint8)):
            with pytest.raises(LayoutError, match='"pixels"'):
                far.send({**rows(4), "pixels": wrong})
        far.wait(60)
        assert [bytes(x) for x in stored_bytes(storage, "pixels", np.arange(4))] == encoded


def test_step_by_step() -> None:
    storage = LazyTensorStorage(100, example=rows(0), codecs=codecs("zstd"))
    buffer = ReplayBuffer(storage, batch_size=4)
    with serving(buffer) as server, client(server) as far:
        with far.writer() as writer:
            for n in range(5):
                step = rows(n)
                del step["next"]["done"]
                writer.append(step)
            writer.end_episode(terminated=True)
        far.wait(60)
        assert buffer[:]["t"].tolist() == list(range(5))
        check(buffer[:])
