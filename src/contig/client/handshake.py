"""The client's side of a handshake, over a blocking socket."""

from __future__ import annotations

import socket
import ssl
import time
from typing import Any, NamedTuple

from .. import _native, wire
from .._native import Received
from ..errors import ConnectionClosedError, LayoutError
from ..layout import Layout
from ..wire import Type

__all__ = ["Accepted", "Address", "NoGreeting", "connect"]

_ATTEMPT_S = 5.0
# Between processes of one machine: what is on its way fits into caches. Left to itself the system
# lets megabytes gather, and takes half as long again for each byte.
_NEAR_BUFFER = 512 << 10
_LARGEST_ACCEPT = 16 << 20
_LARGEST_ANSWER = 1 << 36  # weights and batches; the server's own bound is for what it takes


class NoGreeting(ConnectionClosedError):
    """The peer closed the connection before it said what it is."""


class Address(NamedTuple):
    """Where a server is, and how to be let in."""

    host: str
    port: int
    table: str
    token: str | None
    tls: ssl.SSLContext | None


class Accepted(NamedTuple):
    """A connection that the server accepted.

    Attributes:
        sock: the socket, still blocking.
        receiver: with what may have come after the handshake.
        kind: "queue" or "tape".
        schema: the table's layout and keys, or None.
        ndim: batch dims of plain trees, the last of them time.
        seen: the next item to send.
        max_frame: the largest frame the server takes.
        max_inflight: bytes of items that may be unacked.
        near: whether the server is on this machine.
        heartbeat_s: how long neither side is silent; 0: a server that knows no heartbeat.
    """

    sock: socket.socket
    receiver: Any
    kind: str
    schema: dict[str, Any] | None
    ndim: int
    seen: int
    max_frame: int
    max_inflight: int
    near: bool
    heartbeat_s: float


def connect(address: Address, opening: dict[str, Any], timeout_s: float) -> Accepted:
    """Connects and opens a table.

    Raises:
        ValueError: the peer is no contig server, or refuses for good (layout, token, table).
        OSError, TimeoutError: it cannot be reached, or does not answer.
    """
    deadline = time.monotonic() + max(min(timeout_s, _ATTEMPT_S), 0.05)
    sock = socket.create_connection((address.host, address.port), _left(deadline))
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        near = sock.getpeername()[0] == sock.getsockname()[0]
        if near:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _NEAR_BUFFER)
        if address.tls is not None:
            sock.settimeout(_left(deadline))
            sock = _encrypted(sock, address)
        hello = wire.Hello.new()
        sock.sendall(hello.pack())
        greeting = wire.Greeting.parse(_exactly(sock, wire.GREETING_BYTES, deadline))
        if greeting.needs_token and address.token is None:
            raise ValueError("the server needs a token: give token= to the client")
        if address.token is not None and not greeting.needs_token:
            raise ValueError(
                "the server does not ask for the token, so it cannot prove that it knows it: is it "
                "the right one? Leave token= out if it has none"
            )
        token = address.token
        asked = {
            "heartbeat": True,  # unless the opening says otherwise
            **opening,
            "table": address.table,
            "proof": wire.proof(token, "client", greeting.nonce, hello.nonce),
        }
        first = wire.json_frame(Type.OPEN, asked)
        if len(first) > wire.HANDSHAKE_BYTES:
            raise LayoutError(
                f"the layout takes {len(first)} bytes to describe, more than a server reads "
                f"({wire.HANDSHAKE_BYTES}): use fewer leaves"
            )
        sock.sendall(first)
        receiver = _native.Receiver(1 << 16, _LARGEST_ACCEPT)
        answer = _first_frame(sock, receiver, deadline)
        expected = wire.proof(token, "server", hello.nonce, greeting.nonce)
        if not wire.same_proof(answer.get("proof"), expected):
            raise ValueError("the server could not prove that it knows the token")
        receiver.max_frame = _LARGEST_ANSWER
        return _accepted(sock, receiver, answer, greeting.max_frame, near)
    except BaseException:
        sock.close()
        raise


def _accepted(
    sock: socket.socket, receiver: Any, answer: dict[str, Any], max_frame: int, near: bool
) -> Accepted:
    """What ACCEPT says, checked."""
    kind, schema = answer.get("kind"), answer.get("schema")
    seen, ndim = answer.get("seen"), answer.get("ndim", 1)
    most, beat = answer.get("max_inflight"), answer.get("heartbeat_s", 0)
    fits = kind in ("queue", "tape") and type(seen) is int and seen >= 0
    fits = fits and type(ndim) is int and 1 <= ndim <= 32
    fits = fits and type(most) is int and most >= 1
    fits = fits and type(beat) in (int, float)
    fits = fits and (beat == 0 or wire.LEAST_HEARTBEAT_S <= beat <= wire.MOST_HEARTBEAT_S)
    fits = fits and (isinstance(schema, dict) or (schema is None and kind == "tape"))
    if fits and schema is not None:
        try:
            Layout.from_json(schema.get("layout"))
        except LayoutError:
            fits = False
        fits = fits and (kind == "queue" or isinstance(schema.get("keys"), dict))
    if not fits:
        raise ValueError(f"the server's ACCEPT makes no sense: {str(answer)[:200]}")
    return Accepted(
        sock,
        receiver,
        str(kind),
        schema,
        int(ndim),
        seen=int(seen or 0),
        max_frame=max_frame,
        max_inflight=int(most or 1),
        near=near,
        heartbeat_s=float(beat),
    )


def _encrypted(sock: socket.socket, address: Address) -> socket.socket:
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


def _first_frame(sock: socket.socket, receiver: Any, deadline: float) -> dict[str, Any]:
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
    kind, payload = receiver.type, receiver.payload()
    receiver.pop()
    try:
        answer = wire.parse_json(payload)
    except wire.Refused as error:
        raise ValueError(f"the server's answer makes no sense: {error}") from None
    if kind == Type.REFUSE:
        raise_refusal(answer)
    if kind != Type.ACCEPT:
        raise ValueError(f"expected ACCEPT, got a frame of type {kind}")
    return answer


def raise_refusal(answer: dict[str, Any]) -> None:
    """Raises what a REFUSE says, as the error it is."""
    reason, message = answer.get("reason", "?"), answer.get("message", "")
    if reason == "layout":
        raise LayoutError(message)
    if reason in wire.PASSING:
        raise ConnectionClosedError(f"the server refused the connection ({reason}): {message}")
    raise ValueError(f"the server refused the connection ({reason}): {message}")


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the server did not answer the handshake in time")
    return left


def _exactly(sock: socket.socket, n: int, deadline: float) -> bytes:
    data = b""
    while len(data) < n:
        sock.settimeout(_left(deadline))
        part = sock.recv(n - len(data))
        if not part:
            if data and not wire.MAGIC.startswith(data[:8]):
                break  # let the magic's check word it
            raise NoGreeting(
                "the server closed the connection during the handshake; if it uses TLS, give tls="
            )
        data += part
        if len(data) >= 8 and data[:8] != wire.MAGIC:
            break
    return data.ljust(n, b"\0")
