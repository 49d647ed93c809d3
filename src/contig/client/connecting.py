"""A client's way to a server that accepts it, over a blocking socket."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from .. import _native
from .._native import Received
from ..errors import ConnectionClosedError
from ..wire import GREETING_BYTES, MAGIC, Accepted, ClientHandshake, log

__all__ = ["BACKOFF_S", "Connected", "ServerAddress", "connect", "wait_for_server"]

BACKOFF_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # between attempts
_ATTEMPT_S = 5.0
_PATIENCE_S = 2.0  # for an answer to the first handshake, at least
_WORD_S = 1.0  # without a server, before that is said
# Between processes of one machine: what is on its way fits into caches. Left to itself the system
# lets megabytes gather, and takes half as long again for each byte.
_NEAR_BUFFER = 512 << 10
_LARGEST_ACCEPT = 16 << 20
_LARGEST_ANSWER = 1 << 36  # weights and batches; the server's own bound is for what it takes


class ServerAddress(NamedTuple):
    """The address of a server's table, and its credentials; `table` None: the server's only one."""

    host: str
    port: int
    table: str | None
    token: str | None
    tls: ssl.SSLContext | None


class Connected(NamedTuple):
    """A connection that the server accepted.

    Attributes:
        sock: the socket, still blocking.
        receiver: with what may have come after the handshake.
        accepted: what the server says.
        max_frame: the largest frame it takes.
        near: whether it is on this machine.
    """

    sock: socket.socket
    receiver: Any
    accepted: Accepted
    max_frame: int
    near: bool


def wait_for_server(
    address: ServerAddress,
    opening: dict[str, Any],
    reconnect_s: float,
    wanted: Callable[[], object] = lambda: None,
) -> Connected:
    """Waits for a server that is not there yet as calls do for one that is lost.

    A peer that is there and hangs up may be a balancer in front of a server that is not there yet.
    `wanted` raises when there is nothing to wait for any more.
    """
    where = f"{address.host}:{address.port}"
    began = time.monotonic()
    said = False
    for attempt in range(1 << 30):
        wanted()
        try:
            return connect(address, opening, max(reconnect_s, _PATIENCE_S))
        except ssl.SSLCertVerificationError:
            raise
        except OSError as error:
            if isinstance(error.__cause__, ssl.SSLError):
                raise  # no TLS there: that will not change
            waited = time.monotonic() - began
            pause = BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)]
            if waited + pause > reconnect_s:
                if isinstance(error, ConnectionClosedError):
                    raise
                raise ConnectionClosedError(f"no contig server at {where}: {error}") from error
            if waited > _WORD_S and not said:
                said = True
                log.warning(
                    "no contig server at %s yet (%s): waiting %g s", where, error, reconnect_s
                )
            time.sleep(pause)
    raise AssertionError


def connect(address: ServerAddress, opening: dict[str, Any], timeout_s: float) -> Connected:
    """Connects and opens a table, once.

    Raises:
        ValueError: the peer is no contig server, or refuses for good (layout, token, table).
        OSError, TimeoutError: it cannot be reached, or does not answer.
    """
    deadline = time.monotonic() + max(min(timeout_s, _ATTEMPT_S), 0.05)
    sock = socket.create_connection((address.host, address.port), _left(deadline))
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        mine, theirs = sock.getsockname(), sock.getpeername()
        if mine == theirs:  # the system gave it the server's own port, where nobody listens
            raise ConnectionRefusedError(
                f"no contig server at {address.host}:{address.port}: the connection led to itself"
            )
        near = mine[0] == theirs[0]
        if near:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _NEAR_BUFFER)
        if address.tls is not None:
            sock.settimeout(_left(deadline))
            sock = _encrypted(sock, address)
        handshake = ClientHandshake(address.table, address.token, opening)
        sock.sendall(handshake.hello())
        sock.sendall(handshake.open(_greeting(sock, deadline)))
        receiver = _native.Receiver(1 << 16, _LARGEST_ACCEPT)
        accepted = handshake.read_answer(*_first_frame(sock, receiver, deadline))
        receiver.max_frame = _LARGEST_ANSWER
        return Connected(sock, receiver, accepted, handshake.max_frame, near)
    except BaseException:
        sock.close()
        raise


def _encrypted(sock: socket.socket, address: ServerAddress) -> socket.socket:
    assert address.tls is not None
    try:
        return address.tls.wrap_socket(sock, server_hostname=address.host)
    except ssl.SSLCertVerificationError:
        raise
    except ssl.SSLError as error:
        raise ConnectionClosedError(
            f"the TLS handshake with {address.host}:{address.port} failed ({error.reason}): does "
            "the server use TLS?"
        ) from error


def _greeting(sock: socket.socket, deadline: float) -> bytes:
    """As much of it as has the right magic, or what came instead."""
    data = b""
    while len(data) < GREETING_BYTES:
        sock.settimeout(_left(deadline))
        part = sock.recv(GREETING_BYTES - len(data))
        if not part:
            if data and not MAGIC.startswith(data[:8]):
                break  # let the magic's check word it
            raise ConnectionClosedError(
                "the server closed the connection during the handshake; if it uses TLS, give tls="
            )
        data += part
        if len(data) >= 8 and data[:8] != MAGIC:
            break
    return data.ljust(GREETING_BYTES, b"\0")


def _first_frame(sock: socket.socket, receiver: Any, deadline: float) -> tuple[int, bytes]:
    """Its type and payload."""
    while (state := receiver.next()) is not Received.READY:
        if state is Received.BAD:
            raise ValueError(f"the server's answer was refused: {receiver.refusal}")
        if state is Received.GROW:
            receiver.resize(receiver.needed)
        sock.settimeout(_left(deadline))
        n = sock.recv_into(receiver.room())
        if n == 0:
            raise ConnectionClosedError("the server closed the connection during the handshake")
        receiver.received(n)
    first = receiver.type, receiver.payload()
    receiver.pop()
    return first


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the server did not answer the handshake in time")
    return left
