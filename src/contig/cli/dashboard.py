"""``contig dashboard``: a page that shows a directory, a server or shared memory, live.

examples:
  contig dashboard runs/online                 a storage on disk, opened to read
  contig dashboard learner:5000 --table demo   a server, over the network
  contig dashboard rollouts                    a SharedStorage, by its name

exit status: 0 ended as it was told; 2 there is nothing to look at, or the page cannot be served.
"""

from __future__ import annotations

import argparse
import signal

from ..dashboard import PageOptions, PageServer
from ..dashboard.serving import check_installed, listen, url_of
from ..errors import ContigError
from .address import read_token
from .failure import OK, fail, one_line
from .signals import Stop, handling
from .values import path, port, text
from .watched import add_target, open_source

__all__ = ["add_arguments", "run"]

_LOOK_S = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    page = parser.add_argument_group("the page")
    page.add_argument("--host", type=text, default="127.0.0.1", help="the address to listen at")
    page.add_argument("--port", type=port, default=0, help="0: any free one")
    page.add_argument(
        "--token-file", type=path, metavar="FILE",
        help="what viewers must know (default: the variable CONTIG_DASHBOARD_TOKEN, if it is set)",
    )  # fmt: skip
    page.add_argument("--tls", type=text, nargs=2, metavar=("CERTIFICATE", "KEY"), help="PEM files")


def run(args: argparse.Namespace) -> int:
    """Serves until SIGTERM or Ctrl-C; returns the exit status."""
    stop = Stop()
    with handling(stop.handler, signal.SIGTERM, signal.SIGINT):
        try:
            page, said = _page(args)
        except (OSError, ValueError, ImportError, ContigError) as error:
            fail(one_line(error))
        try:
            print(said, flush=True)
            while not stop.wait(_LOOK_S) and page.alive:
                pass
        finally:
            page.close()
    return OK


def _page(args: argparse.Namespace) -> tuple[PageServer, str]:
    """The page, and where it is."""
    check_installed()
    options = PageOptions(
        args.host,
        args.port,
        read_token(args.token_file, "CONTIG_DASHBOARD_TOKEN"),
        None if args.tls is None else (args.tls[0], args.tls[1]),
    ).checked()
    listening = listen(options)
    try:
        source = open_source(args)
    except BaseException:
        listening.close()
        raise
    said = f"dashboard of {source.label}: {url_of(options, listening)}"
    return PageServer(source, options, listening), said
