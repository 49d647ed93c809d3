"""The store: tapes in memory and shared memory, their writers and their index of runs."""

from .folding import Recipe, Steps
from .queue import BatchQueue
from .snapshot import PackedRows, Snapshot
from .storage import LazyTensorStorage, SharedStorage, Storage, storage_of_fd
from .writer import Writer

__all__ = [
    "BatchQueue",
    "Snapshot",
    "LazyTensorStorage",
    "PackedRows",
    "Recipe",
    "SharedStorage",
    "Steps",
    "Storage",
    "Writer",
    "storage_of_fd",
]
