"""Demos and online data in one batch, at any ratio."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contig import EmptyBufferError, LayoutError, ShapeDtype, TrajectoryReplayBuffer
from contig.sample import Rng
from contig.trajectory.mixing import share
from tests.trajectory.made import check, drawn, filled, made

DEMO = 500


def demos(**options: Any) -> TrajectoryReplayBuffer:
    buffer = TrajectoryReplayBuffer(**options)
    buffer.add_trajectories([made(DEMO + n, 3, 2) for n in range(3)])
    return buffer


@pytest.mark.parametrize("ratio", [0.0, 0.25, 0.5, 0.9, 1.0])
def test_ratio(ratio: float) -> None:
    buffer = filled(3, demo_buffer=demos(), demo_ratio=ratio)
    for _ in range(5):
        batch = buffer.sample(40)
        who = check(batch, 40)
        assert np.array_equal(batch["is_demo"].numpy(), who[:, 0] >= DEMO)
        assert int((who[:, 0] >= DEMO).sum()) == round(40 * ratio)
        assert np.array_equal(np.sort(batch["is_demo"].numpy()), batch["is_demo"].numpy())


@given(n=st.integers(1, 50), ratio=st.floats(0, 1), seed=st.integers(0, 9))
def test_shares(n: int, ratio: float, seed: int) -> None:
    rng = Rng(seed)
    counts = [share(n, ratio, rng) for _ in range(50)]
    assert all(0 <= c <= n and abs(c - n * ratio) < 1 + 1e-6 for c in counts)


def test_a_ratio_that_is_no_whole_number_holds_on_average() -> None:
    rng = Rng(0)
    counts = [share(10, 0.01, rng) for _ in range(20_000)]
    assert set(counts) == {0, 1}
    assert abs(np.mean(counts) - 0.1) < 0.01
    assert {share(3, 0.1 + 0.2, rng) for _ in range(9)} <= {0, 1}
    assert {share(10, 0.3, rng) for _ in range(99)} == {3}


def test_the_same_seed_is_the_same_mixture() -> None:
    for ahead in (0, 2):
        streams = [
            drawn(filled(3, demo_buffer=demos(), demo_ratio=0.33, prefetch=ahead), 5, 7)
            for _ in range(2)
        ]
        assert streams[0] == streams[1]
    assert streams[0] == drawn(filled(3, demo_buffer=demos(), demo_ratio=0.33), 5, 7)


def test_prefetch_gives_the_numbers_of_both_back(tmp_path: Path) -> None:
    plain = filled(3, demo_buffer=demos(), demo_ratio=0.33)
    ahead = filled(3, demo_buffer=demos(), demo_ratio=0.33, prefetch=3)
    for n in (7, 7, 4, 4, 9):  # another size throws away what was drawn ahead
        assert check(plain.sample(n)).tolist() == check(ahead.sample(n)).tolist()
    ahead.save_checkpoint(tmp_path / "saved")
    assert check(plain.sample(9)).tolist() == check(ahead.sample(9)).tolist()
    ahead.close()


def test_empty() -> None:
    empty = TrajectoryReplayBuffer()
    with pytest.raises(EmptyBufferError):
        filled(2, demo_buffer=empty).sample(8)
    with pytest.raises(EmptyBufferError):
        TrajectoryReplayBuffer(demo_buffer=demos()).sample(8)
    assert len(check(filled(2, demo_buffer=empty, demo_ratio=0.0).sample(8))) == 8
    only = TrajectoryReplayBuffer(demo_buffer=demos(), demo_ratio=1.0)
    assert bool(only.sample(8)["is_demo"].all())


def test_waiting_for_demos_uses_no_random_numbers_up() -> None:
    late = TrajectoryReplayBuffer()
    buffer = filled(3, demo_buffer=late, demo_ratio=0.33)
    for _ in range(7):
        with pytest.raises(EmptyBufferError):
            buffer.sample(10)
    late.add_trajectories([made(DEMO + n, 3, 2) for n in range(3)])
    assert drawn(buffer) == drawn(filled(3, demo_buffer=demos(), demo_ratio=0.33))


def test_a_demo_buffer_has_none_itself() -> None:
    inner = filled(1, demo_buffer=demos())
    with pytest.raises(ValueError, match="has a demo buffer itself"):
        TrajectoryReplayBuffer(demo_buffer=inner)


def test_what_demos_lack_is_masked() -> None:
    form = {"versions": ShapeDtype((), np.float32)}
    online = TrajectoryReplayBuffer(optional=form, demo_buffer=demos())
    online.add_trajectories([made(1, versions=torch.full((4, 2), 8.0)), made(2)])
    for _ in range(10):
        batch = online.sample(20)
        number = check(batch)[:, 0]
        assert np.array_equal(batch["mask"]["versions"].numpy(), number == 1)
        assert np.array_equal(batch["versions"].numpy(), np.where(number == 1, 8.0, 0.0))


def test_what_demos_always_have_is_not_masked() -> None:
    form = {"versions": ShapeDtype((), np.float32)}
    source = TrajectoryReplayBuffer()
    source.add_trajectories([made(DEMO, versions=torch.full((4, 2), 3.0))])
    online = TrajectoryReplayBuffer(optional=form, demo_buffer=source)
    online.add_trajectories([made(1)])
    batch = online.sample(20)
    demo = check(batch)[:, 0] == DEMO
    assert np.array_equal(batch["mask"]["versions"].numpy(), demo)
    assert np.array_equal(batch["versions"].numpy(), np.where(demo, 3.0, 0.0))


def test_both_optional() -> None:
    form = {"versions": ShapeDtype((), np.float32)}
    source = TrajectoryReplayBuffer(optional=form)
    source.add_trajectories([made(DEMO), made(DEMO + 1, versions=torch.ones(4, 2))])
    online = TrajectoryReplayBuffer(optional=form, demo_buffer=source)
    online.add_trajectories([made(0)])
    batch = online.sample(60)
    number = check(batch)[:, 0]
    assert np.array_equal(batch["mask"]["versions"].numpy(), number == DEMO + 1)


def test_what_does_not_fit() -> None:
    source = demos()
    lacking = made(0, versions=torch.ones(4, 2))
    online = TrajectoryReplayBuffer(demo_buffer=source)
    online.add_trajectories([lacking])
    with pytest.raises(LayoutError, match=r'"versions": the demo buffer does not have it'):
        online.sample(4)
    surplus = made(0)
    surplus.dones = None
    online = TrajectoryReplayBuffer(demo_buffer=source)
    online.add_trajectories([surplus])
    with pytest.raises(LayoutError, match=r'"dones": the demo buffer has it and this buffer'):
        online.sample(4)
    other = made(0)
    other.dones = other.dones.to(torch.int64)
    online = TrajectoryReplayBuffer(demo_buffer=source)
    online.add_trajectories([other])
    with pytest.raises(LayoutError, match=r'"dones": float32\[1\] in the demo buffer, int64'):
        online.sample(4)
    masked = TrajectoryReplayBuffer(optional=["dones"])
    masked.add_trajectories([made(DEMO)])
    with pytest.raises(LayoutError, match=r'"dones": optional in the demo buffer'):
        filled(1, demo_buffer=masked).sample(4)


def test_interventions_become_demos() -> None:
    """Steps that a human took go into the demo buffer."""
    human = TrajectoryReplayBuffer()
    flags = torch.zeros(4, 2, 3, dtype=torch.bool)
    flags[1:3, 1] = True
    trajectory = made(7, 4, 2, epochs=2, intervene_flags=flags)
    human.add_trajectories(trajectory.extract_intervene_traj())
    online = TrajectoryReplayBuffer(demo_buffer=human)
    online.add_trajectories([trajectory])
    batch = online.sample(40)
    who = check(batch)[batch["is_demo"].numpy()]
    assert {tuple(row) for row in who.tolist()} == {(7, 1, 1), (7, 2, 1)}
