"""TrajectoryReplayBuffer: whole trajectories in, single steps of them out.

    add_trajectories -> flatten [T, B] -> a copy -> staged -> a thread: one append each
    sample           -> TrajectoryRows: rows of the window -> dict of tensors

Thread-safe: any number of threads may add and sample. A trajectory counts when all of its rows are
stored; until then no sample sees it. Whoever asks waits for what was added before, so nobody can
tell that adding is asynchronous, but by the time it takes and by when an error comes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path as FilePath
from typing import Any

from ..arguments import whole
from ..convert import to_torch
from ..errors import ClosedError
from ..replay import checkpoint
from ..tree import Nested
from . import rlinf
from .cache import TrajectoryCache
from .entry import TrajectoryEntry
from .folder import CONTIG, METADATA, new_directory, write_json
from .record import Record, parse_optional
from .rows import TrajectoryRows
from .source import open_source, resumed_rng
from .trajectory import Array, flatten_trajectory

__all__ = ["TrajectoryReplayBuffer"]


class TrajectoryReplayBuffer:
    """Keeps trajectories ``[T, B, ...]`` and samples their steps, uniformly over a window.

    Args:
        seed: of its own random numbers; None: fresh ones.
        enable_cache, cache_size: whether, and how many, trajectories stay whole in memory, for
            `read_trajectory`: those that were added or read last. `sample` does not use them: it
            reads the rows that it draws, and no whole trajectories.
        sample_window_size: how many trajectories to sample from, the newest; 0: all.
        auto_save: keep rows in a directory; else the window is kept in memory.
        auto_save_path: that directory. An existing one is opened with what it holds.
        trajectory_format: "pt" or "pkl", of `export_rlinf`.
        optional: fields that a trajectory may lack: a list of those that the first one has, or a
            mapping from fields to a ShapeDtype of one row. Samples then have ``"mask"``: for each
            of them, which rows have it. The others are zeros.
        max_staleness: how many versions behind the newest weights a trajectory may be
            (`model_weights_id`, in the order in which they first came).
        prefetch: batches drawn ahead in a thread.
        demo_buffer: another buffer that a part of each sample comes from; these rows come last,
            and ``"is_demo"`` marks them.
        demo_ratio: the size of that part, on average.
        max_bytes: of rows to keep in the directory; the oldest trajectories go.
        output: "torch" or "numpy".
    """

    def __init__(
        self,
        seed: int | None = 1234,
        enable_cache: bool = True,
        cache_size: int = 5,
        sample_window_size: int = 100,
        auto_save: bool = False,
        auto_save_path: str | FilePath = "",
        trajectory_format: str = "pt",
        *,
        optional: Mapping[Any, Any] | Iterable[Any] = (),
        max_staleness: int | None = None,
        prefetch: int = 0,
        demo_buffer: TrajectoryReplayBuffer | None = None,
        demo_ratio: float = 0.5,
        max_bytes: int | None = None,
        output: str = "torch",
    ) -> None:
        _check_choice("trajectory_format", trajectory_format, rlinf.FORMATS)
        _check_choice("output", output, ("torch", "numpy"))
        sample_window_size = whole("sample_window_size", sample_window_size, 0)
        if max_staleness is not None:
            max_staleness = whole("max_staleness", max_staleness, 0)
        prefetch = whole("prefetch", prefetch, 0, "a number of batches")
        if not 0.0 <= demo_ratio <= 1.0:
            raise ValueError(f"demo_ratio must be between 0 and 1, got {demo_ratio}")
        if demo_buffer is not None and demo_buffer.demo_buffer is not None:
            raise ValueError("demo_buffer: it has a demo buffer itself; give it none")
        if auto_save and not str(auto_save_path):
            raise ValueError("auto_save=True needs auto_save_path, a directory")
        self.seed = seed
        self.sample_window_size = sample_window_size
        self.auto_save = auto_save
        self.auto_save_path = FilePath(auto_save_path) if auto_save else None
        self.trajectory_format = trajectory_format
        self.demo_buffer: TrajectoryReplayBuffer | None = demo_buffer
        self.demo_ratio = demo_ratio
        self.cache = TrajectoryCache(cache_size) if enable_cache else None
        self._output = output
        self._adding = threading.RLock()  # one writer at a time
        self._closed = False
        self._rows = TrajectoryRows(
            sample_window_size,
            max_staleness,
            parse_optional(optional),
            self.auto_save_path,
            max_bytes,
            self.cache,
            demos=self._demos,
            seed=seed,
            prefetch=prefetch,
        )

    def _demos(self) -> tuple[TrajectoryRows | None, float]:
        demos = self.demo_buffer
        return None if demos is None else demos._rows, self.demo_ratio

    # -- writing ------------------------------------------------------------------------------

    def add_trajectories(self, trajectories: Iterable[Any]) -> list[int]:
        """Adds trajectories: checks them and copies their rows, which a thread stores afterwards.

        At most 64 MB of rows, or one trajectory, wait to be stored; who adds more waits for room.
        Samples and questions wait for what was added before them, `flush` until it is committed.

        Args:
            trajectories: `Trajectory` objects, or mappings of such fields. Their arrays may be
                changed when this returns.

        Returns:
            their ids.

        Raises:
            LayoutError, ValueError: one does not fit; none was added.
            StorageFull: the disk is full. It comes with the next call of whatever method, and a
                note says how many trajectories, the last that were added, are not stored. The same
                goes for any other failure to store them.
        """
        flats = [flatten_trajectory(t) for t in trajectories]
        with self._adding:
            return self._open().add_all(flats)

    def _settled(self) -> TrajectoryRows:
        """The rows, with everything that was added."""
        self._rows.settle()
        return self._rows

    def flush(self) -> None:
        """Returns when everything added is committed: it survives any crash of the process.

        Raises:
            OSError: it cannot be committed.
        """
        self._whole().storage.flush()

    def clear(self) -> None:
        """Deletes every trajectory; ids begin at 0 again."""
        with self._adding, self._whole().paused():
            self._rows.clear()
            if self.cache is not None:
                self.cache.clear()

    # -- sampling -----------------------------------------------------------------------------

    def sample(self, num_chunks: int) -> dict[str, Any]:
        """Steps of the window's trajectories, uniformly, with replacement: ``[num_chunks, ...]``.

        Raises:
            EmptyBufferError: nothing was added. NothingEligibleError: all is too stale.
        """
        num_chunks = whole("num_chunks", num_chunks, 1, "a number of steps")
        if self.demo_buffer is not None:
            self.demo_buffer._settled()
        batch = self._settled().take(num_chunks)
        out = Record.output(batch.tree() if self._output == "numpy" else batch.torch())
        return Nested.of(out)  # type: ignore[no-any-return]

    # -- asking -------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Trajectories that are stored."""
        return self._settled().size

    def __len__(self) -> int:
        return self._settled().size

    @property
    def total_samples(self) -> int:
        """Steps that are stored: the sum of T * B."""
        return self._settled().total_samples

    @property
    def trajectory_counter(self) -> int:
        """The id that the next trajectory will get."""
        return self._rows.counter

    @property
    def trajectory_index(self) -> list[dict[str, Any]]:
        """An entry per stored trajectory, the oldest first: uuid, trajectory_id, num_samples,
        shape, max_episode_length, model_weights_id."""
        return [entry.public() for entry in self._settled().entries()]

    def is_ready(self, min_size: int) -> bool:
        """Whether `min_size` trajectories came in; those that the window has let go of count."""
        return self._settled().came >= min_size

    def get_stats(self) -> dict[str, float]:
        """Counters, by name. `cache_size` is how many trajectories the cache has: at most as many
        as the `cache_size` that the buffer was made with."""
        window = self._settled().drawable()
        return {
            "num_trajectories": len(self),
            "total_samples": self.total_samples,
            "cache_size": 0 if self.cache is None else len(self.cache),
            "window_trajectories": len(window),
            "window_samples": sum(entry.num_samples for entry in window),
            "damaged_trajectories": len(self._rows.storage.quarantined),
        }

    def read_trajectory(self, trajectory_id: int) -> dict[str, Any]:
        """A whole trajectory: its fields, ``[T, B, ...]``, without those it lacks and without
        bootstrap rows; `max_episode_length`; `model_weights_id`. The caller owns it.

        Raises:
            KeyError: no such trajectory is stored.
        """
        rows = self._whole()
        entry = rows.find(trajectory_id)
        if entry is None:
            raise KeyError(f"no trajectory {trajectory_id} is stored")
        found = None if self.cache is None else self.cache.get(trajectory_id)
        if found is not None and found[0].uuid == entry.uuid:  # ids begin again after `clear`
            batch = found[1]
        else:
            batch = rows.gather(entry)
            if self.cache is not None:
                self.cache.put(trajectory_id, (entry, batch))
        make = to_torch if self._output == "torch" else _as_it_is
        assert rows.record is not None
        return rows.record.whole(batch, entry, make)

    # -- checkpoints --------------------------------------------------------------------------

    def save_checkpoint(self, save_path: str | FilePath) -> None:
        """Writes every stored trajectory, the counters and the random numbers to a directory.

        It appears whole or not at all, and replaces an earlier checkpoint there. Of a buffer with
        `auto_save` it is made by hard links. Adding waits meanwhile.

        Raises:
            FileExistsError: something else is there, this buffer's own directory for example.
        """
        path = FilePath(save_path)
        with self._adding, self._whole().paused(), new_directory(path, self._live()) as folder:
            if self._rows.storage.schema is not None:
                checkpoint.write(self._rows, folder)
            metadata = {**self._about(), "size": self.size, "total_samples": self.total_samples}
            metadata |= {"rng": self._rows.state()["rng"], "trajectory_format": CONTIG}
            write_json(folder / METADATA, {**metadata, "format": 2})

    def load_checkpoint(
        self,
        load_path: str | FilePath,
        is_distributed: bool = False,
        local_rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """Takes a checkpoint in, in place of what is stored: one of `save_checkpoint`, a directory
        that another buffer's `auto_save` wrote, or one of RLinf's.

        Args:
            is_distributed: take only this rank's part of the trajectories, which is contiguous.
                With several ranks each has random numbers of its own.

        Raises:
            FileNotFoundError: no checkpoint is there, or not all of it; nothing was changed.
            LayoutError: it is damaged, or does not fit this buffer; nothing was changed.
        """
        path = FilePath(load_path)
        if self.auto_save_path is not None and path.resolve() == self.auto_save_path.resolve():
            raise ValueError(
                f"{path} is this buffer's auto_save_path: what is there is open already; a "
                "checkpoint has a directory of its own"
            )
        rank, world = (local_rank, world_size) if is_distributed else (0, 1)
        newest = 0 if self.auto_save else self.sample_window_size
        with open_source(path, rank, world, newest) as source:
            rng = resumed_rng(source.metadata, self.seed, rank, world)
            with self._adding, self._whole().paused():
                self._rows.replace(source)
                if self.cache is not None:
                    self.cache.clear()
                if world == 1:
                    counter = int(source.metadata.get("trajectory_counter", 0))
                    self._rows.counter = max(self._rows.counter, counter)
                self.seed = source.metadata.get("seed", self.seed)
                self._rows.load_state({**self._rows.state(), "rng": rng.state()})

    def export_rlinf(self, save_path: str | FilePath) -> None:
        """Writes RLinf's directory: a file per stored trajectory, in `trajectory_format`.

        Bootstrap rows are not stored, so fields have T rows there. `load_checkpoint` reads it.
        """
        path = FilePath(save_path)
        with self._adding:
            rows = self._whole()

            def whole(entry: TrajectoryEntry) -> tuple[TrajectoryEntry, dict[str, Any]]:
                assert rows.record is not None
                return entry, rows.record.whole(rows.gather(entry), entry, to_torch)

            pairs = map(whole, rows.entries())
            rlinf.export_rlinf(path, pairs, self.trajectory_format, self._about(), self._live())

    def _about(self) -> dict[str, Any]:
        return {"trajectory_counter": self._rows.counter, "seed": self.seed}

    def _live(self) -> list[FilePath]:
        """Directories that no checkpoint may take the place of."""
        buffers = (self,) if self.demo_buffer is None else (self, self.demo_buffer)
        return [b.auto_save_path for b in buffers if b.auto_save_path is not None]

    # -- life ---------------------------------------------------------------------------------

    def _open(self) -> TrajectoryRows:
        if self._closed:
            raise ClosedError("this buffer is closed")
        return self._rows

    def _whole(self) -> TrajectoryRows:
        """The rows of an open buffer, with everything that was added."""
        self._open()
        return self._settled()

    def close(self, wait: bool = True) -> None:
        """Ends the prefetching, stores and commits what is left and lets the directory go.

        Args:
            wait: as RLinf has it; it always waits.

        Raises:
            OSError: some trajectories could not be stored or committed.
        """
        self._rows.close()
        with self._adding:
            try:
                self._rows.settle()
            finally:
                with self._rows.paused():
                    if not self._closed:
                        self._closed = True
                        self._rows.storage.close()

    def __repr__(self) -> str:
        place = "" if self.auto_save_path is None else f" {str(self.auto_save_path)!r}"
        name = f"{type(self).__name__}{place}"
        if self._closed:
            return f"<{name}: closed>"
        window = self.sample_window_size
        newest = f", sampled from the newest {window}" if window else ""
        return f"<{name}: {len(self)} trajectories{newest}, output={self._output!r}>"

    def __enter__(self) -> TrajectoryReplayBuffer:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()


def _as_it_is(array: Array) -> Array:
    return array


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}: expected {' or '.join(choices)}, got {value!r}")
