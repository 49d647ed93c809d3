"""Server: takes items from clients anywhere, hands the learner batches or a filled buffer.

    TcpClient --frames--> ingest process --> batch queue --> server.sample()
    SharedClient ------------------------->     |
                                                +-> or a ReplayBuffer's tape --> buffer.sample()

Thread-safe.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..arguments import check_kind, is_loopback, seconds_or_none
from ..convert import plain_tree
from ..errors import ClosedError, ServerError
from ..layout import Layout
from ..replay import ReplayBuffer
from ..tape import BatchQueue
from ..tape.disk import DiskStorage
from ..weights.board import WeightsBoard, check_version
from ..wire import HANDSHAKE_S
from ..wire.announce import announce
from . import logs
from .budget import Limits
from .disk_table import DiskTable
from .ingest_process import IngestProcess
from .ingest_thread import IngestThread
from .lifecycle import Lifecycle
from .looks import Looks
from .metrics import table_stats
from .publications import Publications
from .sampling_service import SamplingService
from .statistics import HistSnapshot, Sample, SampleInfo, ServerStats
from .tables import QueueTable, Table, TapeTable
from .transport import TcpTransport

if TYPE_CHECKING:
    from ..dashboard import Dashboard

__all__ = ["Server", "TcpTransport"]

_SLICE_S = 0.1
_DEFAULT = "default"


def _checked_tables(tables: Any) -> dict[str, ReplayBuffer[Any]]:
    check_kind("tables", tables, dict, 'give {"name": ReplayBuffer(...)}')
    for name, buffer in tables.items():
        check_kind(f"tables: the name {name!r}", name, str)
        where = "buffer" if name == _DEFAULT and len(tables) == 1 else f"tables[{name!r}]"
        check_kind(where, buffer, ReplayBuffer, "give a ReplayBuffer(...)")
    return dict(tables)


def _tape_table(buffer: ReplayBuffer[Any]) -> Table:
    if isinstance(buffer.storage, DiskStorage):
        return DiskTable(buffer.ingress, buffer.storage)
    return TapeTable(buffer.ingress)


def _check_fits(layout: Layout, max_frame: int) -> None:
    if layout.record_size + 128 > max_frame:
        raise ValueError(
            f"an item has {layout.record_size} bytes, more than a frame may have: raise "
            f"TcpTransport(max_frame={max_frame})"
        )


def _listen(host: str, port: int, name: str) -> socket.socket:
    """A socket that listens; OSError with the address and what to do if there can be none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        what = str(error) if error.errno is None else os.strerror(error.errno).lower()
        why = f"{name} {port} of {host}: {what}"
        if error.errno == errno.EADDRINUSE:
            why += "; end what listens there, or choose another one (0: any that is free)"
        raise OSError(error.errno, why) from None


def _later(server: Server) -> Callable[[], Callable[[int | None, Any], int] | None]:
    """Finds a server's `publish` without keeping the server."""
    return weakref.WeakMethod(server.publish)


class Server:
    """A queue of batches, or tables of trajectories, that clients fill.

    Args:
        example: one item; with `batch_size` it makes a queue, read by `sample`.
        batch_size: items per batch.
        transport: how clients reach it; None: only `submit` and same-host SharedClients.
        num_buffers: batches the queue holds.
        buffer: a ReplayBuffer to feed instead of a queue.
        tables: several of them, by name.
        name: of its shared memory; made up if None.
    """

    def __init__(
        self,
        example: Any = None,
        batch_size: int | None = None,
        transport: TcpTransport | None = None,
        num_buffers: int = 3,
        *,
        buffer: ReplayBuffer[Any] | None = None,
        tables: dict[str, ReplayBuffer[Any]] | None = None,
        name: str | None = None,
    ) -> None:
        given = [example is not None or batch_size is not None, buffer is not None, bool(tables)]
        if sum(given) != 1:
            raise ValueError("give either example and batch_size, or buffer, or tables")
        if transport is not None:
            check_kind("transport", transport, TcpTransport, "write TcpTransport(port)")
            transport = transport.checked()
        self.name = uuid.uuid4().hex[:16] if name is None else name
        self.transport = transport
        self._buffers = _checked_tables({_DEFAULT: buffer} if buffer is not None else tables or {})
        for name, table in self._buffers.items():
            if isinstance(table.storage, DiskStorage) and table.storage.read_only:
                raise ValueError(
                    f"table {name!r}: {table.storage.path} was opened to read, and a server writes"
                )
            table.ingress.check_takes_records(f"table {name!r}")
        run = self._run = Lifecycle(self.name)
        if given[0]:
            if example is None or batch_size is None:
                raise ValueError("a queue needs both example and batch_size")
            layout = Layout(plain_tree(example)[0])
            if transport is not None:
                _check_fits(layout, transport.max_frame)
            run.queue = BatchQueue.create(layout, batch_size, num_buffers, f"{self.name}.queue")
        self._flush = self._shown = False
        self._publishing = threading.Lock()
        if sys.platform == "linux":
            run.announcement = announce(self.name, self._describe())
        run.watch(self)

    # -- life ---------------------------------------------------------------------------------

    def start(self) -> Server:
        """Opens the port and starts the ingest process. Without a transport, does nothing."""
        run, t = self._run, self.transport
        run.check_process()
        if run.closed:
            raise ClosedError("this server is closed")
        if t is None or run.ingest is not None:
            return self
        run.listening = _listen(t.host, t.port, "port")
        publications = Publications(_later(self)) if t.takes_weights else None
        try:
            if t.metrics_port is not None:
                run.metrics = _listen(t.host, t.metrics_port, "metrics_port")
            looks = Looks(weakref.ref(self), self.name)
            run.service = SamplingService(self._buffers, t.max_frame, publications, looks)
            # A client that was here before may publish as soon as the port is served: then the
            # ingest process is made with the weights, or told of them, and not neither.
            with self._publishing:
                run.ingest = self._make_ingest(t, run.service)
                self._shown = run.board is not None
        except BaseException:
            run.stop_listening()
            if run.service is not None:
                run.service.close()
            raise
        run.port = int(run.listening.getsockname()[1])
        # Not this server's: a buffer would keep it for as long as it lives itself.
        run.unfeed = [b.feed(run.check) for b in self._buffers.values()]
        return self

    def _make_ingest(
        self, t: TcpTransport, service: SamplingService
    ) -> IngestThread | IngestProcess:
        run = self._run
        assert run.listening is not None
        if t.in_process or self._on_disk():
            return IngestThread(self._config(), self._tables(), run.board, run.listening, service)
        fds = [int(c["fd"]) for c in self._config()["tables"].values() if "fd" in c]
        fds += [] if run.metrics is None else [run.metrics.fileno()]
        return IngestProcess(self._config(), run.listening, fds, service, t.max_restarts)

    @property
    def buffers(self) -> dict[str, ReplayBuffer[Any]]:
        """The tables, by name; empty for a queue."""
        return dict(self._buffers)

    @property
    def port(self) -> int:
        """Where it listens, or did before it was closed."""
        if self._run.port is None:
            raise ServerError("the server is not started: it has no port yet")
        return self._run.port

    @property
    def metrics_port(self) -> int | None:
        """Where ``/metrics`` is served once it is started; None: nowhere."""
        metrics = self._run.metrics
        return None if metrics is None else int(metrics.getsockname()[1])

    def close(self, flush: bool = False, *, final: bool = True) -> None:
        """Says goodbye to clients and stops taking items in.

        Complete batches are still delivered by `sample`, then None; with `flush` the last,
        incomplete one too. With `final=False` nothing is said: connections are closed, and clients
        try to come back for their `reconnect_s`, which is right before a restart. Leaving ``with
        Server(...)`` by an exception, and the end of the process, are not final either.

        A server that is dropped without it is ended too, in the background and not for good, with
        a ResourceWarning. In a forked child it does nothing: the server is its parent's.
        """
        self._flush = self._flush or (flush and not self._run.ending)
        self._run.close(final)

    def __repr__(self) -> str:
        run, t = self._run, self.transport
        what = ", ".join(f"table {name!r}" for name in self._buffers)
        if run.queue is not None:
            what = f"a queue of batches of {run.queue.batch_size}"
        if run.ending:
            return f"<Server {self.name!r} closed: {what}>"
        where = "for this machine" if t is None else "not started"
        if t is not None and run.port is not None:
            where = f"on {t.host}:{run.port}"
        return f"<Server {self.name!r}: {what}, {where}>"

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.close(final=kind is None)

    def check(self) -> None:
        """Raises ServerError if the ingest process died."""
        self._run.check()

    @property
    def pid(self) -> int | None:
        """Of the ingest process."""
        ingest = self._run.ingest
        return ingest.pid if isinstance(ingest, IngestProcess) else None

    # -- the queue ----------------------------------------------------------------------------

    def submit(self, tree: Any, timeout: float | None = None) -> None:
        """Puts one item into the queue from this process; waits for room."""
        if self._run.closed:
            raise ClosedError("this server is closed")
        self._need_queue().submit(tree, timeout)

    def sample(self, timeout: float | None = None, copy: bool = False) -> Sample | None:
        """The next batch, in the order in which items came; None after `close`.

        Args:
            timeout: seconds to wait; None: for ever.
            copy: arrays of its own instead of a view of the queue's memory, which stays pinned
                as long as any array of it is referenced.

        Raises:
            TimeoutError: no complete batch came in time.
            ServerError: the ingest process died.
        """
        queue = self._need_queue()
        timeout = seconds_or_none("timeout", timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            seen = queue.native.data_word
            batch = queue.take(copy, partial=self._run.closed and self._flush)
            if batch is not None:
                return Sample(batch, self.info())
            if self._run.closed:
                return None
            self._run.check()
            left = _SLICE_S if deadline is None else deadline - time.monotonic()
            if left <= 0:
                c = queue.native.counters()
                raise TimeoutError(
                    f"no batch within {timeout} s: {c['head'] - c['taken'] * queue.batch_size} of "
                    f"{queue.batch_size} items are there, {c['connections']} clients are connected"
                )
            queue.native.wait_data(seen, min(left, _SLICE_S))

    def dataset_iter(self, copy: bool = False) -> Iterator[Sample]:
        """Batches until the server is closed."""
        while (sample := self.sample(copy=copy)) is not None:
            yield sample

    def info(self) -> SampleInfo:
        """The queue's counters and histograms."""
        queue = self._need_queue()
        c = queue.native.counters()
        return SampleInfo(
            store_size=max(c["head"] - c["taken"] * queue.batch_size, 0),
            active_connections=c["connections"],
            queue_depth_sum=c["depth_sum"],
            queue_depth_max=c["depth_max"],
            push_blocked_count=c["blocked"],
            samples_inserted_total=c["items"],
            fresh_blocks=c["fresh"],
            drain_round=HistSnapshot(*queue.native.histogram("drain_round")),
            memcpy=HistSnapshot(*queue.native.histogram("memcpy")),
            queue_dwell=HistSnapshot(*queue.native.histogram("queue_dwell")),
        )

    def reset_histograms(self) -> None:
        """Clears the queue's histograms of durations."""
        self._need_queue().native.reset_histograms()

    def _need_queue(self) -> BatchQueue:
        if self._run.queue is None:
            raise TypeError("this server feeds buffers: sample from them")
        return self._run.queue

    # -- weights and statistics ---------------------------------------------------------------

    def publish(self, version: int | None, tree: Any) -> int:
        """Makes weights (a pytree or state dict) the newest for all clients; returns the version.

        Args:
            version: of the weights; None: the version after the newest, 0 at first.
            tree: the weights.

        Raises:
            ValueError: the version is negative, or not larger than the one before.
            LayoutError: a tree of another layout than the ones before.
        """
        if version is not None:
            check_version(version)  # before it decides what weights look like
        self._run.check_process()
        with self._publishing:
            if self._run.closed:
                raise ClosedError("this server is closed")
            if self._run.board is None:
                self._run.board = WeightsBoard.create(tree, f"{self.name}.weights")
            version = self._run.board.publish(version, tree)
            if self._run.ingest is not None:
                if not self._shown:
                    self._run.ingest.show(self._run.board, f"{self.name}.weights")
                    self._shown = True
                else:
                    self._run.ingest.tell(op="published")
            return version

    @property
    def weights_version(self) -> int | None:
        """The newest published version, or None."""
        return None if self._run.board is None else self._run.board.newest

    def stats(self) -> ServerStats:
        """Everything that is counted; of an ingest process that does not answer (it is stopped),
        what it said last.

        Raises:
            ServerError: it died, and is not started again.
            ClosedError: in a forked child.
        """
        self._run.check_process()
        ingest: dict[str, Any] = {} if self._run.ingest is None else self._run.ingest.stats()
        if self._run.ingest is not None:
            self.check()
        tables = {name: table_stats(t) for name, t in self._tables().items()}
        stats = ServerStats.of(ingest, tables)
        service = self._run.service
        lost = 0 if service is None else service.unconfirmed_rows  # by ingest processes that died
        return stats._replace(unconfirmed_rows=stats.unconfirmed_rows + lost)

    def dashboard(self, port: int = 0, **options: Any) -> Dashboard:
        """A page that shows this server, until it is closed or the server is; see
        `contig.dashboard.PageOptions` for `host`, `token`, `tls` and `samples_per_s`."""
        self._run.check_process()
        from .watching import open_dashboard

        page = open_dashboard(self, port, options)
        self._run.dashboards.append(page)
        return page

    # -- how ----------------------------------------------------------------------------------

    def _tables(self) -> dict[str, Table]:
        if self._run.queue is not None:
            return {_DEFAULT: QueueTable(self._run.queue)}
        return {n: _tape_table(b) for n, b in self._buffers.items()}

    def _on_disk(self) -> bool:
        """Whether a table is on disk: one process writes there, and it is this one."""
        return any(isinstance(b.storage, DiskStorage) for b in self._buffers.values())

    def _describe(self) -> dict[str, Any]:
        """The tables, as another process of this host may attach to them."""
        if self._run.queue is not None:
            return {_DEFAULT: {"kind": "queue", "name": f"{self.name}.queue"}}
        return {n: {"kind": "tape", **b.ingress.describe()} for n, b in self._buffers.items()}

    def _config(self) -> dict[str, Any]:
        assert self.transport is not None
        t = self.transport
        tables = self._describe()
        for name, buffer in self._buffers.items():
            if tables[name]["name"] is None and not self._on_disk():
                tables[name]["fd"] = buffer.storage.fd
        limits = Limits(
            t.max_frame, t.max_bytes, handshake_s=HANDSHAKE_S, heartbeat_s=t.heartbeat_s
        )
        return {
            "tables": tables,
            "token": t.token,
            "tls": t.tls,
            "limits": limits._asdict(),
            "metrics": None if self._run.metrics is None else self._run.metrics.fileno(),
            "metrics_guarded": not is_loopback(t.host),
            "board": None if self._run.board is None else f"{self.name}.weights",
            "takes_weights": t.takes_weights,
            "log": logs.current(),
        }
