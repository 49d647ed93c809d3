"""What a client says to publish weights: see `server/publications.py` for the other side."""

from __future__ import annotations

import secrets
from typing import Any

from ..convert import plain_tree
from ..layout import Layout
from ..weights.board import check_version
from ..wire import HEADER_BYTES, Type, described

__all__ = ["publication"]


def publication(version: int, tree: Any, max_frame: int) -> bytes:
    """A PUBLISH's payload.

    Args:
        version: of the weights.
        tree: a pytree or state dict.
        max_frame: the largest that the server takes.

    Raises:
        ValueError: the version is negative, or no frame has room for the weights.
        LayoutError: a tree that has no fixed size.
    """
    check_version(version)
    plain = plain_tree(tree, text=False)[0]
    layout = Layout(plain).need_fixed("weights")
    number = secrets.randbelow(2**63 - 1) + 1  # by which it is known if it is asked for again
    head = {"version": int(version), "publication": number, "layout": layout.to_json()}
    first, record = described(head, layout.pack_one(plain), Type.PUBLISH, 0)
    nbytes = len(first) + memoryview(record).nbytes
    if nbytes > max_frame:
        raise ValueError(
            f"weights of {layout.record_size} bytes make a frame of {nbytes}, and the server's "
            f"largest has {max_frame}: raise TcpTransport(max_frame=), or contig serve --max-frame"
        )
    return b"".join((first[HEADER_BYTES:], record))
