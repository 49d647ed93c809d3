"""What a process does with a device whose memory the host cannot touch: see `far_device.cpp`.

``python -m tests.tape.device.far_side LIBRARY NAME`` does one of the functions at the end.
"""

from __future__ import annotations

import ctypes
import faulthandler
import sys
import tempfile
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from contig import (
    Batch,
    DeviceStorage,
    HindsightRelabel,
    LazyTensorStorage,
    NStepSampler,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    RolloutStorage,
    SliceSampler,
)
from contig.convert import transfers
from contig.testing import OrderedStreams, episode, interleaved
from tests.tape.device.races import Races
from tests.tape.device.rows import goals

SAMPLERS: dict[str, Any] = {
    "rows": RandomSampler,
    "slices": lambda: SliceSampler(slice_len=4),
    "n steps": lambda: NStepSampler(3, 0.9),
    "priorities": PrioritizedSampler,
}


def load(library: str) -> None:
    """Makes torch know the device, as "far"."""
    torch.ops.load_library(library)
    torch.utils.rename_privateuse1_backend("far")
    module: Any = types.ModuleType("torch.far")
    module.is_available = lambda: True
    module.current_device = lambda: 0
    module.device_count = lambda: 1
    module._is_in_bad_fork = lambda: False
    torch._register_device_module("far", module)


def moved() -> tuple[int, int]:
    """Bytes that were copied to the device, and from it, since the last call."""
    sent, fetched = torch.ops.far_device.moved()
    return int(sent), int(fetched)


def far(data: Any) -> Any:
    """The same on the device."""
    if isinstance(data, dict):
        return {key: far(value) for key, value in data.items()}
    return torch.as_tensor(data).to("far")


def numbers(data: Any) -> Any:
    """The same as arrays, however it is given."""
    if isinstance(data, Mapping):
        return {key: numbers(value) for key, value in data.items()}
    return data.cpu().numpy() if isinstance(data, torch.Tensor) else np.asarray(data)


def tree(sample: Any) -> Any:
    """What `sample` returned, as a tree."""
    return sample.tree() if isinstance(sample, Batch) else sample


def same(mine: Any, theirs: Any) -> None:
    """Two samples, batches or trees, have the same leaves."""
    mine, theirs = flat(numbers(tree(mine))), flat(numbers(tree(theirs)))
    assert mine.keys() == theirs.keys()
    for path, leaf in mine.items():
        assert leaf.dtype == theirs[path].dtype, path
        np.testing.assert_array_equal(leaf, theirs[path], err_msg=path)


def flat(data: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(data, Mapping):
        return {prefix: data}
    return {k: v for key, x in data.items() for k, v in flat(x, f"{prefix}.{key}").items()}


def write(storage: Any, form: Any) -> None:
    writer = storage.writer()
    for n in range(4):
        writer.extend(form(episode(n, 12)))
    for step in interleaved([7, 8, 9], 6):
        writer.add_step(form(step))
    storage.flush()


def twins(sampler: str, **options: Any) -> list[Any]:
    """Two buffers with the same rows: on the device, and on the host."""
    storages = DeviceStorage(60, "far", **options), LazyTensorStorage(60, share_next=False)
    for storage, form in zip(storages, (far, lambda data: data)):
        write(storage, form)
    return [ReplayBuffer(s, SAMPLERS[sampler](), batch_size=8, seed=3) for s in storages]


# -- what is done ---------------------------------------------------------------------------------


def touch() -> None:
    """Reads a tensor's memory from the host, which ends the process."""
    faulthandler.disable()
    tensor = torch.zeros(4, device="far")
    assert tensor.cpu().tolist() == [0, 0, 0, 0]
    ctypes.string_at(tensor.data_ptr(), 4)


def storage() -> None:
    """Rows are written, drawn, saved and loaded; samples do not come to the host."""
    for sampler, make in SAMPLERS.items():
        mine, other = twins(sampler, late=sampler == "rows")
        for _ in range(3):
            moved()
            drawn = mine.sample()
            assert moved()[1] == 0, "a sample came to the host"
            same(drawn, other.sample())
            if sampler == "priorities":
                mine.update_priority(drawn["index"], torch.ones(8, device="far"))
                other.update_priority(drawn["index"].cpu().numpy(), np.ones(8))
        with tempfile.TemporaryDirectory() as place:
            mine.save(Path(place) / "far")
            again = ReplayBuffer(DeviceStorage(60, "far"), make(), batch_size=8)
            again.load(Path(place) / "far")
            assert (again.storage.episodes() == mine.storage.episodes()).all()
            same(again[:], mine[:])
            assert again.sample()["observation"].device.type == "far"
    relabelled = DeviceStorage(60, "far")
    relabelled.writer().extend(far(goals(0, 20)))
    reward = lambda achieved, goal, rows: -(achieved - goal).abs().sum(-1)  # noqa: E731
    drawn = ReplayBuffer(relabelled, HindsightRelabel(reward_fn=reward), batch_size=6).sample()
    assert drawn["desired_goal"].device.type == "far"


def odd() -> None:
    """Tensors with conjugate and negative bits, one of them too, and rows without dims."""
    for n in (1, 5):
        z = (torch.arange(n).to(torch.complex64) + (1 + 2j)).to("far")
        done = torch.zeros(n, dtype=torch.bool, device="far")
        data = {"x": z.conj(), "next": {"reward": z.conj().imag, "done": done}}
        for made in (DeviceStorage(20, "far"), LazyTensorStorage(20)):
            made.writer().extend(data)
            made.writer().add(far({"x": 1j, "next": {"reward": 1.0, "done": True}}))
            rows = ReplayBuffer(made, output="numpy")[:]
            assert rows["x"].tolist() == [*(complex(1 + k, -2) for k in range(n)), 1j]
            assert rows["next", "reward"].tolist() == [*[-2] * n, 1]


def batches() -> None:
    """Batches of host storages go to the device, ahead of their use too."""
    for options in ({}, {"prefetch": 2}):
        made = LazyTensorStorage(60)
        write(made, far)  # as a policy on the device gives them
        buffer = ReplayBuffer(
            made, SliceSampler(slice_len=4), batch_size=8, seed=3, device="far", **options
        )
        twin = ReplayBuffer(made, SliceSampler(slice_len=4), batch_size=8, seed=3)
        for _ in range(3):
            drawn, expected = buffer.sample(), twin.sample()
            assert drawn["observation"].device.type == "far"
            same(drawn, expected)
            same(expected.to("far"), expected)
        buffer.close()


def rollouts() -> None:
    """A rollout is filled, and its minibatches drawn, on the device as on the host."""
    from tests.tape.device.rows import rollout

    found = []
    for device in ("far", "cpu"):
        made: RolloutStorage = rollout(device)
        made.compute_returns(torch.zeros(3, 1, device=device), 0.9, 0.8)
        for name in ("observations", "rewards", "returns", "advantages"):
            assert getattr(made, name).device.type == device
        moved()
        every = [numbers(batch.obs) for batch in made.mini_batch_generator(1, 1)]
        returns = made.returns.cpu().numpy(), made.advantages.cpu().numpy()
        found.append((sorted(map(tuple, np.concatenate(every).tolist())), returns))
    assert found[0][0] == found[1][0]
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-5, atol=1e-6)


def streams() -> None:
    """Every copy is waited for by whoever uses what it made."""
    ordered = OrderedStreams("far")
    transfers.streams_of = lambda device: ordered if device.type == "far" else None
    for late in (False, True):
        with DeviceStorage(60, "far", late=late) as made, Races(ordered):
            write(made, far)
            buffer = ReplayBuffer(made, SliceSampler(slice_len=4), batch_size=8, seed=3)
            for _ in range(3):
                drawn = buffer.sample()
                with ordered.on(ordered.side()):
                    drawn.to("far") if hasattr(drawn, "to") else drawn
            made.writer().extend(far(episode(20, 12)))  # over what was drawn
            made.flush()
            assert len(made) == 60
    host = LazyTensorStorage(60)
    write(host, lambda data: data)
    ahead = ReplayBuffer(host, batch_size=8, seed=3, device="far", prefetch=2)
    twin = ReplayBuffer(host, batch_size=8, seed=3)
    for _ in range(4):
        drawn, expected = ahead.sample(), twin.sample()
        same(drawn, expected)
    ahead.close()


if __name__ == "__main__":
    faulthandler.enable()
    load(sys.argv[1])
    globals()[sys.argv[2]]()
