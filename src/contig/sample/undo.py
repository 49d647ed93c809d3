"""Going back over draws, at the cost of the draws that are taken back.

A sampler that keeps something per row cannot copy all of it before each batch that is drawn ahead.
It notes what each draw changed instead:

    mark ──note──▶ point ──note──▶ point (now)

A mark is a point of this chain, which only leads forward: notes that no mark is left before are
freed by themselves.
"""

from __future__ import annotations

from typing import Any

__all__ = ["UndoLog", "Point"]


class Point:
    """A moment between two draws; what the draw after it changed."""

    __slots__ = ("change", "next")

    def __init__(self) -> None:
        self.next: Point | None = None
        self.change: Any = None


class UndoLog:
    """What draws changed, since the oldest mark that somebody holds. Not thread-safe."""

    def __init__(self) -> None:
        self._now = Point()

    def mark(self) -> Point:
        return self._now

    def note(self, change: Any) -> None:
        """Says what a draw has changed."""
        before, self._now = self._now, Point()
        before.change, before.next = change, self._now

    def since(self, mark: Point) -> list[Any]:
        """The changes after a mark, the newest first, to be undone. They are forgotten: it is the
        mark's moment again. None if the mark is of another log, from before a reset."""
        changes = []
        at = mark
        while at.next is not None:
            changes.append(at.change)
            at = at.next
        if at is not self._now:
            return []
        mark.next = mark.change = None
        self._now = mark
        return changes[::-1]
