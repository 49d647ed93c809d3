"""DescribedTape: a tape in a segment of memory, and what its records are.

The schema is fixed once for every process that has the memory: by the first row, or at once by an
example. Thread-safe.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import replace
from typing import Any

from .. import _native
from ..batch import Batch
from ..convert import plain_tree
from ..errors import ClosedError, LayoutError
from ..layout import Layout
from ..tree import show_path
from .asked import Asked
from .encoding import Codecs, check_codecs
from .ending import Whole
from .fields import check_fields
from .fits import warn_if_too_large
from .schema import Schema
from .segment import Segment
from .stacking import batch_ndim_of

__all__ = ["DescribedTape"]


class DescribedTape:
    """A tape that knows, or will know, what its records are. Nothing is read or written here.

    Attributes:
        capacity: rows it keeps; older ones are evicted.
        ndim: batch dims of plain trees given to `extend`, the last of them time.
        tape: the native handle.
        asked: what the first row's writer has to know besides, whichever process it is in.
        device: where rows are, if that is not host memory.
        takes_records: whether its tape has whole rows, which others may append to it as they are.
    """

    device: Any = None
    takes_records: bool = True

    def __init__(self, segment: Segment, ndim: int, asked: Asked | None = None) -> None:
        self._segment: Segment | None = segment
        self.tape = _native.Tape(segment.control, segment.fd)
        self.capacity = int(self.tape.capacity)
        self.ndim = ndim
        self.asked = asked or Asked()
        self._schema: Schema | None = None
        self._lock = threading.Lock()
        self._closer = weakref.finalize(self, Segment.close, segment)

    # -- what it is ---------------------------------------------------------------------------

    @property
    def schema(self) -> Schema | None:
        """What the records are, or None while nobody has written."""
        schema = self._schema
        if schema is None and self.tape.ready:
            with self._lock:
                schema = self._schema or self._load()
        return schema

    @property
    def layout(self) -> Layout | None:
        """What a row is; None before the first one."""
        schema = self.schema
        return None if schema is None else schema.layout

    @property
    def records(self) -> Layout | None:
        """What the records of its tape are: `layout`, unless some leaves of rows are elsewhere."""
        return self.layout

    @property
    def codecs(self) -> Codecs:
        """Codecs by the paths of their leaves."""
        schema = self.schema
        return dict(self.asked.codecs) if schema is None else schema.codecs

    @property
    def fields(self) -> Layout | None:
        """What trajectories have besides their rows; None: nothing, or nobody has said it yet."""
        schema = self.schema
        return self.asked.fields if schema is None else schema.fields

    @property
    def keys(self) -> tuple[Any, Any]:
        """`traj_key` and `end_key`, as samplers asked for them."""
        return self.asked.keys

    @property
    def blob_ring(self) -> int:
        """Bytes it keeps of leaves of any size at most."""
        return self._ring_for(self.layout)

    def _ring_for(self, layout: Layout | None) -> int:
        return int(self.tape.blob_range[1]) or self.asked.ring(self.capacity, layout)

    # -- what is asked of it ------------------------------------------------------------------

    def bind_keys(self, traj_key: Any, end_key: Any) -> None:
        """A sampler's boundary keys; they must come before the first row.

        Raises:
            ValueError: other keys were bound before, or rows were written with others.
        """
        if traj_key is None and end_key is None:
            return
        schema = self.schema
        if schema is not None:
            conflict = schema.boundaries.conflict(traj_key, end_key)
            if conflict:
                raise ValueError(conflict)
            return
        self.asked = self.asked.with_keys(traj_key, end_key)

    def bind_fields(self, fields: Layout) -> None:
        """Fields that trajectories are to have; they must be known before the first row.

        Raises:
            LayoutError: there are others, or rows were written without.
        """
        schema = self.schema
        if schema is None and self.asked.fields is None:
            self.asked = replace(self.asked, fields=fields)
        check_fields(self.fields, fields)

    def batch_ndim(self, tree: Any) -> int:
        """How many leading dims of a plain tree are batch dims: `ndim`, or fewer, if it has
        fewer, which is then one run of rows."""
        if isinstance(tree, Batch) or plain_tree(tree)[1] is not None:
            return self.ndim
        schema = self.schema
        if schema is not None:
            return batch_ndim_of(schema, tree, self.ndim)
        leaves = Layout.of_rows(tree).leaves
        return min([self.ndim, *(len(x.shape) for x in leaves if not x.ragged)])

    # -- fixing it ----------------------------------------------------------------------------

    def define(
        self, tree: Any, batch_ndim: int, fields: Layout | None = None, whole: Whole | None = None
    ) -> Schema:
        """Fixes the layout from the first data, of rows with that many leading dims; and that of
        fields, if trajectories are to have any. `whole`: what is said of a whole
        trajectory. Data that would be refused changes nothing."""
        layout, self.asked = self.asked.row(tree, batch_ndim, self.capacity, whole)
        return self.publish(layout, fields)

    def publish_like(self, rows: Batch, fields: Layout | None = None) -> Schema:
        """As `publish`, with the layout of rows such as will be written."""
        if self.schema is None:
            columns = [None if x.variable else rows[x.path] for x in rows.layout.leaves]
            self.asked = self.asked.looked_at(rows.layout, columns)
        return self.publish(rows.layout, fields)

    def publish_example(self, example: Any, fields: Layout | None = None) -> Schema:
        """As `publish`, with the layout of an example of a row."""
        tree = plain_tree(example)[0]
        layout = Layout(tree)
        if self.schema is None:
            self.asked = self.asked.shown(layout, tree)
        return self.publish(layout, fields)

    def publish(self, layout: Layout, fields: Layout | None = None) -> Schema:
        """Fixes the layout, completed by missing done flags, and that of fields, if trajectories
        are to have any; or checks that they are those there.

        Raises:
            LayoutError: another layout was fixed before, with the difference.
        """
        mine = self.asked.schema(layout, fields)
        with self._lock:
            if self._schema is None:
                published = self._announce(mine)
                self._load(mine if published else None)
        assert self._schema is not None
        self._check_same(self._schema, mine, layout)
        return self._schema

    @staticmethod
    def _check_same(there: Schema, mine: Schema, layout: Layout) -> None:
        """Raises LayoutError if rows of a layout, with what was asked for, differ from those that
        are there."""
        theirs = there.layout
        # Who does not ask for codecs takes those that are there; what was asked is checked already.
        encoded = [x for x in layout.leaves if x.codec is not None]
        if mine.layout.decoded != theirs.decoded or any(
            theirs.by_path[x.path].codec != x.codec for x in encoded
        ):
            raise LayoutError(
                "this storage already holds another layout:\n" + theirs.diff(mine.layout)
            )
        check_fields(there.fields, mine.fields)

    def _announce(self, schema: Schema) -> bool:
        """Fixes the layout for every process; False: somebody else did."""
        layout = schema.layout
        fields = 0 if schema.fields is None else schema.fields.record_size
        leaves = len(layout.variable)
        ring = self._ring_for(layout) if leaves else 0
        sizes = (layout.record_size, fields, leaves, ring)
        warn_if_too_large(type(self).__name__, schema, self.capacity, self.asked)
        return bool(self.tape.publish(schema.to_bytes(), *sizes, schema.shared_form))

    def _load(self, mine: Schema | None = None) -> Schema:
        segment = self._open()
        schema = mine or Schema.from_bytes(segment.read(*self.tape.schema_range))
        check_codecs(schema.codecs, self.asked.codecs)
        self.tape.attach_data(segment.map_data(*self.tape.data_range))
        if schema.shared_form is not None:
            self.tape.attach_slots(segment.map_data(*self.tape.slots_range), schema.shared_form)
        if schema.layout.variable:
            ring = segment.map_data(*self.tape.blob_range)
            names = [show_path(x.path) for x in schema.layout.variable]
            self.tape.attach_blobs(ring, schema.blob_leaves, names)
        if schema.fields is not None:
            memory = segment.map_data(*self.tape.fields_range)
            self.tape.attach_fields(memory, schema.fields.table)
        self._schema = schema
        return schema

    # -- life ---------------------------------------------------------------------------------

    @property
    def fd(self) -> int:
        """The descriptor of its memory, or -1 if no other process can have it."""
        return self._open().fd

    def check_open(self) -> None:
        """Raises ClosedError after close()."""
        self._open()

    def _open(self) -> Segment:
        if self._segment is None:
            raise ClosedError("this storage is closed")
        return self._segment
