"""What every storage has: a described tape with its writers, and the ways to read it.

Thread-safe.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path as FilePath
from typing import Any, Self

import numpy as np

from .. import _native
from ..arguments import trajectory_ids
from ..batch import Batch
from ..convert import as_array
from ..errors import EmptyBufferError
from ..layout import Layout
from .asked import Asked
from .decoding import Undecodable
from .described import DescribedTape
from .episodes import EpisodeReader, read_episodes
from .fields import Given, check_fields, pack_fields
from .folding import FoldedSteps, Recipe
from .schema import ExtraLeaf, Schema, Wide
from .segment import Segment
from .snapshot import Snapshot
from .taking_in import asked_for, put_rows, rows_for
from .writer import Writer

__all__ = ["Storage"]


class Storage(DescribedTape):
    """A tape with a schema that is written and read. Use one of the subclasses.

    Attributes:
        restored: how many checkpoints were taken in here.
        at_once: whether reading it is no more than what its gatherers do, so that native code may
            draw and gather in one call.

    Args:
        segment: the memory it lives in.
        ndim: batch dims of what `extend` gets.
        example: a row, which fixes the layout at once; None: the first row does.
        asked: fields, codecs and sharing that were asked for.
    """

    at_once = False

    def __init__(
        self, segment: Segment, ndim: int, example: Any = None, asked: Asked | None = None
    ) -> None:
        super().__init__(segment, ndim, asked)
        self.restored = 0
        self._local = threading.local()
        self._episodes = EpisodeReader(self.tape)
        self._undecodable = Undecodable()
        self._writers: weakref.WeakSet[Writer] = weakref.WeakSet()
        if example is not None:
            try:
                self.publish_example(example)
            except BaseException:
                self.close()  # a refused construction leaves nothing behind
                raise

    # -- writing ------------------------------------------------------------------------------

    def native_writer(self, schema: Schema, number: int = 0) -> Any:
        """Makes the native part of a Writer. `number`: the writer's, for a producer; 0: any."""
        own = schema.boundaries.traj_key is not None
        return _native.Writer(self.tape, schema.marks, own, number=number)

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
        fields: Layout | None = None,
    ) -> None:
        """Takes a checkpoint in, in place of what is there. If that fails, nothing is changed. If
        it is interrupted, `restored` says whether it had happened.

        Args:
            contents: what is taken in.
            limiter: rows inserted and sampled, as the rate limiter counts them.
            layout, keys: of the checkpoint, for a storage that has none yet.
            fields: of its trajectories. A storage that has fields takes in one without; then they
                are zero.
        """
        self._open()
        if self.fields is not None or self.schema is not None:
            check_fields(self.fields, fields)
        before = self.asked
        try:
            if self.schema is None:
                self.bind_keys(*keys)
            self._restore(contents, limiter, layout, fields)
        except BaseException:
            if self.schema is None:
                self.asked = before
            raise

    def _restore(
        self,
        contents: Snapshot,
        limiter: tuple[int, int],
        layout: Layout | None,
        fields: Layout | None,
    ) -> None:
        if contents.rows.places is not None:
            contents = contents.fitting(self._ring_for(layout))
        schema = self.schema
        if schema is None:
            assert layout is not None
            self.asked = asked_for(self.asked, layout, contents)
            schema = self.asked.schema(layout, fields)
        # What can fail comes before a layout is fixed.
        rows = rows_for(contents, schema, layout)
        self.tape.prepare_restore(*contents.numbered())
        if layout is not None:
            published = self.publish(layout, fields)
            if published.sharing != schema.sharing:  # by another process, meanwhile
                rows = rows_for(contents, published, layout)
        put_rows(self.tape, rows, contents)
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
        # A tape that is attached to keeps the fields of what it evicts; without a schema there are
        # no rows.
        if self.schema is not None:
            self.tape.clear()

    def flush(self) -> None:
        """Returns when every append is as durable as this storage makes it: at once, in memory."""
        self._open()

    # -- reading ------------------------------------------------------------------------------

    def poll(self) -> None:
        """Takes in what other processes wrote: nothing to do where memory is shared."""

    @property
    def blob_bytes(self) -> int:
        """Bytes that leaves of any size have in memory now, with what killed writers left."""
        return int(self.tape.blob_bytes)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that rows have now, with observations that are stored once, leaves of any
        size and fields; without the index. It grows as it is used, and does not shrink."""
        if self._schema is None and self.schema is None:
            return 0
        return int(sum(self.tape.reserved)) + int(self.tape.slot_memory)

    def __len__(self) -> int:
        for _ in range(100):
            head, tail, _, _ = self.tape.snapshot()
            if tail <= head:  # or writers turned the whole ring between the two
                break
        return int(max(head - tail, 0))

    def gather(
        self,
        seqs: np.ndarray[Any, Any],
        extras: tuple[ExtraLeaf, ...] = (),
        steps: FoldedSteps | None = None,
        *,
        aside: bool = False,
    ) -> Any:
        """Rows by seq as a Batch, with room for extra leaves; and the tail if some were lost.

        Args:
            seqs: rows.
            extras: leaves to add.
            steps: rows that follow each of them, to be folded into one.
            aside: rows that cannot be decoded count as lost: then `lost` is a mask over `seqs`.

        Returns:
            (batch, lost): lost is 0, or the seq below which rows were evicted meanwhile.

        Raises:
            CodecError: rows cannot be decoded, and are not to be set aside.
        """
        if not aside:
            return self._gathered(seqs, extras, steps)[:2]
        bad = np.zeros(len(seqs), np.bool_)
        batch, lost, _ = self._gathered(seqs, extras, steps, bad)
        return batch, bad | (seqs < lost) if bad.any() else lost

    def _gathered(
        self,
        seqs: np.ndarray[Any, Any],
        extras: tuple[ExtraLeaf, ...],
        steps: FoldedSteps | None,
        aside: np.ndarray[Any, Any] | None = None,
    ) -> tuple[Batch, int, np.ndarray[Any, Any] | None]:
        """As `gather`; also the places of rows (of `steps`, if given) whose checksum is wrong."""
        wide = self.wide(extras, steps)
        if steps is None:
            block, lost, damaged = wide.gatherer.gather(seqs)
        else:
            block, lost, damaged = wide.gatherer.gather_folded(seqs, steps.rows, steps.lengths)
        batch = Batch(block, wide.layout, (len(seqs),), wide.extras)
        if wide.decoder is not None:
            lost = wide.decoder.fill(batch, seqs, steps, lost, damaged, aside=aside)
            if aside is not None:
                self._undecodable.found(seqs[aside], int(self.tape.snapshot()[1]))
        return batch, lost, damaged

    def read_records(self, seqs: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> int:
        """Rows by seq as records, one after another, where leaves of any size are places of bytes.
        0, or the seq below which rows were evicted meanwhile."""
        return int(self.tape.gather_records(seqs, out))

    def rows_once(self) -> Any:
        """What copies rows as they are stored, where that is observations once; None: they are
        whole, or in files."""
        return _native.CompactCopy(self.tape) if self.tape.slots_range[1] else None

    def as_rows(self, tree: Any, batch_ndim: int) -> Batch:
        """Data with so many batch dims, whatever `ndim` is, for `extend`."""
        return Batch.from_tree(tree, batch_ndim)

    @property
    def undecodable(self) -> int:
        """Rows that were drawn here, cannot be decoded, and are still stored: samples go on without
        them, ``buffer[[seq]]`` says what is wrong with one (the log has their seqs)."""
        return self._undecodable.count(int(self.tape.snapshot()[1]))

    def wide(self, extras: tuple[ExtraLeaf, ...], steps: FoldedSteps | None) -> Wide:
        """What gathers rows into a part of a block that several storages fill."""
        return self._wide(extras, None if steps is None else steps.recipe)

    def plan(self, extras: tuple[ExtraLeaf, ...], recipe: Recipe | None) -> Wide | None:
        """What samples rows in one native call; None: they have to be drawn, gathered and decoded
        one after another."""
        if not self.at_once or self.schema is None:
            return None
        wide = self._wide(extras, recipe)
        return wide if wide.decoder is None else None

    def _wide(self, extras: tuple[ExtraLeaf, ...], recipe: Recipe | None) -> Wide:
        schema = self._schema
        if schema is None or self._segment is None:
            self._open()
            schema = self.schema
        if schema is None:
            raise EmptyBufferError("nothing has been written to this storage yet")
        if recipe is None:
            return schema.wide(self.tape, extras)
        return schema.folded(self.tape, extras, recipe)

    def episodes(self) -> np.ndarray[Any, Any]:
        """All trajectories on the tape: a structured array, see `contig.tape.episodes.EPISODE`."""
        self._open()
        return read_episodes(self.tape, self.fields)

    def set_fields(self, ids: Any, fields: Any) -> int:
        """Changes fields of trajectories that are stored, each whole or not at all.

        Args:
            ids: as `episodes()` has them, or one; one that is named twice counts once.
            fields: a mapping of those to change; values of a field, or one for each id.

        Returns:
            how many of the trajectories were still there.

        Raises:
            LayoutError: a field that is not known, or does not fit; nothing was changed.
        """
        self._open()
        numbers = trajectory_ids(as_array(ids))
        given = pack_fields(self.fields, fields, (len(numbers),))
        if given is None or self.schema is None:
            return 0
        return self._change_fields(numbers, given)

    def _change_fields(self, ids: np.ndarray[Any, Any], given: Given) -> int:
        there = np.asarray(self._episodes.set_fields(ids, *given))
        found = np.sort(ids[there != 0])  # faster than np.unique by far
        return len(found) - int(np.count_nonzero(found[1:] == found[:-1]))  # each counts once

    def read_episode(self, episode: int) -> Batch:
        """All usable rows of one trajectory, by the `id` that `episodes()` gives.

        Raises:
            KeyError: there is none of this id, or it has been evicted.
        """
        self._open()
        for _ in range(100):
            self.poll()
            seqs = self._episodes.rows_of(int(episode)).seqs
            if not len(seqs) and not self._episodes.stale:
                raise KeyError(f"no episode {episode} on this tape; it may have been evicted")
            batch, lost = self.gather(seqs)
            if not np.any(lost) and not self._episodes.stale:  # no checkpoint came in between
                return batch  # type: ignore[no-any-return]
        if isinstance(lost, np.ndarray):
            raise KeyError(f"episode {episode} is damaged and set aside: `contig inspect` says why")
        raise KeyError(f"episode {episode} is being evicted faster than it can be read")

    def held(self, files: bool = False) -> AbstractContextManager[None]:
        """Keeps writers out for the length of the block: the reader's last resort. `files`: so that
        `link_rows` may be called, too."""
        return self._lock_held()

    @contextmanager
    def _lock_held(self) -> Iterator[None]:
        self.tape.acquire()
        try:
            yield
        finally:
            self.tape.release()

    # -- life ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Lets go of the memory's name; batches taken before stay valid."""
        self.tape.close()
        self._episodes.close()
        for writer in list(self._writers):
            writer.detach()
        self._closer()
        self._segment = None

    def __repr__(self) -> str:
        name = f"{type(self).__name__}{self._place()}"
        if self._segment is None:
            return f"<{name}: closed>"
        rows = f"{len(self)} of {self.capacity} rows, {int(self.tape.trajectories)} trajectories"
        layout = self.layout
        return f"<{name}: {rows}{'' if layout is None else f', {len(layout.leaves)} leaves'}>"

    def _place(self) -> str:
        """Where others find it, for `repr`."""
        return ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()
