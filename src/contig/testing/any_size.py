"""What any storage must do with leaves of any size: a part of `StorageSuite`."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from ..batch import Batch
from ..ragged import Blob, Ragged
from ..tape import Storage
from .steps import Array, Step, episode, identity, interleaved, raises, row

__all__ = ["EXAMPLE", "AnySizeTests", "check_any_size", "with_any_size"]

# Leaves of any size beside those of a step.
EXAMPLE = {**row(0, 0), "image": Blob(), "note": Blob(text=True), "tokens": Ragged(np.int32, (2,))}


def _image(step: Step) -> bytes:
    number, t = step
    return bytes((number * 7 + t * 3 + k) % 256 for k in range((number + 5 * t) % 23))


def _note(step: Step) -> str:
    return f"é{step[0]}·{step[1]}" if sum(step) % 3 else ""


def _tokens(step: Step) -> Array:
    length = (step[0] * 3 + step[1]) % 4
    return (np.arange(2 * length, dtype=np.int32) + step[0] * 100 + step[1]).reshape(-1, 2)


def with_any_size(rows: dict[str, Any]) -> dict[str, Any]:
    """Steps, with leaves of any size that say which steps they are."""
    steps = identity(rows)
    return {
        **rows,
        "image": [_image(s) for s in steps],
        "note": [_note(s) for s in steps],
        "tokens": [_tokens(s) for s in steps],
    }


def check_any_size(batch: Batch) -> list[Step]:
    """Which step each row of a flat batch is, its leaves of any size compared byte by byte."""
    steps = identity(batch)
    for i, step in enumerate(steps):
        assert batch["image"][i] == _image(step), step
        assert batch["note"][i] == _note(step), step
        assert np.array_equal(batch["tokens"][i], _tokens(step)), step
    return steps


def _there(storage: Storage) -> list[Step]:
    head, tail, _, _ = storage.tape.snapshot()
    batch, lost = storage.gather(np.arange(tail, head))
    assert not np.any(lost)
    return check_any_size(batch)


class AnySizeTests:
    """Tests of leaves of any size. Their bytes say which step they belong to."""

    takes_any_size: bool = True

    def make_storage(
        self, capacity: int, *, ndim: int = 1, example: Any = None, fields: Any = None
    ) -> Storage:
        raise NotImplementedError(f"{type(self).__name__} must define make_storage")

    def make_for_any_size(self, capacity: int, ndim: int = 1) -> Storage:
        """A storage of rows like `EXAMPLE`; skips the test if this kind takes none."""
        if not self.takes_any_size:
            import pytest

            pytest.skip("this storage has leaves of fixed size only")
        return self.make_storage(capacity, ndim=ndim, example=EXAMPLE)

    def test_leaves_of_any_size_come_back_as_written(self) -> None:
        with self.make_for_any_size(40) as storage:
            writer = storage.writer()
            assert writer.extend(with_any_size(episode(0, 5))).tolist() == list(range(5))
            one = with_any_size(episode(1, 1, end=None))
            image, note, tokens = (one[k][0] for k in ("image", "note", "tokens"))
            writer.add({**row(1, 0), "image": image, "note": note, "tokens": tokens})
            writer.extend_trajectory(with_any_size(episode(2, 4)))
            for step in interleaved((3, 4), 3):
                writer.add_step(with_any_size(step))
            batch, _ = storage.gather(np.arange(0, 10))
            writer.extend(batch[:3])
            expected = [(0, t) for t in range(5)] + [(1, 0)] + [(2, t) for t in range(4)]
            expected += [(n, t) for t in range(3) for n in (3, 4)] + [(0, t) for t in range(3)]
            assert _there(storage) == expected
            table = storage.episodes()
            read = storage.read_episode(int(table["id"][table["traj_id"] == 2][0]))
            assert check_any_size(read) == [(2, t) for t in range(4)]

    def test_bytes_are_evicted_with_their_rows(self) -> None:
        with self.make_for_any_size(9) as storage:
            written: list[Step] = []
            for number in range(30):
                length = 1 + number % 6
                storage.default_writer.extend(with_any_size(episode(number, length)))
                written += [(number, t) for t in range(length)]
                assert _there(storage) == written[-len(storage) :]
                assert len(storage) == min(9, len(written))
            storage.default_writer.extend(with_any_size(episode(99, 20)))
            assert _there(storage) == [(99, t) for t in range(11, 20)]
            storage.empty()
            assert _there(storage) == []

    def test_refused_leaves_of_any_size_change_nothing(self) -> None:
        with self.make_for_any_size(20) as storage:
            writer = storage.writer()
            writer.extend(with_any_size(episode(0, 4)))
            before = (storage.tape.snapshot(), _there(storage))
            good = with_any_size(episode(1, 3))
            for path, value in (
                ("note", ["a", b"\xff", "c"]),
                ("image", [b"a", "b", b"c"]),
                ("image", [b"a", b"b"]),
                ("tokens", [np.zeros((1, 3)), [], []]),
                ("tokens", [np.full((1, 2), 0.5), [], []]),
            ):
                with raises(ValueError, match=path if len(value) == 3 else "rows"):
                    writer.extend({**good, path: value})
            assert (storage.tape.snapshot(), _there(storage)) == before

    def test_no_reader_sees_bytes_of_another_row(self) -> None:
        with self.make_for_any_size(12) as storage:
            storage.writer().extend(with_any_size(episode(0, 6)))
            stop = threading.Event()

            def write() -> None:
                writer = storage.writer()
                for number in range(1, 200):
                    writer.extend(with_any_size(episode(number, 1 + number % 7)))
                stop.set()

            thread = threading.Thread(target=write)
            thread.start()
            while not stop.is_set():
                head, tail, _, _ = storage.tape.snapshot()
                seqs = np.arange(tail, head)
                batch, lost = storage.gather(seqs)
                gone = lost if isinstance(lost, np.ndarray) else seqs < lost
                check_any_size(batch[np.flatnonzero(~gone)])
            thread.join()
            _there(storage)
