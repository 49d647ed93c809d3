"""TcpTransport: how a server listens, and what of that is refused."""

from __future__ import annotations

import os
from typing import NamedTuple

from ..arguments import check_kind, is_loopback, port_number, seconds, whole
from ..wire import HEARTBEAT_S, LEAST_HEARTBEAT_S, MOST_HEARTBEAT_S
from ..wire.tls import server_context
from .budget import Limits

__all__ = ["TcpTransport"]


class TcpTransport(NamedTuple):
    """How a server listens.

    Attributes:
        port: 0 for any free one; `server.port` says which.
        host: the address to bind; another than this machine's own needs a token.
        token: what clients must know. It is never sent.
        tls: paths of a certificate chain and its key, PEM.
        metrics_port: where ``/metrics``, ``/healthz`` and ``/readyz`` are served, on the same host;
            0: any free one, `server.metrics_port` says which; None: nowhere. If other machines can
            reach it, it needs `tls`, and readers of ``/metrics`` send the token (Bearer).
        max_frame, max_bytes: bounds of one frame, and of everything received and not yet taken in,
            of which a connection with TLS counts 300 kB. A quarter of it is, beside that, for what
            is remembered of trajectories that clients have begun.
        max_restarts: how often the ingest process is started again if it dies.
        heartbeat_s: clients and server take each other for lost when nothing was heard for so long;
            each says something every third of it.
        in_process: hold the sockets in a thread of this process, for debugging. Tables on disk are
            always served like that; `contig serve --disk` does it in a process of its own.
        takes_weights: clients may publish weights (`client.publish`), as a learner elsewhere does.
    """

    port: int = 0
    host: str = "127.0.0.1"
    token: str | None = None
    tls: tuple[str, str] | None = None
    metrics_port: int | None = None
    max_frame: int = Limits().max_frame
    max_bytes: int = Limits().max_bytes
    max_restarts: int = 0
    in_process: bool = False
    heartbeat_s: float = HEARTBEAT_S
    takes_weights: bool = False

    def checked(self) -> TcpTransport:
        """The same, with whole numbers where they are meant.

        Raises:
            ValueError, TypeError: what would be unsafe or cannot work.
            FileNotFoundError: there is no certificate or key where `tls` says.
        """
        port = port_number("port", self.port, 0)
        metrics = self.metrics_port
        if metrics is not None:
            metrics = port_number("metrics_port", metrics, 0)
        check_kind("host", self.host, str, 'give an address such as "127.0.0.1"')
        if self.token is not None:
            check_kind("token", self.token, str, "give text")
        tls = self.tls
        if tls is not None:
            server_context(tls)  # read once more where it is used
            tls = (os.path.abspath(tls[0]), os.path.abspath(tls[1]))
        most = whole("max_bytes", self.max_bytes, 2048, "bytes")
        largest = whole("max_frame", self.max_frame, 1, "bytes")
        restarts = whole("max_restarts", self.max_restarts, 0, "a number of restarts")
        self._check_safe()
        if not 1024 <= largest <= most // 2:
            raise ValueError(
                f"max_frame {largest}: at least 1024 and at most half of max_bytes ({most})"
            )
        least = LEAST_HEARTBEAT_S
        if not least <= seconds("heartbeat_s", self.heartbeat_s) <= MOST_HEARTBEAT_S:
            raise ValueError(
                f"heartbeat_s: seconds, {least} to {MOST_HEARTBEAT_S}, got {self.heartbeat_s}"
            )
        return self._replace(
            port=port,
            tls=tls,
            metrics_port=metrics,
            max_bytes=most,
            max_frame=largest,
            max_restarts=restarts,
        )

    def _check_safe(self) -> None:
        if self.token is not None and not self.token:
            raise ValueError("token: an empty one protects nothing; leave it out or give one")
        if self.token is None and not is_loopback(self.host):
            raise ValueError(
                f"host {self.host!r} can be reached from other machines: give a token "
                '(TcpTransport(token=...)), or bind "127.0.0.1"'
            )
        if self.metrics_port is not None and self.tls is None and not is_loopback(self.host):
            raise ValueError(
                f"metrics_port: on host {self.host!r} readers of /metrics would send the token for "
                'all to see: give tls, or bind "127.0.0.1"'
            )
