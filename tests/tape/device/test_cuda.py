"""On a CUDA device, where there is one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from contig import (
    Batch,
    DeviceStorage,
    HindsightRelabel,
    LazyTensorStorage,
    NStepSampler,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    SliceSampler,
)
from contig.testing import World, episode, identity, interleaved

torch = pytest.importorskip("torch")

from tests.tape.device.rows import goals, tensors  # noqa: E402

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here"),
]

SAMPLERS: dict[str, Any] = {
    "rows": RandomSampler,
    "n steps": lambda: NStepSampler(3, 0.9),
    "priorities": PrioritizedSampler,
    "slices": lambda: SliceSampler(slice_len=4, strict_length=False),
}


def host(batch: Any, path: Any) -> Any:
    return batch[path].cpu().numpy()


@pytest.mark.parametrize("prefetch", [0, 3])
def test_batches_arrive(prefetch):
    storage = LazyTensorStorage(1000)
    world = World(storage)
    world.write(10)
    buffer = ReplayBuffer(storage, batch_size=64, seed=0, device="cuda", prefetch=prefetch)
    stream = torch.cuda.Stream()
    for k in range(50):
        with torch.cuda.stream(stream if k % 2 else torch.cuda.current_stream()):
            batch = buffer.sample()
            assert batch["observation"].is_cuda
            doubled = {key: batch[key] * 1 for key in ("observation", "action", "index")}
        torch.cuda.synchronize()
        steps = identity({key: doubled[key].cpu() for key in ("observation", "action")})
        assert steps == [world.step_at[s] for s in doubled["index"].tolist()]
    buffer.close()


def test_pin():
    batch = Batch.from_tree(episode(0, 5))
    pinned = batch.pin()
    assert torch.from_numpy(pinned.block).is_pinned()
    assert pinned.pin() is pinned
    assert identity(pinned) == identity(batch)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", SAMPLERS)
def test_samples_are_those_of_host_memory(name, late):
    there, here = DeviceStorage(60, "cuda", late=late), LazyTensorStorage(60)
    for storage, form in ((there, lambda x: tensors(x, "cuda")), (here, lambda x: x)):
        writer = storage.writer()
        for n in range(12):
            writer.extend(form(episode(n, 3 + n % 5)))
            for step in interleaved([100 + 2 * n, 101 + 2 * n], 3):
                writer.add_step(form(step))
        storage.flush()
    buffers = [ReplayBuffer(s, SAMPLERS[name](), batch_size=16, seed=5) for s in (there, here)]
    for _ in range(5):
        one, other = (b.sample() for b in buffers)
        assert one["observation"].is_cuda and one["index"].is_cuda
        for path in other.keys():  # noqa: SIM118
            np.testing.assert_array_equal(host(one, path), other[path], err_msg=str(path))


def test_rows_are_never_moved_by_appends_and_samples():
    storage = DeviceStorage(1000, "cuda", late=True)
    writer = storage.writer()
    steps = [tensors(step, "cuda") for step in interleaved(range(1, 65), 8)]
    writer.add_step(steps[0])
    buffer = ReplayBuffer(storage, batch_size=64, seed=0)
    writer.add_step(steps[1])
    buffer.sample()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")  # of streams and pageable copies; not of events
    try:
        for step in steps[2:]:
            writer.add_step(step)
            buffer.sample()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    storage.flush()
    head = int(storage.tape.snapshot()[0])
    assert identity(storage.gather(np.arange(head))[0].host()) == [
        (n, t) for t in range(8) for n in range(1, 65)
    ]


def test_hindsight():
    storage = DeviceStorage(100, "cuda")
    storage.writer().extend(tensors(goals(1, 40), "cuda"))

    def reward(achieved: Any, goal: Any, rows: Any) -> Any:
        assert achieved.is_cuda and goal.is_cuda
        return -(achieved != goal).any(-1).double()

    buffer = ReplayBuffer(storage, HindsightRelabel(reward_fn=reward), batch_size=16, seed=0)
    batch = buffer.sample()
    chosen = batch["collector", "relabeled"]
    assert set(batch["next", "reward"][chosen].tolist()) <= {0.0, -1.0}


def test_values_that_might_change_are_refused():
    storage = DeviceStorage(10, "cuda", example={"x": np.float32(0), "done": False})
    done = torch.zeros(3, dtype=torch.bool, device="cuda")
    storage.writer().extend({"x": torch.zeros(3, dtype=torch.float16, device="cuda"), "done": done})
    with pytest.raises(ValueError, match="may change values"):
        storage.writer().extend(
            {"x": torch.zeros(3, dtype=torch.float64, device="cuda"), "done": done}
        )
