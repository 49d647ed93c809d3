"""Child: a process that this one started, and the channel to it.

    parent   Child(module, ...)                      Child.give(job)
    child    python ... module CHANNEL TRACE ...     enter()  receive_job()

A child of user code has the path of this process, and not the working directory (`-P`). One that
runs none of the user's code must not find any either, neither there nor where PYTHONPATH points
(`-I`): what it needs beyond the interpreter's own is looked for last.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .channel import Channel
from .trace import Trace

__all__ = ["Child", "describe_exit", "enter", "receive_job"]

_ISOLATED = "import json, sys; sys.path += json.loads(sys.argv.pop(1)); from {} import main; main()"
_NOTHING: Mapping[str, str] = {}


class Child:
    """A child process. Started by the constructor; `end` before `close`.

    Args:
        module: whose `main` it runs, with the descriptors of the channel, the trace and `fds` as
            arguments.
        fds: descriptors it needs.
        inherited: more of them, which it is told of by messages.
        environment: variables that it has beside those of this process.
        isolated: it runs none of the user's code.

    Attributes:
        channel: to it.
    """

    def __init__(
        self,
        module: str,
        fds: Sequence[int] = (),
        *,
        inherited: Sequence[int] = (),
        environment: Mapping[str, str] = _NOTHING,
        isolated: bool = False,
    ) -> None:
        self._trace = Trace()
        mine, theirs = socket.socketpair()
        fds = [theirs.fileno(), self._trace.fd, *fds]
        if isolated:
            command = ["-I", "-c", _ISOLATED.format(module), json.dumps(_places())]
        else:
            command = ["-P", "-m", module]
            path = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
            environment = {**environment, "PYTHONPATH": os.pathsep.join(path)}
        self.process = subprocess.Popen(
            [sys.executable, *command, *map(str, fds)],
            pass_fds=[*fds, *inherited],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self.channel = Channel(mine)

    @property
    def pid(self) -> int:
        return self.process.pid

    def give(self, job: bytes) -> None:
        """Sends it the path of this process and its job, by cloudpickle.

        So lambdas and classes of scripts work.

        Raises:
            OSError: it is gone.
        """
        self.channel.send({"path": sys.path}, job)

    def traceback(self) -> str:
        """Where its threads are now."""
        return self._trace.ask(self.process)

    def kill(self) -> None:
        self.process.kill()

    def end(self, timeout_s: float) -> int:
        """Waits for its end, and kills it if that does not come; its exit code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def close(self) -> None:
        """Lets go of the channel and the trace; a child that listens ends by that."""
        self.channel.close()
        self._trace.close()


def _places() -> list[str]:
    """Where this process found contig and what it needs."""
    modules = [sys.modules[name] for name in ("contig", "numpy", "optree")]
    return list(dict.fromkeys(str(Path(m.__file__ or "").parents[1]) for m in modules))


def describe_exit(code: int) -> str:
    """An exit code in words."""
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def enter() -> tuple[Channel, list[int]]:
    """In the child, first: the channel to its parent, and the other descriptors it was given."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the group; the parent decides
    line, trace, *fds = map(int, sys.argv[1:])
    Trace.answer(trace)
    return Channel(socket.socket(fileno=line)), fds


def receive_job(channel: Channel) -> Any:
    """In the child: what its parent gave it.

    Raises:
        EOFError: the parent is gone.
    """
    first = channel.receive()
    if first is None:
        raise EOFError("the parent process is gone")
    sys.path[:] = first.content["path"]
    import cloudpickle

    return cloudpickle.loads(first.raw)
