"""The ``contig`` command: a table of commands, each in a module that is loaded when it is used.

A command's module has `add_arguments(parser)` and `run(args)`, which returns the exit status. Its
docstring is its help: the first paragraph says what it does, the rest, as it stands, how.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from .. import __version__
from .failure import INTERRUPTED, fail, tell, warning_lines

__all__ = ["COMMANDS", "Command", "Parser", "command", "main", "parser_of"]

_STATUSES = """\
exit status:
  0    done
  1    done, and what was looked at is not as it should be
  2    not done: the reason is one line on stderr
  130  interrupted (Ctrl-C)

contig COMMAND --help shows each command's options, their defaults and examples."""


class Command(NamedTuple):
    """A command: the module of this package that has it, and what it does in a few words."""

    module: str
    help: str


COMMANDS = {
    "demo": Command("demo", "actor processes fill a shared tape; a recurrent agent learns from it"),
    "serve": Command("serve", "a server of its own, for actors and learners elsewhere"),
    "worker": Command("worker", "steps environments with a policy for a server elsewhere"),
    "dashboard": Command("dashboard", "a page that shows a table and its episodes, live"),
    "top": Command("top", "the dashboard's numbers in a terminal"),
    "inspect": Command("inspect", "what is in a storage on disk; verify and repair it"),
    "export": Command("export", "the trajectories of a storage on disk, in another format"),
    "import": Command("importing", "trajectories of other formats, into a storage on disk"),
    "bench": Command("bench", "how fast the installed package is on this machine"),
    "doctor": Command("doctor", "what is wrong with this machine or installation, and the remedy"),
}


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Examples as they were written, and the default behind each option that has one."""

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            # That commands are indented once more is not counted: the longest would have its help
            # on a line below it.
            self._action_max_length += self._indent_increment

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help
        said = text is not None and "default" in text
        optional = bool(action.option_strings) and action.nargs != 0
        # By identity, where 0 is as good as False: it is a port, or a limit.
        none = any(action.default is no for no in (None, False, argparse.SUPPRESS))
        if said or not optional or none or action.default == []:
            return text
        return f"{text or ''} (default: %(default)s)".lstrip()


class Parser(argparse.ArgumentParser):
    """What was mistyped is an error as any other: one line, without the usage above it."""

    def error(self, message: str) -> NoReturn:
        fail(f"{message.removeprefix('argument ')}; {self.prog} --help shows what there is")


def parser_of(wanted: str | None) -> tuple[Parser, Any]:
    """The parser, with the options of one command, and that command's module."""
    parser = Parser(
        prog="contig",
        description="The trajectory data plane for reinforcement learning.",
        epilog=_STATUSES,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"contig {__version__}")
    parsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    module: Any = None
    for name, entry in COMMANDS.items():
        own = parsers.add_parser(name, help=entry.help, formatter_class=HelpFormatter)
        if name == wanted:
            module = importlib.import_module(f".{entry.module}", __package__)
            describe(own, module.__doc__ or "")
            module.add_arguments(own)
            own.add_argument(
                "--traceback", action="store_true", help="with an error, also where it came from"
            )
    return parser, module


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status. Only --help and --version raise, SystemExit(0)."""
    given = list(sys.argv[1:] if argv is None else argv)
    wanted = next((word for word in given if not word.startswith("-")), None)
    parser, module = parser_of(wanted)
    prog = "contig" if module is None else f"contig {wanted}"
    whole = False
    with warning_lines(prog):
        try:
            args = parser.parse_args(given)
            whole = args.traceback
            return int(module.run(args))
        except BrokenPipeError:
            raise
        except Exception as error:
            return tell(prog, error, whole)
        except KeyboardInterrupt:
            print(f"{prog}: interrupted", file=sys.stderr)
            return INTERRUPTED


def describe(parser: argparse.ArgumentParser, docstring: str) -> None:
    """Makes a module's docstring a parser's help."""
    first, _, rest = docstring.strip().partition("\n\n")
    _, _, what = " ".join(first.split()).partition(": ")
    parser.description = what[:1].upper() + what[1:] or first
    parser.epilog = rest.rstrip() or None


def command() -> int:
    """`main` as the command: output that nobody reads to its end is no failure."""
    try:
        return main()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    raise SystemExit(command())
