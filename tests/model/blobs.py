"""Leaves of any size in the tape's protocol: a ring of bytes beside the rows.

A row has the position and the length of its bytes; byte p lies at p % ring. Each byte of the model
knows whose it is: (row, which of its bytes).
"""

from __future__ import annotations

import random
from typing import Any

from tests.model.memory import Memory, Process, Row, Rules, Violation

Reading = Any


class Ring:
    """The bytes, and what is known of them on the side: places of committed rows, by seq."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.head = 0
        self.bytes: list[Any] = [None] * size
        self.committed: list[tuple[int, int]] = []


def lengths(rnd: random.Random, ring: Ring, rows: int) -> list[int]:
    """Of the rows of an append. Each fits the ring, all of them may not."""
    return [min(rnd.choice((0, 1, 1, 2, 3)), ring.size) for _ in range(rows)]


def skipped(m: Memory, ring: Ring, sizes: list[int]) -> int:
    """Of more rows or bytes than fit, the leading rows get no seq: how many."""
    skip = max(len(sizes) - m.capacity, 0)
    while sum(sizes[skip:]) > ring.size:
        skip += 1
    return skip


def tail_for(m: Memory, ring: Ring, rules: Rules, tail: int, nbytes: int, skip: int) -> int:
    """The tail that makes room for so many bytes, behind rows that get no seq."""
    if skip and rules.evict_before_skipped:
        return m.head
    limit = ring.head + nbytes - ring.size
    if rules.evict_for_bytes:
        while tail < m.head and m.rows[tail % m.capacity][2] < limit:
            tail += 1
    return tail


def write(m: Memory, ring: Ring, rules: Rules, rows: list[Row], sizes: list[int]) -> Process:
    """The bytes of rows that get the seqs from head on, and their places; the tail has moved."""
    at = ring.head
    if rules.blob_head_before_head:
        ring.head += sum(sizes)
        yield
    for i, (row, size) in enumerate(zip(rows, sizes)):
        slot = m.rows[(m.head + i) % m.capacity]
        slot[2] = at
        yield
        slot[3] = size
        yield
        for k in range(size):
            ring.bytes[(at + k) % ring.size] = (row, k)
            yield
        at += size


def measure(m: Memory, ring: Ring, rules: Rules, seqs: list[int]) -> Reading:
    """Where the bytes of rows are; of rows that were evicted meanwhile nothing is believed."""
    places = []
    for seq in seqs:
        slot = m.rows[seq % m.capacity]
        position = slot[2]
        yield
        places.append((position, slot[3]))
        yield
    tail = m.tail if rules.tail_before_lengths else 0
    yield
    for seq, place in zip(seqs, places):
        if seq >= tail and place != ring.committed[seq]:
            raise Violation(f"row {seq} is said to have {place}, it has {ring.committed[seq]}")
    return [(0, 0) if seq < tail else place for seq, place in zip(seqs, places)]


def read(ring: Ring, places: list[tuple[int, int]]) -> Reading:
    out = []
    for position, size in places:
        found = []
        for k in range(size):
            found.append(ring.bytes[(position + k) % ring.size])
            yield
        out.append(found)
    return out


def check(row: Row, seq: int, found: list[Any], ring: Ring) -> None:
    if found != [(row, k) for k in range(ring.committed[seq][1])]:
        raise Violation(f"bytes of row {seq}: {found}, expected those of {row}")
