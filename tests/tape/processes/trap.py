"""Memory that stops whoever reads it: how a process is caught in the middle of a copy.

Stopping a process from outside while it is inside a lock needs luck, and a machine with processors
to spare. So it stops itself: one page of what it hands over may not be read, and whoever tries gets
a SIGSEGV, whose handler opens the page and raises SIGSTOP. After a SIGCONT the copy goes on.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
from typing import Any

import numpy as np

_LIBC = ctypes.CDLL(None, use_errno=True)
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)
_PROT_NONE = 0
_kept: list[Any] = []  # handlers and mappings: for as long as the process


def trapped(array: np.ndarray[Any, Any], at: float) -> np.ndarray[Any, Any]:
    """A copy of this array that stops the first who reads the page at this part of it, 0 to 1.

    Once in a process. The copy is made by this process's first thread.
    """
    size = mmap.PAGESIZE
    pages = -(-array.nbytes // size)
    memory = mmap.mmap(-1, pages * size)
    out = np.frombuffer(memory, array.dtype, array.size).reshape(array.shape)
    out[...] = array
    page = ctypes.c_void_p(out.ctypes.data + min(int(at * pages), pages - 1) * size)

    def stop(number: int) -> None:
        _protect(page, mmap.PROT_READ | mmap.PROT_WRITE)
        os.kill(os.getpid(), signal.SIGSTOP)

    handler = _HANDLER(stop)
    _kept.extend((handler, memory))
    _LIBC.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    _LIBC.signal.restype = ctypes.c_void_p
    _LIBC.signal(signal.SIGSEGV, ctypes.cast(handler, ctypes.c_void_p))
    _protect(page, _PROT_NONE)
    return out


def _protect(page: ctypes.c_void_p, how: int) -> None:
    if _LIBC.mprotect(page, ctypes.c_size_t(mmap.PAGESIZE), how):
        os._exit(3)  # there is nobody to tell in a signal's handler
