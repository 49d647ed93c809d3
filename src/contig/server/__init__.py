"""What takes items from clients anywhere, and hands the learner batches or a filled buffer.

Names load when they are first used: the ingest process needs few of them, and starts sooner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

_WHERE = {
    "info": ("HistSnapshot", "Sample", "SampleInfo", "ServerStats"),
    "server": ("Server",),
    "transport": ("TcpTransport",),
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _WHERE)

if TYPE_CHECKING:
    from .info import HistSnapshot as HistSnapshot
    from .info import Sample as Sample
    from .info import SampleInfo as SampleInfo
    from .info import ServerStats as ServerStats
    from .server import Server as Server
    from .transport import TcpTransport as TcpTransport
