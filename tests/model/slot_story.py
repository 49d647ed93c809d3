"""Appends with slots, one after another, of which some die: what takes chance too long to meet."""

from __future__ import annotations

from collections.abc import Callable

from tests.model.slot_world import SlotWorld
from tests.model.slot_writer import SlotWriter
from tests.model.slots import Sizes, SlotRules, Step


class Story:
    """Rows are given as their frames: (observation, next one). Raises Violation as a world does."""

    def __init__(self, rules: SlotRules, sizes: Sizes) -> None:
        self.world = SlotWorld(0, rules, sizes)
        self.m = self.world.m
        self.writers: dict[str, SlotWriter] = {}

    def append(
        self, who: str, *rows: tuple[int, int], dies: Callable[[], bool] | None = None
    ) -> None:
        """By a writer with one trajectory; killed after the first store with which `dies`."""
        if who not in self.writers:
            self.writers[who] = SlotWriter(self.m, self.world.rules, self.world.rnd)
        writer = self.writers[who]
        run = (writer.tracks[0], [Step(self.m.name(), row) for row in rows])
        self.m.lock = writer
        for _ in writer.append([run]):
            if dies is not None and dies():
                del self.writers[who]
                break
        self.m.lock = None
        self.world.check_at_rest()

    def clear(self) -> None:
        self.m.weak.release(("tail",), self.m.head)


def survivor_of_a_clear(rules: SlotRules) -> None:
    """A mark of rows that were cleared takes slot_tail back, and a writer believes its memory."""
    story = Story(rules, Sizes(k=1, capacity=4, block=3, near=8, shift=2))
    m = story.m
    story.append("a", (101, 102))
    story.append("a", (103, 104))  # slot 3 has 104, at place 0
    story.clear()
    story.append("b", (201, 202))  # slots 4 and 5, also at place 0
    story.append("b", (203, 204), (205, 206), dies=lambda: m.mapped_slots > 8)
    story.append("a", (104, 105))  # is 104 still there?
    story.append("a", (105, 106))  # slot 7, at place 0, where slot 3 was


def killed_while_mapping(rules: SlotRules) -> None:
    """Chunks got the place of a slot that a writer remembers; nothing else was stored yet."""
    story = Story(rules, Sizes(k=1, capacity=2, block=2, near=8, shift=0))
    m = story.m
    story.append("a", (101, 102))
    story.append("b", (201, 202), (203, 204), dies=lambda: m.mapped_slots >= 6)
    story.append("a", (102, 103))
    story.append("a", (103, 104))


def killed_after_marks(rules: SlotRules) -> None:
    """A block's mark, though not committed, lies where that of a block with a row did."""
    story = Story(rules, Sizes(k=1, capacity=2, block=3, near=1, shift=0))
    m = story.m
    story.append("a", (101, 102), (103, 104))
    story.clear()
    story.append("a", (105, 106))  # row 2, the last of block 0: slots 4 and 5, at places 0 and 1
    # Row 3, of block 1, refers to slots 5 and 6.
    story.append("a", (106, 107), dies=lambda: m.low[1 % m.blocks] == 5)
    story.append("b", (201, 202))  # needs another place; slot 4 has to keep its own


STORIES = {
    "low_anew_empty": survivor_of_a_clear,
    "slot_tail_first": killed_while_mapping,
    "ring_two_more": killed_after_marks,
}
