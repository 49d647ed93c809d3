"""Finds tensors that are used on a stream before another one is through with them.

Every operation of torch is seen: what it reads has to be made, and what it writes has to be read,
before its stream goes on. `OrderedStreams` knows what waits for what.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from contig.testing import OrderedStreams


class Races(TorchDispatchMode):
    """Within it, of the calling thread: raises AssertionError if the order of two operations on one
    memory is left to chance, or if a stream uses memory that may be given to others meanwhile.

    Args:
        streams: who waits for whom.
        lasting: tensors whose memory is never given back.
    """

    def __init__(self, streams: OrderedStreams, *lasting: torch.Tensor) -> None:
        super().__init__()
        self.streams = streams
        self.lasting = {_memory(x) for x in lasting}
        self.written: dict[int, Any] = {}  # by memory, the mark of the last write
        self.read: dict[int, list[Any]] = {}  # marks of reads since then
        self.alive: list[Any] = []  # so that no address is used twice

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        changed = tree_leaves(
            [
                value
                for argument, value in zip(function._schema.arguments, args)
                if argument.alias_info is not None and argument.alias_info.is_write
            ]
        )
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        out = function(*args, **kwargs)
        made = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        mark = self.streams.mark()
        if not function.is_view:
            for tensor in given:
                self._use(function, tensor, mark)
        known = {_memory(x) for x in given}
        for tensor in [*changed, *(x for x in made if _memory(x) not in known)]:
            self._write(function, tensor, mark)
        return out

    def _use(self, function: Any, tensor: torch.Tensor, mark: Any) -> None:
        memory = _memory(tensor)
        written = self.written.get(memory)
        if written is None or not tensor.numel() or self.streams.is_pinned(tensor):
            return  # of page-locked blocks, others know when they are free
        assert self.streams.is_after(written), f"{function}: {mark} uses what {written} makes"
        if written[0] != mark[0] and memory not in self.lasting:
            kept = {_memory(x) for x in self.streams.kept}
            assert memory in kept, f"{function}: {mark} uses memory of {written}, which is not kept"
        self.read.setdefault(memory, []).append(mark)

    def _write(self, function: Any, tensor: torch.Tensor, mark: Any) -> None:
        memory = _memory(tensor)
        for read in self.read.pop(memory, ()):
            assert self.streams.is_after(read), f"{function}: {mark} changes what {read} uses"
        self.written[memory] = mark
        self.alive.append(tensor)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
