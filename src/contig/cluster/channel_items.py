"""What a channel carries: items of one shape, or trajectories of up to so many steps.

A trajectory is carried as its records, one after another, and their number; the room behind them is
never read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arguments import whole
from ..batch import Batch
from ..client.items import layout_of, records_of
from ..convert import plain_tree
from ..layout import Layout

__all__ = ["Items"]


class Items:
    """How items of a channel become queue items, and back.

    Args:
        example: one item; with `max_steps`, one row.
        max_steps: items are trajectories ``[n, ...]`` of 1 to so many rows.

    Attributes:
        carried: the layout of what the queue carries.
    """

    def __init__(self, example: Any, max_steps: int | None) -> None:
        layout = layout_of(example)
        if layout is None:
            raise ValueError("example: one item (with max_steps, one row) says what is carried")
        self._layout: Layout = layout
        self.max_steps = max_steps
        self.carried = layout
        if max_steps is not None:
            whole("max_steps", max_steps, 1, "rows of the longest trajectory")
            room = np.empty(max_steps * layout.record_size, np.uint8)
            self.carried = Layout({"records": room, "steps": np.int64(0)})

    def encode(self, item: Any) -> Any:
        """An item as the queue takes it.

        Raises:
            ValueError: a trajectory without rows, or with too many.
            LayoutError: it is not like the example.
        """
        if self.max_steps is None:
            return plain_tree(item)[0]
        records = records_of(self._layout, item)
        steps = len(records) // self._layout.record_size
        if not 1 <= steps <= self.max_steps:
            raise ValueError(
                f"a trajectory of {steps} rows: this channel carries those of 1 to "
                f"max_steps={self.max_steps}"
            )
        room = np.empty(self.max_steps * self._layout.record_size, np.uint8)
        room[: len(records)] = records
        return {"records": room, "steps": np.int64(steps)}

    def decode(self, block: Any) -> Any:
        """The item in a block of the queue, whose memory it keeps."""
        item = Batch(block, self.carried, (1,))[0]
        if self.max_steps is None:
            return item.tree()
        size, steps = self._layout.record_size, int(item["steps"])
        records = item["records"][: steps * size].reshape(steps, size)
        return self._layout.unpack(records)

    def __reduce__(self) -> Any:
        return Items, (self._layout, self.max_steps)
