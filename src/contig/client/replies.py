"""Answers of a server: what they say, or the error that they stand for."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from .. import _native, errors
from ..batch import Batch
from ..errors import ConnectionClosedError
from ..layout import Layout
from ..wire import Type, parse_described

__all__ = ["read_batch", "read_described", "read_reply"]


_BUILTIN = {kind.__name__: kind for kind in (KeyError, TypeError, ValueError)}


def read_reply(kind: int, payload: bytes) -> dict[str, Any]:
    """What a REPLY says. Raises the error that it tells of."""
    if kind != Type.REPLY:
        raise ConnectionClosedError(f"expected a reply, got a frame of type {kind}")
    answer = dict(json.loads(payload))
    if "error" in answer:
        _raise_error(payload)
    return answer


def read_described(kind: int, payload: bytes) -> tuple[dict[str, Any], memoryview]:
    """The head of a BATCH, and its bytes. Raises the error that came in its place."""
    if kind != Type.BATCH:
        _raise_error(payload)
    return parse_described(payload)


def read_batch(kind: int, payload: bytes) -> Batch:
    """What a BATCH carries. Raises the error that came in its place."""
    head, raw = read_described(kind, payload)
    block = _native.Block(len(raw))
    memoryview(block)[:] = raw
    extras = frozenset(tuple(p) for p in head["extras"])
    return Batch(block, Layout.from_json(head["layout"]), tuple(head["shape"]), extras)


def _raise_error(payload: bytes) -> NoReturn:
    """Raises the error that a server answered with, as its own kind if that is ours."""
    answer = json.loads(payload)
    kind = getattr(errors, answer.get("error", ""), None)
    if kind is None:
        kind = _BUILTIN.get(answer.get("error", ""))
    raise (kind or RuntimeError)(answer.get("message", "the server failed"))
