"""How commands end: exit statuses, and errors in one line."""

from __future__ import annotations

import errno
from typing import NoReturn

__all__ = ["FAILED", "FOUND", "INTERRUPTED", "OK", "CommandFailed", "fail", "one_line"]

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
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines) or type(error).__name__
