"""TorchRL's writers: here a storage is always a ring, in the order of writing."""

from __future__ import annotations

from typing import Any

from torchrl.data import replay_buffers as theirs

from .arguments import without_effect

__all__ = ["RoundRobinWriter", "TensorDictRoundRobinWriter", "check_writer"]


class RoundRobinWriter:
    """The oldest row gives way. A storage does that by itself: this only says so.

    Args:
        compilable: without effect here.
    """

    def __init__(self, compilable: bool = False) -> None:
        without_effect(compilable)


class TensorDictRoundRobinWriter(RoundRobinWriter):
    """The same, of TensorDicts."""


_ROUND = (RoundRobinWriter, theirs.RoundRobinWriter, theirs.TensorDictRoundRobinWriter)


def check_writer(writer: Any) -> None:
    """Raises TypeError for a writer that does not write round the ring."""
    kind = writer if isinstance(writer, type) else type(writer)
    kind = getattr(writer, "func", kind)  # functools.partial of one
    if writer is None or (isinstance(kind, type) and issubclass(kind, _ROUND)):
        return
    raise TypeError(
        f"writer: {kind.__name__}: rows are kept in the order of writing, and the oldest give way; "
        "leave writer= out, or filter what is written, or draw by PrioritizedSampler"
    )
