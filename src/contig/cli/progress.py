"""Progress: how much of something long is done.

on a terminal   a bar, rich's if that is installed
elsewhere       a line every ten seconds, so that logs show that it goes on
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

__all__ = ["Progress", "watching"]

_BAR = 30
_REDRAW_S = 0.1
_LINE_S = 10.0


class Progress:
    """How many of something are done, and how long the rest takes. For one thread.

    Args:
        stream: where it is drawn.
        what: what is counted, in the plural.
        show: whether to.
    """

    def __init__(self, stream: TextIO, what: str = "trajectories", *, show: bool = True) -> None:
        self._stream, self._what = stream, what
        self._show, self._terminal = show, stream.isatty()
        self._began = self._drawn = time.monotonic()
        self._rich: Any = None
        self._open = False
        self.done = 0

    def __call__(self, done: int, total: int | None) -> None:
        """So many of so many are done; None: nobody knows how many there are."""
        self.done = done
        now = time.monotonic()
        if not self._show:
            return
        if self._terminal:
            if self._rich is None and not self._open:
                self._rich = _rich_bar(self._stream)
            if self._rich is not None:
                self._open = True
                words = self._words(done, total, now)
                self._rich.update(0, completed=done, total=total, description=words)
            elif done == total or now - self._drawn >= _REDRAW_S:
                self._draw(done, total, now)
        elif now - self._drawn >= _LINE_S:
            self._drawn = now
            self._stream.write(self._words(done, total, now) + "\n")
            self._stream.flush()

    def _words(self, done: int, total: int | None, now: float) -> str:
        if total is None:
            return f"{done:,} {self._what}, {now - self._began:,.0f} s"
        rest_s = (now - self._began) / max(done, 1) * (total - done)
        return f"{done:,} of {total:,} {self._what}, {rest_s:,.0f} s left"

    def _draw(self, done: int, total: int | None, now: float) -> None:
        self._drawn = now
        bar = ""
        if total is not None:
            filled = _BAR * done // max(total, 1)
            bar = f"[{'#' * filled}{'.' * (_BAR - filled)}] "
        self._stream.write(f"\r{bar}{self._words(done, total, now)} ")
        self._stream.flush()
        self._open = True

    def end(self) -> None:
        """Ends the bar's line."""
        if self._rich is not None:
            self._rich.stop()
            self._rich = None
        elif self._open:
            self._stream.write("\n")
        self._open = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.end()


@contextmanager
def watching(progress: Progress, count: Callable[[], int]) -> Iterator[None]:
    """Shows, while something else works, how far that is; `count` is called in a thread."""
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(_REDRAW_S):
            progress(count(), None)
        progress.end()

    thread = threading.Thread(target=watch, name="contig-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _rich_bar(stream: TextIO) -> Any:
    """rich's, running; None if it is not installed."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress
    except ImportError:
        return None
    said = TextColumn("{task.description}", markup=False)
    bar = RichProgress(BarColumn(), said, console=Console(file=stream))
    bar.add_task("", total=None)
    bar.start()
    return bar
