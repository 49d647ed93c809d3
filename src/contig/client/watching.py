"""A server watched over the network: what its wire has, and what is made of samples.

    STATS, once a second      rows in and out, fill, episodes
    SAMPLE, within a budget   ages, staleness; pieces of trajectories that were drawn

The wire has no list of episodes, no clients and no limiter: a page served by the server itself has
(`contig serve --dashboard`, `Server.dashboard`).
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from typing import Any

import numpy as np

from ..batch import Batch
from ..dashboard import Book, Budget, Numbers, Source, histogram
from ..errors import ContigError
from ..layout import Layout
from ..tape.episodes import EPISODE
from .remote_buffer import RemoteReplayBuffer

__all__ = ["RemoteSource"]

Array = np.ndarray[Any, Any]

_WINDOW = 4096  # rows that histograms are of
_KEPT = 256  # pieces
_KEPT_BYTES = 64 << 20
_WATCHED_S = 10.0  # after somebody looked, samples are asked for
_SLICE_S = 0.1
_SAMPLE_S = 10.0
_VERSION = ("collector", "policy_version")
_REWARDS = (("next", "reward"), ("reward",))
_HERE = "the server's own page has it: contig serve --dashboard PORT, or Server.dashboard()"


class RemoteSource(Source):
    """Tables of a server, over TCP. Samples that it asks for are counted by the server as anyone's,
    and by its limiter.

    Args:
        host, port: the server.
        tables: their names.
        samples_per_s: rows asked for per second; 0: none, and no histograms.
        client: more arguments for the clients (`token`, `tls`).
    """

    kind = "remote"

    def __init__(
        self,
        host: str,
        port: int,
        tables: tuple[str, ...] = ("default",),
        *,
        samples_per_s: float = 100.0,
        **client: Any,
    ) -> None:
        super().__init__()
        self.label = f"{host}:{port}"
        self._tables: dict[str, _Table] = {}
        try:
            for name in tables:
                buffer = RemoteReplayBuffer(
                    host, port, name, prefetch=0, sample_timeout_s=_SAMPLE_S, **client
                )
                self._tables[name] = _Table(buffer, samples_per_s)
        except BaseException:
            self.close()
            raise
        self.notes = {
            "clients": f"the wire tells nothing of other clients; {_HERE}",
            "limiter": f"the wire does not tell it; {_HERE}",
            "episodes": "Not whole episodes, which the wire does not list, but pieces of them that "
            f"were sampled, at least two rows long; {_HERE}.",
            "staleness": "rows of this table have no policy version",
        }
        if not samples_per_s:
            self.notes["ages"] = "No samples are asked for: --samples-per-s 0."

    def numbers(self) -> Numbers:
        return Numbers({name: table.numbers() for name, table in self._tables.items()})

    def ages(self, table: str) -> dict[str, Any]:
        return self._of(table).ages()

    def book(self, table: str) -> Book:
        return self._of(table).pieces

    def _of(self, table: str) -> _Table:
        if table not in self._tables:
            raise KeyError(f"no table {table!r}; there are {', '.join(self._tables)}")
        return self._tables[table]

    def close(self) -> None:
        for table in self._tables.values():
            table.close()


class _Table:
    """One table: its counters, and a thread that asks for samples while somebody looks."""

    def __init__(self, buffer: RemoteReplayBuffer, samples_per_s: float) -> None:
        self._buffer = buffer
        self._budget = Budget(samples_per_s)
        self._heads: deque[tuple[float, int]] = deque(maxlen=600)  # when a row number was reached
        self._seen: deque[tuple[int, int, int]] = deque(maxlen=_WINDOW)  # head, seq, version
        self._own = 0  # rows that were drawn for this page
        self._lock = threading.Lock()
        self._watched = 0.0
        self._ended = threading.Event()
        self.pieces = SampledBook()
        self._thread: threading.Thread | None = None
        if samples_per_s:
            self._thread = threading.Thread(target=self._run, name="contig-watch", daemon=True)
            self._thread.start()

    def numbers(self) -> dict[str, Any]:
        self._watched = time.monotonic()
        stats = self._buffer.stats()
        with self._lock:
            self._heads.append((time.time(), stats.rows_written))
        return {
            "kind": "tape",
            "rows": stats.rows,
            "capacity": stats.capacity,
            "rows_in": stats.rows_written,
            "rows_out": max(stats.rows_sampled - self._own, 0),
            "episodes": stats.trajectories,
            "bytes": None,
            "drawn": None,
            "limiter": None,
        }

    def _run(self) -> None:
        while not self._ended.wait(_SLICE_S):
            if time.monotonic() - self._watched > _WATCHED_S or not self._budget.is_open:
                continue
            try:
                batch = self._buffer.sample()
            except (ContigError, OSError, ValueError, RuntimeError, TimeoutError):
                self._ended.wait(1.0)  # nothing to draw, or no server: `numbers` says so
                continue
            self._budget.spend(len(batch))
            self._take(batch)

    def _take(self, batch: Batch) -> None:
        seqs = np.asarray(batch["index"]).reshape(-1)
        versions = np.full(len(seqs), -1, np.int64)
        if _VERSION in batch:
            versions = np.asarray(batch[_VERSION]).reshape(-1)
        with self._lock:
            self._own += len(seqs)
            head = max(self._heads[-1][1] if self._heads else 0, int(seqs.max(initial=0)) + 1)
            self._seen.extend((head, int(s), int(v)) for s, v in zip(seqs, versions))
        self.pieces.take(batch, seqs, versions)

    def ages(self) -> dict[str, Any]:
        with self._lock:
            seen = np.array(self._seen, np.int64).reshape(-1, 3)
            heads = np.array(self._heads, np.float64).reshape(-1, 2)
        versions = seen[:, 2]
        newest = int(versions.max(initial=-1))
        stale = None if newest < 0 else histogram(newest - versions[versions >= 0], whole=True)
        return {
            "rows": histogram(seen[:, 0] - seen[:, 1], whole=True),
            "seconds": histogram(_ages_s(seen[:, 1], heads)),
            "staleness": stale,
            "newest_version": None if newest < 0 else newest,
            "of": "samples that this page asks the server for",
        }

    def close(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_SAMPLE_S + 2)
        self._buffer.close(1.0)


def _ages_s(seqs: Array, heads: Array) -> Array:
    """How long ago rows were written, of those that came since this page looks."""
    if len(heads) < 2:
        return np.empty(0)
    seqs = seqs[seqs >= heads[0, 1]]
    at = np.minimum(np.searchsorted(heads[:, 1], seqs, "right"), len(heads) - 1)
    return np.asarray(np.maximum(time.time() - heads[at, 0], 0.0))


class SampledBook(Book):
    """Pieces of trajectories: rows of samples whose numbers follow each other. The newest are kept.
    Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pieces: OrderedDict[int, tuple[Any, Batch]] = OrderedDict()
        self._nbytes = self._count = 0
        self._layout: Layout | None = None

    @property
    def layout(self) -> Layout | None:
        return self._layout

    def take(self, batch: Batch, seqs: Array, versions: Array) -> None:
        """Keeps the pieces of a sample that have at least two rows."""
        if len(batch.shape) != 1:
            return
        starts = np.flatnonzero(np.r_[True, np.diff(seqs) != 1])
        stops = np.r_[starts[1:], len(seqs)]
        for start, stop in zip(starts.tolist(), stops.tolist()):
            if stop - start >= 2:
                piece = batch[start:stop]
                self._keep(piece, int(seqs[start]), int(versions[stop - 1]))

    def _keep(self, piece: Batch, first: int, version: int) -> None:
        with self._lock:
            line = np.zeros((), EPISODE)
            flags = {name: _last_flag(piece, name) for name in ("terminated", "truncated")}
            line["id"], line["traj_id"], line["first"] = self._count, -1, first
            line["steps"], line["return"] = len(piece), _return_of(piece)
            line["terminated"], line["truncated"] = flags["terminated"], flags["truncated"]
            line["trimmed"], line["writer"] = True, -1
            line["policy_version"], line["time"] = version, time.time()
            self._pieces[self._count] = (line, piece)
            self._layout = piece.layout
            self._count += 1
            self._nbytes += int(piece.block.nbytes)
            while len(self._pieces) > _KEPT or self._nbytes > _KEPT_BYTES:
                self._nbytes -= int(self._pieces.popitem(last=False)[1][1].block.nbytes)

    def episodes(self) -> Array:
        with self._lock:
            lines = [line for line, _ in self._pieces.values()]
        return np.array(lines, EPISODE) if lines else np.empty(0, EPISODE)

    def _piece(self, episode: int) -> Batch:
        with self._lock:
            if episode not in self._pieces:
                raise KeyError(f"no piece {episode}; only the newest that were sampled are kept")
            return self._pieces[episode][1]

    def rows_of(self, episode: int) -> int:
        return len(self._piece(episode))

    def read(self, episode: int, places: Array) -> Batch:
        return self._piece(episode)[places]  # type: ignore[no-any-return]


def _last_flag(piece: Batch, name: str) -> bool:
    """Whether the last row is flagged; a slice's own end is none of the trajectory's."""
    path = ("next", name)
    if path not in piece or (name == "truncated" and ("collector", "slice_end") in piece):
        return False
    return bool(np.asarray(piece[path])[-1].any())


def _return_of(piece: Batch) -> float:
    for path in _REWARDS:
        if path in piece:
            return float(np.asarray(piece[path], np.float64).sum())
    return float("nan")
