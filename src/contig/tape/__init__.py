"""The store: tapes in memory and shared memory, their writers and their index of runs."""

from .device import DeviceRows, DeviceStorage
from .folding import FoldedSteps, Recipe
from .memory import LazyTensorStorage, SharedStorage, storage_of_fd
from .queue import BatchQueue
from .schema import Wide
from .snapshot import PackedRows, Rows, Snapshot
from .storage import Storage
from .writer import Writer

__all__ = [
    "BatchQueue",
    "DeviceRows",
    "DeviceStorage",
    "Snapshot",
    "LazyTensorStorage",
    "PackedRows",
    "Rows",
    "Recipe",
    "SharedStorage",
    "FoldedSteps",
    "Storage",
    "Wide",
    "Writer",
    "storage_of_fd",
]
