"""Frames and their contents. They are made and parsed by native code: native/wire/frame.h."""

from __future__ import annotations

import json
import struct
from typing import Any

from .. import _native

__all__ = [
    "ACK_LEVELS",
    "HEADER_BYTES",
    "MAX_LANES",
    "MAX_REQUESTS",
    "MAX_REQUEST_BYTES",
    "RUN_BYTES",
    "Refused",
    "Type",
    "described",
    "frame",
    "json_frame",
    "parse_described",
    "parse_json",
    "shown",
]

MAX_REQUESTS = 64  # of one connection, not yet answered
MAX_REQUEST_BYTES = 8 << 20  # of their payloads, if there is more than one
HEADER_BYTES = _native.FRAME_HEADER
RUN_BYTES = _native.RUN_BYTES
MAX_LANES = _native.MAX_LANES  # of a run


ACK_LEVELS = ("received", "committed", "durable")


class Type:
    """Types of frames."""

    OPEN, ACCEPT, REFUSE, ITEMS, ACK, BYE, GET, WEIGHTS = range(1, 9)
    SAMPLE, BATCH, PRIORITY, STATS, REPLY, BEAT, SET_FIELDS, PUBLISH, WATCH = range(9, 18)


def shown(text: Any, limit: int = 2000) -> str:
    """Returns a peer's text as it may stand in an error or a log line: short, and printable."""
    text = str(text)
    if len(text) > limit:
        text = f"{text[:limit]}... ({len(text)} characters)"
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


class Refused(Exception):
    """A handshake or a frame that is not accepted: a reason to count, a message to read.

    The message may quote what the peer sent, so it is made short and printable.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(shown(message))
        self.reason = reason


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
