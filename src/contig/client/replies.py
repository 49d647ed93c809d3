"""A server's answers: their content, or the error that they stand for.

A server may be anything that listens at an address. What it answers is checked here, and nonsense
is a `ServerError`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np

from .. import _native, errors
from ..batch import Batch
from ..errors import ConnectionClosedError, ServerError
from ..layout import Layout
from ..tree import show_path
from ..wire import Refused, Type, parse_described, parse_json, shown

__all__ = ["read_batch", "read_described", "read_reply"]


_KINDS = {name: getattr(errors, name) for name in errors.__all__}
_KINDS |= {kind.__name__: kind for kind in (KeyError, TypeError, ValueError)}


def read_reply(kind: int, payload: bytes) -> dict[str, Any]:
    """Returns the content of a REPLY. Raises the error that it tells of."""
    if kind != Type.REPLY:
        raise ConnectionClosedError(f"expected a reply, got a frame of type {kind}")
    with _checked():
        answer = parse_json(payload)
    if "error" in answer:
        _raise_error(answer)
    return answer


def read_described(kind: int, payload: bytes) -> tuple[dict[str, Any], memoryview]:
    """Returns the head of a BATCH and its bytes. Raises the error that came in its place."""
    if kind != Type.BATCH:
        with _checked():
            answer = parse_json(payload)
        _raise_error(answer)
    with _checked():
        return parse_described(payload)


def read_batch(kind: int, payload: bytes) -> Batch:
    """Returns the rows of a BATCH. Raises the error that came in its place."""
    head, raw = read_described(kind, payload)
    with _checked():
        layout = Layout.from_json(head["layout"])
        shape = tuple(head["shape"])
        if not all(type(n) is int and 0 <= n < 1 << 48 for n in shape):
            raise ValueError(f"shape {shape}")
        extras = frozenset(tuple(path) for path in head["extras"])
        block = _native.Block(len(raw))
        memoryview(block)[:] = raw
        batch = Batch(block, layout, shape, extras)
        _check_columns(batch)
        return batch


def _check_columns(batch: Batch) -> None:
    """Raises ValueError if a column does not lie within the batch's block."""
    layout, rows = batch.layout, math.prod(batch.shape)
    needed, found = layout.block_columns(rows).nbytes, len(batch.block)
    if found < needed:
        raise ValueError(f"{found} bytes for rows that take {needed}")
    for number in layout.ragged:
        offsets = batch[layout.leaves[number].path].offsets
        if offsets[0] != 0 or (np.diff(offsets) < 0).any():
            raise ValueError(f"{show_path(layout.leaves[number].path)}: its rows overlap")


def _raise_error(answer: dict[str, Any]) -> NoReturn:
    """Raises the error that a server answered with, as its own kind if that is one of ours."""
    name = answer.get("error")
    kind = _KINDS.get(name, RuntimeError) if isinstance(name, str) else RuntimeError
    raise kind(shown(answer.get("message", "the server failed")))


@contextmanager
def _checked() -> Iterator[None]:
    """Raises ServerError in place of whatever reading a malformed answer raises."""
    try:
        yield
    except (Refused, LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ServerError(f"the server's answer makes no sense: {shown(error)}") from error
