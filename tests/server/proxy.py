"""A TCP proxy that treats connections badly: delays, cuts, half-closes, and sends things twice.

Calm at first; `rage` turns the faults on. All randomness is seeded. Runs in a thread of its own.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections import Counter
from typing import Any

_CHUNK = 16384
_FAULTS = ("cut", "cut", "reset", "half", "delay")
_RECORD = 1 << 18  # bytes of a connection that are kept to be sent again


class Proxy:
    """Listens on `port` and forwards to a port of this host."""

    def __init__(self, target: int, seed: int = 0) -> None:
        self.target = target
        self.counts: Counter[str] = Counter()
        self.faults = False
        self._refuse = 0
        self._rng = random.Random(seed)
        self._writers: set[Any] = set()
        self._replays: set[asyncio.Task[Any]] = set()  # a loop keeps only weak references
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(60)

    # -- for the test -------------------------------------------------------------------------

    def rage(self) -> None:
        """From now on, and for connections that are open too."""
        self.faults = True
        self.cut_all()

    def calm(self) -> None:
        self.faults = False

    def refuse(self, connections: int) -> None:
        """Cuts that many of the next connections before anything is forwarded."""
        self._refuse = connections

    def hush(self) -> None:
        """Forwards nothing any more, and cuts nothing: as a cable that was pulled."""
        asyncio.run_coroutine_threadsafe(self._set(False), self._loop).result(60)

    def speak(self) -> None:
        """Forwards again, what was held back too."""
        asyncio.run_coroutine_threadsafe(self._set(True), self._loop).result(60)

    async def _set(self, speaks: bool) -> None:
        self._speaks.set() if speaks else self._speaks.clear()

    def cut_all(self, reset: bool = True) -> None:
        """Cuts all connections now."""

        def cut() -> None:
            for writer in list(self._writers):
                _cut(writer, reset)

        self._loop.call_soon_threadsafe(cut)

    def close(self) -> None:
        async def end() -> None:
            self.faults = False
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    # -- its thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)

        async def listen() -> None:
            self._speaks = asyncio.Event()
            self._speaks.set()
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
            self.port = self._server.sockets[0].getsockname()[1]
            self._ready.set()

        self._loop.run_until_complete(listen())
        self._loop.run_forever()
        self._loop.close()

    async def _accept(self, reader: Any, writer: Any) -> None:
        if self._refuse > 0:
            self._refuse -= 1
            self.counts["refused"] += 1
            await reader.read(1)
            _cut(writer, False)
            return
        recorded = bytearray()
        up_writer = None
        self._writers.add(writer)
        try:
            await self._speaks.wait()
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target)
            self._writers.add(up_writer)
            self.counts["connections"] += 1
            one = self._pipe(reader, up_writer, writer, recorded)
            other = self._pipe(up_reader, writer, up_writer, None)
            await asyncio.gather(one, other)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for end in (writer, up_writer):
                if end is not None:
                    self._writers.discard(end)
                    end.transport.abort()
        if self.faults and recorded and self._rng.random() < 0.3:
            again = self._loop.create_task(self._replay(bytes(recorded)))
            self._replays.add(again)
            again.add_done_callback(self._replays.discard)

    async def _pipe(self, source: Any, sink: Any, back: Any, recorded: bytearray | None) -> None:
        """One direction; what goes wrong, and after how many bytes, is drawn at its start."""
        rng = self._rng
        # Some in the handshake; most after it, so that things go on.
        least, most = (3.5, 5.8) if recorded is not None else (2.8, 4.0)
        at = rng.randrange(800) if rng.random() < 0.1 else int(10 ** rng.uniform(least, most))
        fault = rng.choice(_FAULTS)
        done = 0
        while data := await source.read(_CHUNK):
            await self._speaks.wait()
            if recorded is not None and len(recorded) < _RECORD:
                recorded += data
            if self.faults and done + len(data) > at:
                self.counts[fault] += 1
                sink.write(data[: max(at - done, 0)])
                if fault in ("cut", "reset"):
                    _cut(sink, fault == "reset")
                    _cut(back, fault == "reset")
                    return
                if fault == "half":
                    await sink.drain()
                    sink.write_eof()  # and nothing more in this direction
                    await asyncio.sleep(rng.uniform(0, 0.1))
                    _cut(sink, False)
                    _cut(back, False)
                    return
                await asyncio.sleep(rng.uniform(0, 0.05))
                data = data[max(at - done, 0) :]
                done = max(at, done)
                fault, at = rng.choice(_FAULTS), at + int(10 ** rng.uniform(1, most))
            sink.write(data)
            done += len(data)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()

    async def _replay(self, data: bytes) -> None:
        """All or a part of what a client once said, on a new connection."""
        self.counts["replay"] += 1
        if self._rng.random() < 0.5:
            data = data[: self._rng.randrange(len(data)) + 1]
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            return
        self._writers.add(writer)
        try:
            async with asyncio.timeout(0.3):
                writer.write(data)
                while await reader.read(_CHUNK):
                    pass
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()


def _cut(writer: Any, reset: bool) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None and reset and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if reset:
        writer.transport.abort()
    else:
        writer.close()
