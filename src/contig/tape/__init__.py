"""The store: tapes in memory and shared memory, their writers and their index of runs."""

from .storage import LazyTensorStorage, SharedStorage, Storage
from .writer import Writer

__all__ = ["LazyTensorStorage", "SharedStorage", "Storage", "Writer"]
