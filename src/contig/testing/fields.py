"""What any storage must do with fields of trajectories: a part of `StorageSuite`."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from ..errors import LayoutError
from ..tape import Storage
from .steps import episode, raises, row

__all__ = ["FieldsTests"]

FIELDS = {"task": np.int32(0), "judge": {"score": np.zeros(2, np.float32)}, "won": False}


class FieldsTests:
    """Tests of fields. Values say which trajectory they belong to."""

    has_fields: bool = True

    def make_storage(
        self, capacity: int, *, ndim: int = 1, example: Any = None, fields: Any = None
    ) -> Storage:
        raise NotImplementedError(f"{type(self).__name__} must define make_storage")

    def make_with_fields(self, capacity: int, *, ndim: int = 1, example: Any = None) -> Storage:
        """A storage whose trajectories have `FIELDS`; skips the test if this kind has none."""
        if not self.has_fields:
            import pytest

            pytest.skip("this storage has no fields of trajectories")
        return self.make_storage(capacity, ndim=ndim, example=example, fields=FIELDS)

    def test_fields_are_columns_of_episodes(self) -> None:
        with self.make_with_fields(40) as storage:
            assert storage.fields is not None
            for n in range(3):
                storage.writer().extend(episode(n, 4), fields={"task": n, "won": n == 1})
            table = storage.episodes()
            assert table["task"].tolist() == [0, 1, 2]
            assert table["won"].tolist() == [False, True, False]
            assert table["judge.score"].tolist() == [[0, 0]] * 3

    def test_fields_given_last_count(self) -> None:
        with self.make_with_fields(40) as storage:
            writer, other = storage.writer(), storage.writer()
            writer.add(row(0, 0), {"task": 1, "won": True})
            other.add(row(1, 0), {"task": 5})
            writer.add(row(0, 1))
            writer.add(row(0, 2), {"task": 2})
            other.add(row(1, 1, end="terminated"), {"judge": {"score": [1, 2]}})
            writer.add(row(0, 3, end="terminated"), {"judge": {"score": [3, 4]}})
            table = storage.episodes()
            assert table["task"].tolist() == [2, 5]
            assert table["won"].tolist() == [True, False]
            assert table["judge.score"].tolist() == [[3, 4], [1, 2]]
            assert table["steps"].tolist() == [4, 2]

    def test_fields_of_lanes_and_envs(self) -> None:
        with self.make_with_fields(60, ndim=2) as storage:
            lanes = {k: np.stack([episode(n, 4)[k] for n in range(3)]) for k in ("observation",)}
            data = {**lanes, "next": {"done": np.zeros((3, 4), bool)}}
            storage.writer().extend(data, fields={"task": [4, 5, 6], "won": True})
            writer = storage.writer()
            step = {"observation": lanes["observation"][:, 0], "next": {"done": np.zeros(3, bool)}}
            writer.add_step(step, fields={"task": [7, 8, 9]})
            writer.add_step(step, mask=[True, False, True], fields={"task": [1, 2, 3]})
            writer.add_step(step, fields=[None, {"won": True}, None])
            table = storage.episodes()
            assert table["task"].tolist() == [4, 5, 6, 1, 8, 3]
            assert table["won"].tolist() == [True] * 3 + [False, True, False]

    def test_fields_change_later(self) -> None:
        with self.make_with_fields(12) as storage:
            writer = storage.writer()
            for n in range(4):
                writer.extend_trajectory(episode(n, 4), fields={"task": n})
            writer.add(row(9, 0), {"task": 9})
            ids = storage.episodes()["id"]
            gone = [int(ids[0]) - 1, int(ids[-1]) + 1]
            assert storage.set_fields([*ids, *gone], {"won": True}) == len(ids)
            assert storage.set_fields(ids[-2:], {"judge": {"score": [[1, 2], [3, 4]]}}) == 2
            table = storage.episodes()
            assert table["task"].tolist()[-2:] == [3, 9]
            assert table["won"].all()
            assert table["judge.score"].tolist()[-2:] == [[1, 2], [3, 4]]
            writer.add(row(9, 1, end="terminated"), {"won": False})  # the open one goes on
            table = storage.episodes()
            assert (table["task"][-1], table["won"][-1]) == (9, False)
            assert table["judge.score"][-1].tolist() == [3, 4]

    def test_fields_survive_the_rows_they_were_set_on(self) -> None:
        """Two trajectories are open while others evict all that is stored of them."""
        with self.make_with_fields(12) as storage:
            one, two, other = storage.writer(), storage.writer(), storage.writer()
            for round_ in range(3):
                t = 2 * round_
                one.add(row(0, t), {"task": 10 + t})
                two.add(row(1, t))
                ids = storage.episodes()["id"][-2:]
                score = {"score": [[t, 1], [t, 2]]}
                assert storage.set_fields(ids, {"won": [True, False], "judge": score}) == 2
                if round_ == 1:
                    storage.empty()
                else:
                    for n in range(4):
                        other.extend_trajectory(episode(10 + n, 4), fields={"task": 99})
                assert storage.set_fields(ids, {"task": 98}) == 0  # too late
                one.add(row(0, t + 1))
                two.add(row(1, t + 1), {"won": True})
                table = storage.episodes()[-2:]
                assert table["task"].tolist() == [10 + t, 0]
                assert table["judge.score"].tolist() == [[t, 1], [t, 2]]
                assert table["won"].tolist() == [True, True]
                storage.set_fields(table["id"], {"won": False})

    def test_fields_survive_rows_that_do_not_fit(self) -> None:
        """An append of more rows than there is room for drops its first trajectories.

        Their fields are not stored, and all older trajectories are evicted.
        """
        with self.make_with_fields(6) as storage:
            writer = storage.writer()

            def add(t: int, envs: int) -> None:
                step = np.stack([row(n, t)["observation"] for n in range(8)])
                done = np.zeros(8, bool)
                mask = np.arange(8) < envs
                writer.add_step({"observation": step, "next": {"done": done}}, mask=mask)

            add(0, 2)
            ids = storage.episodes()["id"]
            assert storage.set_fields(ids, {"task": [7, 8], "won": True}) == 2
            add(1, 8)
            assert storage.episodes()["task"].tolist() == [0] * 6
            add(2, 2)
            table = storage.episodes()[-2:]
            assert (table["task"].tolist(), table["won"].tolist()) == ([7, 8], [True, True])

    def test_wrong_fields_change_nothing(self) -> None:
        with self.make_with_fields(20) as storage:
            writer = storage.writer()
            writer.extend(episode(0, 4), fields={"task": 1})
            storage.flush()
            before = (storage.tape.snapshot(), storage.episodes().tobytes())
            for fields in ({"tsak": 1}, {"task": [1, 2]}, {"task": 0.5}, {"judge": 1}):
                with raises(ValueError):
                    writer.extend(episode(1, 3), fields=fields)
                with raises(ValueError):
                    storage.set_fields([0], fields)
            assert (storage.tape.snapshot(), storage.episodes().tobytes()) == before

    def test_storages_without_fields_refuse_them(self) -> None:
        with self.make_storage(20) as storage:
            storage.writer().extend(episode(0, 4))
            assert storage.fields is None
            with raises(LayoutError, match="fields="):
                storage.writer().extend(episode(1, 4), fields={"task": 1})
            with raises(LayoutError, match="fields="):
                storage.set_fields([0], {"task": 1})
            assert len(storage.episodes()) == 1

    def test_fields_are_never_mixed(self) -> None:
        """One thread changes both fields of trajectories to one number, another reads."""
        with self.make_with_fields(40) as storage:
            for n in range(6):
                storage.writer().extend(episode(n, 4))
            ids = storage.episodes()["id"]
            wrong: list[Any] = []
            ready = threading.Event()

            def read() -> None:
                while not ready.is_set() and not wrong:
                    table = storage.episodes()
                    bad = (table["judge.score"] != table["task"][:, None]).any(1)
                    wrong.extend(table[bad].tolist())

            reader = threading.Thread(target=read)
            reader.start()
            try:
                for n in range(1, 300):
                    score = np.full(2, n, np.float32)
                    assert storage.set_fields(ids, {"task": n, "judge": {"score": score}}) == 6
            finally:
                ready.set()
                reader.join()
            assert not wrong
            assert storage.episodes()["task"].tolist() == [299] * 6
