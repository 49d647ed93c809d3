"""Rollouts of any size, cut anywhere: what must hold for all of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contig import QueueRolloutStorage, RolloutDataset, RolloutWriter
from contig.rollout.rows import clear_rows, take_rows
from tests.dataset.made import trajectory
from tests.rollout.steps import identity, random_dones, transition

SIZES = st.integers(1, 7)


@given(SIZES, SIZES, st.integers(1, 4), st.sampled_from([1.0, 1.5, 2.5]), st.integers(0, 50))
def test_minibatches_have_every_row_once(steps, envs, rounds, ratio, seed):
    """Flat, padded and packed ones of a storage that may have gone around."""
    dones = random_dones(steps * rounds, envs, seed)
    storage = QueueRolloutStorage(
        envs, steps, (3,), None, (2,), buffer_dilation_ratio=ratio, seed=seed
    )
    for step in range(steps * rounds):
        if step and step % steps == 0:
            storage.clear()
        state = identity(step, envs, 2)[None]
        storage.add_transitions(transition(step, envs, dones[step], hidden_states=(state, None)))
    kept = min(steps * rounds, int(steps * ratio))
    first = steps * rounds - kept
    want = sorted(1000.0 * s + e for s in range(first, steps * rounds) for e in range(envs))
    parts = 1 + seed % envs
    flat = [b.obs[:, 0] for b in storage.mini_batch_generator(parts, 1)]
    assert sorted(torch.cat(flat).tolist()) == want
    padded = list(storage.recurrent_mini_batch_generator(parts, 1))
    packed = list(storage.recurrent_mini_batch_generator(parts, 1, packed=True))
    by_trajectory = [
        b.obs[mask, i, 0].tolist() for b in padded for i, mask in enumerate(b.masks.unbind(1))
    ]
    in_order = [x for run in by_trajectory for x in run]
    assert sorted(in_order) == want
    assert in_order == torch.cat([b.obs[:, 0] for b in packed]).tolist()
    for run in by_trajectory:  # one env, step after step, cut at dones and nowhere else
        assert run == [run[0] + 1000.0 * k for k in range(len(run))]
        ends = [bool(dones[int(x) // 1000, int(x) % 1000]) for x in run]
        assert not any(ends[:-1]) and (ends[-1] or run[-1] // 1000 == steps * rounds - 1)
    begins = torch.cat([b.hidden_states[0][0, :, 0] for b in padded]).tolist()
    assert begins == [run[0] for run in by_trajectory]


@settings(max_examples=20)  # each writes files
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 3),
    st.booleans(),
)
def test_every_env_reads_whole_trajectories(tmp_path_factory, lengths, envs, per_file, loops, mix):
    envs = min(envs, len(lengths))
    path = tmp_path_factory.mktemp("rollouts")
    with RolloutWriter(path, frames_per_file=per_file) as writer:
        for number, frames in enumerate(lengths):
            writer.add_trajectory(trajectory(number, frames))
    dataset = RolloutDataset(path, envs, loops, mix, device="cpu", seed=len(lengths))
    batches = list(dataset)
    assert dataset.num_dataset_looped == loops
    begun = np.zeros(len(lengths), int)
    for env in range(envs):
        frame = 0
        for position, batch in enumerate(batches):
            number, at = divmod(int(batch.reward[env]), 1000)
            last = at == lengths[number] - 1
            assert at == frame, "a trajectory is read from its first frame to its last"
            assert bool(batch.done[env]) == (at == 0 or last)
            assert bool(batch.timeout[env]) == last
            assert int(batch.next_observation[env, 0]) == 1000 * number + at + (not last)
            begun[number] += at == 0
            frame = 0 if last else at + 1
            if position == len(batches) - 1 and envs == 1:
                assert last
    assert begun.max() <= loops and begun.sum() <= loops * len(lengths)
    if envs == 1:
        assert (begun == loops).all()


DTYPES = [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64, torch.complex64])
@pytest.mark.parametrize("shape", [(9,), (9, 1), (9, 3, 2), (9, 0)])
def test_rows_by_number(dtype, shape):
    tensor = torch.arange(9).reshape(9, *(1 for _ in shape[1:])).expand(shape).to(dtype)
    rows, before = torch.tensor([8, 0, 0, 3]), tensor.clone()
    for given_ in (tensor, tensor.contiguous()):
        found = take_rows(given_, rows)
        assert found.dtype == dtype and torch.equal(found, before.index_select(0, rows))
        cleared = clear_rows(found, torch.tensor([1, 3]))
        assert cleared is found and not found[1::2].any()
        assert torch.equal(found[::2], before.index_select(0, rows[::2]))
        assert torch.equal(given_, before)
