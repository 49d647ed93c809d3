"""Whether recurrent modules take a batch as steps or as sequences.

The mode belongs to the context (`contextvars`): threads and tasks do not see one another's.

TorchRL has a `set_recurrent_mode` of its own. The innermost block of either library holds for the
modules of both: a block of ours sets TorchRL's mode, too, and where TorchRL is loaded its mode is
the one that counts.
"""

from __future__ import annotations

import sys
from contextlib import ContextDecorator
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple

__all__ = ["set_recurrent_mode", "recurrent_mode_state"]

Mode = Literal["recurrent", "sequential"]


class _Block(NamedTuple):
    """A block that was entered.

    Attributes:
        mode: inside it.
        theirs: what keeps TorchRL's mode, if that was loaded.
        before: TorchRL's mode outside.
    """

    mode: Mode
    theirs: Any
    before: bool | None


_BLOCKS: ContextVar[tuple[_Block, ...]] = ContextVar("contig_recurrent_mode", default=())


class set_recurrent_mode(ContextDecorator):
    """Sets the mode inside a ``with`` block, or inside a function that it decorates.

    "recurrent" (or True): rows are sequences, cut where they begin. "sequential" (or False): every
    row is one step of its own; so it is outside of any block. May be nested and shared by threads.
    It holds for TorchRL's modules, too, if TorchRL was imported before; and inside TorchRL's own
    `set_recurrent_mode`, contig's modules do as that says.

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
        theirs = _theirs()
        before = None if theirs is None else theirs.get_mode()
        _BLOCKS.set((*_BLOCKS.get(), _Block(self.mode, theirs, before)))
        if theirs is not None:
            theirs.set_mode(self.mode == "recurrent")
        return self

    def __exit__(self, *error: Any) -> None:
        *outer, block = _BLOCKS.get()
        _BLOCKS.set(tuple(outer))
        if block.theirs is not None:
            block.theirs.set_mode(block.before)


def recurrent_mode_state() -> Mode:
    """The mode of the calling context: "recurrent" or "sequential"."""
    theirs = _theirs()
    mode = None if theirs is None else theirs.get_mode()
    if mode is not None:
        return "recurrent" if mode else "sequential"
    blocks = _BLOCKS.get()
    # TorchRL may have been loaded inside of a block of ours, and knows nothing of it then. If it
    # was there, somebody has set it back to the default since.
    inside = bool(blocks) and blocks[-1].theirs is None
    return blocks[-1].mode if inside else "sequential"


def _theirs() -> Any:
    """Returns the holder of TorchRL's mode, or None if TorchRL is not loaded or has none yet."""
    module = sys.modules.get("torchrl.modules.tensordict_module.rnn")
    return getattr(module, "recurrent_mode_state_manager", None)
