"""What a client says to publish weights: see `server/publications.py` for the other side."""

from __future__ import annotations

import secrets
from typing import Any

from ..convert import plain_tree
from ..layout import Layout
from ..weights.board import check_version
from ..wire import HEADER_BYTES, Type, described, parse_described

__all__ = ["publication", "with_version"]


def publication(version: int | None, tree: Any, max_frame: int) -> bytes:
    """A PUBLISH's payload.

    Args:
        version: of the weights; None: the server gives them the one after its newest.
        tree: a pytree or state dict.
        max_frame: the largest that the server takes.

    Raises:
        ValueError: the version is negative, or no frame has room for the weights.
        LayoutError: a tree that has no fixed size.
    """
    if version is not None:
        check_version(version)
    plain = plain_tree(tree, text=False)[0]
    layout = Layout(plain).need_fixed("weights")
    number = secrets.randbelow(2**63 - 1) + 1  # by which it is known if it is asked for again
    version = None if version is None else int(version)
    head = {"version": version, "publication": number, "layout": layout.to_json()}
    payload = _payload(head, layout.pack_one(plain))
    nbytes = HEADER_BYTES + len(payload)
    if nbytes > max_frame:
        raise ValueError(
            f"weights of {layout.record_size} bytes make a frame of {nbytes}, and the server's "
            f"largest has {max_frame}: raise TcpTransport(max_frame=), or contig serve --max-frame"
        )
    return payload


def with_version(payload: bytes, version: int) -> bytes:
    """The payload of the same publication, whose version is known by now."""
    head, record = parse_described(payload)
    return payload if head["version"] == version else _payload({**head, "version": version}, record)


def _payload(head: dict[str, Any], record: Any) -> bytes:
    first, record = described(head, record, Type.PUBLISH, 0)
    return b"".join((first[HEADER_BYTES:], record))
