"""Carrying items between processes: servers, clients, weights, the wire.

Names load when they are first used: the ingest process needs few of them, and starts sooner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

_WHERE = {
    "board": ("Weights", "WeightsBoard"),
    "client": ("TcpClient",),
    "info": ("HistSnapshot", "Sample", "SampleInfo", "ServerStats"),
    "remote": ("RemoteReplayBuffer",),
    "server": ("Server",),
    "shared": ("SharedClient",),
    "stream": ("StreamWriter",),
    "tcp": ("TcpTransport",),
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _WHERE)

if TYPE_CHECKING:
    from .board import Weights as Weights
    from .board import WeightsBoard as WeightsBoard
    from .client import TcpClient as TcpClient
    from .info import HistSnapshot as HistSnapshot
    from .info import Sample as Sample
    from .info import SampleInfo as SampleInfo
    from .info import ServerStats as ServerStats
    from .remote import RemoteReplayBuffer as RemoteReplayBuffer
    from .server import Server as Server
    from .shared import SharedClient as SharedClient
    from .stream import StreamWriter as StreamWriter
    from .tcp import TcpTransport as TcpTransport
