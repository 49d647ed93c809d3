"""The sampling service: how much may be asked at a time, and its threads, which end with it."""

from __future__ import annotations

import os
import signal
import struct
import threading

import numpy as np
import pytest

from contig import (
    EmptyBufferError,
    LazyTensorStorage,
    PrioritizedSampler,
    RemoteReplayBuffer,
    ReplayBuffer,
    wire,
)
from contig.server.sampling_service import answer_request
from contig.testing import steps
from contig.wire import Type
from tests.client.serving import HOST, asking, serving, shared
from tests.waiting import Task, until


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("contig")]


# -- how much may be asked at a time ---------------------------------------------------------------


def test_more_samples_ahead_than_a_server_takes_at_a_time() -> None:
    """They are asked for as answers come."""
    buffer = shared(batch_size=2)
    buffer.extend_trajectory(steps.episode(0, 20))
    ahead = wire.MAX_REQUESTS + 40
    with serving(buffer) as server:
        with RemoteReplayBuffer(HOST, server.port, prefetch=ahead) as far:
            for _ in range(5):
                assert len(far.sample()) == 2
            until(lambda: far.stats().batches_sampled == ahead + 5)
        assert server.stats().rejected == {}


def test_large_requests_of_several_threads_take_turns() -> None:
    """Each of them alone is more than half of what a server takes."""
    buffer = shared(batch_size=2, sampler=PrioritizedSampler())
    buffer.extend_trajectory(steps.episode(0, 20))
    index = np.resize(np.arange(20), int(0.6 * wire.MAX_REQUEST_BYTES) // 16)
    with serving(buffer) as server, RemoteReplayBuffer(HOST, server.port) as far:
        tasks = [Task(far.update_priority, index, np.ones(len(index))) for _ in range(4)]
        for task in tasks:
            task.result()
        huge = np.resize(index, 2 * wire.MAX_REQUEST_BYTES // 16)  # alone, it may be larger
        far.update_priority(huge, np.ones(len(huge)))
        assert server.stats().rejected == {}


def test_what_nobody_collects_is_not_kept() -> None:
    """Whoever asked was interrupted before it could: the answers are dropped as they come."""
    buffer = shared(batch_size=2)
    buffer.extend_trajectory(steps.episode(0, 20))
    turns = 3 * wire.MAX_REQUESTS
    with serving(buffer) as server:
        with RemoteReplayBuffer(HOST, server.port, prefetch=0) as far:
            for _ in range(turns):
                far._ask(2)
            until(lambda: asking(far) == 0, "all answers")
            session = far._client.asking.thread
            assert session.requests.held == 0
            assert far.stats().batches_sampled == turns
            kept = far._ask(2)
            until(lambda: kept.answer is not None, "one that is wanted")
            assert session.requests.held == 1
        assert server.stats().rejected == {}


def test_a_lost_connection_asks_again_only_for_what_is_wanted() -> None:
    buffer = shared(batch_size=2)  # empty: samples wait for the first rows
    with serving(buffer, process=True, max_restarts=1) as server:
        with RemoteReplayBuffer(HOST, server.port, prefetch=0) as far:
            kept = [far._ask(2) for _ in range(2)]
            for _ in range(5):
                far._ask(2)
            until(lambda: asking(far) == 7, "all of them")
            pid = server.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            until(lambda: asking(far) == 2, "those that are asked again")
            buffer.extend_trajectory(steps.episode(0, 20))
            until(lambda: all(k.answer for k in kept), "their answers")
            assert asking(far) == 0


def test_who_may_not_ask_waits_no_longer_than_told() -> None:
    buffer = shared(batch_size=2)  # empty: samples wait for the first rows
    with serving(buffer) as server:
        with RemoteReplayBuffer(HOST, server.port, prefetch=0, sample_timeout_s=0.2) as far:
            for _ in range(wire.MAX_REQUESTS):
                far._ask(2)
            with pytest.raises(TimeoutError, match="no answers within"):
                far.sample()
            assert asking(far) == wire.MAX_REQUESTS and server.stats().rejected == {}


# -- its threads ----------------------------------------------------------------------------------


@pytest.mark.parametrize("process", [False, True])
def test_the_threads_of_a_server_end_with_it(process: bool) -> None:
    before = threads()
    buffer = shared(batch_size=2)
    with serving(buffer, process=process) as server:
        port = server.port
        with RemoteReplayBuffer(HOST, server.port) as far:
            far.add(steps.row(0, 0))
            far.flush(20)
            assert len(far.sample()) == 2
        during = threads()
        assert len(during) > len(before)
    assert threads() == before
    assert server.port == port  # who looks it up late is not told that it never was started


@pytest.mark.parametrize("process", [False, True])
def test_a_sample_that_waits_for_rows_ends_with_the_server(process: bool) -> None:
    before = threads()
    buffer = shared(batch_size=2, sample_timeout_s=1000.0)
    with serving(buffer, process=process) as server:
        far = RemoteReplayBuffer(HOST, server.port, prefetch=10)
        sampling = Task(far.sample)
        until(lambda: asking(far) == 11)
        until(lambda: server.stats().bytes_in > 11 * wire.HEADER_BYTES)
    with pytest.raises((ConnectionError, EmptyBufferError)):
        sampling.result()
    far.close()
    until(lambda: threads() == before)


def test_encoded_rows_count_as_what_they_are_decoded() -> None:
    """A sample that is too large is refused before anything is drawn, or decoded."""
    buffer = ReplayBuffer(LazyTensorStorage(100, codecs={"x": "lz4"}), batch_size=4)
    buffer.extend({"x": np.zeros((10, 84, 84), np.uint8), "done": np.arange(10) == 9})
    (answer,) = answer_request(buffer, Type.SAMPLE, 1, struct.pack("<Q", 1000), 1 << 20)
    assert b"1000 rows of 7059 bytes are more than a frame may have" in answer
    assert buffer.stats().rows_sampled == 0
    assert len(answer_request(buffer, Type.SAMPLE, 1, struct.pack("<Q", 100), 1 << 20)) == 2
