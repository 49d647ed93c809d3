"""A row that is packed while another one of the same thread is: what packing asks may be anybody's
code, which sends a row of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from contig import LazyTensorStorage, _native

EXAMPLE = {"a": "text", "b": np.zeros(64), "c": np.zeros(2, np.float32)}


def row(letter: str, last: Any) -> dict[str, Any]:
    return {"a": letter * 50, "b": np.full(64, ord(letter), np.float64), "c": last}


class SendsAnother(TorchFunctionMode):
    """Sends a row of its own whenever torch is asked for something."""

    def __init__(self, send: Any) -> None:
        super().__init__()
        self.send, self.sent = send, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.sent += 1
        self.send(row("y", np.ones(2, np.float32)))
        return func(*args, **(kwargs or {}))


def test_a_row_within_a_row() -> None:
    with LazyTensorStorage(8, example=EXAMPLE) as storage:
        schema = storage.schema
        assert schema is not None
        plan, size = schema.plan(frozenset()), schema.layout.record_size
        offset = schema.layout.by_path[("b",)].offset
        builder = _native.FrameBuilder(size, True, 0, 1 << 20)
        builder.set_variable(np.array([x.offset for x in schema.layout.variable]))
        send = lambda tree: builder.pack_rich_row(plan, tree, 0, -1, -1, 1, None, 1 << 16)  # noqa: E731
        with SendsAnother(send) as mode:
            assert send(row("x", torch.zeros(2)))
        assert mode.sent > 0, "torch was not asked"
        frame = builder.take(True)
        records = np.frombuffer(frame, np.uint8).reshape(-1, size)
        values = records[:, offset : offset + 8].copy().view(np.float64).reshape(-1)
        rows = [chr(int(x)) for x in values]
        assert rows == ["y"] * mode.sent + ["x"]
        assert frame.bytes == b"".join(letter.encode() * 50 for letter in rows)
