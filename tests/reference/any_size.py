"""A tape with leaves of any size, in the simplest way: all rows ever appended, and which are there.

Every byte of a row follows from its number, so that a byte of another row shows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from contig import Blob, Ragged

EXAMPLE = {
    "uid": np.int64(0),
    "blob": Blob(),
    "text": Blob(text=True),
    "next": {"tokens": Ragged(np.int16, (2,)), "done": False, "reward": np.float32(0)},
}


class Row(NamedTuple):
    """A row by its number and how long its leaves are."""

    uid: int
    blob: int = 0
    text: int = 0
    tokens: int = 0
    done: bool = False

    @property
    def nbytes(self) -> int:
        return self.blob + len(self.string.encode()) + 4 * self.tokens

    @property
    def raw(self) -> bytes:
        return bytes((self.uid * 37 + 11 * k) % 251 for k in range(self.blob))

    @property
    def string(self) -> str:
        return "".join("aé鳥"[(self.uid + k) % 3] for k in range(self.text))

    @property
    def array(self) -> np.ndarray[Any, Any]:
        return (np.arange(2 * self.tokens, dtype=np.int16) + self.uid).reshape(-1, 2)

    def tree(self) -> dict[str, Any]:
        below = {"tokens": self.array, "done": self.done, "reward": np.float32(1)}
        return {"uid": np.int64(self.uid), "blob": self.raw, "text": self.string, "next": below}


def columns(rows: list[Row], form: str = "lists") -> dict[str, Any]:
    """Rows as `extend` takes them."""
    arrays, blobs, texts = (
        [r.array for r in rows],
        [r.raw for r in rows],
        [r.string for r in rows],
    )
    tokens: Any = arrays
    blob: Any = blobs
    text: Any = texts
    if form == "columns":
        tokens, blob, text = Ragged.of(arrays), Blob.of(blobs, False), Blob.of(texts, True)
    elif form == "objects":
        tokens, blob, text = (np.empty(len(rows), object) for _ in range(3))
        for i, row in enumerate(rows):
            tokens[i], blob[i], text[i] = row.array.astype(np.float64), row.raw, row.string
    done = np.array([r.done for r in rows])
    below = {"tokens": tokens, "done": done, "reward": np.ones(len(rows), np.float32)}
    uid = np.array([r.uid for r in rows], np.int64)
    return {"uid": uid, "blob": blob, "text": text, "next": below}


def check(batch: Any, known: dict[int, Row]) -> list[int]:
    """Compares rows of a batch, byte by byte, with those of their numbers; returns the numbers."""
    uids = [int(u) for u in np.asarray(batch["uid"])]
    assert len(batch["blob"]) == len(batch["text"]) == len(uids)
    assert batch["next", "tokens"].offsets[0] == 0
    for i, uid in enumerate(uids):
        row = known[uid]
        assert batch["blob"][i] == row.raw, (uid, batch["blob"][i], row.raw)
        assert batch["text"][i] == row.string, (uid, batch["text"][i], row.string)
        assert np.array_equal(batch["next", "tokens"][i], row.array), uid
    return uids


class Ring:
    """Rows by seq, and which of them are there: as many as fit, in rows and in bytes."""

    def __init__(self, capacity: int, ring: int) -> None:
        self.capacity, self.ring = capacity, ring
        self.rows: list[Row] = []  # by seq
        self.starts: list[int] = []
        self.tail = self.bytes = 0

    @property
    def head(self) -> int:
        return len(self.rows)

    def there(self) -> list[Row]:
        return self.rows[self.tail :]

    def append(self, rows: list[Row]) -> int | None:
        """How many get seqs; None: refused."""
        if any(row.nbytes > self.ring for row in rows):
            return None
        kept = rows[-self.capacity :]
        while sum(row.nbytes for row in kept) > self.ring:
            kept = kept[1:]
        if len(kept) < len(rows):  # those before them go first
            self.tail = self.head
        for row in kept:
            self.rows.append(row)
            self.starts.append(self.bytes)
            self.bytes += row.nbytes
        self.tail = max(self.tail, self.head - self.capacity)
        while self.tail < self.head and self.starts[self.tail] < self.bytes - self.ring:
            self.tail += 1
        return len(kept)
