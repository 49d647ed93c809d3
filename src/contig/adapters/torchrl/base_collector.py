"""BaseCollector, for those who subclass TorchRL's: a source of TensorDicts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from torchrl import collectors as theirs

from ...collect import BaseCollector as Source

__all__ = ["BaseCollector"]


class BaseCollector(Source):
    """A source of batches, by `iterator`. It feeds a buffer, can be started, paused and shut down,
    and what goes wrong in the background is raised at the next call.

    A subclass has `iterator`; `set_seed`, `state_dict` and `load_state_dict` if there is something
    to do, and `_close` to let go of what it holds.

    Args:
        replay_buffer: where batches go; None: iteration gives them.
        pre_collect_hook, post_collect_hook: called before, and with, each batch.
    """

    def __init__(
        self,
        *,
        replay_buffer: Any = None,
        pre_collect_hook: Callable[[], Any] | None = None,
        post_collect_hook: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(replay_buffer)
        self.pre_collect_hook, self.post_collect_hook = pre_collect_hook, post_collect_hook
        self._batches: Iterator[Any] | None = None

    @abstractmethod
    def iterator(self) -> Iterator[Any]:
        """The batches: TensorDicts, or anything that a buffer takes."""

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seeds what there is to seed; returns a seed for the next one."""
        return seed if static_seed else seed + 1

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs of the collector: nothing, unless a subclass says so."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes in what `state_dict` returned."""

    def getattr_rb(self, attr: str) -> Any:
        """An attribute of the buffer."""
        return getattr(self.replay_buffer, attr)

    def _collect(self) -> Any:
        if self._batches is None:
            self._batches = self.iterator()
        if self.pre_collect_hook is not None:
            self.pre_collect_hook()
        data = next(self._batches, self.END)
        if data is self.END:
            return data
        if self.replay_buffer is not None:
            self._write(data)
        if self.post_collect_hook is not None:
            self.post_collect_hook(data)
        return data if self.replay_buffer is None else None


theirs.BaseCollector.register(BaseCollector)
