"""WritingProcess: a child process that writes a file with a library that may crash.

    parent   write(item) ──▶ main: make(*arguments)   opens
                         ──▶       .write(item)       each is answered before the next is sent
             finish()    ──▶       .close()           then the process ends at once

The HDF5 library keeps blocks that it could not write, writes them again when its process ends, and
dies of that (SIGSEGV). So no HDF5 file is written in a process that somebody needs.
"""

from __future__ import annotations

import errno
import os
import pickle
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from ..errors import StorageFull
from ..process.spawn import Child, describe_exit, enter

__all__ = ["WritingProcess", "main", "raising_full"]

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ERRNO = re.compile(r"errno = (\d+)")  # as the HDF5 library words it
_END_S = 10.0


class Writes(Protocol):
    """The part that works in the child."""

    def write(self, item: Any, /) -> None: ...
    def close(self) -> None: ...


class WritingProcess:
    """A child process that writes what it is given, in order.

    Args:
        what: is written, for messages.
        make: a function of a module, which the child calls.
        arguments: of it.
        dumps: pickles them.

    Raises:
        StorageFull: there is no room.
        OSError: the process ended without a word.
    """

    def __init__(
        self,
        what: str,
        make: Callable[..., Writes],
        *arguments: Any,
        dumps: Callable[[Any], bytes] = pickle.dumps,
    ) -> None:
        self._what = what
        job = dumps((make, arguments))
        self._printed = os.memfd_create("contig-printed", os.MFD_CLOEXEC)  # the child's stderr
        self._child = Child(__name__, [self._printed])
        try:
            self._ask({"path": sys.path}, job)
        except BaseException:
            self.close()
            raise

    def write(self, item: Any) -> None:
        """Hands one item over, and waits until the library has it."""
        self._ask({"op": "write"}, pickle.dumps(item, protocol=pickle.HIGHEST_PROTOCOL))

    def finish(self) -> None:
        """Closes the file."""
        self._ask({"op": "close"})
        sys.stderr.write(self._read_printed())

    def _ask(self, content: dict[str, Any], raw: bytes = b"") -> None:
        try:
            self._child.channel.send(content, raw)
        except OSError:
            pass  # it ended; perhaps it said why
        answer = self._child.channel.receive()
        if answer is None:
            code = describe_exit(self._child.end(_END_S))
            printed = self._read_printed()
            number = _number_in(printed)  # the library died before anything could be raised
            if number is not None:
                raise StorageFull(number, _no_room(os.strerror(number)), self._what)
            raise OSError(
                f"{self._what}: the process that writes it ended ({code}) {printed[-2000:]}"
            )
        if answer.content["op"] != "failed":
            return
        number, said = answer.content["errno"], answer.content["text"]
        if number is not None:
            raise StorageFull(number, _no_room(os.strerror(number)), self._what)
        error = pickle.loads(answer.raw) if answer.raw else OSError(f"{self._what}: {said}")
        error.add_note(answer.content["error"])
        raise error

    def _read_printed(self) -> str:
        data = os.pread(self._printed, os.fstat(self._printed).st_size, 0)
        return data.decode(errors="replace")

    def close(self) -> None:
        """Ends it, also in the middle of its work."""
        self._child.kill()
        self._child.end(_END_S)
        self._child.close()
        if self._printed >= 0:
            os.close(self._printed)
            self._printed = -1

    def __enter__(self) -> WritingProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@contextmanager
def raising_full(path: str) -> Iterator[None]:
    """Makes a full disk a StorageFull."""
    try:
        yield
    except OSError as error:
        if _errno_of(error) is None or isinstance(error, StorageFull):
            raise
        raise StorageFull(error.errno, _no_room(error.strerror or str(error)), path) from error


def _no_room(said: str) -> str:
    return f"{said}; nothing is left of it. Make room"


def _errno_of(error: BaseException) -> int | None:
    """The number by which an error says that there is no room, or None."""
    known: BaseException | None = error
    while known is not None:
        number = getattr(known, "errno", None)
        found = number if number in _FULL else _number_in(str(known))
        if found is not None:
            return found
        known = known.__cause__ or known.__context__
    return None


def _number_in(text: str) -> int | None:
    return next((n for n in map(int, _ERRNO.findall(text)) if n in _FULL), None)


def main() -> None:
    """The child: until it is told to close, or its parent is gone."""
    channel, (printed,) = enter()
    os.dup2(printed, 2)
    status = 1
    ignored: list[BaseException] = []
    # Datasets are written when they are closed, which is when nobody refers to them any more: what
    # fails then cannot be raised there, and the file is not whole.
    sys.unraisablehook = lambda about: ignored.append(about.exc_value or OSError(about.err_msg))

    def answer() -> None:
        if ignored:
            raise ignored[0]
        channel.send({"op": "done"})

    try:
        first = channel.receive()
        if first is not None:
            sys.path[:] = first.content["path"]
            make, arguments = pickle.loads(first.raw)
            writes: Writes = make(*arguments)
            answer()
            while (message := channel.receive()) is not None:
                if message.content["op"] == "write":
                    writes.write(pickle.loads(message.raw))
                else:
                    writes.close()
                    status = 0
                answer()
    except BaseException as error:
        failed = {"op": "failed", "errno": _errno_of(error), "text": str(error)}
        channel.send({**failed, "error": traceback.format_exc()}, _pickled(error))
    os._exit(status)  # no library cleans up: it might crash, or hang


def _pickled(error: BaseException) -> bytes:
    try:
        image = pickle.dumps(error)
        pickle.loads(image)
        return image
    except Exception:
        return b""


if __name__ == "__main__":
    main()
