"""What any storage must do with rows that are appended and evicted: a part of `StorageSuite`."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from ..tape import Storage
from .contents import contents, rows_at, steps_of
from .steps import Step, episode, identity, interleaved, raises, row

__all__ = ["AppendingTests"]


class AppendingTests:
    """Tests of appends and of the ring that keeps the newest rows."""

    def make_storage(
        self, capacity: int, *, ndim: int = 1, example: Any = None, fields: Any = None
    ) -> Storage:
        raise NotImplementedError(f"{type(self).__name__} must define make_storage")

    # -- appending ----------------------------------------------------------------------------

    def test_rows_come_back_as_written(self) -> None:
        with self.make_storage(50) as storage:
            data = episode(7, 20, end="truncated")
            seqs = storage.writer().extend(data)
            order = np.random.default_rng(0).permutation(seqs)
            batch, lost = storage.gather(np.ascontiguousarray(order))
            assert lost == 0
            for path in batch.keys():  # noqa: SIM118
                value = data
                for key in path:
                    value = value[key]
                np.testing.assert_array_equal(batch[path], np.asarray(value)[order - seqs[0]])

    def test_every_way_of_writing_returns_its_seqs(self) -> None:
        with self.make_storage(100) as storage:
            writer = storage.writer()
            got = [writer.add(row(0, 0)), writer.add(row(0, 1, end="terminated"))]
            got += writer.extend(episode(1, 5)).tolist()
            got += writer.extend_trajectory(episode(2, 4)).tolist()
            for step in interleaved([3, 4], 3):
                got += writer.add_step(step).tolist()
            assert got == list(range(17))
            expected = [(0, 0), (0, 1), *((1, t) for t in range(5)), *((2, t) for t in range(4))]
            expected += [(n, t) for t in range(3) for n in (3, 4)]
            assert rows_at(storage, np.arange(17)) == expected

    def test_no_reader_sees_half_an_append(self) -> None:
        rows, appends = 7, 150
        with self.make_storage(rows * appends) as storage:
            storage.writer().extend(episode(0, rows))
            failed: list[BaseException] = []

            def write() -> None:
                try:
                    writer = storage.writer()
                    for n in range(1, appends):
                        writer.extend(episode(n, rows))
                except BaseException as error:
                    failed.append(error)

            thread = threading.Thread(target=write)
            thread.start()
            while thread.is_alive():
                assert len(storage) % rows == 0
                table = storage.episodes()
                assert set(table["steps"].tolist()) == {rows}
                assert table["complete"].all()
            thread.join()
            assert not failed, failed[0]
            assert len(storage) == rows * appends

    def test_refused_append_changes_nothing(self) -> None:
        with self.make_storage(12) as storage:
            writer = storage.writer()
            writer.extend(episode(0, 8))
            writer.extend(episode(1, 3, end=None))
            before = contents(storage)
            good = episode(1, 3, start=3)
            bad: dict[str, Any] = {
                "shape": {**good, "observation": np.zeros((3, 4), np.float32)},
                "missing leaf": {k: v for k, v in good.items() if k != "action"},
                "unknown leaf": {**good, "more": np.zeros(3)},
                "unequal rows": {**good, "action": np.zeros(4)},
                "fraction to int": {**good, "collector": {**good["collector"]}},
                "flags disagree": {**good, "next": {**good["next"]}},
                "strings": {**good, "action": np.array(["a", "b", "c"])},
            }
            bad["fraction to int"]["collector"]["traj_ids"] = np.array([1.0, 1.5, 1.0])
            bad["flags disagree"]["next"]["done"] = np.array([True, False, False])
            for what, data in bad.items():
                for method in (writer.extend, writer.add_step, writer.extend_trajectory):
                    with raises(ValueError, TypeError):
                        method(data)
                    assert contents(storage) == before, f"{what}: {method.__name__}"
            with raises(ValueError):
                writer.add({**row(1, 3), "action": np.zeros(2)})
            assert contents(storage) == before
            # And the writer goes on as if nothing had been.
            assert writer.extend(good).tolist() == [11, 12, 13]
            assert steps_of(storage)[-6:] == [(1, t) for t in range(6)]

    # -- the ring -----------------------------------------------------------------------------

    def test_ring_keeps_the_newest_rows(self) -> None:
        capacity = 23
        with self.make_storage(capacity) as storage:
            writer = storage.writer()
            written: list[Step] = []
            for n in range(30):
                length = 1 + n % 7
                seqs = writer.extend(episode(n, length))
                assert seqs.tolist() == list(range(len(written), len(written) + length))
                written += [(n, t) for t in range(length)]
                alive = np.arange(max(0, len(written) - capacity), len(written))
                assert len(storage) == len(alive)
                assert rows_at(storage, alive) == written[alive[0] :]
                assert steps_of(storage) == written[alive[0] :]
            _, lost = storage.gather(np.arange(5))
            assert lost == len(written) - capacity

    def test_more_rows_than_fit_keep_the_last(self) -> None:
        with self.make_storage(10) as storage:
            seqs = storage.writer().extend(episode(0, 25))
            assert len(seqs) == len(storage) == 10
            assert rows_at(storage, seqs) == [(0, t) for t in range(15, 25)]
            table = storage.episodes()
            assert table["trimmed"].tolist() == [True]
            assert table["steps"].tolist() == [10]
            assert not table["complete"].any()

    def test_seqs_never_repeat(self) -> None:
        with self.make_storage(10) as storage:
            writer, other = storage.writer(), storage.writer()
            seen: list[int] = []
            for n in range(12):
                length = (3, 10, 25, 1)[n % 4]
                seen += (writer, other)[n % 2].extend(episode(n, length)).tolist()
                if n % 5 == 4:
                    storage.empty()
            assert len(set(seen)) == len(seen)
            assert seen == sorted(seen)

    def test_episode_over_the_seam_is_one(self) -> None:
        # The reference case: episodes of 4, 14 rows in a ring of 10.
        with self.make_storage(10) as storage:
            writer = storage.writer()
            for n in range(3):
                writer.extend(episode(n, 4))
            writer.extend(episode(3, 2, end=None))
            table = storage.episodes()
            assert table["traj_id"].tolist() == [1, 2, 3]
            assert table["first"].tolist() == [4, 8, 12]
            assert table["steps"].tolist() == [4, 4, 2]
            assert table["complete"].tolist() == [True, True, False]
            assert not table["trimmed"].any()
            wrapping = storage.read_episode(int(table["id"][1]))
            assert identity(wrapping) == [(2, t) for t in range(4)]
