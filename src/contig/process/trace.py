"""What a child process failed with, by its own account; and where its threads are, without it.

The first is a message, ``{"op": "failed", "error": traceback}``. The second is asked for by a
signal, which needs no cooperation.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import time
import traceback

from .channel import Channel

__all__ = ["Trace", "tell_failure"]

_ANSWER_S = 1.0


def tell_failure(channel: Channel) -> bool:
    """In the child, while an exception is handled: tells its traceback; False if nobody listens."""
    try:
        channel.line.setblocking(True)  # an event loop may have had it
        channel.send({"op": "failed", "error": traceback.format_exc()})
    except OSError:
        return False
    return True


class Trace:
    """A file without a name, into which a child process writes its tracebacks when told to.

    The child, which inherits `fd`, calls `Trace.answer(fd)` once; then the parent may `ask`.
    """

    def __init__(self) -> None:
        self.fd = os.memfd_create("contig-trace", os.MFD_CLOEXEC)

    @staticmethod
    def answer(fd: int) -> None:
        """In the child: from now on, answers."""
        faulthandler.register(signal.SIGUSR1, file=fd, all_threads=True)

    def ask(self, process: subprocess.Popen[bytes]) -> str:
        """Where the child's threads are now."""
        before = size = os.fstat(self.fd).st_size
        try:
            process.send_signal(signal.SIGUSR1)
        except ProcessLookupError:
            return "(it is gone)"
        deadline = time.monotonic() + _ANSWER_S
        while time.monotonic() < deadline:
            time.sleep(0.02)
            last, size = size, os.fstat(self.fd).st_size
            if size > before and size == last:
                break
        text = os.pread(self.fd, size - before, before).decode(errors="replace")
        return text or "(it does not answer)"

    def close(self) -> None:
        os.close(self.fd)
