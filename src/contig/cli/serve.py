"""``contig serve``: a server of its own, for actors and learners elsewhere.

examples:
  contig serve --example row.json --table online --port 5000 --metrics-port 9100
  contig serve --example item.json --queue 256 --port 5000
  contig serve --example row.json --table online --port 5000 --disk runs --durable
  contig serve --config serve.toml --log-json

The example is JSON: a nested object whose leaves are {"shape": [4], "dtype": "float32"}, or a
layout as Layout.to_json and contig worker --example give it. A TOML file may have every option
under its name (slice_len for --slice-len), and [tables.NAME] with what is a table's own; the
command line comes before it.

SIGTERM and Ctrl-C end it in good order: clients are told to come back, and do so for their
reconnect_s. It tells systemd when it is ready (Type=notify). Learners elsewhere publish weights
through it: TcpClient.publish, RemoteReplayBuffer.publish.

exit status: 0 ended as it was told; 2 it could not be started, or failed.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal

from ..arguments import is_loopback
from ..dashboard import PageOptions
from ..errors import ContigError
from ..server import Server
from ..server.acceptor import raise_descriptor_limit
from ..server.budget import Limits
from ..server.logs import logging_lines
from .failure import OK, ends, fail, one_line
from .leaf_options import codec_of, stack_of
from .serve_config import MOST_ITEMS, ServeConfig, read_config
from .service import notify
from .signals import Stop, handling
from .tables import DEFAULTS, SAMPLERS
from .values import MOST_ROWS, above, path, port, text, whole

__all__ = ["add_arguments", "run"]

log = logging.getLogger("contig.serve")

_LOOK_S = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    # None stands for "not given", which a file may say: so defaults are told in words.
    what = parser.add_argument_group("what it holds")
    what.add_argument("--config", type=path, metavar="TOML", help="all of this from a file")
    what.add_argument("--example", type=path, metavar="JSON", help="one row or item")
    what.add_argument(
        "--table", type=text, action="append", default=[], metavar="NAME",
        help="a table; may be repeated (default: one, named default)",
    )  # fmt: skip
    what.add_argument(
        "--queue", type=whole(1, MOST_ITEMS), metavar="BATCH",
        help="a queue of batches instead of tables",
    )  # fmt: skip
    rows_of = whole(1, MOST_ROWS)
    rows = f"rows of each table (default: {DEFAULTS.capacity})"
    what.add_argument("--capacity", type=rows_of, metavar="ROWS", help=rows)
    what.add_argument(
        "--disk", type=path, metavar="PATH",
        help="keep each table in files, in PATH/NAME (default: in memory)",
    )  # fmt: skip
    what.add_argument(
        "--durable", action="store_const", const=True,
        help="with --disk: committed rows survive power loss",
    )  # fmt: skip
    what.add_argument(
        "--sampler", choices=SAMPLERS, help="how tables are sampled from (default: uniform)"
    )
    what.add_argument("--slice-len", type=rows_of, metavar="ROWS", help="of a slice (default: 32)")
    size = f"of a sample (default: {DEFAULTS.batch_size})"
    what.add_argument("--batch-size", type=rows_of, metavar="ROWS", help=size)
    what.add_argument(
        "--samples-per-insert", type=above(0, 1e9), metavar="RATIO",
        help="keep sampling and writing in this proportion (default: neither waits)",
    )  # fmt: skip
    least = "with --samples-per-insert: before the first sample (default: 1)"
    what.add_argument("--min-size", type=rows_of, metavar="ROWS", help=least)
    what.add_argument(
        "--share-next", action=argparse.BooleanOptionalAction, default=None,
        help="store next observations once (default: where that saves memory)",
    )  # fmt: skip
    what.add_argument(
        "--stack", action="append", type=stack_of, metavar="LEAF=FRAMES",
        help="store frames of a stack once; may be repeated; LEAF=FRAMES:-1: in the last axis",
    )  # fmt: skip
    what.add_argument(
        "--codecs", action="append", type=codec_of, metavar="LEAF=CODEC",
        help="keep a leaf encoded; may be repeated",
    )  # fmt: skip
    how = parser.add_argument_group("how it is reached")
    how.add_argument(
        "--host", type=text,
        help="the address to listen at (default: 127.0.0.1); others need a token",
    )  # fmt: skip
    how.add_argument("--port", type=port, help="0: any free one (default: 0)")
    how.add_argument(
        "--token-file", type=path, metavar="FILE",
        help="what clients must know (default: the variable CONTIG_TOKEN, if it is set)",
    )  # fmt: skip
    how.add_argument("--tls", type=text, nargs=2, metavar=("CERTIFICATE", "KEY"), help="PEM files")
    how.add_argument(
        "--metrics-port", type=port, metavar="PORT",
        help="/metrics, /healthz and /readyz; 0: any free one (default: nowhere)",
    )  # fmt: skip
    frame = f"largest message, also of weights (default: {Limits().max_frame})"
    how.add_argument("--max-frame", type=whole(1), metavar="BYTES", help=frame)
    how.add_argument(
        "--max-restarts", type=whole(0), metavar="TIMES",
        help="that the process with the sockets is started again if it dies (default: 0)",
    )  # fmt: skip
    how.add_argument(
        "--log-json", action="store_const", const=True, help="log lines as JSON, one object each"
    )
    how.add_argument(
        "--dashboard", type=port, metavar="PORT",
        help="serve the dashboard here; 0: any free one (default: nowhere)",
    )  # fmt: skip
    how.add_argument(
        "--dashboard-host", type=text, metavar="HOST",
        help="with --dashboard: where (default: 127.0.0.1); elsewhere with TLS and the token",
    )  # fmt: skip
    levels = ("debug", "info", "warning", "error")
    how.add_argument("--log-level", choices=levels, help="of log lines on stderr (default: info)")


def run(args: argparse.Namespace) -> int:
    """Serves until SIGTERM or Ctrl-C; returns the exit status."""
    try:
        config = read_config(args)
        page = config.page()
        server = config.make_server()
    except (ValueError, OSError, ImportError, MemoryError) as error:
        fail(one_line(error))
    raise_descriptor_limit(Limits().max_connections)
    stop = Stop()
    with (
        logging_lines(config["log_level"], bool(config["log_json"])),
        handling(stop.handler, signal.SIGTERM, signal.SIGINT),
    ):
        return _serve(server, config, page, stop)


def _serve(server: Server, config: ServeConfig, page: PageOptions | None, stop: Stop) -> int:
    before = _rows(server)  # of earlier lives, on disk
    try:
        server.start()
        shown = None
        if page is not None:
            told = {"host": page.host, "token": page.token, "tls": page.tls}
            shown = server.dashboard(page.port, **told).url
        _announce(server, config, shown)
        while not stop.wait(_LOOK_S):
            server.check()
    except (OSError, ValueError, ContigError) as error:
        log.debug("the server failed", exc_info=True)
        fail(ends(error))
    finally:
        notify("STOPPING=1")
        server.close(final=False)  # it may be started again: clients come back
        rows = _rows(server) - before
        for buffer in server.buffers.values():
            buffer.storage.close()  # commits what is left
    log.info("ended: %d rows taken in", rows, extra={"event": "stop", "rows": rows})
    print(f"closed: {rows} rows taken in", flush=True)
    return OK


def _rows(server: Server) -> int:
    """Rows that its tables were ever given, or items that its queue was."""
    if not server.buffers:
        return server.info().samples_inserted_total
    return sum(buffer.stats().rows_written for buffer in server.buffers.values())


def _announce(server: Server, config: ServeConfig, shown: str | None) -> None:
    """Tells whoever started it where it is."""
    where, tables, metrics = config["host"], ", ".join(config.names), server.metrics_port
    told = {
        "event": "start",
        "host": where,
        "port": server.port,
        "metrics_port": metrics,
        "tables": config.names,
        "pid": os.getpid(),
    }
    log.info("listening on %s:%d, tables: %s", where, server.port, tables, extra=told)
    print(f"listening on {where}:{server.port} tables: {tables}", flush=True)
    if metrics is not None:
        scheme = "http" if is_loopback(where) else "https"
        print(f"metrics on {scheme}://{where}:{metrics}/metrics", flush=True)
    if shown is not None:
        print(f"dashboard on {shown.partition('?')[0]}", flush=True)
    notify(f"READY=1\nSTATUS=listening on {where}:{server.port}")
