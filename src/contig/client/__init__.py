"""What sends to a server, or draws from it: over TCP, or through shared memory.

Names load when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

_WHERE = {
    "remote_buffer": ("RemoteReplayBuffer",),
    "shared": ("SharedClient",),
    "stream": ("StreamWriter",),
    "tcp": ("NoLayoutYet", "TcpClient"),
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _WHERE)

if TYPE_CHECKING:
    from .remote_buffer import RemoteReplayBuffer as RemoteReplayBuffer
    from .shared import SharedClient as SharedClient
    from .stream import StreamWriter as StreamWriter
    from .tcp import NoLayoutYet as NoLayoutYet
    from .tcp import TcpClient as TcpClient
