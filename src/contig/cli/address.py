"""Where a server is, and how to be let in, as commands are told."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from .values import path, text

__all__ = ["add_client_arguments", "client_arguments", "host_and_port", "once", "read_token"]


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
    how.add_argument(
        "--table", type=text, metavar="NAME",
        help="of the server (default: the table `default`, or the server's only one)",
    )  # fmt: skip
    how.add_argument(
        "--token-file", type=path, metavar="FILE",
        help="what the server wants to be proven (default: the variable CONTIG_TOKEN, if it is "
        "set)",
    )  # fmt: skip
    how.add_argument(
        "--tls", type=text, nargs="?", const=True, metavar="CA",
        help="encrypted; with the PEM file of a certificate authority, else the system's",
    )  # fmt: skip


def client_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """For a client's constructor. Raises OSError or ValueError."""
    token = read_token(args.token_file, "CONTIG_TOKEN")
    host, port = args.server
    return {"host": host, "port": port, "table": args.table, "token": token, "tls": args.tls}


def read_token(file: Path | None, variable: str) -> str | None:
    """A token, from a file or else from a variable. Raises OSError or ValueError."""
    if file is None:
        return os.environ.get(variable)
    try:
        token = file.read_text().strip()
    except UnicodeDecodeError:
        raise ValueError(f"{file}: expected a token, in text, and nothing else") from None
    if not token:
        raise ValueError(f"{file}: there is no token in it")
    return token


def once(names: list[str]) -> list[str]:
    """Names of tables. Raises ValueError if one is given twice."""
    twice = [name for i, name in enumerate(names) if name in names[:i]]
    if twice:
        raise ValueError(f"--table {twice[0]} is given twice: each table has a name of its own")
    return names
