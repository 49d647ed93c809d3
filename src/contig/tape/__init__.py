"""The store: tapes in memory and shared memory, their writers and their index of runs."""

from .contents import Contents, PackedRows
from .folding import Recipe, Steps
from .queue import BatchQueue
from .storage import LazyTensorStorage, SharedStorage, Storage, storage_of_fd
from .writer import Writer

__all__ = [
    "BatchQueue",
    "Contents",
    "LazyTensorStorage",
    "PackedRows",
    "Recipe",
    "SharedStorage",
    "Steps",
    "Storage",
    "Writer",
    "storage_of_fd",
]
