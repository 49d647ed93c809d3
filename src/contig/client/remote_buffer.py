"""RemoteReplayBuffer: a server's table with the ReplayBuffer interface.

sample            SAMPLE requests, several in flight -> BATCH, one raw block each
update_priority   PRIORITY
add, extend ...   items, exactly once, like a TcpClient's
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from ..arguments import one_each, seconds, trajectory_ids, whole, whole_numbers
from ..batch import Batch
from ..convert import as_array
from ..replay.buffer import BufferStats
from ..replay.output import to_output
from ..replay.samples import Samples
from ..replay.typed import Out_co
from ..tape.fields import pack_fields
from ..weights.board import Weights
from ..wire import Type, pack_set_fields
from .replies import read_batch, read_reply
from .requests import PendingRequest
from .tcp import TcpClient

if TYPE_CHECKING:
    from ..convert.types import TensorDict
    from ..tree import Nested

__all__ = ["RemoteReplayBuffer"]

_MOST_AHEAD = 512  # a server keeps what it takes to give back twice as many
_ASK_WHY_S = 1.0  # at most, to say why there was no batch


class _Line:
    """Requests for batches of one size, the oldest first, and how many calls wait for one."""

    def __init__(self) -> None:
        self.asked: deque[PendingRequest] = deque()
        self.takers = 0


class RemoteReplayBuffer(Samples[Out_co]):
    """A table of a server: written to and sampled from over the network. Thread-safe.

    Args:
        host, port: the server.
        table: its name; None: the table `default`, or the only one of the server.
        data_sample: one row; needed if nothing has been written to the table yet.
        batch_size: rows per sample; None: the buffer's own.
        prefetch: samples asked for ahead, at most 512. They are drawn when the server gets to them,
            so priorities set meanwhile may come too late for that many batches.
        output, device: as in ReplayBuffer.
        sample_timeout_s: how long `sample` waits for an answer.
        client: more arguments for the TcpClient (`token`, `tls`, `reconnect_s`, ...).
    """

    @overload
    def __init__(
        self: RemoteReplayBuffer[Batch],
        host: str,
        port: int,
        table: str | None = None,
        *,
        output: Literal["numpy"] = "numpy",
        **options: Any,
    ) -> None: ...

    @overload
    def __init__(
        self: RemoteReplayBuffer[Nested],
        host: str,
        port: int,
        table: str | None = None,
        *,
        output: Literal["torch"],
        **options: Any,
    ) -> None: ...

    @overload
    def __init__(
        self: RemoteReplayBuffer[Nested],
        host: str,
        port: int,
        table: str | None = None,
        *,
        output: Literal["jax"],
        **options: Any,
    ) -> None: ...

    @overload
    def __init__(
        self: RemoteReplayBuffer[TensorDict],
        host: str,
        port: int,
        table: str | None = None,
        *,
        output: Literal["tensordict"],
        **options: Any,
    ) -> None: ...

    def __init__(
        self,
        host: str,
        port: int,
        table: str | None = None,
        *,
        data_sample: Any = None,
        batch_size: int | None = None,
        prefetch: int = 2,
        output: str = "numpy",
        device: Any = None,
        sample_timeout_s: float = 60.0,
        **client: Any,
    ) -> None:
        prefetch = whole("prefetch", prefetch, 0, "a number of batches")
        if batch_size is not None:
            batch_size = whole("batch_size", batch_size, 1, "rows")
        self.sample_timeout_s = seconds("sample_timeout_s", sample_timeout_s)
        self.output, self._output = output, to_output(output, device)
        self._client = TcpClient(host, port, data_sample, table=table, **client)
        self.batch_size = batch_size
        self._prefetch = prefetch
        self._lines: dict[int | None, _Line] = {}  # by batch size
        self._turn = threading.Lock()

    # -- writing ------------------------------------------------------------------------------

    def add(self, step: Any, fields: Any = None) -> None:
        """Sends one row, which goes on with the trajectory until a done row."""
        self._client.send(step, fields)

    def extend(self, data: Any, *, continues: bool | None = None, fields: Any = None) -> None:
        """Sends rows, or lanes of rows; see `Writer.extend`."""
        self._client.extend(data, continues=continues, fields=fields)

    def add_step(
        self, step: Any, env_ids: Any = None, mask: Any = None, fields: Any = None
    ) -> None:
        """Sends one step of B envs, or of some of them; see `Writer.add_step`. Those of some are
        refused once this client has used `add` or `extend`."""
        self._client.add_step(step, env_ids, mask, fields)

    def extend_trajectory(self, data: Any, **end: Any) -> None:
        """Sends one whole trajectory."""
        self._client.send_trajectory(data, **end)

    @property
    def table(self) -> str | None:
        """The table's name, as the server knows it."""
        return self._client.table

    @property
    def portable_arguments(self) -> dict[str, Any] | None:
        """See `TcpClient`."""
        return self._client.portable_arguments

    def flush(self, timeout: float | None = None) -> None:
        """Returns when everything written is in the table."""
        self._client.wait(timeout)

    def server_is_there(self) -> bool:
        """Whether the server is, at the moment, for who waits in pieces of his own.

        Raises:
            ConnectionClosedError: it has been away for `reconnect_s`.
        """
        return self._client.server_is_there()

    # -- sampling -----------------------------------------------------------------------------

    def _next_batch(self, batch_size: int | None) -> Batch:
        if batch_size is not None:
            batch_size = whole("batch_size", batch_size, 1, "rows")
        own = batch_size in (None, self.batch_size)
        size = self.batch_size if own else batch_size
        with self._turn:
            line = self._lines.setdefault(size, _Line())
            line.takers += 1
        try:
            fresh: set[int] = set()
            while True:
                fresh |= self._ask_ahead(line, size, self._prefetch if own else 0)
                number, kind, payload = self._collect(line)
                if kind == Type.BATCH or number in fresh:
                    return read_batch(kind, payload)
                # What was wrong when it was asked for may be right by now.
        finally:
            with self._turn:
                line.takers -= 1

    def _ask_ahead(self, line: _Line, size: int | None, ahead: int) -> set[int]:
        """As much as its takers wait for, and so many more; the numbers of these requests."""
        numbers = set()
        with self._turn:
            while len(line.asked) < line.takers + min(ahead, _MOST_AHEAD):
                line.asked.append(self._ask(size))
                numbers.add(line.asked[-1].number)
        return numbers

    def _ask(self, size: int | None) -> PendingRequest:
        asked = struct.pack("<Q", size or 0)
        return self._client.asking.ask(Type.SAMPLE, asked, timeout=self.sample_timeout_s)

    def _collect(self, line: _Line) -> tuple[int, int, bytes]:
        """An answer: the request's number, its type and payload. Requests that are not answered in
        time stay: what is drawn for them is the next call's."""
        try:
            asked = self._client.asking.take_first(line.asked, self.sample_timeout_s)
        except TimeoutError as late:
            raise TimeoutError(self._what_is_missing()) from late
        assert asked.answer is not None
        kind, _, payload = asked.answer
        return asked.number, kind, payload

    def _what_is_missing(self) -> str:
        """For who waited in vain."""
        text = f"no batch within {self.sample_timeout_s} s: "
        wait_s = min(self.sample_timeout_s, _ASK_WHY_S)
        try:
            known = read_reply(*self._client.asking.request(Type.STATS, b"", wait_s))
        except (ConnectionError, TimeoutError):
            return text + "the server does not answer, not even how many rows it has"
        return (
            f"{text}the server is there, and its table has {known['rows']} rows ("
            f"{known['trajectories']} trajectories were written), of which its sampler or rate "
            f"limiter lets it draw too few for a batch now; {known['batches_sampled']} batches "
            "were drawn so far. "
            "The request stands: the next sample() gets what is drawn for it"
        )

    def update_priority(self, index: Any, priority: Any) -> None:
        """Sets priorities of rows by their `index`; evicted rows are ignored and counted."""
        seqs = whole_numbers("index", as_array(index))
        values = one_each(as_array(priority), len(seqs))
        payload = struct.pack("<Q", len(seqs)) + seqs.tobytes() + values.tobytes()
        read_reply(*self._client.asking.request(Type.PRIORITY, payload, self.sample_timeout_s))

    def set_fields(self, ids: Any, fields: Any) -> int:
        """Changes fields of trajectories that are stored, as `ReplayBuffer.set_fields` does.

        Returns:
            how many of the trajectories were still there.

        Raises:
            LayoutError: a field that is not known, or does not fit; nothing was changed.
        """
        numbers = trajectory_ids(as_array(ids))
        given = pack_fields(self._client.fields, fields, (len(numbers),))
        if given is None or not len(numbers):
            return 0
        payload = pack_set_fields(numbers, given)
        asked = self._client.asking.request(Type.SET_FIELDS, payload, self.sample_timeout_s)
        return int(read_reply(*asked)["there"])

    def stats(self) -> BufferStats:
        """Counters of the buffer."""
        answer = read_reply(*self._client.asking.request(Type.STATS, b"", self.sample_timeout_s))
        return BufferStats(**answer)

    def __len__(self) -> int:
        return self.stats().rows

    def weights(self, newer_than: int = -1, timeout_s: float = 0.0) -> Weights | None:
        """The newest published weights if they are newer than a version; None if none came."""
        return self._client.weights(newer_than, timeout_s)

    def publish(self, version: int | None, tree: Any, timeout_s: float = 60.0) -> int:
        """Makes weights the newest for all clients of the server; see `TcpClient.publish`."""
        return self._client.publish(version, tree, timeout_s)

    # -- life ---------------------------------------------------------------------------------

    def close(self, timeout: float | None = 30.0) -> None:
        """Sends what is left and disconnects. Batches asked for ahead are given back: of a sampler
        that delivers each once, others get them."""
        self._client.close(timeout)

    def __repr__(self) -> str:
        name = f"{type(self).__name__}{' closed:' if self._client.closed else ':'}"
        size = "" if self.batch_size is None else f", batches of {self.batch_size}"
        return f"<{name} {self._client.place()}{size}, output={self.output!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: Any) -> None:
        self._client.__exit__(*exc)
