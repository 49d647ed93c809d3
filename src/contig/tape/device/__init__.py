"""Rows on a torch device; the index of their runs in host memory, as ever."""

from .rows import DeviceRows
from .storage import DeviceStorage

__all__ = ["DeviceRows", "DeviceStorage"]
