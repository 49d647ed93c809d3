"""Leaves of any dtype on a device: they come back, are relabelled, and are cast as elsewhere."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from contig import DeviceStorage, HindsightRelabel, ReplayBuffer
from contig.convert import cast, fits_unseen
from contig.testing import episode, row

torch = pytest.importorskip("torch")

from tests.tape.device.rows import goals, pair, tensors  # noqa: E402

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32"]
DTYPES += ["float64", "complex64", "complex128"]


@pytest.mark.parametrize("name", [*DTYPES, "uint16", "uint32", "uint64", "float8_e5m2"])
def test_goals_of_any_dtype(name):
    """Relabelled rows have what their trajectory achieved, byte by byte."""
    x = (torch.arange(24).reshape(12, 2) % 7).to(getattr(torch, name))
    none = torch.zeros_like(x)
    done = torch.arange(12) == 11
    after = {"achieved_goal": x, "desired_goal": none, "reward": torch.ones(12), "done": done}
    with DeviceStorage(40, "cpu") as storage:
        storage.writer().extend({"achieved_goal": x, "desired_goal": none, "next": after})
        sampler = HindsightRelabel(
            "final", k=3, reward_fn=lambda achieved, goal, rows: np.zeros(len(rows))
        )
        batch = ReplayBuffer(storage, sampler, batch_size=16, seed=0).sample()
        chosen = batch["collector", "relabeled"].numpy()
        for path in ("desired_goal", ("next", "desired_goal")):
            goals = batch[path].view(torch.uint8).numpy().reshape(16, -1)
            assert (goals[chosen] == x[-1:].view(torch.uint8).numpy().reshape(1, -1)).all()
            assert (goals[~chosen] == 0).all()


def test_rewards_have_no_gradient():
    network = torch.nn.Linear(2, 1)
    for storage, form in zip(pair(60), (tensors, lambda x: x)):
        storage.writer().extend(form(goals(0, 20)))
        relabel = HindsightRelabel(
            reward_fn=lambda achieved, goal, rows: network(torch.as_tensor(achieved))[:, 0]
        )
        batch = ReplayBuffer(storage, relabel, batch_size=6, seed=0, output="torch").sample()
        assert not batch["next", "reward"].requires_grad


def test_any_dtypes_in_any_order_come_back():
    torch.manual_seed(0)
    for order in range(6):
        generator = np.random.default_rng(order)
        names = generator.permutation(DTYPES).tolist()
        shapes = [(), (3,), (1, 2), (0,), (5,)]
        rows = {
            f"{i:02d}": (torch.rand(7, *shapes[(i + order) % 5]) * 3).to(getattr(torch, name))
            for i, name in enumerate(names)
        }
        with DeviceStorage(5, "cpu") as storage:
            seqs = storage.writer().extend({**rows, "done": torch.arange(7) == 6})
            assert len(seqs) == 5
            batch, lost = storage.gather(np.ascontiguousarray(seqs[::-1]))
            assert lost == 0
            for key, column in rows.items():
                assert batch[key].dtype == column.dtype
                assert torch.equal(batch[key], column[2:].flip(0)), key


def test_values_are_kept_or_refused():
    with DeviceStorage(10, "cpu", example=row(0, 0)) as storage:
        rows = tensors(episode(0, 3))
        storage.writer().extend({**rows, "action": rows["action"].float()})  # float to double
        rows["collector"]["traj_ids"] = torch.tensor([0.0, 0.5, 1.0])
        with pytest.raises(ValueError, match="traj_ids.*0.5"):
            storage.writer().extend(rows)
        assert len(storage) == 3


@pytest.mark.parametrize(
    ("given", "wanted", "kept"),
    [
        ("float16", "float32", True),
        ("bfloat16", "float32", True),
        ("float32", "float64", True),
        ("float64", "float32", False),
        ("float32", "bfloat16", False),
        ("float32", "int64", False),
        ("bool", "float32", True),
        ("bool", "uint8", True),
        ("uint8", "bool", False),
        ("uint8", "int16", True),
        ("int16", "uint8", False),
        ("int64", "float32", True),
        ("int64", "int32", False),
        ("int64", "float16", False),
        ("int16", "float16", True),
        ("float16", "bfloat16", True),
        ("bfloat16", "float16", False),
        ("uint16", "int32", True),
        ("int64", "complex64", True),
        ("float32", "complex64", True),
        ("float64", "complex64", False),
        ("complex64", "complex128", True),
        ("complex128", "complex64", False),
        ("complex64", "float32", False),
        ("complex64", "int64", False),
    ],
)
def test_dtypes_whose_values_all_fit(given, wanted, kept):
    """What is cast on a device without a look at it: what no storage refuses any value of."""
    assert fits_unseen(getattr(torch, given), getattr(torch, wanted)) == kept


NUMBERS = ["bool", "uint8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64"]
NUMBERS += ["complex64", "complex128"]


def test_what_fits_unseen_is_what_any_storage_takes():
    """The largest and smallest values that there are, as host memory casts them."""
    for given, wanted in itertools.product(NUMBERS, NUMBERS):
        if "complex" in given:  # numpy has no limits of these
            continue
        limits = np.array([0, 1], given)
        if given != "bool":
            info = (np.finfo if "float" in given else np.iinfo)(given)
            some = [0.5] if "float" in given else []
            limits = np.array([info.min, info.max, *some], given)
        try:
            cast(limits, np.dtype(wanted), ("x",))
            taken = True
        except ValueError:
            taken = False
        assert fits_unseen(getattr(torch, given), getattr(torch, wanted)) == taken, (given, wanted)
