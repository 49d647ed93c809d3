"""What any storage must know of trajectories: a part of `StorageSuite`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..tape import Storage
from .contents import joined, rows_at
from .steps import Step, episode, identity, interleaved, raises, row

__all__ = ["EpisodesTests"]


class EpisodesTests:
    """Tests of the table of trajectories, and of reading one of them."""

    def make_storage(
        self, capacity: int, *, ndim: int = 1, example: Any = None, fields: Any = None
    ) -> Storage:
        raise NotImplementedError(f"{type(self).__name__} must define make_storage")

    def test_table_of_episodes(self) -> None:
        with self.make_storage(50) as storage:
            writer = storage.writer()
            writer.extend(episode(10, 4, version=1))
            writer.extend(episode(11, 3, end="truncated", version=2))
            writer.extend(episode(12, 2, end=None, version=3))
            table = storage.episodes()
            assert len(np.unique(table["id"])) == 3
            assert table["traj_id"].tolist() == [10, 11, 12]
            assert table["first"].tolist() == [0, 4, 7]
            assert table["steps"].tolist() == [4, 3, 2]
            assert table["terminated"].tolist() == [True, False, False]
            assert table["truncated"].tolist() == [False, True, False]
            assert table["trimmed"].tolist() == [False] * 3
            assert table["policy_version"].tolist() == [1, 2, 3]
            assert set(table["writer"].tolist()) == {writer.id}
            assert table["return"].tolist() == [4e4 + 10, 3.3e4 + 6, 2.4e4 + 3]

    def test_batching_never_cuts_an_episode(self) -> None:
        with self.make_storage(50) as storage:
            writer = storage.writer()
            for start in range(0, 12, 3):
                end = "terminated" if start == 9 else None
                writer.extend(episode(5, 3, start=start, end=end))
            table = storage.episodes()
            assert table["steps"].tolist() == [12]
            assert table["complete"].tolist() == [True]
            assert table["return"].tolist() == [12 * 5000 + 78]

    def test_parts_with_other_rows_between_are_one_episode(self) -> None:
        with self.make_storage(50) as storage:
            writer, other = storage.writer(), storage.writer()
            for step in interleaved([1, 2, 3], 6):
                writer.add_step(step)
                other.add(row(9, 0, end="terminated"))
            table = storage.episodes()
            mine = table[table["writer"] == writer.id]
            assert mine["traj_id"].tolist() == [1, 2, 3]
            assert mine["steps"].tolist() == [6, 6, 6]
            assert mine["complete"].all()
            for n, line in zip((1, 2, 3), mine):
                batch = storage.read_episode(int(line["id"]))
                assert identity(batch) == [(n, t) for t in range(6)]
                assert line["return"] == batch["next", "reward"].sum()

    def test_eviction_trims_the_oldest_episode(self) -> None:
        with self.make_storage(12) as storage:
            writer = storage.writer()
            for step in interleaved([1, 2, 3], 6):
                writer.add_step(step)
            table = storage.episodes()
            assert table["steps"].tolist() == [4, 4, 4]
            assert table["trimmed"].all()
            assert not table["complete"].any()
            for n, line in zip((1, 2, 3), table):
                batch = storage.read_episode(int(line["id"]))
                assert identity(batch) == [(n, t) for t in range(2, 6)]

    def test_evicted_episode_is_a_key_error(self) -> None:
        with self.make_storage(10) as storage:
            storage.writer().extend(episode(0, 5))
            gone = int(storage.episodes()["id"][0])
            storage.writer().extend(episode(1, 10))
            for unknown in (gone, 12345):
                with raises(KeyError, match=str(unknown)):
                    storage.read_episode(unknown)

    def test_told_trajectories(self) -> None:
        with self.make_storage(50) as storage:
            writer = storage.writer()
            data = {"observation": episode(0, 4)["observation"], "action": np.arange(4.0)}
            writer.extend_trajectory(data, terminated=True, traj_id=77, policy_version=5)
            writer.extend_trajectory(data, truncated=True)
            table = storage.episodes()
            assert table["traj_id"].tolist() == [77, -1]
            assert table["policy_version"].tolist() == [5, -1]
            assert table["terminated"].tolist() == [True, False]
            assert table["truncated"].tolist() == [False, True]
            assert np.isnan(table["return"]).all()

    def test_any_order_of_writing_agrees_with_a_model(self) -> None:
        for seed in range(4):
            self._compare_with_model(np.random.default_rng(seed), capacity=8 + 12 * seed)

    def _compare_with_model(self, rng: np.random.Generator, capacity: int) -> None:
        with self.make_storage(capacity) as storage:
            writers = [storage.writer() for _ in range(3)]
            length: dict[int, int] = {}  # steps written, by episode
            ended: dict[int, str | None] = {}
            alive: list[Step] = []  # from the oldest row
            written = 0
            current: list[list[int]] = [[100 + w] for w in range(3)]
            new = 200
            for _ in range(40):
                w = int(rng.integers(3))
                lanes = current[w]
                # A writer sometimes drops its lanes and goes on with others.
                if rng.random() < 0.2:
                    lanes = current[w] = list(range(new, new + int(rng.integers(1, 4))))
                    new += 10
                steps = int(rng.integers(1, 5)) if len(lanes) == 1 else 1
                end = (None, None, "terminated", "truncated")[int(rng.integers(4))]
                parts = [
                    episode(n, steps, start=length.get(n, 0), end=end, version=w) for n in lanes
                ]
                data = joined(parts)
                if len(lanes) == 1:
                    seqs = writers[w].extend(data)
                else:
                    seqs = writers[w].add_step(data, env_ids=range(len(lanes)))
                assert seqs.tolist() == list(range(written, written + len(seqs)))
                for n in lanes:
                    alive += [(n, length.get(n, 0) + t) for t in range(steps)]
                    length[n] = length.get(n, 0) + steps
                    ended[n] = end
                written += steps * len(lanes)
                alive = alive[-capacity:]
                if end is not None:
                    current[w] = list(range(new, new + len(lanes)))
                    new += 10
                self._check_model(storage, alive, length, ended, written)

    def _check_model(
        self,
        storage: Storage,
        alive: list[Step],
        length: dict[int, int],
        ended: dict[int, str | None],
        written: int,
    ) -> None:
        assert len(storage) == len(alive)
        first = written - len(alive)
        assert rows_at(storage, np.arange(first, written)) == alive
        table = storage.episodes()
        assert len(np.unique(table["id"])) == len(table)
        assert sorted(table["traj_id"].tolist()) == sorted({n for n, _ in alive})
        for line in table:
            n = int(line["traj_id"])
            mine = [(seq, step) for seq, step in enumerate(alive, first) if step[0] == n]
            assert identity(storage.read_episode(int(line["id"]))) == [s for _, s in mine]
            trimmed = mine[0][1][1] > 0
            rewards = length[n] * (length[n] + 1) // 2 + 1000 * n * length[n]
            expected = (mine[0][0], len(mine), float(rewards), trimmed)
            got = (line["first"], line["steps"], line["return"], line["trimmed"])
            assert tuple(x.item() for x in got) == expected
            flags = (ended[n] == "terminated", ended[n] == "truncated")
            assert (bool(line["terminated"]), bool(line["truncated"])) == flags
            assert bool(line["complete"]) == (any(flags) and not trimmed)
