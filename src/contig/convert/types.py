"""Types of other libraries, by name, for annotations: nothing is imported when the program runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

__all__ = ["TensorDict", "Tensor"]
