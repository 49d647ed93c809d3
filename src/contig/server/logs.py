"""Log lines of a server that is a service: on stderr, as text or as JSON, of both its processes.

2026-11-17T22:24:01.250+00:00 info connected 10.0.0.7:51234 to table online
{"time": "...", "level": "info", "event": "connect", "message": "...", "peer": "...", ...}
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

__all__ = ["LogLines", "current", "log_lines", "logging_lines"]

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_current: dict[str, Any] | None = None


class LogLines(logging.Formatter):
    """One line for each record, whatever is in it.

    Args:
        as_json: JSON objects, with whatever else the record was given.
    """

    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat("T", "milliseconds")
        level, message = record.levelname.lower(), record.getMessage()
        if record.exc_info:
            message = f"{message}\n{self.formatException(record.exc_info)}"
        if not self._as_json:
            lines = [line.strip() for line in message.splitlines() if line.strip()]
            return f"{when} {level} {' | '.join(lines)}"
        given = {k: v for k, v in vars(record).items() if k not in _PLAIN}
        event = given.pop("event", "log")
        told = {"time": when, "level": level, "event": event, "message": message, **given}
        return json.dumps(told, default=str)


def log_lines(level: str = "info", as_json: bool = False) -> None:
    """Has contig's log written to stderr from now on, by this process and its ingest processes."""
    global _current
    _current = {"level": level, "as_json": as_json}
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogLines(as_json))
    logger = logging.getLogger("contig")
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(level.upper())


@contextmanager
def logging_lines(level: str = "info", as_json: bool = False) -> Iterator[None]:
    """The same, until the end of the block."""
    global _current
    logger, told = logging.getLogger("contig"), _current
    before = (logger.handlers, logger.propagate, logger.level)
    log_lines(level, as_json)
    try:
        yield
    finally:
        _current = told
        logger.handlers, logger.propagate = before[:2]
        logger.setLevel(before[2])


def current() -> dict[str, Any] | None:
    """The arguments of the last `log_lines`, for a process to be started; None: there was none."""
    return _current
