"""Batches that go to a device: who waits for whom, and when page-locked memory is used again.

`OrderedStreams` copies as late as it may, so that whatever is not waited for has other values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from contig import Batch, DeviceStorage, LazyTensorStorage, ReplayBuffer, SliceSampler
from contig.convert import Transfers, transfers
from contig.testing import OrderedStreams, World, episode, identity

torch = pytest.importorskip("torch")


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> OrderedStreams:
    ordered = OrderedStreams()
    monkeypatch.setattr(transfers, "streams_of", lambda device: ordered)
    monkeypatch.setattr(transfers, "_shared", {})
    return ordered


def filled(**options: Any) -> tuple[ReplayBuffer, World]:
    storage = LazyTensorStorage(500)
    world = World(storage)
    world.write(6)
    return ReplayBuffer(storage, seed=0, **options), world


@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("output", [None, "torch", "tensordict"])
def test_samples_have_arrived_when_they_are_used(streams, prefetch, output):
    buffer, world = filled(batch_size=16, prefetch=prefetch, output=output, device="cpu")
    plain, _ = filled(batch_size=16)
    for _ in range(8):
        batch, expected = buffer.sample(), plain.sample()
        assert identity(batch) == [world.step_at[s] for s in batch["index"].tolist()]
        assert batch["index"].tolist() == expected["index"].tolist()
    buffer.close()


def test_the_copy_is_aside_and_only_the_consumers_stream_waits(streams):
    buffer, _ = filled(batch_size=8, prefetch=1, device="cpu")
    for _ in range(4):
        buffer.sample()
    buffer.close()
    calls = streams.calls
    first = calls.index(("to_device", "side 0"))
    assert calls[first + 1] == ("record", "side 0")
    waits = [i for i, call in enumerate(calls) if call == ("wait", "current")]
    records = [i for i, call in enumerate(calls) if call == ("record", "side 0")]
    assert len(waits) == 4
    assert all(records[k] < waits[k] for k in range(4))  # each after its own copy
    assert calls.count(("keep", "current")) == 4
    assert not [call for call in calls if call[0] == "finish"]  # no thread waits
    assert {name for _, name in calls if name.startswith("side")} == {"side 0"}


def test_without_prefetch_the_copy_is_on_the_callers_stream(streams):
    buffer, _ = filled(batch_size=8, device="cpu")
    buffer.sample()
    assert streams.calls == [("pinned", ""), ("to_device", "current"), ("record", "current")]


def test_blocks_are_used_again_but_not_before_their_copy(streams):
    sender = Transfers(streams, blocks=2)
    data = [np.full(100, n, np.uint8) for n in range(6)]
    under_way = [sender.send(x, aside=True) for x in data[:3]]
    assert len(streams.blocks) == 3  # none of them is free yet
    streams.run()
    later = [sender.send(x, aside=True) for x in data[3:5]]
    assert len(streams.blocks) == 3  # two were kept
    assert [a.tensor()[0].item() for a in (*under_way, *later)] == [0, 1, 2, 3, 4]
    streams.run()
    sender.send(data[5][:50])  # a smaller one has room in a block, too
    assert len(streams.blocks) == 3


def test_blocks_that_are_filled_too_early_would_be_noticed(streams):
    """The check itself: a pool that does not ask for events gives wrong values."""
    sender = Transfers(streams, blocks=1)
    streams.done = lambda event: True  # type: ignore[method-assign]
    first = sender.send(np.full(10, 1, np.uint8), aside=True)
    sender.send(np.full(10, 2, np.uint8), aside=True)
    assert first.tensor().tolist() == [2] * 10


def test_what_is_in_page_locked_memory_is_not_copied_there_again(streams):
    sender = Transfers(streams, blocks=1)
    mine = streams.pinned(20)
    mine.copy_(torch.arange(20, dtype=torch.uint8))
    there = [sender.send(mine.numpy(), aside=True) for _ in range(3)]
    assert len(streams.blocks) == 1
    assert all(x.tensor().tolist() == list(range(20)) for x in there)


def test_page_locked_memory_is_held_until_its_copy_has_ended(streams):
    sender = Transfers(streams, blocks=1)
    mine = streams.pinned(20)
    mine.copy_(torch.arange(20, dtype=torch.uint8))
    there = sender.send(mine.numpy(), aside=True)
    del mine  # nobody else has it; what was given back has other bytes
    assert there.tensor().tolist() == list(range(20))
    other = streams.pinned(20)
    other.fill_(7)
    sender.send(other.numpy(), aside=True)  # the first one is let go
    assert streams.blocks[0].tolist() != list(range(20))


def test_page_locked_memory_is_the_hosts_whatever_the_default(streams):
    """A default device, or inference mode, is whoever computes' and not the pool's."""
    sender = Transfers(streams, blocks=1)
    with torch.inference_mode():
        sender.send(np.full(10, 1, np.uint8))
    streams.run()
    assert sender.send(np.full(10, 2, np.uint8)).tensor().tolist() == [2] * 10
    assert len(streams.blocks) == 1


def test_cuda_pins_memory_of_the_host(monkeypatch):
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(torch, "empty", lambda *_, **options: asked.append(options))
    transfers.CudaStreams("cuda").pinned(4)
    assert asked == [{"dtype": torch.uint8, "device": "cpu", "pin_memory": True}]


def test_a_prefetching_thread_has_a_stream_of_its_own(streams):
    """Rows on a device that are gathered ahead: the consumer's stream waits for the thread's."""
    storage = DeviceStorage(200, "cpu")
    world = World(storage)
    world.write(4)
    buffer = ReplayBuffer(storage, batch_size=8, seed=0, prefetch=1)
    buffer.sample()
    for _ in range(4):
        streams.calls.clear()
        streams.kept.clear()
        batch = buffer.sample()
        assert ("wait", "current") in streams.calls and streams.kept
        assert identity(batch) == [world.step_at[s] for s in batch["index"].tolist()]
    assert ("record", "thread 1") in streams.calls
    buffer.close()


def test_growing_batches_take_the_place_of_small_blocks(streams):
    sender = Transfers(streams, blocks=1)
    for size in (10, 1000, 1000, 1000):
        sender.send(np.zeros(size, np.uint8))
        streams.run()
    assert [len(block) for block in streams.blocks] == [10, 1000]


def test_what_was_drawn_ahead_is_thrown_away_by_empty(streams):
    buffer, world = filled(batch_size=8, prefetch=2, device="cpu")
    buffer.sample()
    buffer.empty()
    world.write(3)
    batch = buffer.sample()
    assert batch["index"].min() >= 0
    assert identity(batch) == [world.step_at[s] for s in batch["index"].tolist()]
    buffer.close()


def test_info_and_slices_of_batches_on_their_way(streams):
    storage = LazyTensorStorage(200)
    world = World(storage)
    world.write(4)
    sampler = SliceSampler(slice_len=4, strict_length=False)
    buffer = ReplayBuffer(storage, sampler, batch_size=16, seed=1, prefetch=2, device="cpu")
    batch, info = buffer.sample(return_info=True)
    assert isinstance(info["index"], np.ndarray)
    assert info["index"].tolist() == batch["index"].tolist()
    assert bool(batch["is_init"][0])
    other = buffer.sample(8)  # aside from the prefetcher
    assert len(other["index"]) <= 8
    buffer.close()


def test_batch_to_and_pin(streams):
    batch = Batch.from_tree(episode(3, 5))
    if not torch.cuda.is_available():
        assert batch.pin() is batch  # nobody has a use for page-locked memory
    assert batch.to("cpu")["observation"].data_ptr() == batch["observation"].ctypes.data
    assert streams.calls == []
    there = batch.to("meta")  # any device that is not the CPU, as far as the streams go
    assert streams.calls == [("pinned", ""), ("to_device", "current"), ("record", "current")]
    assert identity(there) == [(3, t) for t in range(5)]
    assert there["next", "reward"].data_ptr() != batch["next", "reward"].ctypes.data


def test_a_device_says_torch():
    buffer, _ = filled(batch_size=4, device="cpu")
    assert buffer.output == "torch"
    assert isinstance(buffer.sample()["observation"], torch.Tensor)
    with pytest.raises(ValueError, match="device"):
        ReplayBuffer(output="numpy", device="cpu")


def test_a_device_that_is_not_there():
    with pytest.raises(ValueError, match="nowhere"):
        ReplayBuffer(device="nowhere")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="no CUDA device"):
            ReplayBuffer(device="cuda")


def test_the_cpu_costs_no_copy():
    buffer, _ = filled(batch_size=4, device="cpu")
    batch = buffer.draw()
    tensors = buffer._output(batch)
    assert tensors["observation"].data_ptr() == batch["observation"].ctypes.data
