"""Several streams: whatever was made on one is used on another behind it, and is kept meanwhile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from contig import DeviceStorage, HindsightRelabel, ReplayBuffer, ReplayBufferEnsemble, SliceSampler
from contig.batch import stack_batches
from contig.convert import transfers
from contig.testing import OrderedStreams, episode, identity, interleaved

torch = pytest.importorskip("torch")

from tests.tape.device.races import Races  # noqa: E402
from tests.tape.device.rows import goals, rollout, tensors  # noqa: E402


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> OrderedStreams:
    ordered = OrderedStreams()
    monkeypatch.setattr(transfers, "streams_of", lambda device: ordered)
    monkeypatch.setattr(transfers, "_shared", {})
    return ordered


def stored(*trees: Any, **options: Any) -> DeviceStorage:
    storage = DeviceStorage(100, "cpu", **options)
    for tree in trees:
        storage.writer().extend(tensors(tree))
    storage.flush()
    return storage


def watched(streams: OrderedStreams, *storages: DeviceStorage) -> Races:
    """What sees every operation from now on."""
    return Races(streams, *(storage.memory.rows for storage in storages))


def used(tree: Any) -> Any:
    """Has the calling thread's stream use all leaves."""
    if isinstance(tree, dict):
        return {key: used(value) for key, value in tree.items()}
    return tree.clone()


def test_the_check_itself(streams):
    """What is not waited for, or not kept, is noticed."""
    aside = streams.side()
    with Races(streams):
        with streams.on(aside):
            made = torch.ones(3) * 2
            event = streams.record(aside)
        with pytest.raises(AssertionError, match="uses what"):
            made * 2
        streams.wait(streams.current(), event)
        with pytest.raises(AssertionError, match="not kept"):
            made * 2
        streams.keep(made, streams.current())
        made * 2
        with streams.on(aside), pytest.raises(AssertionError, match="changes what"):
            made.zero_()


@pytest.mark.parametrize("verb", ["add_step", "extend"])
def test_late_rows_are_written_behind_their_copy(streams, verb):
    storage = stored(episode(0, 3), late=True)
    writer, aside = storage.writer(), streams.side()
    with watched(streams, storage):
        for n in range(1, 5):
            with streams.on(aside if n % 2 else streams.current()):
                if verb == "extend":
                    writer.extend(tensors(episode(n, 3)))
                else:
                    writer.add_step(tensors(next(iter(interleaved([n, n + 1, n + 2], 1)))))
        storage.flush()
        batch = storage.gather(np.arange(15))[0]
        used(batch.to("cpu"))
    steps = [(n, t) for n in range(1, 5) for t in range(3)]
    if verb == "add_step":
        steps = [(n + k, 0) for n in range(1, 5) for k in range(3)]
    assert identity(batch)[3:] == steps


@pytest.mark.parametrize("output", ["torch", "tensordict"])
@pytest.mark.parametrize("slices", [False, True])
def test_relabelled_rows_are_used_behind_what_was_put_there(streams, slices, output):
    pytest.importorskip("tensordict")
    storage = stored(*(goals(n, 8) for n in range(5)))
    relabel = HindsightRelabel(
        reward_fn=lambda achieved, goal, rows: (achieved - goal).sum(-1).double(),
        sampler=SliceSampler(slice_len=2) if slices else None,
    )
    buffer = ReplayBuffer(storage, relabel, batch_size=8, seed=0, output=output)
    plain = ReplayBuffer(storage, relabel, batch_size=8, seed=0, output="numpy")
    aside = streams.side()
    with watched(streams, storage):
        with streams.on(aside):
            batch = buffer.draw()  # what a prefetching thread does
        out = buffer._output(batch)
        seen = {key: used(out[key]) for key in ("desired_goal", "observation", "index")}
        reward = used(out["next", "reward"])
    expected = plain.sample()
    assert seen["index"].tolist() == expected["index"].tolist()
    np.testing.assert_array_equal(seen["desired_goal"], expected["desired_goal"])
    np.testing.assert_array_equal(reward.reshape(-1), expected["next", "reward"])


DERIVED: dict[str, Any] = {
    "rows": lambda batch: batch[np.array([1, 3, 5])],
    "a mask": lambda batch: batch[np.arange(6) % 2 == 1],
    "a part": lambda batch: batch[1:4],
    "dims": lambda batch: batch.reshape(2, 3),
    "leaves": lambda batch: batch.with_leaves({"t": np.arange(6), "twice": batch["action"] * 2}),
    "joined": lambda batch: stack_batches([batch, batch]),
    "several": lambda batch: stack_batches([batch[:4], batch[2:]]).reshape(4, 2)[np.array([2, 0])],
}


@pytest.mark.parametrize("name", DERIVED)
@pytest.mark.parametrize("where", ["made aside", "used aside", "three streams"])
def test_batches_made_of_others_are_used_behind_them(streams, name, where):
    storage = stored(episode(2, 10))
    first, second, third = streams.current(), streams.side(), streams.side()
    order = {
        "made aside": (second, second, first),
        "used aside": (first, first, second),
        "three streams": (first, second, third),
    }
    gather, derive, use = order[where]
    with watched(streams, storage):
        with streams.on(gather):
            batch = storage.gather(np.arange(6))[0]
        with streams.on(derive):
            other = DERIVED[name](batch)
        with streams.on(use):
            used(other.to("cpu"))
            used({path: other[path] for path in [("observation",), ("next", "observation")]})
    assert (other["observation"].reshape(-1, 2)[:, 0] == 2).all()


def test_batches_of_an_ensemble(streams):
    storages = [stored(episode(n, 20)) for n in range(2)]
    buffers = [ReplayBuffer(s, seed=n) for n, s in enumerate(storages)]
    ensemble = ReplayBufferEnsemble(*buffers, sample_from_all=True, seed=0)
    aside = streams.side()
    with watched(streams, *storages):
        with streams.on(aside):
            batch = ensemble._next_batch(8)
        out = ensemble._output(batch)
        used(out["observation"])
    assert [n for n, _ in identity(out)] == out["buffer_ids"].tolist()


def test_rollouts_on_several_streams(streams):
    storage = DeviceStorage(100, "cpu")
    buffer = ReplayBuffer(storage, batch_size=8, seed=0)
    rollout().to_replay(buffer)
    aside = streams.side()
    with watched(streams, storage):
        for k in range(4):
            with streams.on(aside if k % 2 else streams.current()):
                rollout().to_replay(buffer)
                used(buffer.sample())


def test_marks_that_were_made_on_the_device_follow_their_rows(streams):
    """Rewards of a reward_fn stay on the device through everything that is made of a batch."""
    storage = stored(*(goals(n, 8) for n in range(3)))
    relabel = HindsightRelabel(k=1, reward_fn=lambda a, g, rows: -torch.arange(1.0, len(rows) + 1))
    buffer = ReplayBuffer(storage, relabel, batch_size=6, seed=0)
    batch = buffer.draw()
    chosen = np.flatnonzero(batch["collector", "relabeled"])
    streams.calls.clear()
    parts = {
        "the same": batch,
        "dims": batch.reshape(2, 3),
        "leaves": batch.with_leaves({"t": np.arange(6)}),
        "joined": stack_batches([batch, batch]),
    }
    assert ("finish", "current") not in streams.calls
    for name, part in parts.items():
        for rewards in (part.to("cpu")["next", "reward"], part["next", "reward"]):
            flat = np.asarray(rewards).reshape(-1)[-6:]
            assert flat[chosen].tolist() == [-1.0 * k for k in range(1, len(chosen) + 1)], name
            assert (np.delete(flat, chosen) > 0).all(), name
