"""What the manager of a service is told, by systemd's protocol: datagrams to ``$NOTIFY_SOCKET``."""

from __future__ import annotations

import os
import socket

__all__ = ["notify"]


def notify(state: str) -> bool:
    """Tells the manager, as in "READY=1"; False: there is none, or it does not listen."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address or not hasattr(socket, "AF_UNIX"):
        return False
    if address.startswith("@"):  # a name without a file
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.sendto(state.encode(), address)
    except OSError:
        return False  # the service goes on without
    return True
