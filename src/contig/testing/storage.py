"""What any storage must do.

Subclass `StorageSuite`, say how to make a storage, and let pytest collect the subclass. Tests use
only what `contig.tape.Storage` promises; every row carries its identity (`contig.testing.steps`).
"""

from __future__ import annotations

import multiprocessing
import threading
from typing import Any

import numpy as np

from ..batch import Batch
from ..errors import ClosedError, EmptyBufferError, LayoutError
from ..tape import Storage
from .steps import Array, Step, episode, identity, interleaved, raises, row

__all__ = ["StorageSuite"]

_DEADLINE_S = 60


class StorageSuite:
    """Tests that every storage passes.

    Attributes:
        passes_to_processes: whether a storage may be an argument of a spawned process.
    """

    passes_to_processes: bool = True

    def make_storage(self, capacity: int, *, ndim: int = 1, example: Any = None) -> Storage:
        """A new, empty storage that keeps `capacity` rows."""
        raise NotImplementedError(f"{type(self).__name__} must define make_storage")

    # -- layout -------------------------------------------------------------------------------

    def test_is_empty_at_first(self) -> None:
        with self.make_storage(10) as storage:
            assert len(storage) == 0
            assert storage.capacity == 10
            assert storage.layout is None
            assert len(storage.episodes()) == 0
            storage.flush()
            with raises(EmptyBufferError):
                storage.gather(np.arange(1))
            with raises(KeyError):
                storage.read_episode(0)

    def test_first_write_fixes_the_layout(self) -> None:
        with self.make_storage(10) as storage:
            storage.writer().extend(episode(0, 3))
            assert storage.layout is not None
            leaf = storage.layout.by_path["next", "observation"]
            assert (leaf.shape, leaf.dtype) == ((2,), np.float32)
            before = contents(storage)
            with raises(LayoutError, match="observation"):
                storage.writer().extend({**episode(1, 3), "observation": np.zeros((3, 5))})
            assert contents(storage) == before

    def test_example_fixes_the_layout_at_once(self) -> None:
        with self.make_storage(10, example=row(0, 0)) as storage:
            assert storage.layout is not None
            assert len(storage) == 0
            with raises(LayoutError, match="action"):
                storage.writer().extend({**episode(0, 3), "action": np.zeros((3, 2))})
            storage.writer().extend(episode(0, 3))
            assert steps_of(storage) == [(0, 0), (0, 1), (0, 2)]

    def test_missing_flags_are_completed(self) -> None:
        with self.make_storage(10) as storage:
            data = episode(0, 3)
            del data["next"]["terminated"], data["next"]["truncated"]
            storage.writer().extend(data)
            batch = storage.read_episode(int(storage.episodes()["id"][0]))
            assert batch["next", "terminated"].tolist() == [False, False, True]
            assert batch["next", "truncated"].tolist() == [False] * 3

    def test_leading_dims_are_lanes_of_rows(self) -> None:
        with self.make_storage(20, ndim=2) as storage:
            lanes = [episode(n, 4) for n in (3, 4, 5)]
            storage.writer().extend(stacked(lanes))
            assert [e.tolist() for e in storage.episodes()["traj_id"]] == [3, 4, 5]
            for n, table_row in zip((3, 4, 5), storage.episodes()):
                batch = storage.read_episode(int(table_row["id"]))
                assert identity(batch) == [(n, t) for t in range(4)]

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

    # -- episodes -----------------------------------------------------------------------------

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

    # -- writers ------------------------------------------------------------------------------

    def test_equal_ids_of_two_writers_never_join(self) -> None:
        with self.make_storage(50) as storage:
            a, b = storage.writer(), storage.writer()
            for t in range(4):
                a.add(row(1, t))
                b.add(row(1, 100 + t))
            table = storage.episodes()
            assert table["steps"].tolist() == [4, 4]
            assert a.id != b.id
            assert set(table["writer"].tolist()) == {a.id, b.id}
            for line, start in zip(table, (0, 100)):
                batch = storage.read_episode(int(line["id"]))
                assert identity(batch) == [(1, start + t) for t in range(4)]

    def test_writer_in_another_thread_continues_nothing(self) -> None:
        with self.make_storage(50) as storage:
            writer = storage.writer()
            writer.extend(episode(1, 3, end=None))
            first = writer.id
            thread = threading.Thread(target=lambda: writer.extend(episode(1, 3, start=3)))
            thread.start()
            thread.join()
            table = storage.episodes()
            assert table["steps"].tolist() == [3, 3]
            assert len(set(table["writer"].tolist())) == 2
            assert first in table["writer"]
            assert not table["complete"].any()

    def test_default_writer_is_one_per_thread(self) -> None:
        with self.make_storage(50) as storage:
            mine = storage.default_writer
            theirs: list[Any] = []
            thread = threading.Thread(target=lambda: theirs.append(storage.default_writer))
            thread.start()
            thread.join()
            assert storage.default_writer is mine
            assert theirs[0] is not mine

    def test_many_threads_lose_nothing(self) -> None:
        threads, appends = 4, 40
        with self.make_storage(threads * appends * 3) as storage:
            storage.writer().extend(episode(999, 1))
            storage.empty()

            def write(number: int) -> None:
                writer = storage.writer()
                for n in range(appends):
                    writer.extend(episode(100 * number + n, 3))

            running = [threading.Thread(target=write, args=(k,)) for k in range(threads)]
            for t in running:
                t.start()
            for t in running:
                t.join()
            table = storage.episodes()
            assert sorted(table["traj_id"].tolist()) == sorted(
                100 * k + n for k in range(threads) for n in range(appends)
            )
            assert table["complete"].all()
            assert set(table["steps"].tolist()) == {3}

    # -- life ---------------------------------------------------------------------------------

    def test_empty(self) -> None:
        with self.make_storage(10) as storage:
            storage.empty()
            writer = storage.writer()
            writer.extend(episode(0, 6))
            writer.extend(episode(1, 2, end=None))
            layout = storage.layout
            storage.empty()
            assert len(storage) == 0
            assert len(storage.episodes()) == 0
            assert storage.layout == layout
            seqs = writer.extend(episode(1, 3, start=2))
            assert seqs.tolist() == [8, 9, 10]
            table = storage.episodes()
            # What went before is gone, so it is no complete episode.
            assert table["steps"].tolist() == [3]
            assert not table["complete"].any()
            writer.extend(episode(2, 3))
            assert storage.episodes()["complete"].tolist() == [False, True]

    def test_close(self) -> None:
        storage = self.make_storage(10)
        writer = storage.writer()
        writer.extend(episode(0, 4))
        storage.default_writer.add(row(1, 0))
        one = int(storage.episodes()["id"][0])
        batch = storage.read_episode(one)
        storage.close()
        storage.close()
        uses: dict[str, Any] = {
            "add": lambda: writer.add(row(2, 0)),
            "extend": lambda: writer.extend(episode(2, 2)),
            "default_writer": lambda: storage.default_writer.add(row(2, 0)),
            "writer": storage.writer,
            "episodes": storage.episodes,
            "read_episode": lambda: storage.read_episode(one),
            "empty": storage.empty,
            "flush": storage.flush,
        }
        wrong = {}
        for name, use in uses.items():
            try:
                use()
                wrong[name] = "nothing"
            except ClosedError:
                pass
            except Exception as error:
                wrong[name] = type(error).__name__
        # A batch owns its memory.
        assert identity(batch) == [(0, t) for t in range(4)]
        assert not wrong, f"expected ClosedError after close(), got {wrong}"

    def test_passes_to_a_process(self) -> None:
        if not self.passes_to_processes:
            return
        context = multiprocessing.get_context("spawn")
        with self.make_storage(20) as storage:
            storage.writer().extend(episode(1, 4))
            storage.writer().extend(episode(2, 3, end=None))
            mine, theirs = context.Pipe()
            process = context.Process(target=_in_process, args=(storage, theirs))
            process.start()
            theirs.close()
            assert mine.poll(_DEADLINE_S), "the process said nothing"
            seen, written = mine.recv()
            process.join(_DEADLINE_S)
            assert process.exitcode == 0
            assert seen == [*((1, t) for t in range(4)), *((2, t) for t in range(3))]
            assert written == [7, 8, 9, 10, 11]
            # What it wrote outlives it, and joined nothing of ours.
            assert rows_at(storage, np.array(written)) == [(2, t) for t in range(3, 8)]
            table = storage.episodes()
            assert table["steps"].tolist() == [4, 3, 5]
            assert table["traj_id"].tolist() == [1, 2, 2]
            assert len(set(table["writer"].tolist())) == 3


def _in_process(storage: Storage, pipe: Any) -> None:
    seen = steps_of(storage)
    seqs = storage.writer().extend(episode(2, 5, start=3))
    storage.flush()
    pipe.send((seen, seqs.tolist()))
    pipe.close()


def contents(storage: Storage) -> tuple[int, bytes, dict[int, bytes]]:
    """Everything a reader can see, in a form that can be compared."""
    table = storage.episodes()
    rows = {int(i): _bytes(storage.read_episode(int(i))) for i in table["id"]}
    return len(storage), table.tobytes(), rows


def _bytes(batch: Batch) -> bytes:
    return b"".join(np.ascontiguousarray(batch[p]).tobytes() for p in batch.keys())  # noqa: SIM118


def rows_at(storage: Storage, seqs: Array) -> list[Step]:
    """Which steps lie at these seqs, none of them evicted."""
    batch, lost = storage.gather(np.ascontiguousarray(seqs, np.int64))
    assert lost == 0, f"rows below {lost} are gone"
    return identity(batch)


def steps_of(storage: Storage) -> list[Step]:
    """The rows of all episodes, one episode after another."""
    out: list[Step] = []
    for number in storage.episodes()["id"]:
        out += identity(storage.read_episode(int(number)))
    return out


def joined(trees: list[Any]) -> Any:
    """Trees of rows, one after another."""
    return _merge(trees, np.concatenate)


def stacked(trees: list[Any]) -> Any:
    """Trees of rows as lanes of one."""
    return _merge(trees, np.stack)


def _merge(trees: list[Any], how: Any) -> Any:
    if isinstance(trees[0], dict):
        return {k: _merge([t[k] for t in trees], how) for k in trees[0]}
    return how(trees)
