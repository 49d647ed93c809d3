"""The ``contig`` command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

__all__ = ["command", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="contig", description="The trajectory data plane for reinforcement learning."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser(
        "demo", help="actor processes fill a shared tape while a recurrent agent learns from it"
    )
    from .demo import add_arguments as add_demo_arguments

    add_demo_arguments(demo)
    serve = commands.add_parser("serve", help="a server of its own, for actors and learners")
    from .serve import add_arguments

    add_arguments(serve)
    inspect = commands.add_parser(
        "inspect", help="what is in a storage on disk; verify and repair it"
    )
    from .inspect import add_arguments as add_inspect_arguments

    add_inspect_arguments(inspect)
    export = commands.add_parser(
        "export", help="the trajectories of a storage on disk, in another format"
    )
    from .export import add_arguments as add_export_arguments

    add_export_arguments(export)
    importing = commands.add_parser(
        "import", help="trajectories of other formats, into a storage on disk"
    )
    from .importing import add_arguments as add_import_arguments

    add_import_arguments(importing)
    args = parser.parse_args(argv)
    if args.command == "export":
        from .export import run as run_export

        return run_export(args)
    if args.command == "import":
        from .importing import run as run_import

        return run_import(args)
    if args.command == "inspect":
        from .inspect import run as run_inspect

        return run_inspect(args)
    if args.command == "serve":
        from .serve import run as run_server

        return run_server(args)

    from .demo import run

    return run(args)


def command() -> int:
    """`main` as the command: output that nobody reads to its end is no failure."""
    try:
        return main()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    raise SystemExit(command())
