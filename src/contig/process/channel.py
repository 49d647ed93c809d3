"""What a collector and its workers say to each other over an inherited socket.

    header (kind, sizes) | JSON | raw bytes

The first message is the job, by cloudpickle, so that lambdas and classes of scripts work. Nothing
is pickled after that: commands and reports are JSON, and batches are their own bytes.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, NamedTuple

from .. import _native
from ..batch import Batch
from ..layout import Layout

__all__ = ["Channel", "Message", "batch_of", "batch_parts"]

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


class Channel:
    """One end of the socket. One thread may receive while another sends."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line

    def send(self, content: dict[str, Any], raw: Any = b"") -> None:
        """Sends a message.

        Raises:
            OSError: the other end is gone.
        """
        text = json.dumps(content).encode()
        view = memoryview(raw).cast("B") if len(raw) else b""
        self.line.sendall(_HEAD.pack(len(text), len(view)) + text)
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


def batch_parts(batch: Batch) -> tuple[dict[str, Any], Any]:
    """A batch as a message's content and bytes."""
    return {"layout": batch.layout.to_json(), "shape": list(batch.shape)}, batch.block


def batch_of(content: dict[str, Any], raw: bytearray) -> Batch:
    """The batch of a message."""
    block = _native.Block(len(raw))
    memoryview(block)[:] = raw
    return Batch(block, Layout.from_json(content["layout"]), tuple(content["shape"]))
