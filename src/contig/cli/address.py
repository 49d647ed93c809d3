"""Where a server is, and how to be let in, as commands are told."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

__all__ = ["add_client_arguments", "client_arguments", "host_and_port"]


def host_and_port(text: str) -> tuple[str, int]:
    """Of ``host:port`` or ``[address]:port``."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r}: expected HOST:PORT, such as 10.0.0.5:5000")
    return host, int(port)


def add_client_arguments(parser: argparse.ArgumentParser, *, needed: bool = True) -> None:
    """The server's address, which may be left out if it is not needed; what it wants proven."""
    parser.add_argument(
        "server", type=host_and_port, nargs=None if needed else "?", metavar="HOST:PORT",
        help="the server",
    )  # fmt: skip
    how = parser.add_argument_group("how it is reached")
    how.add_argument("--table", default="default", metavar="NAME", help="of the server")
    how.add_argument(
        "--token-file", type=Path, metavar="FILE",
        help="what the server wants to be proven (default: the variable CONTIG_TOKEN, if it is "
        "set)",
    )  # fmt: skip
    how.add_argument(
        "--tls", nargs="?", const=True, metavar="CA",
        help="encrypted; with the PEM file of a certificate authority, else the system's",
    )  # fmt: skip


def client_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """For a client's constructor. Raises OSError or ValueError."""
    token = os.environ.get("CONTIG_TOKEN")
    if args.token_file is not None:
        token = args.token_file.read_text().strip()
        if not token:
            raise ValueError(f"{args.token_file}: there is no token in it")
    host, port = args.server
    return {"host": host, "port": port, "table": args.table, "token": token, "tls": args.tls}
