"""Every sampler draws the same from a storage that stores observations once as from a plain one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import contig
from contig import DiskStorage, LazyTensorStorage, ReplayBuffer, SharedStorage
from contig.sample import Sampler
from tests.replay.checkpoint.buffers import SAMPLERS
from tests.tape.observations import Env, Form, batch_bytes, stacked

GOALS = {"achieved": "state", "desired": "goal"}


def reward_of(achieved: Any, goals: Any, rows: Any) -> Any:
    return (np.nan_to_num(achieved) * 3 + goals).sum(-1).astype(np.float32)


MORE: dict[str, tuple[Callable[[], Sampler], int]] = {
    "trajectories": (lambda: contig.TrajectorySampler(4), 4),
    "five steps": (lambda: contig.NStepSampler(5, 0.9, contig.RandomSampler()), 16),
    "chunks of five": (lambda: contig.ChunkSampler(5, contig.RandomSampler()), 8),
    "hindsight": (
        lambda: contig.HindsightRelabel("future", 4, reward_fn=reward_of, **GOALS),
        12,
    ),
    "window of priorities": (
        lambda: contig.WindowSampler(contig.PrioritizedSampler(), last_rows=50),
        8,
    ),
}
EVERY = SAMPLERS | MORE
FORMS = {
    "vectors": Form(state=True),
    "stacks": Form(frames=4, image=True, state=True),
    "channels": Form(frames=3, axis=-1, image=True, state=True),
}


def writes(form: Form) -> list[tuple[str, Any]]:
    """Rows of several envs, one by one, in steps and in pieces; some episodes end."""
    rnd = np.random.default_rng(5)
    envs = [Env(form, i, rnd) for i in range(5)]
    out: list[tuple[str, Any]] = []

    def row(env: Env, end: bool) -> Any:
        made = env.row(end)
        return {**made, "goal": np.full(4, env.number, np.float64)}

    for i in range(40):
        out.append(("step", stacked([row(e, bool(rnd.random() < 0.1)) for e in envs[:3]])))
        out.append(("one", row(envs[3], i % 9 == 8)))
        if i % 10 == 0:
            out.append(("piece", stacked([row(envs[4], j == 29) for j in range(30)])))
    return out


def filled(storage: Any, form: Form) -> Any:
    alone, pieces = storage.writer(), storage.writer()
    calls = {"step": storage.default_writer.add_step, "one": alone.add, "piece": pieces.extend}
    for how, rows in writes(form):
        calls[how](rows)
    return storage


@pytest.fixture(scope="module", params=FORMS)
def storages(request: Any, tmp_path_factory: Any) -> Any:
    form = FORMS[request.param]
    folder = tmp_path_factory.mktemp("disk")
    made = [
        filled(LazyTensorStorage(220, share_next=False), form),
        filled(LazyTensorStorage(220, stack=form.stack), form),
        filled(SharedStorage(220, share_next=True), form),
        filled(
            LazyTensorStorage(220, share_next=True, codecs={"obs": "lz4", "state": "lz4"}), form
        ),
        filled(DiskStorage(folder, 220, share_next=True, stack=form.stack), form),
    ]
    yield made
    for storage in made:
        storage.close()


@pytest.mark.parametrize("name", EVERY)
def test_the_same_batches(name: str, storages: Any) -> None:
    assert [s.schema.sharing is not None for s in storages] == [False, True, True, True, True]
    make, size = EVERY[name]
    buffers = [ReplayBuffer(s, make(), batch_size=size, seed=3) for s in storages]
    for turn in range(6):
        batches = [buffer.sample() for buffer in buffers]
        first, *others = (batch_bytes(batch) for batch in batches)
        assert others == [first] * 4
        if "priorit" in name and "index" in batches[0].keys():  # noqa: SIM118
            seqs = np.asarray(batches[0]["index"]).ravel()
            for buffer in buffers:
                buffer.update_priority(seqs, 1.0 + (seqs * 7 + turn) % 5)
