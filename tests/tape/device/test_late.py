"""What comes over to the host when rows are appended, and when it is waited for."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from contig import DeviceStorage, LayoutError, ReplayBuffer, SliceSampler
from contig.convert import transfers
from contig.testing import OrderedStreams, episode, identity, interleaved, row

torch = pytest.importorskip("torch")

from tests.tape.device.rows import same, tensors  # noqa: E402


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> OrderedStreams:
    ordered = OrderedStreams()
    monkeypatch.setattr(transfers, "streams_of", lambda device: ordered)
    monkeypatch.setattr(transfers, "_shared", {})
    return ordered


def steps(length: int = 6) -> list[Any]:
    return [tensors(step) for step in interleaved([1, 2, 3], length)]


def test_only_marks_come_over_once_per_append(streams):
    storage = DeviceStorage(50, "cpu")
    writer = storage.writer()
    writer.add_step(steps()[0])
    for step in steps()[1:]:
        streams.calls.clear()
        streams.blocks.clear()
        writer.add_step(step)
        assert [c[0] for c in streams.calls if c[0] != "record"] == ["pinned", "to_host", "finish"]
        (block,) = streams.blocks
        # ids, versions, rewards of 8 bytes and three flags, of 3 rows; each column rounded to 16
        assert len(block) == 3 * 32 + 3 * 16
    assert storage.episodes()["complete"].all()
    seqs = np.arange(18)
    assert identity(storage.gather(seqs)[0]) == [(n, t) for t in range(6) for n in (1, 2, 3)]


def test_samples_wait_for_nothing(streams):
    storage = DeviceStorage(50, "cpu")
    storage.writer().extend(tensors(episode(0, 20)))
    buffer = ReplayBuffer(storage, SliceSampler(slice_len=4), batch_size=8, seed=0)
    buffer.sample()
    streams.calls.clear()
    for _ in range(3):
        batch = buffer.sample()
        assert identity(batch) == [(0, int(s)) for s in batch["index"]]
    assert "finish" not in {name for name, _ in streams.calls}
    assert "to_host" not in {name for name, _ in streams.calls}


def test_late_marks_are_waited_for_one_append_later(streams):
    late, plain = DeviceStorage(50, "cpu", late=True), DeviceStorage(50, "cpu")
    one, other = late.writer(), plain.writer()
    seqs = []
    for k, step in enumerate(steps()):
        streams.calls.clear()
        seqs.append(one.add_step(step).tolist())
        assert [name for name, _ in streams.calls].count("finish") == min(k, 1)
        names = [name for name, _ in streams.calls]
        if k:  # it is the append before that is waited for, not this one
            assert names.index("finish") > names.index("to_host")
        assert len(late) == 3 * k
        for value in (step["observation"], step["action"], step["next"]["done"]):
            value.zero_()  # the simulator's own memory, which the next step overwrites
    for step in steps():
        other.add_step(step)
    assert seqs == [[], *([3 * k, 3 * k + 1, 3 * k + 2] for k in range(5))]
    late.flush()
    assert len(late) == 18
    same(late.gather(np.arange(18))[0], plain.gather(np.arange(18))[0])
    names = ["first", "steps", "return", "terminated", "complete"]
    assert late.episodes()[names].tolist() == plain.episodes()[names].tolist()


@pytest.mark.parametrize("form", [tensors, lambda x: x])
def test_late_without_streams(form):
    with DeviceStorage(40, "cpu", late=True) as storage:
        writer = storage.writer()
        for n in range(6):
            rows = form(episode(n, 5))
            writer.extend(rows)
            rows["observation"][:] = 0
            rows["next"]["done"][:] = False
        assert len(storage) == 25
        assert writer.add(row(6, 0)) == 30  # at once, behind what was late
        storage.empty()
        assert len(storage) == 0
        writer.extend(form(episode(7, 3)))
        storage.flush()
        assert identity(storage.gather(np.arange(31, 34))[0]) == [(7, t) for t in range(3)]
        assert storage.episodes()["complete"].tolist() == [True]


def test_late_rows_that_are_refused_say_so_one_append_later():
    with DeviceStorage(40, "cpu", late=True) as storage:
        writer = storage.writer()
        writer.extend(tensors(episode(0, 3)))
        bad = tensors(episode(1, 3))
        bad["next"]["done"] = torch.tensor([True, False, False])
        assert writer.extend(bad).tolist() == [0, 1, 2]
        with pytest.raises(LayoutError, match="terminated"):
            writer.extend(tensors(episode(2, 3)))
        writer.extend(tensors(episode(3, 3)))
        storage.flush()
        assert identity(storage.gather(np.arange(6))[0])[3:] == [(3, t) for t in range(3)]


REFUSED = {
    "an unknown field": {"fields": {"nope": 1}},
    "a field of another shape": {"fields": {"task": np.zeros((2, 2))}},
    "a field with another value": {"fields": {"task": 0.5}},
    "too many fields": {"fields": [{"task": 1}, None]},
    "no flags": {"without": ("done", "terminated", "truncated")},
    "another number of envs": {"envs": (1, 2)},
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_late_rows_whose_error_needs_no_marks_are_refused_at_once(wrong):
    """It would be somebody else's an append later, whose rows would not be stored."""
    about = dict(REFUSED[wrong])
    envs, without = about.pop("envs", (1, 2, 3)), about.pop("without", ())
    with DeviceStorage(40, "cpu", late=True, fields={"task": np.int64(0)}) as storage:
        writer = storage.writer()
        first, second, third = steps(3)
        writer.add_step(first)
        bad = second if envs == (1, 2, 3) else tensors(next(interleaved(envs, 3)))
        bad["next"] = {k: v for k, v in bad["next"].items() if k not in without}
        with pytest.raises(ValueError, match="fields|task|given|envs"):
            writer.add_step(bad, **about)
        assert writer.add_step(third).tolist() == [0, 1, 2]
        storage.flush()
        found = identity(storage.gather(np.arange(6))[0])
        assert found == [(n, t) for t in (0, 2) for n in (1, 2, 3)]


def test_late_fields_are_those_of_the_call():
    with DeviceStorage(40, "cpu", late=True, fields={"task": np.int64(0)}) as storage:
        writer, tasks = storage.writer(), np.zeros(3, np.int64)
        for step in interleaved([1, 2, 3], 2):
            tasks[:] = [1, 2, 3]
            writer.add_step(tensors(step), fields={"task": tasks})
            tasks[:] = 99
        storage.flush()
        assert storage.episodes()["task"].tolist() == [1, 2, 3]


def test_another_thread_does_not_settle_what_is_late():
    """Trajectories go on in one thread only, so that a learner's flush leaves them alone."""
    with DeviceStorage(40, "cpu", late=True) as storage:
        writer = storage.writer()
        writer.extend(tensors(episode(0, 3, end=None)))
        thread = threading.Thread(target=storage.flush)
        thread.start()
        thread.join()
        assert len(storage) == 0
        writer.extend(tensors(episode(0, 3, start=3)))
        storage.flush()
        assert storage.episodes()["steps"].tolist() == [6]


def test_late_fields():
    with DeviceStorage(40, "cpu", late=True, fields={"task": np.int64(0)}) as storage:
        writer = storage.writer()
        for n in range(3):
            writer.extend(tensors(episode(n, 2)), fields={"task": n})
        storage.flush()
        assert storage.episodes()["task"].tolist() == [0, 1, 2]


def test_writes_and_reads_on_several_streams_are_in_order(streams):
    storage = DeviceStorage(20, "cpu")
    writer = storage.writer()
    writer.extend(tensors(episode(0, 10)))
    aside = streams.side()
    streams.calls.clear()
    with streams.on(aside):
        storage.gather(np.arange(4))
        assert ("wait", aside.name) in streams.calls  # for the write, on another stream
        batch, _ = storage.gather(np.arange(4))
    streams.calls.clear()
    kept = len(streams.kept)
    assert identity(batch) == [(0, t) for t in range(4)]
    assert ("wait", "current") in streams.calls  # for the gather, before its rows are used
    assert len(streams.kept) > kept  # and their memory is not given to others meanwhile
    streams.calls.clear()
    writer.extend(tensors(episode(1, 10)))
    assert ("wait", "current") in streams.calls  # for the read, before it is overwritten


def test_marks_come_over_in_one_copy_without_streams_too():
    """Of devices that have none: one tensor goes over, whatever is in it."""
    columns = [torch.arange(5), torch.tensor(True), torch.zeros(0, 3), torch.rand(3, 2)[:, :1]]
    whole = transfers.packed(columns)
    assert whole.dtype == torch.uint8 and len(whole) % 16 == 0
    for one, other in zip(transfers.unpacked(whole.clone(), columns), columns):
        assert one.dtype == other.dtype and torch.equal(one, other)
