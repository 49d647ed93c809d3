"""``contig serve``: a server of its own, for actors and learners elsewhere.

    contig serve --example row.json --table online --port 5000
    contig serve --example item.json --queue 256 --port 5000
    contig serve --example row.json --table online --port 5000 --disk runs

The example is JSON: a nested object whose leaves are ``{"shape": [4], "dtype": "float32"}``, or a
layout as `Layout.to_json` gives it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from ..layout import Layout, ShapeDtype
from ..replay import ReplayBuffer
from ..sample import (
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    RateLimiter,
    Sampler,
    SliceSampler,
)
from ..server import Server, TcpTransport
from ..server.acceptor import raise_descriptor_limit
from ..server.budget import Limits
from ..tape import LazyTensorStorage, Storage
from ..tape.disk import DiskStorage

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what it holds")
    what.add_argument("--example", type=Path, required=True, help="one row or item, as JSON")
    what.add_argument(
        "--table", action="append", default=[], metavar="NAME", help="a table; may be repeated"
    )
    what.add_argument(
        "--queue", type=int, metavar="BATCH", help="a queue of batches instead of tables"
    )
    what.add_argument("--capacity", type=int, default=1_000_000, help="rows of each table")
    what.add_argument(
        "--disk", type=Path, metavar="PATH", help="keep each table in files, in PATH/NAME"
    )
    what.add_argument(
        "--durable", action="store_true", help="with --disk: committed rows survive power loss"
    )
    what.add_argument(
        "--sampler", choices=("uniform", "prioritized", "slices", "prioritized-slices"),
        default="uniform", help="how tables are sampled from",
    )  # fmt: skip
    what.add_argument("--slice-len", type=int, default=32, help="rows of a slice")
    what.add_argument("--batch-size", type=int, default=256, help="rows of a sample")
    what.add_argument(
        "--samples-per-insert", type=float, help="keep sampling and writing in this proportion"
    )
    what.add_argument("--min-size", type=int, default=1, help="rows before the first sample")
    how = parser.add_argument_group("how it is reached")
    how.add_argument("--host", default="127.0.0.1")
    how.add_argument("--port", type=int, default=0, help="0: any free one")
    how.add_argument(
        "--token-file", type=Path, help="what clients must know; or the variable CONTIG_TOKEN"
    )
    how.add_argument("--tls", nargs=2, metavar=("CERTIFICATE", "KEY"), help="PEM files")
    how.add_argument("--metrics-port", type=int, help="serve Prometheus text here")
    how.add_argument("--max-restarts", type=int, default=0, help="of the ingest process")


def run(args: argparse.Namespace) -> int:
    """Serves until SIGTERM or Ctrl-C; returns the exit status."""
    try:
        server = _server(args)
    except (ValueError, OSError) as error:
        print(f"contig serve: {error}", file=sys.stderr)
        return 2
    raise_descriptor_limit(Limits().max_connections)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        server.start()
        tables = ", ".join(args.table or ["default"])
        print(f"listening on {args.host}:{server.port} tables: {tables}", flush=True)
        while not stop.wait(0.2):
            server.check()
    finally:
        server.close(final=False)  # it may be started again: clients come back
    stats = server.stats()
    for buffer in server.buffers.values():
        buffer.storage.close()  # commits what is left
    print(f"closed: {sum(t['rows_in'] for t in stats.tables.values())} rows taken in", flush=True)
    return 0


def _server(args: argparse.Namespace) -> Server:
    example = read_example(args.example)
    transport = TcpTransport(
        port=args.port,
        host=args.host,
        token=_token(args.token_file),
        tls=tuple(args.tls) if args.tls else None,
        metrics_port=args.metrics_port,
        max_restarts=args.max_restarts,
    )
    if args.durable and args.disk is None:
        raise ValueError("--durable needs --disk PATH: what is in memory survives no power loss")
    if args.queue is not None:
        if args.table:
            raise ValueError("give --queue or --table, not both")
        if args.disk is not None:
            raise ValueError("a queue is in memory: give --disk with tables")
        return Server(example, args.queue, transport)
    tables = {}
    for name in args.table or ["default"]:
        limiter = None
        if args.samples_per_insert is not None:
            buffer = args.samples_per_insert * max(args.batch_size, args.min_size)
            least = max(1.0, args.samples_per_insert, args.batch_size)
            limiter = RateLimiter(args.samples_per_insert, args.min_size, max(buffer, least))
        tables[name] = ReplayBuffer(
            _storage(args, name, example),
            _sampler(args.sampler, args.slice_len),
            batch_size=args.batch_size,
            limiter=limiter,
        )
    return Server(tables=tables, transport=transport)


def _storage(args: argparse.Namespace, name: str, example: Any) -> Storage:
    if args.disk is None:
        return LazyTensorStorage(args.capacity, example=example)
    if Path(name).name != name or name in (".", ".."):
        raise ValueError(f"table {name!r}: a name that can be a directory's")
    durability = "durable" if args.durable else "committed"
    return DiskStorage(args.disk / name, args.capacity, durability=durability, example=example)


def _sampler(name: str, length: int) -> Sampler:
    if name == "uniform":
        return RandomSampler()
    if name == "prioritized":
        return PrioritizedSampler()
    if name == "slices":
        return SliceSampler(slice_len=length)
    return PrioritizedSliceSampler(slice_len=length)


def _token(path: Path | None) -> str | None:
    if path is not None:
        return path.read_text().strip()
    return os.environ.get("CONTIG_TOKEN")


def read_example(path: Path) -> Any:
    """A row or item described in a JSON file.

    Raises:
        ValueError: it is no JSON, or has a leaf that is no shape and dtype; it names the path.
    """
    try:
        content = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if isinstance(content, dict) and {"structure", "leaves"} <= content.keys():
        layout = Layout.from_json(content)
        return layout.build_tree([ShapeDtype(x.shape, x.dtype) for x in layout.leaves])
    return _specs(content, str(path))


def _specs(node: Any, where: str) -> Any:
    if isinstance(node, dict) and set(node) == {"shape", "dtype"}:
        try:
            return ShapeDtype(tuple(int(n) for n in node["shape"]), str(node["dtype"]))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: shape and dtype: {error}") from None
    if isinstance(node, dict) and node:
        return {key: _specs(value, f"{where}: {key}") for key, value in node.items()}
    raise ValueError(
        f'{where}: expected an object of leaves, each {{"shape": [...], "dtype": "float32"}}, got '
        f"{json.dumps(node)[:80]}"
    )
