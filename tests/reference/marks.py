"""The flags that slices get: where they begin, and where they were cut."""

from __future__ import annotations

from typing import Any

Columns = dict[str, list[bool] | None]
TERMINATED, TRUNCATED = 2, 4  # how a trajectory ended, in the index


def mark_slices(
    flags: Columns, lengths: list[int], real: list[int], ends: list[int], told: bool
) -> Columns:
    """New columns init, done, terminated, truncated, slice_end; None stays None.

    Slices lie one after another, lengths[i] rows each, the first real[i] of them no padding.
    ends[i] says how the trajectory ended, if it did so at the last row; it counts if told.
    """
    out: dict[str, Any] = {k: None if v is None else list(v) for k, v in flags.items()}

    def put(name: str, row: int, value: bool) -> None:
        if out[name] is not None:
            out[name][row] = value

    start = 0
    for length, rows, end in zip(lengths, real, ends):
        last = start + rows - 1
        put("init", start, True)
        if told and end:
            for name, bit in (("terminated", TERMINATED), ("truncated", TRUNCATED)):
                if end & bit:
                    put(name, last, True)
            put("done", last, True)
        if not (out["done"] and out["done"][last]) and not (told and end):
            put("slice_end", last, True)
        if out["truncated"] is not None and not (out["terminated"] and out["terminated"][last]):
            put("truncated", last, True)
            put("done", last, True)
        for row in range(last + 1, start + length):
            for name in ("init", "done", "terminated", "truncated"):
                put(name, row, False)
        start += length
    return out
