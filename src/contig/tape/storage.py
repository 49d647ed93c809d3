"""What every storage has: a tape with its layout, its writers and its index.

The layout is fixed by the first row, or at once by an example. Thread-safe.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from .. import _native
from ..batch import Batch
from ..convert import plain_tree
from ..errors import ClosedError, EmptyBufferError, LayoutError
from ..layout import Layout
from .boundaries import complete_flags, fill_flags, merged_keys
from .episodes import EpisodeReader, read_index
from .folding import FoldedSteps
from .schema import ExtraLeaf, Schema, Wide, row_layout
from .segment import Segment
from .snapshot import Snapshot
from .writer import Writer, batch_ndim_of

__all__ = ["Storage"]


class Storage:
    """A tape with a schema. Use one of the subclasses.

    Attributes:
        capacity: rows it keeps; older ones are evicted.
        ndim: batch dims of plain trees given to `extend`, the last of them time.
        tape: the native handle.
        restored: how many checkpoints were taken in here.
    """

    def __init__(self, segment: Segment, ndim: int, example: Any = None) -> None:
        self._segment: Segment | None = segment
        self.tape = _native.Tape(segment.control, segment.fd)
        self.capacity = int(self.tape.capacity)
        self.ndim = ndim
        self.restored = 0
        self._schema: Schema | None = None
        self._keys: tuple[Any, Any] = (None, None)
        self._lock = threading.Lock()
        self._local = threading.local()
        self._episodes = EpisodeReader(self.tape)
        self._writers: weakref.WeakSet[Writer] = weakref.WeakSet()
        self._closer = weakref.finalize(self, Segment.close, segment)
        if example is not None:
            try:
                self.publish(Layout(plain_tree(example)[0]))
            except BaseException:
                self.close()  # a refused construction leaves nothing behind
                raise

    # -- schema -------------------------------------------------------------------------------

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
        schema = self.schema
        return None if schema is None else schema.layout

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
        self._keys = merged_keys(self._keys, (traj_key, end_key))

    def batch_ndim(self, tree: Any) -> int:
        """How many leading dims of a plain tree are batch dims: `ndim`, or fewer, if it has
        fewer, which is then one run of rows."""
        if isinstance(tree, Batch) or plain_tree(tree)[1] is not None:
            return self.ndim
        schema = self.schema
        if schema is not None:
            return batch_ndim_of(schema, tree, self.ndim)
        return min([self.ndim, *(len(x.shape) for x in Layout(tree).leaves)])

    def define(self, tree: Any, batch_ndim: int) -> Schema:
        """Fixes the layout from the first data, of rows with that many leading dims."""
        row, ndim = row_layout(tree, batch_ndim)
        # Data that will be refused must not fix the layout.
        schema = Schema(complete_flags(row), *self._keys)
        columns, _ = schema.layout.columns(tree, ndim, schema.flag_paths)
        fill_flags(schema.layout, schema.boundaries.flags, columns)
        return self.publish(row)

    def publish(self, layout: Layout) -> Schema:
        """Fixes the layout, completed by missing done flags; or checks that it is the one there.

        Raises:
            LayoutError: another layout was fixed before, with the difference.
        """
        mine = Schema(complete_flags(layout), *self._keys)
        with self._lock:
            if self._schema is None:
                published = self.tape.publish(mine.to_bytes(), mine.layout.record_size)
                self._load(mine if published else None)
        assert self._schema is not None
        theirs = self._schema.layout
        if theirs != mine.layout:
            raise LayoutError(
                "this storage already holds another layout:\n" + theirs.diff(mine.layout)
            )
        return self._schema

    def _load(self, mine: Schema | None = None) -> Schema:
        segment = self._open()
        schema = mine or Schema.from_bytes(segment.read(*self.tape.schema_range))
        self.tape.attach_data(segment.map_data(*self.tape.data_range))
        self._schema = schema
        return schema

    # -- writing ------------------------------------------------------------------------------

    def native_writer(self, schema: Schema) -> Any:
        """What a Writer appends through."""
        return _native.Writer(self.tape, schema.marks, schema.boundaries.traj_key is not None)

    def writer(self, orphans: list[Any] | None = None) -> Writer:
        """A new writer, for the calling thread. (`orphans` is for pickling.)"""
        self._open()
        writer = Writer(self, orphans)
        self._writers.add(writer)
        return writer

    @property
    def default_writer(self) -> Writer:
        """The calling thread's own writer, made on first use."""
        writer: Writer | None = getattr(self._local, "writer", None)
        if writer is None:
            writer = self._local.writer = self.writer()
        return writer

    def restore(
        self,
        contents: Snapshot,
        limiter: tuple[int, int],
        layout: Layout | None = None,
        keys: tuple[Any, Any] = (None, None),
    ) -> None:
        """Takes a checkpoint in, in place of what is there. If that fails, nothing is changed. If
        it is interrupted, `restored` says whether it had happened.

        Args:
            contents: what is taken in.
            limiter: rows inserted and sampled, as the rate limiter counts them.
            layout, keys: of the checkpoint, for a storage that has none yet.
        """
        self._open()
        before = self._keys
        try:
            if self.schema is None:
                self.bind_keys(*keys)
            self._restore(contents, limiter, layout)
        except BaseException:
            if self.schema is None:
                self._keys = before
            raise

    def _restore(self, contents: Snapshot, limiter: tuple[int, int], layout: Layout | None) -> None:
        index = contents.numbered()
        # What can fail comes before a layout is fixed.
        records = contents.rows.read(contents.tail, contents.head)
        self.tape.prepare_restore(*index)
        if layout is not None:
            self.publish(layout)
        tail, head = contents.tail, contents.head
        self.tape.restore(records, tail, head, *index, contents.trajectories)
        self.restored += 1
        self.tape.inserted, self.tape.sampled = limiter

    @property
    def quarantined(self) -> dict[int, str]:
        """Trajectories that are set aside because they are damaged, by `id`, with the reason."""
        return {}

    def link_rows(self, folder: FilePath, first: int, head: int) -> dict[str, Any] | None:
        """Rows [first, head) in a folder without copying them, and what is needed to read them;
        None if they are not in files."""
        return None

    def empty(self) -> None:
        """Evicts every row. Seqs go on: they never repeat."""
        self._open()
        self.tape.clear()

    def flush(self) -> None:
        """Returns when every append is as durable as this storage makes it: at once, in memory."""
        self._open()

    # -- reading ------------------------------------------------------------------------------

    def poll(self) -> None:
        """Takes in what other processes wrote: nothing to do where memory is shared."""

    def __len__(self) -> int:
        head, tail, _, _ = self.tape.snapshot()
        return int(max(head - tail, 0))

    def gather(
        self,
        seqs: np.ndarray[Any, Any],
        extras: tuple[ExtraLeaf, ...] = (),
        steps: FoldedSteps | None = None,
    ) -> Any:
        """Rows by seq as a Batch, with room for extra leaves; and the tail if some were lost.

        Args:
            seqs: rows.
            extras: leaves to add.
            steps: rows that follow each of them, to be folded into one.

        Returns:
            (batch, lost): lost is 0, or the seq below which rows were evicted meanwhile.
        """
        batch, lost, _ = self._gathered(seqs, extras, steps)
        return batch, lost

    def _gathered(
        self, seqs: np.ndarray[Any, Any], extras: tuple[ExtraLeaf, ...], steps: FoldedSteps | None
    ) -> tuple[Batch, int, np.ndarray[Any, Any] | None]:
        """As `gather`; also the places of rows (of `steps`, if given) whose checksum is wrong."""
        wide = self.wide(extras, steps)
        if steps is None:
            block, lost, damaged = wide.gatherer.gather(seqs)
        else:
            block, lost, damaged = wide.gatherer.gather_folded(seqs, steps.rows, steps.lengths)
        return Batch(block, wide.layout, (len(seqs),), wide.extras), lost, damaged

    def wide(self, extras: tuple[ExtraLeaf, ...], steps: FoldedSteps | None) -> Wide:
        """What gathers rows into a part of a block that several storages fill."""
        self._open()
        schema = self.schema
        if schema is None:
            raise EmptyBufferError("nothing has been written to this storage yet")
        if steps is None:
            return schema.wide(self.tape, extras)
        return schema.folded(self.tape, extras, steps.recipe)

    def episodes(self) -> np.ndarray[Any, Any]:
        """All trajectories on the tape: a structured array, see `contig.tape.episodes.EPISODE`."""
        self._open()
        return read_index(self.tape).episodes()

    def read_episode(self, episode: int) -> Batch:
        """All usable rows of one trajectory, by the `id` that `episodes()` gives.

        Raises:
            KeyError: there is none of this id, or it has been evicted.
        """
        self._open()
        for _ in range(100):
            self.poll()
            seqs = self._episodes.rows_of(int(episode))
            if not len(seqs) and not self._episodes.stale:
                raise KeyError(f"no episode {episode} on this tape; it may have been evicted")
            batch, lost = self.gather(seqs)
            if not np.any(lost) and not self._episodes.stale:  # no checkpoint came in between
                return batch  # type: ignore[no-any-return]
        raise KeyError(f"episode {episode} is being evicted faster than it can be read")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps writers out for the length of the block: the reader's last resort."""
        self.tape.acquire()
        try:
            yield
        finally:
            self.tape.release()

    # -- life ---------------------------------------------------------------------------------

    @property
    def fd(self) -> int:
        """The descriptor of its memory, or -1 if no other process can have it."""
        return self._open().fd

    @property
    def keys(self) -> tuple[Any, Any]:
        """`traj_key` and `end_key`, as samplers asked for them."""
        return self._keys

    def check_open(self) -> None:
        """Raises ClosedError after close()."""
        self._open()

    def _open(self) -> Segment:
        if self._segment is None:
            raise ClosedError("this storage is closed")
        return self._segment

    def close(self) -> None:
        """Lets go of the memory's name; batches taken before stay valid."""
        self.tape.close()
        self._episodes.close()
        for writer in list(self._writers):
            writer.detach()
        self._closer()
        self._segment = None

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()
