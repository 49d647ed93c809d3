"""Whether recurrent modules take a batch as steps or as sequences.

The mode belongs to the context (`contextvars`): threads and tasks do not see one another's.
"""

from __future__ import annotations

from contextlib import ContextDecorator
from contextvars import ContextVar
from typing import Any, Literal

__all__ = ["set_recurrent_mode", "recurrent_mode_state"]

Mode = Literal["recurrent", "sequential"]

_MODES: ContextVar[tuple[Mode, ...]] = ContextVar("contig_recurrent_mode", default=())


class set_recurrent_mode(ContextDecorator):
    """Sets the mode inside a ``with`` block, or inside a function that it decorates.

    "recurrent" (or True): rows are sequences, cut where they begin. "sequential" (or False): every
    row is one step of its own; so it is outside of any block. May be nested and shared by threads.

    Args:
        mode: the one inside.

    Raises:
        ValueError: another mode.
    """

    def __init__(self, mode: Mode | bool = True) -> None:
        known: dict[Any, Mode] = {True: "recurrent", False: "sequential"}
        found = known[mode] if isinstance(mode, bool) else mode
        if found not in ("recurrent", "sequential"):
            raise ValueError(
                f'mode: expected "recurrent", "sequential", True or False, got {mode!r}'
            )
        self.mode: Mode = found

    def __enter__(self) -> set_recurrent_mode:
        _MODES.set((*_MODES.get(), self.mode))
        return self

    def __exit__(self, *error: Any) -> None:
        _MODES.set(_MODES.get()[:-1])


def recurrent_mode_state() -> Mode:
    """The mode of the calling context: "recurrent" or "sequential"."""
    modes = _MODES.get()
    return modes[-1] if modes else "sequential"
