"""What else than TensorDicts TorchRL's buffers take, and names that only TorchRL has."""

from __future__ import annotations

import importlib
import re
from types import ModuleType
from typing import Any

import pytest
import torch
from tensordict import TensorDict, tensorclass
from torchrl import collectors as their_collectors
from torchrl import data as theirs
from torchrl.data import replay_buffers as their_parts

import contig
from contig.adapters import torchrl as ours


@tensorclass
class Pair:
    x: torch.Tensor
    y: torch.Tensor


@tensorclass
class Whole:
    pair: Pair
    reward: torch.Tensor


ROWS = torch.arange(20)
DATA: dict[str, Any] = {
    "tensor": torch.stack([ROWS, ROWS + 100], 1).float(),
    "tuple": (ROWS, torch.stack([ROWS, ROWS + 100], 1).float()),
    "nested": (ROWS, {"a": ROWS * 2, "b": (ROWS + 0.5,)}),
}


def leaves(tree: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(tree)


@pytest.mark.parametrize("which", DATA)
@pytest.mark.parametrize("options", [{}, {"prefetch": 2}])
def test_tensors_and_tuples(which: str, options: Any) -> None:
    data = DATA[which]
    mine = ours.ReplayBuffer(storage=ours.LazyTensorStorage(100), batch_size=8, **options)
    other = theirs.ReplayBuffer(storage=theirs.LazyTensorStorage(100), batch_size=8)
    assert mine.extend(data).tolist() == other.extend(data).tolist()
    for _ in range(3):
        sample, info = mine.sample(return_info=True)
        want = torch.utils._pytree.tree_map(lambda x, rows=info["index"]: x[rows], data)
        like = other.sample()
        assert type(sample) is type(like) and len(leaves(sample)) == len(leaves(like))
        for got, value, theirs_ in zip(leaves(sample), leaves(want), leaves(like), strict=True):
            assert torch.equal(got, value)
            assert got.dtype == theirs_.dtype and got.shape == theirs_.shape
    for index in (slice(2, 5), 3):
        for got, value in zip(leaves(mine[index]), leaves(other[index]), strict=True):
            assert torch.equal(got, value)
    one = torch.utils._pytree.tree_map(lambda x: x[0], data)
    assert mine.add(one) == 20
    for got, value in zip(leaves(mine[20]), leaves(one), strict=True):
        assert torch.equal(got, value)
    mine.close()


def test_a_function_as_transform_and_priorities_of_tensors() -> None:
    mine = ours.PrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, storage=ours.LazyTensorStorage(100), batch_size=30
    )
    mine.append_transform(lambda x: x * 2)
    rows = mine.extend(ROWS.float())
    mine.update_priority(rows, torch.where(rows == 7, 5.0, 1e-9))
    assert (mine.sample() == 14).float().mean() > 0.9


@pytest.mark.parametrize("kind", ["ReplayBuffer", "TensorDictReplayBuffer"])
def test_tensorclasses_come_back_as_tensordicts(kind: str) -> None:
    mine = getattr(ours, kind)(storage=ours.LazyTensorStorage(100), batch_size=8)
    pair = Pair(x=ROWS.float(), y=ROWS[:, None] + 1, batch_size=[20])
    assert mine.extend(Whole(pair=pair, reward=ROWS[:, None] * 2.0, batch_size=[20])).numel() == 20
    one = Whole(
        pair=Pair(x=torch.tensor(20.0), y=torch.tensor([21]), batch_size=[]),
        reward=torch.tensor([40.0]),
        batch_size=[],
    )
    assert mine.add(one) == 20
    sample = mine.sample()
    assert isinstance(sample, TensorDict)
    assert torch.equal(sample["pair", "x"].long(), sample["index"])
    assert torch.equal(sample["reward"][:, 0], sample["pair", "x"] * 2)
    back = Pair.from_tensordict(sample["pair"])
    assert torch.equal(back.y[:, 0], sample["index"] + 1)
    core = contig.ReplayBuffer(contig.LazyTensorStorage(100), batch_size=4, seed=0)
    core.extend(pair)
    core.add(pair[0])
    assert core.sample()["x"].dtype == "float32" and len(core) == 21


def test_items_of_several_steps_of_a_tensorclass() -> None:
    mine = ours.ReplayBuffer(storage=ours.LazyTensorStorage(100), batch_size=8)
    mine.extend(Pair(x=torch.rand(6, 5), y=torch.rand(6, 5, 2), batch_size=[6, 5]))
    assert len(mine) == 6 and mine.sample().batch_size == (8, 5)


@pytest.mark.parametrize("data", [ROWS, (ROWS, ROWS), [ROWS, ROWS]])
def test_a_buffer_of_tensordicts_refuses_them(data: Any) -> None:
    for mine in (
        ours.TensorDictReplayBuffer(storage=ours.LazyTensorStorage(100)),
        ours.TensorDictPrioritizedReplayBuffer(
            alpha=0.6, beta=0.4, storage=ours.LazyTensorStorage(100)
        ),
    ):
        for take in (mine.extend, mine.add):
            with pytest.raises(
                TypeError, match="expected a TensorDict.*ReplayBuffer takes tensors"
            ):
                take(data)
        assert len(mine) == 0


# -- names ------------------------------------------------------------------------------------


def names_of(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__.startswith("torchrl")
    ]


def test_every_name_of_theirs_is_here_or_says_what_to_use() -> None:
    names = {*names_of(theirs), *names_of(their_parts), *names_of(their_collectors)}
    assert len(names) > 60
    for name in sorted(names):
        try:
            getattr(ours, name)
        except ImportError as error:
            assert re.search(
                rf"has no {name}: (use \S|TorchRL's own .* import {name}$)", str(error)
            )
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        _ = ours.Nonsense  # type: ignore[attr-defined]
    assert not hasattr(ours, "__wrapped__")


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("ListStorage", "LazyTensorStorage"),
        ("ImmutableDatasetWriter", "no writer"),
        ("TensorStorageCheckpointer", "dumps and loads"),
        ("HERReplayBuffer", "contig.HindsightRelabel"),
        ("Composite", "from torchrl.data import Composite"),
        ("GymEnv", "from torchrl.envs import GymEnv"),
    ],
)
def test_imports_of_what_is_not_here(name: str, instead: str) -> None:
    with pytest.raises(ImportError, match=re.escape(instead)):
        exec(f"from contig.adapters.torchrl import {name}")


def test_what_is_named_instead_is_there() -> None:
    from contig.adapters.torchrl.instead import _INSTEAD

    for hint in _INSTEAD.values():
        for name in re.findall(r"contig\.(\w+)", hint):
            assert name in contig.__all__, hint
        first = re.match(r"\w+", hint)
        assert first is not None and first[0] in (*ours.__all__, "contig", "a", "no"), hint


def test_submodules_can_still_be_imported() -> None:
    for module in ("samplers", "storages", "writers", "buffers"):
        assert importlib.import_module(f"contig.adapters.torchrl.{module}")
    exec("from contig.adapters.torchrl import samplers, storages, writers, instead")


def test_storages_and_samplers_of_theirs() -> None:
    with pytest.raises(TypeError, match="storage: .*ListStorage of TorchRL's own; use LazyTensor"):
        ours.ReplayBuffer(storage=theirs.ListStorage(10))
    with pytest.raises(TypeError, match="ListStorage of TorchRL's own; use LazyTensorStorage"):
        ours.TensorDictPrioritizedReplayBuffer(alpha=0.6, beta=0.4, storage=theirs.ListStorage(10))
    with pytest.raises(TypeError, match="ConsumingSampler of TorchRL's own; use contig.Random"):
        ours.ReplayBuffer(sampler=their_parts.ConsumingSampler())
