"""Going back over draws, at the cost of the draws that are taken back.

A sampler that keeps something per row cannot copy all of it before each batch that is drawn ahead.
It notes what each draw changed instead:

    mark ──note──▶ point ──note──▶ point (now)

A mark is a point of this chain, which only leads forward: notes that no mark is left before are
freed by themselves.

What a single draw took can also be taken back, whatever was drawn since: `Change` holds it, and is
undone once, by whoever comes first.
"""

from __future__ import annotations

from typing import Any

__all__ = ["Change", "Point", "UndoLog"]


class Change:
    """What one draw changed, until that is undone; it keeps no others alive.

    Args:
        log: that it was noted in.
        what: what its sampler undoes; None once that is done.
    """

    __slots__ = ("log", "what")

    def __init__(self, log: UndoLog, what: Any) -> None:
        self.log, self.what = log, what


class Point:
    """A moment between two draws; what the draw after it changed."""

    __slots__ = ("change", "next")

    def __init__(self) -> None:
        self.next: Point | None = None
        self.change: Change | None = None


class UndoLog:
    """What draws changed, since the oldest mark that somebody holds. Not thread-safe."""

    def __init__(self) -> None:
        self._now = Point()

    def mark(self) -> Point:
        return self._now

    def note(self, what: Any) -> None:
        """Says what a draw has changed."""
        before, self._now = self._now, Point()
        before.change, before.next = Change(self, what), self._now

    def changes(self, mark: Point) -> list[Change]:
        """Those after a mark, for `undo`."""
        found = []
        at = mark
        while at.next is not None:
            assert at.change is not None
            found.append(at.change)
            at = at.next
        return found

    def undo(self, changes: list[Change]) -> list[Any]:
        """What some of the changes were, to be undone: none that was undone already, and none of
        another log, from before a reset."""
        mine = [c for c in changes if c.log is self and c.what is not None]
        found = [c.what for c in mine]
        for change in mine:
            change.what = None
        return found

    def since(self, mark: Point) -> list[Any]:
        """The changes after a mark, the newest first, to be undone. They are forgotten: it is the
        mark's moment again. None if the mark is of another log, from before a reset."""
        at = mark
        while at.next is not None:
            at = at.next
        if at is not self._now:
            return []
        found = self.undo(self.changes(mark))
        mark.next = mark.change = None
        self._now = mark
        return found[::-1]
