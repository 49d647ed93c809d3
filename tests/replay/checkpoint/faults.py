"""Every call that touches files, made to fail once."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from contig.tape.disk import files


class Fault:
    """One call of a function of `files` fails, if this thread makes it.

    Args:
        name: of the function.
        at: which of its calls, from 1 on.
        number: of the error.
    """

    def __init__(self, name: str, at: int, number: int) -> None:
        self._name, self._at, self._number = name, at, number
        self._thread = threading.current_thread()
        self.calls = 0

    @contextlib.contextmanager
    def armed(self) -> Iterator[None]:
        call = getattr(files, self._name)

        def failing(*args: Any, **options: Any) -> Any:
            if threading.current_thread() is self._thread:
                self.calls += 1
                if self.calls == self._at:
                    raise OSError(self._number, os.strerror(self._number))
            return call(*args, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, self._name, failing)
            yield

    @property
    def happened(self) -> bool:
        return self.calls >= self._at


def faults(number: int, every: int = 1) -> Iterator[Fault]:
    """Of each function, the first call and each `every` later, as long as they are reached."""
    for name in files.__all__:
        fault, at = Fault(name, 1, number), 1
        yield fault
        while fault.happened:
            at += every
            fault = Fault(name, at, number)
            yield fault
