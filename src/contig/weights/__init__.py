"""A policy's weights: published by one process, read by any.

Names load when they are first used: the ingest process needs few of them, and starts sooner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

_WHERE = {"board": ("Weights", "WeightsBoard")}
__all__, __getattr__, __dir__ = lazy_names(__name__, _WHERE)

if TYPE_CHECKING:
    from .board import Weights as Weights
    from .board import WeightsBoard as WeightsBoard
