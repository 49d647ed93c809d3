"""Answers of a server in JSON: what they say, or the error that they stand for."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from .. import errors
from ..errors import ConnectionClosedError
from ..wire import Type

__all__ = ["raise_error", "read_reply"]


def read_reply(kind: int, payload: bytes) -> dict[str, Any]:
    """What a REPLY says. Raises the error that it tells of."""
    if kind != Type.REPLY:
        raise ConnectionClosedError(f"expected a reply, got a frame of type {kind}")
    answer = dict(json.loads(payload))
    if "error" in answer:
        raise_error(payload)
    return answer


def raise_error(payload: bytes) -> NoReturn:
    """Raises the error that a server answered with, as its own kind if that is ours."""
    answer = json.loads(payload)
    kind = getattr(errors, answer.get("error", ""), None)
    if kind is None:
        kind = {"ValueError": ValueError, "TypeError": TypeError}.get(answer.get("error", ""))
    raise (kind or RuntimeError)(answer.get("message", "the server failed"))
