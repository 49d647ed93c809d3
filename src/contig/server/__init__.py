"""What takes items from clients anywhere, and hands the learner batches or a filled buffer.

Names load when they are first used: the ingest process needs few of them, and starts sooner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

_WHERE = {
    "server": ("Server",),
    "statistics": ("HistSnapshot", "Sample", "SampleInfo", "ServerStats"),
    "transport": ("TcpTransport",),
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _WHERE)

if TYPE_CHECKING:
    from .server import Server as Server
    from .statistics import HistSnapshot as HistSnapshot
    from .statistics import Sample as Sample
    from .statistics import SampleInfo as SampleInfo
    from .statistics import ServerStats as ServerStats
    from .transport import TcpTransport as TcpTransport
