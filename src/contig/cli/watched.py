"""What ``contig dashboard`` and ``contig top`` look at, by its name on the command line.

runs/online        a directory: a storage on disk, or several below it
learner:5000       a server, over the network
rollouts           shared memory: a SharedStorage, or a server of this host
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..client.watching import RemoteSource
from ..dashboard import Source, StorageSource
from ..tape import SharedStorage, Storage
from ..tape.disk import DiskStorage
from ..wire.announce import FoundServer
from .address import host_and_port, once, read_token
from .values import number, path, text

__all__ = ["add_target", "open_source"]

_RECONNECT_S = 5.0
_SAMPLES_PER_S = 100.0


def add_target(parser: argparse.ArgumentParser) -> None:
    """The arguments that say what is watched."""
    parser.add_argument(
        "target", type=text, metavar="PATH|HOST:PORT|NAME",
        help="a directory, a server, or shared memory",
    )  # fmt: skip
    parser.add_argument(
        "--table", type=text, action="append", default=[], metavar="NAME",
        help="of a server: what to show; may be repeated (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--samples-per-s", type=number(0, 1e9), metavar="ROWS",
        help="rows per second that are drawn from a storage for histograms; 0: none (default: 100)",
    )  # fmt: skip
    parser.add_argument(
        "--server-token-file", type=path, metavar="FILE",
        help="what a server wants to be proven (default: the variable CONTIG_TOKEN, if it is set)",
    )  # fmt: skip
    parser.add_argument(
        "--server-tls", type=text, metavar="CA", help="a server's certificate authority (PEM)"
    )


def open_source(args: argparse.Namespace) -> Source:
    """What is to be watched.

    Raises:
        OSError, ValueError: it is not there, or cannot be watched.
    """
    target, address = args.target, _address(args.target)
    if address is not None and not Path(target).exists():
        if args.samples_per_s is not None:
            raise ValueError(
                f"--samples-per-s: nothing is drawn for the page of a server, and {target} is one"
            )
        return RemoteSource(
            *address,
            tuple(once(args.table)),
            token=read_token(args.server_token_file, "CONTIG_TOKEN"),
            tls=args.server_tls,
            reconnect_s=_RECONNECT_S,
        )
    for name in ("table", "server_token_file", "server_tls"):
        if getattr(args, name):
            option = "--" + name.replace("_", "-")
            raise ValueError(f"{option} is for a server, HOST:PORT, and {target!r} is none")
    if "/" in target or Path(target).is_dir():
        return _storages("directory", target, _directories(Path(target)), args.samples_per_s)
    return _storages("shared", target, _named(target), args.samples_per_s)


def _storages(
    kind: str, target: str, storages: dict[str, Storage], samples_per_s: float | None
) -> Source:
    per_s = _SAMPLES_PER_S if samples_per_s is None else samples_per_s
    return StorageSource(kind, target, storages, samples_per_s=per_s)


def _address(target: str) -> tuple[str, int] | None:
    try:
        return host_and_port(target)
    except argparse.ArgumentTypeError:
        return None


def _directories(path: Path) -> dict[str, Storage]:
    """The storage of a directory, or those below it, as `contig serve --disk` has them."""
    below = sorted(p.parent for p in path.glob("*/layout.json"))
    places = below if below and not (path / "layout.json").exists() else [path]
    out: dict[str, Storage] = {}
    try:
        for place in places:
            out[place.name or str(place)] = DiskStorage(place, read_only=True)
    except BaseException:
        for storage in out.values():
            storage.close()
        raise
    return out


def _named(name: str) -> dict[str, Storage]:
    """A SharedStorage, or those of a server's tables that are."""
    try:
        server = FoundServer(name)
    except ConnectionRefusedError:
        raise FileNotFoundError(
            f"{name!r}: no directory, no HOST:PORT, and no shared memory of this name on this host"
        ) from None
    except ValueError:
        return {name: SharedStorage.attach(name)}
    server.close()
    names = {table: told.get("name") for table, told in server.tables.items()}
    out: dict[str, Storage] = {
        table: SharedStorage.attach(place)
        for table, place in names.items()
        if place is not None and server.tables[table]["kind"] == "tape"
    }
    if not out:
        raise ValueError(
            f"the server {name!r} has no table in shared memory with a name: use a SharedStorage, "
            "or its own page, `contig serve --dashboard PORT` or Server.dashboard()"
        )
    return out
