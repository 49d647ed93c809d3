"""DeviceStorage beside a storage in host memory: the same rows, counts and samples."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import pytest

import contig
from contig import (
    ChunkSampler,
    DeviceStorage,
    HindsightRelabel,
    LayoutError,
    LazyTensorStorage,
    NStepSampler,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SliceSampler,
    StorageFull,
    TrajectorySampler,
)
from contig.batch import stack_batches
from contig.testing import World, episode, identity, interleaved, row

torch = pytest.importorskip("torch")

from tests.tape.device.rows import goals, pair, rollout, same, tensors  # noqa: E402


def fill(storages: Any, episodes: int = 12) -> None:
    for storage, form in zip(storages, (tensors, lambda x: x)):
        writer = storage.writer()
        for n in range(episodes):
            writer.extend(form(episode(n, 3 + n % 5, end=("terminated", "truncated")[n % 2])))
            for step in interleaved([100 + 2 * n, 101 + 2 * n], 3):
                writer.add_step(form(step))


def relabel(sampler: Any = None) -> HindsightRelabel:
    def reward(achieved: Any, goal: Any, rows: Any) -> Any:
        wrong = (achieved != goal).any(-1)
        return -(wrong.astype(np.float64) if isinstance(wrong, np.ndarray) else wrong.double())

    def ended(achieved: Any, goal: Any, rows: Any) -> Any:
        return (achieved == goal).all(-1)

    return HindsightRelabel("future", 4, reward_fn=reward, terminated_fn=ended, sampler=sampler)


SAMPLERS: dict[str, Any] = {
    "rows": RandomSampler,
    "n steps": lambda: NStepSampler(3, 0.9),
    "n steps by priority": lambda: NStepSampler(3, 0.9, PrioritizedSampler()),
    "priorities": PrioritizedSampler,
    "slices": lambda: SliceSampler(slice_len=4, strict_length=False),
    "padded slices": lambda: SliceSampler(slice_len=4, pad_output=True, burn_in=1),
    "slices by priority": lambda: PrioritizedSliceSampler(slice_len=2),
    "chunks": lambda: ChunkSampler(3),
    "trajectories": lambda: TrajectorySampler(2),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_samples_are_those_of_host_memory(name):
    storages = pair(60)
    buffers = [
        ReplayBuffer(
            s,
            SAMPLERS[name](),
            batch_size=None if name == "trajectories" else 16,
            seed=5,
            output="numpy",
        )
        for s in storages
    ]
    for _ in range(5):
        fill(storages, 3)
        for _ in range(4):
            one, other = (b.sample() for b in buffers)
            same(one, other)
        if "priorit" in name:
            for buffer in buffers:
                buffer.update_priority(one["index"], np.arange(len(one)) + 1.0)


@pytest.mark.parametrize("slices", [False, True])
def test_hindsight_is_that_of_host_memory(slices):
    storages = pair(80)
    buffers = []
    for storage, form in zip(storages, (tensors, lambda x: x)):
        inner = SliceSampler(slice_len=3, strict_length=False) if slices else None
        buffers.append(ReplayBuffer(storage, relabel(inner), batch_size=24, seed=2))
        for n in range(20):
            storage.writer().extend(form(goals(n, 2 + n % 6)))
    assert [b.output for b in buffers] == ["torch", "numpy"]
    for _ in range(10):
        one, other = (b.sample() for b in buffers)
        assert isinstance(one["desired_goal"], torch.Tensor)
        for path in other.keys():  # noqa: SIM118
            np.testing.assert_array_equal(np.asarray(one[path]), other[path], err_msg=str(path))
        assert other["collector", "relabeled"].any()


def test_goals_stay_on_the_device():
    seen: list[Any] = []

    def reward(achieved: Any, goal: Any, rows: Any) -> Any:
        seen.extend([achieved, goal, rows["observation"]])
        return torch.zeros(len(goal), dtype=torch.float64) - 7

    with DeviceStorage(50, "cpu") as storage:
        storage.writer().extend(tensors(goals(1, 20)))
        buffer = ReplayBuffer(storage, HindsightRelabel(reward_fn=reward), batch_size=8, seed=0)
        batch = buffer.sample()
        assert all(isinstance(x, torch.Tensor) for x in seen)
        chosen = batch["collector", "relabeled"]
        assert (batch["next", "reward"][chosen] == -7).all()
        assert (batch["next", "reward"][~chosen] != -7).all()


def test_leaves_are_views_of_one_gathered_tensor():
    with DeviceStorage(50, "cpu") as storage:
        storage.writer().extend(tensors(episode(0, 20)))
        batch = ReplayBuffer(storage, batch_size=8).sample()
        owners = {
            batch[path].untyped_storage().data_ptr()
            for path in (("observation",), ("action",), ("next", "observation"))
        }
        assert len(owners) == 1
        assert storage.memory.rows.dtype == torch.uint8
        assert storage.memory.rows.shape[0] == 50


def test_what_is_given_may_be_changed_afterwards():
    with DeviceStorage(30, "cpu") as storage:
        writer = storage.writer()
        step = tensors(next(iter(interleaved([1, 2], 1, end=None))))
        writer.add_step(step)
        step["observation"].zero_()
        step["action"].zero_()
        assert identity(storage.gather(np.arange(2))[0]) == [(1, 0), (2, 0)]


def test_masks_and_ids_of_envs():
    storages = pair(50)
    for storage, form in zip(storages, (tensors, lambda x: x)):
        buffer = ReplayBuffer(storage)
        for t, step in enumerate(interleaved([1, 2, 3], 4)):
            mask = np.array([True, t % 2 == 0, True])
            buffer.add_step(form(step), mask=torch.tensor(mask) if form is tensors else mask)
        assert buffer.add_step(form(step), mask=np.zeros(3, bool)).tolist() == []
        some = {k: v for k, v in form(next(iter(interleaved([7, 8], 1)))).items()}
        storage.writer().add_step(some, env_ids=[4, 9])
    one, other = (s.gather(np.arange(12))[0] for s in storages)
    same(one, other)
    tables = [s.episodes()[["first", "steps", "return", "complete"]].tolist() for s in storages]
    assert tables[0] == tables[1]


def test_rows_of_a_buffer_and_of_another_storage():
    one, other = pair(40)
    other.writer().extend(episode(4, 6))
    one.writer().extend(other.gather(np.arange(6))[0])
    batch, _ = one.gather(np.arange(2, 5))
    one.writer().extend(batch)  # what is on the device stays there
    assert identity(one.gather(np.arange(9))[0]) == [(4, t) for t in (0, 1, 2, 3, 4, 5, 2, 3, 4)]
    other.writer().extend(batch)
    assert identity(other.gather(np.arange(6, 9))[0]) == [(4, t) for t in (2, 3, 4)]


def test_without_any_marks():
    with DeviceStorage(10, "cpu") as storage:
        storage.writer().extend({"x": torch.arange(14.0)})
        batch = ReplayBuffer(storage, batch_size=4, seed=0).sample()
        assert set(batch) == {"x", "index"}
        assert (batch["x"].long() == batch["index"] + 4).all()  # the first four had no room


def test_marks_only():
    with DeviceStorage(10, "cpu") as storage:
        storage.writer().extend({"next": {"reward": torch.arange(4.0), "done": torch.ones(4) > 0}})
        batch = ReplayBuffer(storage, batch_size=4, seed=0).sample()
        assert (batch["next", "reward"].long() == batch["index"]).all()


def test_a_mark_of_ones_own_that_is_no_mark_of_trajectories():
    storages = pair(30)
    for storage, form in zip(storages, (tensors, lambda x: x)):
        rows = episode(1, 20)
        rows["first"] = np.arange(20) % 7 == 3
        storage.writer().extend(form(rows))
    for key in ("first", "new"):
        buffers = [
            ReplayBuffer(s, SliceSampler(slice_len=4, init_key=key), batch_size=8, seed=1)
            for s in storages
        ]
        one, other = (b.sample() for b in buffers)
        np.testing.assert_array_equal(one[key].numpy(), other[key])
        np.testing.assert_array_equal(one["index"].numpy(), other["index"])


def test_outputs():
    tensordict = pytest.importorskip("tensordict")
    with DeviceStorage(50, "cpu") as storage:
        storage.writer().extend(tensors(episode(2, 20)))
        buffers = {k: ReplayBuffer(storage, output=k, seed=3) for k in ("numpy", "tensordict")}
        one, other = (b.sample(8) for b in buffers.values())
        assert type(one) is contig.Batch and isinstance(one["observation"], np.ndarray)
        assert isinstance(other, tensordict.TensorDict)
        assert other["next", "reward"].shape == (8, 1)
        np.testing.assert_array_equal(other["observation"].numpy(), one["observation"])
        info = buffers["numpy"].sample(8, return_info=True)[1]
        assert info["index"].shape == (8,)
        copy = pickle.loads(pickle.dumps(storage.gather(np.arange(4))[0]))
        assert identity(copy) == [(2, t) for t in range(4)]


def test_shapes_and_parts_of_a_batch():
    with DeviceStorage(50, "cpu") as storage:
        storage.writer().extend(tensors(episode(2, 12)))
        batch, _ = storage.gather(np.arange(12))
        assert batch.reshape(3, 4)["next", "observation"].shape == (3, 4, 2)
        assert batch.reshape(3, 4).to("cpu")["next", "reward"].shape == (3, 4)
        assert identity(batch[3:5]) == [(2, 3), (2, 4)]
        assert identity(batch[np.array([7, 1])]) == [(2, 7), (2, 1)]
        assert ("next", "observation") in batch and "nothing" not in batch
        assert set(batch["next"]) == set(batch.tree()["next"])
        more = batch.with_leaves({"tag": np.arange(12), "action": np.zeros((12, 3))}, extra=True)
        assert more.to("cpu")["tag"].tolist() == list(range(12))
        assert more["action"].shape == (12, 3)
        assert "device=cpu" in repr(batch)
        with pytest.raises(KeyError, match='"nothing".*"observation"'):
            batch["nothing"]


def test_an_ensemble_of_devices():
    storages = [DeviceStorage(50, "cpu"), DeviceStorage(50, "cpu")]
    for n, storage in enumerate(storages):
        storage.writer().extend(tensors(episode(n, 20)))
    buffers = [ReplayBuffer(s, seed=n) for n, s in enumerate(storages)]
    batch = ReplayBufferEnsemble(*buffers, sample_from_all=True, seed=0).sample(8)
    assert [n for n, _ in identity(batch)] == batch["buffer_ids"].tolist()


def test_an_ensemble_of_devices_and_the_host():
    buffers = [ReplayBuffer(s) for s in pair(50)]
    for members in (buffers, buffers[::-1]):
        with pytest.raises(LayoutError, match="buffers\\[1\\]: its rows are in"):
            ReplayBufferEnsemble(*members)
    batches = []
    for buffer in buffers:
        buffer.extend(episode(0, 5))
        batches.append(buffer.storage.gather(np.arange(5))[0])
    for parts in (batches, batches[::-1]):
        with pytest.raises(LayoutError, match="cannot be joined"):
            stack_batches(parts)


def test_devices_have_one_name():
    """However a device is given, its batches are on it, and need no way over the host."""
    for name in ("cpu", "cpu:0", torch.device("cpu", 0)):
        with DeviceStorage(20, name) as storage:
            rows = tensors(episode(0, 8))
            storage.writer().extend(rows)
            assert str(storage.device) == "cpu"
            batch = storage.gather(np.arange(4))[0]
            for where in (None, "cpu", "cpu:0"):
                there = batch.torch(where)["observation"]
                assert there.data_ptr() == batch["observation"].data_ptr()


def test_other_devices():
    """Of rows that are elsewhere, all of a batch is on the device that was asked for."""
    pytest.importorskip("tensordict")
    with DeviceStorage(20, "cpu") as storage:
        storage.writer().extend(tensors(episode(0, 8)))
        for output in ("torch", "tensordict"):
            batch = ReplayBuffer(storage, batch_size=4, output=output, device="meta").sample()
            assert batch["observation"].is_meta and batch["next", "reward"].is_meta


def test_a_rollout_goes_over():
    counts = []
    for storage in pair(100):
        buffer = ReplayBuffer(storage, output="numpy")
        seqs = rollout().to_replay(buffer)
        batch = buffer[seqs]
        assert batch["observation"].tolist() == [[n, t] for n in range(3) for t in range(4)]
        counts.append(storage.episodes()[["first", "steps", "return", "complete"]].tolist())
    assert counts[0] == counts[1]


@pytest.mark.parametrize("way", ["device to host", "host to device", "device to device"])
def test_checkpoints_go_from_one_kind_to_the_other(tmp_path, way):
    kinds = {"device": lambda: DeviceStorage(30, "cpu"), "host": lambda: LazyTensorStorage(25)}
    source, target = (kinds[k]() for k in way.split(" to "))
    World(source).write(3)
    buffer = ReplayBuffer(source, seed=4, batch_size=8, output="numpy")
    buffer.sample()
    buffer.save(tmp_path / "saved")
    other = ReplayBuffer(target, seed=0, batch_size=8, output="numpy")
    other.load(tmp_path / "saved")
    assert len(target) == min(len(source), target.capacity)
    head = int(target.tape.snapshot()[0])
    seqs = np.arange(head - len(target), head)
    same(target.gather(seqs)[0], source.gather(seqs)[0])
    if target.capacity == source.capacity:
        same(buffer.sample(), other.sample())


def test_samples_drawn_ahead():
    with DeviceStorage(50, "cpu") as storage:
        world = World(storage)
        world.write(3)
        buffer = ReplayBuffer(storage, batch_size=8, seed=0, prefetch=2)
        for _ in range(5):
            batch = buffer.sample()
            assert identity(batch) == [world.step_at[s] for s in batch["index"].tolist()]
        buffer.close()


def test_no_reader_sees_rows_that_are_half_written():
    """A small ring that a writer turns all the time; samples are whole rows, drawn again if not."""
    with DeviceStorage(40, "cpu") as storage:
        storage.writer().extend(tensors(episode(0, 30)))
        stop = threading.Event()

        def write() -> None:
            writer = storage.writer()
            for n in range(1, 400):
                writer.extend(tensors(episode(n, 5 + n % 20)))
            stop.set()

        thread = threading.Thread(target=write)
        thread.start()
        try:
            _check_samples(storage, stop)
        finally:
            thread.join()


def _check_samples(storage: DeviceStorage, stop: threading.Event) -> None:
    slices = ReplayBuffer(storage, SliceSampler(slice_len=3, strict_length=True), seed=0)
    plain = ReplayBuffer(storage, batch_size=12, seed=1)
    while not stop.is_set():
        steps = identity(slices.sample(12))
        for k in range(0, len(steps), 3):
            number, t = steps[k]
            assert steps[k : k + 3] == [(number, t), (number, t + 1), (number, t + 2)]
        rows = plain.sample()
        identity(rows)
        assert ((rows["next", "reward"] - rows["action"]) == 1).all()  # host and device agree


# -- what is refused ------------------------------------------------------------------------------


def test_data_that_does_not_fit_does_not_fix_the_layout():
    with DeviceStorage(10, "cpu") as storage:
        bad = tensors(episode(0, 3))
        bad["next"]["done"] = torch.tensor([True, False, False])
        with pytest.raises(LayoutError, match="terminated | truncated"):
            storage.writer().extend(bad)
        assert storage.layout is None
        with pytest.raises(LayoutError, match="rows"):
            storage.writer().extend({**tensors(episode(0, 3)), "action": torch.zeros(4)})
        assert storage.layout is None
        storage.writer().extend(tensors(episode(0, 3)))


def test_tensordicts_stay_what_they_are():
    tensordict = pytest.importorskip("tensordict")
    with DeviceStorage(50, "cpu") as storage:
        buffer = ReplayBuffer(storage, output="tensordict", batch_size=8, seed=0)
        rows = tensordict.TensorDict(tensors(episode(3, 12)), batch_size=[12])
        buffer.extend(rows)
        buffer.extend(rows.reshape(3, 4))
        assert len(buffer) == 24
        assert identity(storage.gather(np.arange(24))[0]) == 2 * [(3, t) for t in range(12)]
        assert buffer.sample()["next", "done"].shape == (8, 1)


def test_a_collector_writes_to_it():
    pytest.importorskip("gymnasium")
    with DeviceStorage(200, "cpu") as storage:
        buffer = ReplayBuffer(storage, SliceSampler(slice_len=4), batch_size=16, seed=0)
        env = contig.GymEnv("CartPole-v1")
        for _ in contig.Collector(
            env, frames_per_batch=32, total_frames=128, replay_buffer=buffer, seed=0
        ):
            pass
        batch = buffer.sample()
        assert len(buffer) == 128 and isinstance(batch["observation"], torch.Tensor)
        assert storage.episodes()["complete"].any()


def test_it_belongs_to_its_process():
    with DeviceStorage(10, "cpu", example=row(0, 0)) as storage:
        for what in (storage, storage.writer()):
            with pytest.raises(TypeError, match="process"):
                pickle.dumps(what)
        assert storage.fd == -1
        with pytest.raises(TypeError, match="packed"):
            storage.writer().append_records(np.zeros((1, 8), np.uint8))
        with pytest.raises(ValueError, match="DeviceStorage takes no packed rows"):
            contig.Server(
                tables={"default": ReplayBuffer(storage)}, transport=contig.TcpTransport()
            )


def test_rows_whose_write_failed_are_never_drawn(monkeypatch):
    with DeviceStorage(20, "cpu") as storage:
        writer = storage.writer()
        writer.extend(tensors(episode(0, 5)))

        def fail(*_: Any) -> None:
            raise RuntimeError("the device is gone")

        monkeypatch.setattr(storage.memory, "write", fail)
        with pytest.raises(RuntimeError, match="gone"):
            writer.extend(tensors(episode(1, 5)))
        assert len(storage) == 0
        monkeypatch.undo()
        writer.extend(tensors(episode(2, 5)))
        assert identity(storage.gather(np.arange(10, 15))[0]) == [(2, t) for t in range(5)]


def test_options_that_it_does_not_have():
    for name, value in {"share_next": True, "stack": {"x": 4}}.items():
        with pytest.raises(TypeError, match=f"{name}= is for storages in host memory.*Lazy"):
            DeviceStorage(10, "cpu", **{name: value})
    with pytest.raises(TypeError, match="no argument nonsense="):
        DeviceStorage(10, "cpu", nonsense=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='"meta".*no values'):
        DeviceStorage(10, "meta")


def test_devices_that_are_not_there():
    with pytest.raises(ValueError, match="nowhere"):
        DeviceStorage(10, "nowhere")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="no CUDA device"):
            DeviceStorage(10, "cuda")


def test_too_little_memory_is_said():
    storage = DeviceStorage(10**7, "cpu")
    frames = np.zeros((2, 10**6), np.uint8)
    with pytest.raises(StorageFull, match=r"10,000,000 rows of .* need 10,000.* GB on cpu"):
        ReplayBuffer(storage).extend({"x": frames, "done": np.array([False, True])})
    assert storage.layout is None and len(storage) == 0
