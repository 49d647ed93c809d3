"""TorchRL's transforms in a buffer.

    extend   -> inverse of the last, ..., of the first -> storage
    sample   -> the first, ..., the last               -> what the learner gets

As TorchRL has it: a transform changes samples, and its inverse what is written; `invert=True` swaps
the two. Most have no inverse: then rows are written as they come.
"""

from __future__ import annotations

from typing import Any

from torchrl.envs.transforms import Compose, Transform
from torchrl.envs.transforms.transforms import _CallableTransform, _InvertTransform

from ...batch import Batch
from .rows import as_rows

__all__ = ["Transforms"]


class Transforms:
    """The transforms of a buffer, in order. Can be pickled if they can.

    Args:
        given: a TorchRL transform, a Compose, or a function of a TensorDict; None: none.
    """

    def __init__(self, given: Any = None) -> None:
        whole = isinstance(given, Compose)
        self.compose: Any = given if whole else Compose()
        if given is not None and not whole:
            self.append(given)
        self.compose.eval()

    def append(self, transform: Any, invert: bool = False) -> None:
        self.compose.append(as_transform(transform, invert))

    def insert(self, index: int, transform: Any, invert: bool = False) -> None:
        self.compose.insert(index, as_transform(transform, invert))

    def __len__(self) -> int:
        return len(self.compose)

    @property
    def writes(self) -> bool:
        """Whether they change what is written."""
        return _writes(self.compose)

    def to_store(self, batch: Batch) -> Any:
        """What is stored of rows that came; None: nothing of them yet."""
        return as_rows(self.compose.inv(batch.to_tensordict()), -1)

    def to_learner(self, td: Any) -> Any:
        """What the learner gets of stored rows."""
        return self.compose(td) if len(self.compose) else td


def as_transform(given: Any, invert: bool) -> Any:
    """A TorchRL transform of it, ready to be used.

    Raises:
        TypeError: it is neither a transform nor a function.
    """
    if not isinstance(given, Transform):
        if not callable(given):
            raise TypeError(
                f"transform: expected a TorchRL transform or a function of a TensorDict, got "
                f"{type(given).__name__}"
            )
        given = _CallableTransform(given)
    given.eval()
    return _InvertTransform(given) if invert else given


def _writes(transform: Any) -> bool:
    if isinstance(transform, Compose):
        return any(_writes(t) for t in transform)
    if isinstance(transform, (_CallableTransform, _InvertTransform)):
        return isinstance(transform, _InvertTransform)
    return bool(transform.in_keys_inv) or type(transform)._inv_call is not Transform._inv_call
