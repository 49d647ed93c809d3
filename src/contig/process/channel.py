"""What a process and its children say to each other over an inherited socket.

    header (sizes) | JSON | raw bytes

Commands and reports are JSON, and arrays are their own bytes: nothing is pickled, but for the job
that a child gets first, see `spawn`.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import asyncio

__all__ = ["Channel", "Message", "encode_message", "read_message"]

_HEAD = struct.Struct("<IQ")
_MOST_JSON = 1 << 28


class Message(NamedTuple):
    """One thing said.

    Attributes:
        content: what, as JSON.
        raw: bytes that belong to it.
    """

    content: dict[str, Any]
    raw: bytearray


def encode_message(content: dict[str, Any], raw_bytes: int = 0) -> bytes:
    """A message, without the raw bytes that follow it."""
    text = json.dumps(content).encode()
    return _HEAD.pack(len(text), raw_bytes) + text


async def read_message(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """The content of the next message, in an event loop; None if the other end is gone."""
    head = await reader.read(1)
    if not head:
        return None
    head += await reader.readexactly(_HEAD.size - 1)
    text_bytes, raw_bytes = _HEAD.unpack(head)
    content = json.loads(await reader.readexactly(text_bytes))
    await reader.readexactly(raw_bytes)
    return content  # type: ignore[no-any-return]


class Channel:
    """One end of the socket. One thread may receive while another sends."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line

    def send(self, content: dict[str, Any], raw: Any = b"") -> None:
        """Sends a message.

        Raises:
            OSError: the other end is gone.
        """
        view = memoryview(raw).cast("B") if len(raw) else b""
        self.line.sendall(encode_message(content, len(view)))
        if len(view):
            self.line.sendall(view)

    def receive(self) -> Message | None:
        """The next message; None if the other end is gone."""
        head = self._read(_HEAD.size)
        if head is None:
            return None
        text_bytes, raw_bytes = _HEAD.unpack(head)
        if text_bytes > _MOST_JSON:
            return None
        text, raw = self._read(text_bytes), self._read(raw_bytes)
        if text is None or raw is None:
            return None
        return Message(json.loads(bytes(text)), raw)

    def _read(self, size: int) -> bytearray | None:
        out = bytearray(size)
        view, at = memoryview(out), 0
        while at < size:
            try:
                got = self.line.recv_into(view[at:])
            except OSError:
                return None
            if not got:
                return None
            at += got
        return out

    def close(self) -> None:
        try:
            self.line.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.line.close()
