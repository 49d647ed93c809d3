"""n-step transitions and chunks of rows on disk: none is made of a row that is damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from contig import ChunkSampler, NStepSampler, ReplayBuffer
from contig.tape.disk import DiskStorage

STEPS, EPISODES, BAD = 10, 20, 57  # the bad row is step 7 of episode 5


def test_a_damaged_row_spoils_what_it_is_a_part_of(tmp_path: Path) -> None:
    write_damaged(tmp_path / "store")
    with DiskStorage(tmp_path / "store", read_only=True) as storage:
        buffer = ReplayBuffer(storage, NStepSampler(3, 1.0), batch_size=64, seed=0)
        seen: set[int] = set()
        for _ in range(40):
            batch = buffer.sample()
            assert len(batch) == 64
            uid, k = batch["uid"], batch["steps_to_next_obs"]
            np.testing.assert_array_equal(k, np.minimum(3, STEPS - uid % STEPS))
            np.testing.assert_array_equal(batch["next", "uid"], uid + k)
            np.testing.assert_array_equal(batch["next", "done"], uid % STEPS + k == STEPS)
            total = sum(np.where(k > i, uid + i, 0) for i in range(3))
            np.testing.assert_array_equal(batch["next", "reward"], total)
            seen.update(uid.tolist())
        assert not seen & set(range(BAD - 2, BAD + 1))
        assert len(seen) >= (EPISODES - 1) * STEPS * 9 // 10
        assert len(storage.quarantined) == 1


def test_a_damaged_row_spoils_the_chunks_it_is_in(tmp_path: Path) -> None:
    write_damaged(tmp_path / "store")
    with DiskStorage(tmp_path / "store", read_only=True) as storage:
        buffer = ReplayBuffer(storage, ChunkSampler(3, keys=("mark",)), batch_size=64, seed=0)
        seen: set[int] = set()
        for _ in range(40):
            batch = buffer.sample()
            assert len(batch) == 64
            uid, real = batch["uid"], batch["collector", "chunk_mask"]
            k = np.minimum(3, STEPS - uid % STEPS)
            np.testing.assert_array_equal(real.sum(1), k)
            at = uid[:, None] + np.minimum(np.arange(3), k[:, None] - 1)
            np.testing.assert_array_equal(batch["mark"], marks(at))
            seen.update(uid.tolist())
        assert not seen & set(range(BAD - 2, BAD + 1))
        assert len(seen) >= (EPISODES - 1) * STEPS * 9 // 10
        assert len(storage.quarantined) == 1


def write_damaged(path: Path) -> None:
    """Episodes, and one row of them with a wrong byte."""
    with DiskStorage(path) as storage:
        for episode in range(EPISODES):
            uid = episode * STEPS + np.arange(STEPS)
            done = np.arange(STEPS) == STEPS - 1
            storage.default_writer.extend_trajectory(
                {
                    "uid": uid,
                    "mark": marks(uid),
                    "next": {"uid": uid + 1, "reward": uid.astype("f4"), "done": done},
                }
            )
    damage(path, marks(np.array([BAD])).tobytes())


def marks(uid: np.ndarray) -> np.ndarray:
    """Words that no other row has anywhere."""
    return (uid + 1) * 0x5DEECE66D1234567


def damage(path: Path, mark: bytes) -> None:
    """Changes a byte of the one row that has these."""
    for file in sorted((path / "extents").iterdir()):
        data = file.read_bytes()
        at = data.find(mark)
        if at >= 0:
            file.write_bytes(data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])
            return
    raise AssertionError("no such row")
