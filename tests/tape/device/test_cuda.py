"""On a CUDA device, where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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

from tests.tape.device.rows import goals, rollout, tensors  # noqa: E402

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


# -- streams --------------------------------------------------------------------------------------


@contextmanager
def no_waits() -> Iterator[None]:
    """Whatever waits for the device by a stream, or by a pageable copy, raises; events do not."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def busy(stream: Any) -> None:
    """Has a stream work for a while, so that whoever does not wait for it is too early."""
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)


@pytest.mark.parametrize("late", [False, True])
def test_writes_and_samples_on_other_streams(late):
    storage = DeviceStorage(600, "cuda", late=late)
    writer = storage.writer()
    buffer = ReplayBuffer(storage, batch_size=64, seed=0)
    streams = [torch.cuda.Stream() for _ in range(3)]
    for k, step in enumerate(interleaved(range(1, 65), 8)):
        rows = tensors(step, "cuda")
        torch.cuda.synchronize()
        busy(streams[k % 3])
        with torch.cuda.stream(streams[k % 3]):
            writer.add_step(rows)
        del rows
        if not len(storage):
            continue
        busy(streams[(k + 1) % 3])
        with torch.cuda.stream(streams[(k + 1) % 3]):
            batch = buffer.draw()
            part = batch[np.arange(32)]
        with torch.cuda.stream(streams[(k + 2) % 3]):
            for some in (batch, part):
                out = some.to("cuda")
                seen = {key: out[key].clone() for key in ("observation", "action", "index")}
                torch.cuda.current_stream().synchronize()
                steps = identity({key: seen[key].cpu() for key in ("observation", "action")})
                assert steps == [(s % 64 + 1, s // 64) for s in seen["index"].tolist()]


def test_samples_drawn_ahead_on_another_stream():
    storage = DeviceStorage(500, "cuda")
    world = World(storage)
    world.write(6)
    buffer = ReplayBuffer(storage, batch_size=64, seed=0, prefetch=3)
    stream = torch.cuda.Stream()
    for k in range(50):
        with torch.cuda.stream(stream if k % 2 else torch.cuda.current_stream()):
            batch = buffer.sample()
            seen = {key: batch[key] * 1 for key in ("observation", "action", "index")}
            torch.cuda.current_stream().synchronize()
        steps = identity({key: seen[key].cpu() for key in ("observation", "action")})
        assert steps == [world.step_at[s] for s in seen["index"].tolist()]
    buffer.close()


# -- what waits for nothing -----------------------------------------------------------------------


@pytest.mark.parametrize("output", ["torch", "tensordict"])
def test_hindsight_waits_for_nothing(output):
    if output == "tensordict":
        pytest.importorskip("tensordict")
    storage = DeviceStorage(200, "cuda")
    for n in range(4):
        storage.writer().extend(tensors(goals(n, 40), "cuda"))
    relabel = HindsightRelabel(reward_fn=lambda a, g, rows: -(a != g).any(-1).double())
    buffer = ReplayBuffer(storage, relabel, batch_size=32, seed=0, output=output)
    buffer.sample()
    with no_waits():
        for _ in range(5):
            batch = buffer.sample()
    assert batch["desired_goal"].is_cuda and batch["next", "reward"].is_cuda


def test_rewards_of_the_host():
    storage = DeviceStorage(100, "cuda")
    storage.writer().extend(tensors(goals(1, 40), "cuda"))
    for values in (lambda n: torch.full((n,), -7.0), lambda n: np.full(n, -7.0)):
        relabel = HindsightRelabel(reward_fn=lambda a, g, rows, v=values: v(len(rows)))
        batch = ReplayBuffer(storage, relabel, batch_size=16, seed=0).sample()
        chosen = batch["collector", "relabeled"]
        assert (batch["next", "reward"][chosen] == -7).all()


def test_masks_wait_for_nothing():
    storage = DeviceStorage(1000, "cuda", late=True)
    writer = storage.writer()
    steps = [tensors(step, "cuda") for step in interleaved(range(1, 65), 8)]
    mask = np.arange(64) % 3 != 0
    for step in steps[:2]:
        writer.add_step(step, mask=mask)
    with no_waits():
        for step in steps[2:]:
            writer.add_step(step, mask=mask)
    storage.flush()
    rows = identity(storage.gather(np.arange(len(storage)))[0].host())
    assert rows == [(n, t) for t in range(8) for n in range(1, 65) if (n - 1) % 3]


def test_lists_and_leaves_of_ones_own_wait_for_nothing():
    storage = DeviceStorage(100, "cuda")
    storage.writer().extend(tensors(episode(1, 20), "cuda"))

    class Twice:
        def on_sample(self, batch: Any) -> Any:
            return batch.with_leaves({"twice": batch["observation"] * 2})

    buffer = ReplayBuffer(storage, batch_size=8, seed=0, transform=Twice())
    buffer.sample()
    with no_waits():
        batch = buffer.sample()
    assert torch.equal(batch["twice"], batch["observation"] * 2)


# -- the rest of what works on it -----------------------------------------------------------------


def test_a_rollout_stays_on_the_device():
    buffer = ReplayBuffer(DeviceStorage(100, "cuda"), output="numpy")
    seqs = rollout("cuda").to_replay(buffer)
    batch = buffer[seqs]
    assert batch["observation"].tolist() == [[n, t] for n in range(3) for t in range(4)]


@pytest.mark.parametrize("late", [False, True])
def test_checkpoints(tmp_path, late):
    source = DeviceStorage(60, "cuda", late=late)
    buffer = ReplayBuffer(source, batch_size=16, seed=4)
    for n in range(6):
        buffer.extend(tensors(episode(n, 8), "cuda"))
    source.flush()
    buffer.save(tmp_path / "saved")
    for target in (DeviceStorage(60, "cuda"), LazyTensorStorage(60)):
        other = ReplayBuffer(target, batch_size=16, seed=0, output="numpy")
        other.load(tmp_path / "saved")
        assert identity(other[:]) == [(n, t) for n in range(6) for t in range(8)]


def test_who_writes_first_may_be_in_inference_mode():
    storage = DeviceStorage(60, "cuda")
    with torch.inference_mode():
        storage.writer().extend(tensors(episode(0, 8), "cuda"))
    storage.writer().extend(tensors(episode(1, 8), "cuda"))
    assert len(storage) == 16


def test_a_default_device_is_not_that_of_page_locked_memory():
    torch.set_default_device("cuda")
    try:
        storage = LazyTensorStorage(60)
        World(storage).write(3)
        buffer = ReplayBuffer(storage, batch_size=8, device="cuda", prefetch=1)
        assert buffer.sample()["observation"].is_cuda
        buffer.close()
    finally:
        torch.set_default_device(None)


def test_goals_of_unsigned_numbers():
    rows = tensors(goals(1, 12), "cuda")
    for part in (rows, rows["next"]):
        for key in ("achieved_goal", "desired_goal"):
            part[key] = part[key].abs().to(torch.uint16)
    storage = DeviceStorage(60, "cuda")
    storage.writer().extend(rows)
    relabel = HindsightRelabel("final", reward_fn=lambda a, g, some: np.zeros(len(some)))
    batch = ReplayBuffer(storage, relabel, batch_size=16, seed=0).sample()
    chosen = batch["collector", "relabeled"].cpu()
    assert (batch["desired_goal"].cpu().to(torch.int32)[chosen] == torch.tensor([1, 12])).all()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch finds one CUDA device only")
def test_a_second_device():
    pytest.importorskip("tensordict")
    storage = DeviceStorage(60, "cuda:1")
    storage.writer().extend(tensors(episode(0, 10), "cuda:1"))
    for output in ("torch", "tensordict"):
        for asked, got in ((None, 1), ("cuda:1", 1), ("cuda:0", 0), ("cuda", 0), (1, 1)):
            batch = ReplayBuffer(storage, batch_size=8, output=output, device=asked).sample()
            places = {batch["observation"].device.index, batch["next", "reward"].device.index}
            assert places == {got}
