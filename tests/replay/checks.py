"""Batches against the model: exact values of every leaf, exact marks of every slice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from contig import Batch
from tests.tape.model import FLAGS, Form, ModelTape, Piece, Row, build, leaves

SLICE_END, MASK, BURN_IN = (
    ("collector", "slice_end"),
    ("collector", "mask"),
    ("collector", "burn_in"),
)


def check_rows(
    batch: Batch, rows: list[Row], form: Form, but: frozenset[Any] = frozenset()
) -> None:
    """Every stored leaf holds exactly these rows, bit for bit; except those in `but`."""
    expected = leaves(build(form, rows))
    for path, value in expected.items():
        if path in but:
            continue
        got = batch[path]
        assert got.dtype == value.dtype and got.shape == value.shape, path
        assert got.tobytes() == value.tobytes(), (path, got.tolist(), value.tolist())


def check_plain(batch: Batch, tape: ModelTape, extra: frozenset[Any] = frozenset()) -> list[int]:
    """Rows of any trajectories, with nothing added but `index` (and `extra`); returns the seqs."""
    seqs = batch["index"].tolist()
    assert batch["index"].dtype == np.int64
    rows = [tape.row(s) for s in seqs]  # KeyError: not stored
    check_rows(batch, rows, tape.form)
    stored = set(leaves(build(tape.form, [Row(0)])))
    assert set(batch.keys()) == stored | {("index",)} | extra
    return seqs


@dataclass(frozen=True)
class Slicing:
    """The options of a slice sampler."""

    slice_len: int
    num_slices: int = 1
    strict: bool = False
    pad: bool = False
    over: str = "trajectories"
    complete: bool = False
    burn_in: int = 0
    span: Any = False

    def options(self) -> dict[str, Any]:
        return {
            "slice_len": self.slice_len,
            "num_slices": self.num_slices,
            "strict_length": self.strict,
            "pad_output": self.pad,
            "complete_only": self.complete,
            "burn_in": self.burn_in,
        }

    def eligible(self, pieces: dict[int, Piece]) -> dict[int, Piece]:
        return {
            o: p
            for o, p in pieces.items()
            if (not self.strict or len(p) >= self.slice_len) and (not self.complete or p.complete)
        }

    def spans(self) -> tuple[int, int]:
        pair = self.span if isinstance(self.span, tuple) else (self.span, self.span)
        most = self.slice_len - 1
        return tuple(  # type: ignore[return-value]
            (most if s else 0) if isinstance(s, bool) else min(s, most) for s in pair
        )


def check_slices(
    batch: Batch, tape: ModelTape, how: Slicing, eligible: dict[int, Piece]
) -> list[tuple[int, int]]:
    """Slices one after another, each within one eligible piece; returns (ordinal, first step)."""
    form, found, at = tape.form, [], 0
    columns = _columns(batch, form, how)
    seqs = batch["index"].tolist()
    while at < len(batch):
        assert seqs[at] in tape.by_seq, f"row {seqs[at]} is not stored"
        trajectory, step = tape.by_seq[seqs[at]]
        assert trajectory.ordinal in eligible, "a slice of an ineligible trajectory"
        piece = eligible[trajectory.ordinal]
        burn = 0
        if how.burn_in:
            while at + burn < len(batch) and burn < how.burn_in and columns[BURN_IN][at + burn]:
                burn += 1
        start = step + burn
        whole = min(how.slice_len, len(piece))
        rows = whole if how.span is False else _spanned(batch, columns, at, burn, how, piece, start)
        if how.span is False:
            assert piece.start <= start <= piece.start + len(piece) - whole, "not a valid start"
        assert burn == min(how.burn_in, start - piece.start), "burn-in of another length"
        padding = how.slice_len - rows if how.pad else 0
        _check_slice(batch, columns, form, piece, at, step, burn, rows, padding, how)
        found.append((trajectory.ordinal, start))
        at += burn + rows + padding
    assert at == len(batch)
    return found


def _columns(batch: Batch, form: Form, how: Slicing) -> dict[Any, np.ndarray]:
    """The marks, one bool per row, whatever their stored shape; and no leaf that is not due."""
    stored = set(leaves(build(form, [Row(0)])))
    marks = {("is_init",), SLICE_END, *(("next", f) for f in FLAGS)}
    marks |= {BURN_IN} if how.burn_in else set()
    marks |= {MASK} if how.pad else set()
    assert set(batch.keys()) - {("priority_weight",)} == stored | marks | {("index",)}
    for path in marks:
        assert batch[path].dtype == np.bool_, path
    return {p: batch[p].reshape(len(batch)) for p in marks}


def _spanned(
    batch: Batch, columns: Any, at: int, burn: int, how: Slicing, piece: Piece, start: int
) -> int:
    """Rows of a slice that a trajectory's edge may have cut: one slice per batch, so all of it."""
    assert how.num_slices == 1
    rows = len(batch) - burn
    if how.pad:
        rows = int(columns[MASK].sum()) - burn
    left, right = how.spans()
    whole = min(how.slice_len, len(piece))
    lost = whole - rows
    assert rows >= 1 and lost >= 0
    if lost:
        at_start, at_end = start == piece.start, start + rows == piece.start + len(piece)
        assert (at_start and lost <= left) or (at_end and lost <= right), "cut without an edge"
    return rows


def _check_slice(
    batch: Batch,
    columns: Any,
    form: Form,
    piece: Piece,
    at: int,
    step: int,
    burn: int,
    rows: int,
    padding: int,
    how: Slicing,
) -> None:
    n = burn + rows
    part = range(at, at + n)
    inside = slice(step - piece.start, step - piece.start + n)
    real = piece.rows[inside]
    assert len(real) == n, "a slice reaches past its trajectory"
    assert batch["index"][at : at + n].tolist() == piece.seqs[inside], "not contiguous"
    padded = real + [real[-1]] * padding
    section = batch[np.arange(at, at + n + padding)]
    changed = {("is_init",), *(("next", f) for f in FLAGS)}
    check_rows(section, padded, form, frozenset(changed))
    assert section["index"][n:].tolist() == [piece.seqs[inside][-1]] * padding

    has_flags, has_init = form.flags is not None, form.init
    for i, (place, row) in enumerate(zip(part, real)):
        last = i == n - 1
        stored = (row.terminated, row.truncated) if has_flags else (False, False)
        if not has_flags and row is piece.of.rows[-1][1]:  # an end that was told, not stored
            stored = (piece.of.terminated, piece.of.truncated)
        terminated = stored[0]
        truncated = stored[1] or (last and not terminated)
        marks = {
            ("is_init",): i == 0 or (has_init and row.init),
            ("next", "terminated"): terminated,
            ("next", "truncated"): truncated,
            ("next", "done"): terminated or truncated,
            SLICE_END: last and not any(stored),
        }
        if how.burn_in:
            marks[BURN_IN] = i < burn
        if how.pad:
            marks[MASK] = True
        for path, value in marks.items():
            assert columns[path][place] == value, (path, i, n, row)
    for place in range(at + n, at + n + padding):
        for path, column in columns.items():
            assert not column[place], (path, "a padded row is marked")
