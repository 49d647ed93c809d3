"""How commands end: exit statuses, and errors and warnings in one line each."""

from __future__ import annotations

import errno
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

__all__ = [
    "FAILED",
    "FOUND",
    "INTERRUPTED",
    "OK",
    "CommandFailed",
    "ends",
    "fail",
    "one_line",
    "tell",
    "warning_lines",
]

OK = 0
FOUND = 1  # it ran, and what it looked at is not as it should be
FAILED = 2  # it could not do what it was told; the reason is on stderr
INTERRUPTED = 130  # Ctrl-C, as shells count it


class CommandFailed(Exception):
    """A command cannot do what it was told: `main` prints why, and ends with `FAILED`."""


def fail(reason: str) -> NoReturn:
    """Ends a command; `reason` says what is wrong and what to do."""
    raise CommandFailed(reason)


def one_line(error: BaseException) -> str:
    """An error's text in one line; of a file, its name first."""
    if isinstance(error, OSError) and error.filename is not None and error.errno is not None:
        why = error.strerror or errno.errorcode.get(error.errno, "failed")
        return f"{error.filename}: {why[:1].lower()}{why[1:]}"
    if isinstance(error, OSError) and error.strerror and error.filename is None:
        return error.strerror  # without its number
    return _joined(str(error)) or type(error).__name__


def ends(error: BaseException) -> str:
    """The first and the last line of an error that may have a child's traceback between them."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return one_line(error) if len(lines) < 2 else f"{lines[0]} {lines[-1]}"


def tell(prog: str, error: Exception, whole: bool) -> int:
    """Prints an error that ends a command, in one line; returns the exit status.

    Args:
        prog: the command, as it was typed.
        error: a CommandFailed, or one that nobody expected.
        whole: also where it came from.
    """
    if whole:
        traceback.print_exception(error)
    reason = one_line(error)
    if not isinstance(error, CommandFailed):
        reason = f"unexpected: {type(error).__name__}: {reason}"
        reason += "" if whole else "; --traceback shows where"
    print(f"{prog}: {reason}", file=sys.stderr)
    return FAILED


@contextmanager
def warning_lines(prog: str) -> Iterator[None]:
    """Has warnings shown as one line each, without the place in the source."""

    def line(message: Any, category: type[Warning], *place: Any, **more: Any) -> str:
        return f"{prog}: {_joined(str(message))}\n"

    before, warnings.formatwarning = warnings.formatwarning, line
    try:
        yield
    finally:
        warnings.formatwarning = before


def _joined(text: str) -> str:
    return " ".join(line.strip() for line in text.splitlines() if line.strip())
