"""The wire format, without input or output: docs/design/wire.md, in code.

    hello -> greeting -> OPEN -> ACCEPT | REFUSE -> frames

Frames themselves are made and parsed by native code (`_native.Receiver`, `_native.make_frame`).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import struct
from typing import Any, NamedTuple

from .. import _native

__all__ = ["Greeting", "Hello", "Refused", "Type", "proof"]

MAGIC = b"contig/1"
VERSION = 1
HELLO_BYTES, GREETING_BYTES = 48, 64
HANDSHAKE_BYTES = 256 << 10  # the largest OPEN: a layout of some thousand leaves
HANDSHAKE_S = 5.0
HEARTBEAT_S = 10.0  # of silence, after which a peer is lost
LEAST_HEARTBEAT_S, MOST_HEARTBEAT_S = 0.05, 86400.0
MAX_REQUESTS = 64  # of one connection, not yet answered
MAX_REQUEST_BYTES = 8 << 20  # of their payloads, if there is more than one
HEADER_BYTES = _native.FRAME_HEADER
RUN_BYTES = _native.RUN_BYTES
MAX_LANES = _native.MAX_LANES  # of a run

_TLS_RECORDS = (b"\x15", b"\x16")  # an alert, a handshake

# A server that says so will be there again: what came of a bad moment, not of the client.
PASSING = ("busy", "deadline", "stalled", "internal")

ACK_LEVELS = ("received", "committed", "durable")


class Type:
    """Types of frames."""

    OPEN, ACCEPT, REFUSE, ITEMS, ACK, BYE, GET, WEIGHTS = range(1, 9)
    SAMPLE, BATCH, PRIORITY, STATS, REPLY, BEAT = range(9, 15)


class Refused(Exception):
    """A handshake or a frame that is not accepted: a reason to count, a message to read."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Hello(NamedTuple):
    """A client's first bytes."""

    version: int
    nonce: bytes

    @staticmethod
    def new() -> Hello:
        return Hello(VERSION, os.urandom(32))

    def pack(self) -> bytes:
        return MAGIC + struct.pack("<II", self.version, 0) + self.nonce

    @staticmethod
    def parse(data: bytes) -> Hello:
        if data[:8] != MAGIC:
            raise Refused("magic", "these are not the first bytes of a contig client (magic)")
        version, _ = struct.unpack_from("<II", data, 8)
        return Hello(version, data[16:48])


class Greeting(NamedTuple):
    """A server's answer to a hello."""

    version: int
    needs_token: bool
    nonce: bytes
    max_frame: int

    def pack(self) -> bytes:
        head = struct.pack("<II", self.version, int(self.needs_token))
        return MAGIC + head + self.nonce + struct.pack("<QQ", self.max_frame, 0)

    @staticmethod
    def parse(data: bytes) -> Greeting:
        if data[:8] != MAGIC:
            hint = "it speaks TLS: give tls=" if data[:1] in _TLS_RECORDS else "check its address"
            raise ValueError(
                f"the peer is no contig server: its magic is {data[:8]!r}, not {MAGIC!r}; {hint}"
            )
        version, flags = struct.unpack_from("<II", data, 8)
        if version != VERSION:
            raise ValueError(f"the server speaks protocol {version}, this client {VERSION}")
        (max_frame,) = struct.unpack_from("<Q", data, 48)
        if max_frame < 256:
            raise ValueError(
                f"the server takes frames of {max_frame} bytes only: no room for items"
            )
        return Greeting(version, bool(flags & 1), data[16:48], max_frame)


def proof(token: str | None, who: str, first: bytes, second: bytes) -> str:
    """What shows that a side knows the token, without sending it."""
    if token is None:
        return ""
    text = f"contig {who}".encode() + first + second
    return hmac.new(token.encode(), text, hashlib.sha256).hexdigest()


def same_proof(given: Any, expected: str) -> bool:
    """Compared in constant time."""
    if not isinstance(given, str):
        return False
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())


def frame(kind: int, number: int = 0, payload: bytes = b"") -> bytes:
    return _native.make_frame(kind, number & (2**64 - 1), payload)


def json_frame(kind: int, content: Any, number: int = 0) -> bytes:
    return frame(kind, number, json.dumps(content).encode())


def parse_json(payload: bytes) -> dict[str, Any]:
    """A JSON object, or Refused."""
    try:
        content = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise Refused("frame", f"expected JSON: {error}") from None
    if not isinstance(content, dict):
        raise Refused("frame", "expected a JSON object")
    return content


def described(head: dict[str, Any], raw: Any, kind: int, number: int) -> list[Any]:
    """A frame of JSON followed by raw bytes, as parts to send one after another."""
    text = json.dumps(head).encode()
    lead = struct.pack("<Q", len(text)) + text
    body = memoryview(raw).cast("B")
    header = _native.make_header(kind, number & (2**64 - 1), [lead, body])
    return [header + lead, body]


def parse_described(payload: bytes) -> tuple[dict[str, Any], memoryview]:
    """The JSON and the raw bytes of such a frame's payload."""
    if len(payload) < 8:
        raise Refused("frame", "too short for its description")
    (size,) = struct.unpack_from("<Q", payload)
    if size > len(payload) - 8:
        raise Refused("frame", "its description ends past the frame")
    return parse_json(bytes(payload[8 : 8 + size])), memoryview(payload)[8 + size :]
