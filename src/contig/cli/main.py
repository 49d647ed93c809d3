"""The ``contig`` command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="contig", description="The trajectory data plane for reinforcement learning."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser(
        "demo", help="actor processes fill a shared tape while slices are drawn from it"
    )
    demo.add_argument("--seconds", type=float, default=15.0, help="how long (default: 15)")
    demo.add_argument("--actors", type=int, default=3, help="actor processes (default: 3)")
    demo.add_argument("--capacity", type=int, default=50_000, help="rows kept (default: 50000)")
    serve = commands.add_parser("serve", help="a server of its own, for actors and learners")
    from .serve import add_arguments

    add_arguments(serve)
    args = parser.parse_args(argv)
    if args.command == "serve":
        from .serve import run as run_server

        return run_server(args)

    from .demo import run

    return run(seconds=args.seconds, actors=args.actors, capacity=args.capacity)


if __name__ == "__main__":
    raise SystemExit(main())
