"""The batch queue: first in, first out, each item once, handed over as whole batches.

    submit / accept  ->  [ block being filled | full blocks ... ]  ->  take  ->  Batch

Items are scattered into the columns of a block in shared memory; a full block becomes a Batch
without a copy and stays pinned while any array taken from it lives. Thread-safe, and safe between
processes.
"""

from __future__ import annotations

import json
import time
import weakref
from typing import Any

import numpy as np

from .. import _native
from ..arguments import seconds_or_none, whole
from ..batch import Batch
from ..convert import plain_tree
from ..errors import ClosedError, LayoutError
from ..layout import Layout
from ..tree import show_path
from .segment import Segment, new_segment, opened

__all__ = ["BatchQueue"]

_SLICE_S = 0.1  # waits are cut in pieces, so that Ctrl-C works


class BatchQueue:
    """A ring of blocks of `batch_size` items.

    Made by `create` or `attach`.

    Attributes:
        native: the native handle.
        layout: of an item.

    Args:
        segment: the memory it lives in.
        layout: what its maker has of an item, with classes that are known only there (registered
            nodes of trees); None: as the memory describes it.
    """

    def __init__(self, segment: Segment, layout: Layout | None = None) -> None:
        self._segment = segment
        self.native = _native.Queue(segment.control)
        self.layout = layout or Layout.from_json(json.loads(self.native.schema))
        self.record_size, self.batch_size, self.num_buffers = self.native.shape
        self._closer = weakref.finalize(self, Segment.close, segment)

    @staticmethod
    def create(
        layout: Layout, batch_size: int, num_buffers: int, name: str | None = None
    ) -> BatchQueue:
        """A new queue; with a name other processes can attach to it (on Linux).

        Raises:
            LayoutError: an item has a leaf of any size.
        """
        if layout.variable:
            leaf = layout.variable[0]
            raise LayoutError(
                f"{show_path(leaf.path)}: {leaf.describe()}, and a queue of batches has items of a "
                "fixed size only; use a table, which takes leaves of any size: "
                'Server(tables={"name": ReplayBuffer(...)})'
            )
        batch_size = whole("batch_size", batch_size, 1, "items")
        blocks = "blocks (one fills while another is read)"
        num_buffers = whole("num_buffers", num_buffers, 2, blocks)
        columns = layout.block_columns(batch_size)
        places = [(x.offset, x.nbytes, at) for x, (_, _, at) in zip(layout.leaves, columns.views)]
        table = np.array(places, np.int64).reshape(-1)
        schema = json.dumps(layout.to_json()).encode()
        block = -(-columns.nbytes // 4096) * 4096
        shape = (layout.record_size, batch_size, num_buffers, block, table)
        nbytes = _native.Queue.bytes_for(*shape, len(schema))

        def form(memory: np.ndarray[Any, Any]) -> None:
            _native.Queue.format(memory, *shape, schema)

        return BatchQueue(new_segment(name, nbytes, form), layout)

    @staticmethod
    def attach(name: str) -> BatchQueue:
        """The queue of this name, which must exist."""
        return opened(Segment.attach(name), BatchQueue)

    def submit(self, tree: Any, timeout: float | None = None) -> None:
        """Appends one item; waits for room.

        Raises:
            LayoutError: the tree does not fit the layout; nothing is appended.
            TimeoutError: there was no room in time.
        """
        timeout = seconds_or_none("timeout", timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        tree = plain_tree(tree)[0]
        record = None
        while True:
            seen = self.native.space_word
            took = self.native.submit(self.layout.plan, tree) if record is None else 0
            if took < 0:  # the slow way: it casts, or says what is wrong
                record = self.layout.pack_one(tree)
            if record is not None:
                took = self.native.accept_records(record, 0, 0)[1]
            if took:
                return
            if self.native.closed:
                raise ClosedError("the queue was closed")
            left = _SLICE_S if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no room in the queue within {timeout} s: nobody samples")
            self.native.wait_space(seen, min(left, _SLICE_S))

    def take(self, copy: bool = False, partial: bool = False) -> Batch | None:
        """The next batch if it is complete; with `partial`, whatever there is. Else None."""
        taken = self.native.take(copy, partial)
        if taken is None:
            return None
        block, rows, fresh = taken
        batch = Batch(block, self.layout, (self.batch_size,))
        if rows < self.batch_size:
            block = batch[:rows].memory
        elif copy or not fresh:
            return batch
        # Read-only, as batches that are not copies are.
        shown = block if copy else memoryview(block).toreadonly()
        return Batch(shown, self.layout, (rows,))

    def close(self) -> None:
        """Lets go of the memory's name; batches taken before stay valid."""
        self._closer()
