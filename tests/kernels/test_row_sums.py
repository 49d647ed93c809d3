"""Rows as they are stored: what their checksums are of."""

from __future__ import annotations

import threading

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from contig import _native

SIZE, STRIDE = 24, 32


def salts_of(pairs: list[tuple[int, int]]) -> np.ndarray:
    return np.array(pairs, np.uint64).reshape(-1)


def reference(record: bytes, seq: int, pairs: list[tuple[int, int]]) -> int:
    salt = dict([(0, 0), *pairs])[max(first for first, _ in [(0, 0), *pairs] if first <= seq)]
    named = b"" if salt == 0 else salt.to_bytes(8, "little") + seq.to_bytes(8, "little")
    return _native.crc32c_portable(named + record)


words = st.integers(0, 2**63 - 1)


@given(
    st.lists(st.tuples(st.integers(0, 40), words), max_size=5, unique_by=lambda p: p[0]),
    st.integers(0, 40),
    st.integers(1, 20),
    st.integers(0, 2**32),
)
def test_encoded_rows(pairs: list[tuple[int, int]], first: int, n: int, seed: int) -> None:
    pairs = sorted(pairs)
    records = np.random.default_rng(seed).integers(0, 256, n * SIZE, np.uint8)
    encoded = _native.encode_rows(records, SIZE, STRIDE, first, salts_of(pairs))
    stored = np.asarray(memoryview(encoded)).reshape(n, STRIDE)
    assert (stored[:, :SIZE] == records.reshape(n, SIZE)).all()
    assert not stored[:, SIZE + 4 :].any()
    for i in range(n):
        found = int.from_bytes(stored[i, SIZE : SIZE + 4].tobytes(), "little")
        assert found == reference(records[i * SIZE : (i + 1) * SIZE].tobytes(), first + i, pairs)
    flat = np.ascontiguousarray(stored.reshape(-1))
    back, damaged = _native.decode_rows(flat, SIZE, STRIDE, first, salts_of(pairs))
    assert not len(damaged)
    assert (np.asarray(memoryview(back)).reshape(-1) == records).all()


@given(st.integers(1, 2**63 - 1), st.integers(0, 2**40), st.integers(1, 30))
def test_a_row_is_right_in_its_place_only(salt: int, first: int, away: int) -> None:
    records = np.arange(SIZE, dtype=np.uint8)
    encoded = _native.encode_rows(records, SIZE, STRIDE, first, salts_of([(0, salt)]))
    stored = np.array(np.asarray(memoryview(encoded)).reshape(-1))
    for seq, other, right in (
        (first, salt, True),
        (first + away, salt, False),
        (first, salt ^ away, False),
        (first, 0, False),
    ):
        _, damaged = _native.decode_rows(stored, SIZE, STRIDE, seq, salts_of([(0, other)]))
        assert (len(damaged) == 0) == right


def test_salts_change_under_readers() -> None:
    """Those who check rows while salts are added find them whole, before and after."""
    tape = _native.Tape(_control(), -1)
    tape.publish_stored(SIZE, STRIDE, 7, 3)
    region = _native.Region(3 * 128 * STRIDE)  # zeros
    tape.attach_region(region)
    stop = threading.Event()
    wrong: list[int] = []

    def read() -> None:
        while not stop.is_set():
            wrong.append(len(tape.damaged(0, 64)))

    thread = threading.Thread(target=read)
    thread.start()
    for n in range(2000):
        tape.set_salts(salts_of([(64 + i, 1 + n) for i in range(n % 7 + 1)]))
    stop.set()
    thread.join()
    assert set(wrong) == {64 if _native.crc32c(bytes(SIZE)) else 0}


def _control() -> np.ndarray:
    control = np.zeros(_native.control_bytes(64), np.uint8)
    _native.format_control(control, 64)
    return control
