"""Carrying items between processes: servers, clients, weights, the wire."""

from .board import Weights, WeightsBoard
from .client import TcpClient
from .info import HistSnapshot, Sample, SampleInfo, ServerStats
from .remote import RemoteReplayBuffer
from .server import Server, TcpTransport
from .shared import SharedClient
from .stream import StreamWriter

__all__ = [
    "HistSnapshot",
    "RemoteReplayBuffer",
    "Sample",
    "SampleInfo",
    "Server",
    "ServerStats",
    "SharedClient",
    "StreamWriter",
    "TcpClient",
    "TcpTransport",
    "Weights",
    "WeightsBoard",
]
