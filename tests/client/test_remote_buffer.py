"""RemoteReplayBuffer: what a ReplayBuffer with the same seed gives, from another process."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from contig import (
    Batch,
    ChunkSampler,
    ClosedError,
    ConnectionClosedError,
    EmptyBufferError,
    LayoutError,
    LazyTensorStorage,
    NothingEligibleError,
    NStepSampler,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    RateLimiter,
    RateLimitError,
    RemoteReplayBuffer,
    ReplayBuffer,
    SamplerWithoutReplacement,
    Server,
    SliceSampler,
)
from contig.server.answers import REQUEST
from contig.server.sampling_service import SamplingService
from contig.testing import steps
from contig.wire import Type
from tests.client.serving import HOST, ROW, asking, client, serving, shared, sockets
from tests.waiting import WAIT_S, Task, until

SAMPLERS: dict[str, Callable[[], Any]] = {
    "uniform": RandomSampler,
    "epochs": SamplerWithoutReplacement,
    "slices": lambda: SliceSampler(slice_len=4),
    "padded": lambda: SliceSampler(slice_len=8, pad_output=True),
    "burn_in": lambda: SliceSampler(slice_len=4, burn_in=2),
    "prioritized": lambda: PrioritizedSampler(alpha=1.0),
    "prioritized slices": lambda: PrioritizedSliceSampler(slice_len=4),
    "n steps": lambda: NStepSampler(n=3, gamma=0.9),
    "chunks": lambda: ChunkSampler(3),
}


def remote(server: Server, table: str = "default", **options: Any) -> RemoteReplayBuffer:
    options.setdefault("prefetch", 0)
    return RemoteReplayBuffer(HOST, server.port, table, **options)


def filled(sampler: Any = None, batch_size: int | None = 16, **options: Any) -> ReplayBuffer:
    """Ten episodes of 3 to 12 steps."""
    storage = LazyTensorStorage(1000, example=ROW)
    buffer = ReplayBuffer(storage, sampler, batch_size=batch_size, seed=3, **options)
    for number in range(10):
        end = "terminated" if number % 2 else "truncated"
        buffer.extend(steps.episode(number, 3 + number, end=end, version=number))
    return buffer


def same(a: Batch, b: Batch) -> None:
    leaves = list(a.keys())
    assert a.shape == b.shape and leaves == list(b.keys())
    assert a.extras == b.extras
    for key in leaves:
        assert a[key].dtype == b[key].dtype and a[key].shape == b[key].shape, key
        assert a[key].tobytes() == b[key].tobytes(), key


# -- sampling -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(SAMPLERS))
def test_the_same_batches_as_a_local_buffer(name: str) -> None:
    local, far = filled(SAMPLERS[name]()), filled(SAMPLERS[name]())
    prioritized = name.startswith("prioritized")
    with serving(far) as server, remote(server) as buffer:
        for turn in range(8):
            size = None if turn % 2 else 8 + 8 * (turn // 2)
            expected, info = local.sample(size, return_info=True)
            got, told = buffer.sample(size, return_info=True)
            same(got, expected)
            assert info.keys() == told.keys()
            assert prioritized == ("priority_weight" in told)
            for key, value in info.items():
                np.testing.assert_array_equal(told[key], value)
            if prioritized:
                rows = info["index"]
                for x in (local, buffer):
                    x.update_priority(rows, np.arange(len(rows)) + 0.5)
        assert buffer.stats() == far.stats() == local.stats()


def test_the_same_batches_from_an_ingest_process() -> None:
    local, far = filled(SliceSampler(slice_len=4)), filled(SliceSampler(slice_len=4))
    with serving(far, process=True) as server, remote(server) as buffer:
        for _ in range(20):
            same(buffer.sample(), local.sample())


@pytest.mark.parametrize("prefetch", [0, 2, 5])
def test_what_is_asked_for_ahead_is_lost_by_nobody(prefetch: int) -> None:
    local, far = filled(), filled()
    turns = 20
    with serving(far) as server, remote(server, prefetch=prefetch) as buffer:
        got = [buffer.sample()["index"].tobytes() for _ in range(turns)]
        drawn = [local.sample()["index"].tobytes() for _ in range(turns + prefetch)]
        # Several threads answer: batches drawn ahead may pass one another, no more than that.
        assert not Counter(got) - Counter(drawn)
        until(lambda: buffer.stats().batches_sampled == turns + prefetch)


def test_batch_sizes_are_the_tables_the_buffers_or_the_calls() -> None:
    with serving(filled(batch_size=16)) as server:
        with remote(server, prefetch=2) as own, remote(server, prefetch=2, batch_size=5) as five:
            for _ in range(4):
                assert len(own.sample()) == 16 and len(five.sample()) == 5
                assert len(own.sample(7)) == 7 and len(five.sample(5)) == 5
                assert len(own.sample(16)) == 16 and len(five.sample(16)) == 16
    with serving(filled(batch_size=None)) as server, remote(server) as buffer:
        with pytest.raises(ValueError, match="batch size"):
            buffer.sample()
        assert len(buffer.sample(3)) == 3


def test_priorities_change_what_is_drawn() -> None:
    far = filled(PrioritizedSampler(alpha=1.0, beta=1.0, eps=0.0), sample_timeout_s=0.05)
    with serving(far) as server, remote(server) as buffer:
        rows = np.arange(len(far))
        priorities = np.zeros(len(far))
        priorities[[10, 20, 30]] = 1.0, 2.0, 5.0
        buffer.update_priority(rows, priorities)
        drawn: Counter[int] = Counter()
        for _ in range(50):
            batch, info = buffer.sample(64, return_info=True)
            drawn.update(batch["index"].tolist())
            weights = dict(zip(info["index"].tolist(), info["priority_weight"].tolist()))
            for row, weight in weights.items():
                assert weight == pytest.approx(1 / priorities[row], rel=1e-5)
        assert set(drawn) == {10, 20, 30}
        shares = np.array([drawn[10], drawn[20], drawn[30]]) / sum(drawn.values())
        np.testing.assert_allclose(shares, np.array([1, 2, 5]) / 8, atol=0.04)
        buffer.update_priority([20], 0.0)
        buffer.update_priority(np.array([10, 30]), [0.0, 0.0])
        with pytest.raises(NothingEligibleError):
            buffer.sample()
        assert buffer.stats().stale_priority_updates == 0
        buffer.update_priority([10**6], [1.0])
        assert buffer.stats().stale_priority_updates == 1


def test_outputs() -> None:
    torch = pytest.importorskip("torch")
    tensordict = pytest.importorskip("tensordict")
    with serving(filled()) as server:
        with remote(server, output="torch") as buffer:
            sample, info = buffer.sample(return_info=True)
            assert isinstance(sample["next", "reward"], torch.Tensor)
            assert sample["observation"].shape == (16, 2)
            np.testing.assert_array_equal(sample["index"].numpy(), info["index"])
        with remote(server, output="tensordict") as buffer:
            sample = buffer.sample()
            assert isinstance(sample, tensordict.TensorDict) and sample.batch_size == (16,)
            assert sample["next", "reward"].shape == (16, 1)
            assert steps.identity({k: sample[k] for k in ("observation", "action")})
        with pytest.raises(ValueError, match="prefetch"):
            remote(server, prefetch=-1)


def test_iteration() -> None:
    with serving(filled()) as server, remote(server, prefetch=3) as buffer:
        for n, batch in enumerate(buffer):
            assert len(steps.identity(batch)) == 16
            if n == 5:
                break


# -- writing --------------------------------------------------------------------------------------


def test_writing_is_what_a_client_does() -> None:
    far = shared(batch_size=4)
    with serving(far) as server, remote(server) as buffer:
        for t in range(3):
            buffer.add(steps.row(0, t))
        buffer.extend(steps.episode(0, 2, start=3))
        buffer.extend_trajectory(steps.episode(1, 3, end=None), truncated=True, policy_version=4)
        buffer.flush(20)
        assert len(buffer) == len(far) == 8
        stats = buffer.stats()
        assert (stats.rows, stats.capacity, stats.rows_written) == (8, 1000, 8)
        assert stats.trajectories == 2
        assert stats == far.stats()
        assert set(steps.identity(buffer.sample(50))) <= {(0, t) for t in range(5)} | {
            (1, t) for t in range(3)
        }
    episodes = far.storage.episodes()
    assert episodes["steps"].tolist() == [5, 3]
    assert episodes["terminated"].tolist() == [True, False]
    assert episodes["truncated"].tolist() == [False, True]
    assert episodes["policy_version"].tolist() == [0, 4]


def test_a_refused_write_leaves_the_buffer_as_it_was() -> None:
    far = filled()
    with serving(far) as server, remote(server) as buffer:
        before = len(buffer)
        bad = steps.episode(0, 3)
        bad["next"]["reward"] = np.zeros((3, 2))
        with pytest.raises(LayoutError, match="reward"):
            buffer.extend(bad)
        buffer.flush(20)
        assert len(buffer) == before


# -- errors ---------------------------------------------------------------------------------------


def test_errors_come_as_what_they_are() -> None:
    tables = {
        "empty": shared(batch_size=4, sample_timeout_s=0.05),
        "short": filled(SliceSampler(slice_len=50, strict_length=True), 50, sample_timeout_s=0.05),
        "slices": filled(SliceSampler(slice_len=4), 16),
        "prioritized": filled(PrioritizedSampler()),
        "limited": shared(
            batch_size=4, limiter=RateLimiter(1.0, min_size=4, error_buffer=8, timeout_s=0.05)
        ),
    }
    with serving(tables) as server:
        with remote(server, "empty") as buffer, pytest.raises(EmptyBufferError, match="empty"):
            buffer.sample()
        with (
            remote(server, "short") as buffer,
            pytest.raises(NothingEligibleError, match="12 steps"),
        ):
            buffer.sample()
        with remote(server, "limited") as buffer, pytest.raises(RateLimitError, match="writers"):
            buffer.sample()
        with remote(server, "slices") as buffer:
            with pytest.raises(ValueError, match="multiple|divisible|slice_len"):
                buffer.sample(15)
            for size in (0, -3):
                with pytest.raises(ValueError, match="batch_size"):
                    buffer.sample(size)
            assert len(buffer.sample()) <= 16
        with remote(server, "prioritized") as buffer:
            for wrong in (-1.0, np.nan):
                with pytest.raises(ValueError, match="priorit"):
                    buffer.update_priority([1, 2], [0.5, wrong])
            with pytest.raises(ValueError, match="2 priorities for 3 rows"):
                buffer.update_priority([1, 2, 3], [0.5, 0.5])
            assert len(buffer.sample()) == 16


def test_an_error_that_was_drawn_ahead_does_not_outlive_its_cause() -> None:
    far = shared(batch_size=4, sample_timeout_s=0.02)
    with serving(far) as server, remote(server, prefetch=3) as buffer:
        with pytest.raises(EmptyBufferError):
            buffer.sample()
        until(lambda: server._run.ingest.stats()["requests_answered"] == 4)
        buffer.extend(steps.episode(0, 5))
        buffer.flush(20)
        for _ in range(6):
            assert len(buffer.sample()) == 4


class Failing:
    """A transform whose `on_sample` raises what it is told to."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def on_sample(self, batch: Batch) -> Batch:
        raise self._error


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyError("boom"), OSError("boom")])
def test_a_failing_transform_is_told(error: Exception) -> None:
    far = filled(transform=Failing(error))
    with serving(far) as server, remote(server, sample_timeout_s=WAIT_S) as buffer:
        with pytest.raises(Exception, match="boom"):
            buffer.sample()
        assert len(buffer) == len(far)


def test_a_batch_that_no_memory_is_large_enough_for_is_refused() -> None:
    with serving(filled()) as server, remote(server, sample_timeout_s=WAIT_S) as buffer:
        with pytest.raises((ValueError, MemoryError, RuntimeError)):
            buffer.sample(1 << 50)


def test_a_batch_larger_than_a_frame_is_refused_with_a_hint() -> None:
    row = {"obs": np.zeros(1024, np.float32), "next": {"done": False}}
    far = shared(example=row, batch_size=4)
    far.extend({"obs": np.ones((4, 1024)), "next": {"done": np.zeros(4, bool)}})
    with serving(far, max_frame=64 << 10) as server, remote(server) as buffer:
        with pytest.raises(ValueError, match="max_frame"):
            buffer.sample(600)
        assert buffer.sample(12)["obs"].sum() == 12 * 1024


def test_samples_that_wait_do_not_hold_up_other_requests() -> None:
    empty = shared(batch_size=4)
    with serving({"empty": empty, "full": filled()}) as server:
        with remote(server, "empty", prefetch=5) as waiting, remote(server, "full") as buffer:
            task = Task(waiting.sample)
            until(lambda: asking(waiting) == 6)
            buffer.sample_timeout_s = 20.0
            try:
                assert len(buffer) > 0
                assert len(buffer.sample()) == 16
                assert task.is_alive()
            finally:
                empty.extend(steps.episode(3, 5))
                assert len(task.result()) == 4


def test_without_a_layout_a_buffer_is_refused_and_leaves_nothing() -> None:
    with serving(shared(example=None)) as server:
        before = sockets()
        for _ in range(3):
            with pytest.raises(ValueError, match="no layout yet"):
                remote(server)
        until(lambda: sockets() == before)


def test_a_refused_output_leaves_no_connection() -> None:
    with serving(filled()) as server:
        for wrong in ({"output": "pandas"}, {"device": "cpu"}):
            with pytest.raises(ValueError, match="output|device"):
                remote(server, **wrong)
        until(lambda: server.stats().connections == 0)


# -- waiting --------------------------------------------------------------------------------------


def test_a_sample_waits_for_the_first_rows() -> None:
    far = shared(batch_size=4)
    with serving(far) as server, remote(server, prefetch=2) as buffer, client(server) as actor:
        task = Task(buffer.sample)
        until(lambda: asking(buffer))
        actor.send_trajectory(steps.episode(3, 5))
        assert {number for number, _ in steps.identity(task.result())} == {3}


def test_a_sample_that_takes_too_long_ends_and_the_buffer_goes_on() -> None:
    far = shared(batch_size=4)
    with serving(far) as server, remote(server, sample_timeout_s=0.05) as buffer:
        with pytest.raises(TimeoutError, match="no batch within"):
            buffer.sample()
        buffer.extend(steps.episode(3, 5))
        buffer.flush(20)
        buffer.sample_timeout_s = 20.0
        assert len(buffer.sample()) == 4
        assert not asking(buffer)


def test_sampling_makes_room_for_what_the_same_buffer_has_written() -> None:
    limiter = RateLimiter(1.0, min_size=1, error_buffer=8)
    far = shared(batch_size=1, limiter=limiter)
    with serving(far) as server:
        buffer = remote(server, sample_timeout_s=20.0)
        try:
            for t in range(20):  # more than may be written before somebody samples
                buffer.add(steps.row(0, t))
                time.sleep(0.002)  # each in a frame of its own: see test_tables for the other case
            for _ in range(20):
                buffer.sample()
            buffer.flush(20)
            assert len(buffer) == 20
        finally:
            with contextlib.suppress(TimeoutError):
                buffer.close(0.1)


# -- many at once, and reconnecting ---------------------------------------------------------------


def test_threads_and_buffers_get_their_own_answers() -> None:
    tables = {
        "a": filled(),
        "b": filled(SliceSampler(slice_len=4)),
        "c": filled(PrioritizedSampler()),
    }
    with serving(tables, process=True) as server, contextlib.ExitStack() as stack:
        buffers = {
            (name, k): stack.enter_context(remote(server, name, prefetch=k))
            for name in tables
            for k in (0, 2)
        }

        def work(name: str, k: int, size: int) -> None:
            buffer = buffers[name, k]
            for turn in range(15):
                batch = buffer.sample(None if turn % 3 else size)
                assert len(steps.identity(batch)) <= (16 if turn % 3 else size)
                if name == "a" or name == "c":
                    assert len(batch) == (16 if turn % 3 else size)
                if name == "c":
                    buffer.update_priority(batch["index"], np.ones(len(batch)))
                assert buffer.stats().trajectories == 10

        tasks = [
            Task(work, name, k, size) for name in tables for k in (0, 2) for size in (4, 8, 12)
        ]
        for task in tasks:
            task.result()


def test_requests_and_rows_outlive_the_ingest_process() -> None:
    far = shared(10_000, batch_size=8)
    far.extend(steps.episode(999, 10))
    rounds = 3
    with serving(far, process=True, max_restarts=rounds) as server:
        with (
            remote(server, prefetch=2, reconnect_s=20.0) as reader,
            remote(server, reconnect_s=20.0) as writer,
        ):
            stop = threading.Event()
            samples = [0]

            def read() -> None:
                while not stop.is_set():
                    assert len(steps.identity(reader.sample())) == 8
                    reader.stats()
                    samples[0] += 1

            def write() -> int:
                number = 0
                while not stop.is_set():
                    writer.extend_trajectory(steps.episode(number, 4))
                    number += 1
                    time.sleep(0.001)
                writer.flush(20)
                return number

            tasks = Task(read), Task(write)
            for _ in range(rounds):
                before = samples[0]
                until(lambda b=before: samples[0] > b + 5 or not tasks[0].is_alive())
                pid = server.pid
                os.kill(pid, signal.SIGKILL)
                until(lambda p=pid: server.pid != p)
            before = samples[0]
            until(lambda: samples[0] > before + 5 or not tasks[0].is_alive())
            stop.set()
            tasks[0].result()
            written = tasks[1].result()
        episodes = far.storage.episodes()
        assert episodes["traj_id"].tolist() == [999, *range(written)]
        assert set(episodes["steps"][1:]) == {4} and episodes["complete"].all()


@contextlib.contextmanager
def service_line() -> Iterator[socket.socket]:
    """An ingest process's end of a line to a service; no thread of it may fail."""
    service = SamplingService({"default": filled()}, 1 << 20)
    failures: list[Any] = []
    hook, threading.excepthook = threading.excepthook, failures.append
    try:
        line = service.attach()
        yield line
        line.close()
        until(lambda: not any(t.name == "contig-service" for t in threading.enumerate()))
    finally:
        threading.excepthook = hook
        service.close()
    assert not failures


def test_the_service_bears_an_ingest_process_that_dies_with_answers_unread() -> None:
    with service_line() as line:
        line.sendall(REQUEST.pack(1, len("default"), Type.STATS, 1, 0) + b"default")
        answered = select.poll()
        answered.register(line, select.POLLIN)
        answered.poll(20_000)


def test_the_service_bears_an_ingest_process_that_dies_in_the_middle_of_a_request() -> None:
    with service_line() as line:
        line.sendall(REQUEST.pack(1, len("default"), Type.SAMPLE, 1, 8) + b"defa")


def test_a_server_that_is_gone_is_told_to_everyone_who_waits() -> None:
    with serving(shared(batch_size=4), process=True) as server:
        buffer = remote(server, reconnect_s=0.2)
        task = Task(buffer.sample)
        until(lambda: asking(buffer))
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(ConnectionClosedError):
            task.result()
        with pytest.raises(ConnectionClosedError):
            buffer.sample()
        buffer.close(0.5)


def test_a_server_that_closes_is_told() -> None:
    with serving(filled()) as server:
        buffer = remote(server)
        buffer.sample()
    with pytest.raises(ConnectionClosedError):
        buffer.sample()
    buffer.close(0.5)


def test_a_server_that_closes_leaves_no_socket_in_its_clients() -> None:
    def three() -> None:
        with serving(filled()) as server:
            buffers = [remote(server) for _ in range(3)]
        for buffer in buffers:
            buffer.close(0.5)

    before = sockets()
    three()
    assert sockets() <= before


def test_close() -> None:
    far = filled()
    with serving(far) as server:
        buffer = remote(server, prefetch=2)
        buffer.sample()
        before = len(far)
        buffer.extend(steps.episode(77, 5))
        buffer.close()  # sends what is left
        assert len(far) == before + 5
        for call in (buffer.sample, buffer.stats, lambda: buffer.add(ROW), lambda: len(buffer)):
            with pytest.raises((ClosedError, ConnectionClosedError)):
                call()
        buffer.close()
        with remote(server) as other:
            other.sample()
        until(lambda: server.stats().connections == 0)
