"""What any storage must do.

Subclass `StorageSuite`, say how to make a storage, and let pytest collect the subclass. Tests use
only what `contig.tape.Storage` promises; every row carries its identity (`contig.testing.steps`).
"""

from __future__ import annotations

import multiprocessing
import threading
from typing import Any

import numpy as np

from ..errors import ClosedError, EmptyBufferError, LayoutError
from ..tape import Storage
from .any_size import AnySizeTests
from .appending import AppendingTests
from .contents import contents, rows_at, stacked, steps_of
from .episodes import EpisodesTests
from .fields import FieldsTests
from .steps import episode, identity, raises, row

__all__ = ["StorageSuite"]

_DEADLINE_S = 60


class StorageSuite(AppendingTests, EpisodesTests, FieldsTests, AnySizeTests):
    """Tests that every storage passes.

    Attributes:
        passes_to_processes: whether a storage may be an argument of a spawned process.
        has_fields: whether trajectories may have fields; then `make_storage` gets `fields=` too.
        takes_any_size: whether rows may have leaves of any size.
    """

    passes_to_processes: bool = True

    def make_storage(
        self, capacity: int, *, ndim: int = 1, example: Any = None, fields: Any = None
    ) -> Storage:
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
            assert (leaf.shape, leaf.dtype) == ((2,), np.dtype(np.float32))
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
