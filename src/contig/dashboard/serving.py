"""The page, served by uvicorn in a thread of this process."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import socket
import threading
import time
from typing import Any, NamedTuple
from urllib.parse import quote

from ..arguments import check_kind, is_loopback, port_number
from ..lazy import install_hint
from .guard import Guard
from .monitor import Monitor
from .source import Source

__all__ = ["PageOptions", "PageServer", "check_installed", "listen", "url_of"]

_START_S = 30.0
_END_S = 5.0


class PageOptions(NamedTuple):
    """How a page is reached.

    Attributes:
        host, port: where; 0: any free port.
        token: what has to be known to look at it; needed unless `host` is this machine's own.
        tls: paths of a certificate and its key (PEM).
        samples_per_s: rows per second that are looked at, or drawn, for histograms.
    """

    host: str = "127.0.0.1"
    port: int = 0
    token: str | None = None
    tls: tuple[str, str] | None = None
    samples_per_s: float = 1000.0

    def checked(self) -> PageOptions:
        """Raises ValueError, TypeError: something cannot be."""
        check_kind("host", self.host, str, "give an address")
        port = port_number("port", self.port, 0)
        if self.token is not None:
            check_kind("token", self.token, str, "give text")
        if not self.token and not is_loopback(self.host):
            raise ValueError(
                f"host {self.host!r} can be reached from elsewhere: give the dashboard a token"
            )
        return self._replace(port=port, token=self.token or None)


def check_installed() -> None:
    """Raises ImportError if the page cannot be served here, with what to install."""
    for name in ("starlette", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            raise ImportError(
                f"the dashboard needs {name}: {install_hint('dashboard')}; `contig top` shows "
                "the same numbers in a terminal"
            )


def listen(options: PageOptions) -> socket.socket:
    """The socket a page is served on. Raises OSError: the port is taken."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        return socket.create_server((options.host, options.port), family=family)
    except OSError as error:
        where = f"{options.host}:{options.port}"
        raise type(error)(error.errno, f"{error.strerror}: cannot listen on {where}") from None


def url_of(options: PageOptions, listening: socket.socket) -> str:
    """What to open in a browser; with the token, if there is one."""
    host, port = options.host, int(listening.getsockname()[1])
    shown = f"[{host}]" if ":" in host else host
    query = "" if options.token is None else f"?token={quote(options.token, safe='')}"
    return f"{'https' if options.tls else 'http'}://{shown}:{port}/{query}"


def _is_failure(record: logging.LogRecord) -> bool:
    """Whether a log record tells of one: a request that is cut off when a page ends is none."""
    error = record.exc_info[1] if record.exc_info else None
    cut = isinstance(error, asyncio.CancelledError)
    return not cut and "graceful shutdown" not in record.getMessage()


class PageServer:
    """A page that is served until `close`. Belongs to whoever made it.

    Args:
        source: what is watched; closed with this.
        options: how it is reached.
        listening: the socket, which this owns from now on.
    """

    def __init__(self, source: Source, options: PageOptions, listening: socket.socket) -> None:
        check_installed()
        import uvicorn

        from .app import make_app
        from .connections import page_connections

        self._source = source
        self._listening = listening
        app = Guard(make_app(Monitor(source)), options.host, options.token)
        tls: dict[str, Any] = {}
        if options.tls is not None:
            tls = {"ssl_certfile": options.tls[0], "ssl_keyfile": options.tls[1]}
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http=page_connections(),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # strangers' bytes write nothing into the learner's log
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=1,
            **tls,
        )
        logging.getLogger("uvicorn.error").addFilter(_is_failure)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="contig-dashboard", daemon=True)
        self._failed: BaseException | None = None
        self._thread.start()
        deadline = time.monotonic() + _START_S
        while not self._server.started and self._thread.is_alive():
            if time.monotonic() > deadline:
                break
            time.sleep(0.005)
        if not self._server.started:
            self.close()
            raise OSError(f"the dashboard did not start: {self._failed or 'no reason was given'}")

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._listening])
        except BaseException as error:
            self._failed = error

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        """Ends it; open requests have a second."""
        self._server.should_exit = True
        self._thread.join(_END_S)
        self._listening.close()
        self._source.close()
