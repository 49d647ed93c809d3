"""What the rows of an append refer to, and how far back slots are needed then."""

from __future__ import annotations

from typing import NamedTuple

from tests.model.slots import SlotMemory, SlotRules, Step


class Track:
    """A trajectory, as its writer knows it."""

    def __init__(self, stack: tuple[int, ...]) -> None:
        self.stack = stack  # the next row's observation
        self.recent: tuple[int, ...] = ()  # slots that the last row's next one has


Runs = list[tuple[Track, list[Step]]]


class Plan(NamedTuple):
    slot_head: int
    rows: list[Step]
    references: list[tuple[int, ...]]
    new: list[int]  # frames that get slots of their own
    recent: dict[Track, tuple[int, ...]]

    @property
    def end(self) -> int:
        return self.slot_head + len(self.new)

    def remember(self) -> None:
        for track, recent in self.recent.items():
            track.recent = recent

    def earlier(self) -> list[int]:
        return [s for slots in self.references for s in slots if s < self.slot_head]


def make_plan(m: SlotMemory, rules: SlotRules, runs: Runs) -> Plan:
    plan = Plan(m.slot_head(), [], [], [], {})
    for track, rows in runs:
        before = plan.recent.get(track, track.recent)
        for row in rows:
            found: list[int] = []
            for i, frame in enumerate(row.frames):
                number = plan.end
                for candidate in candidates(m.k, i, before, found):
                    if usable(m, rules, plan, candidate, frame):
                        number = candidate
                        break
                else:
                    plan.new.append(frame)
                found.append(number)
            plan.rows.append(row)
            plan.references.append(tuple(found))
            before = tuple(found[m.k :])
        plan.recent[track] = before
    return plan


def candidates(k: int, i: int, before: tuple[int, ...], found: list[int]) -> list[int]:
    """Slots that may have the i-th frame of a row: of the row before, or of the same row."""
    out = []
    if i < k and before:
        out.append(before[i])
    if k <= i < 2 * k - 1:
        out.append(found[i - k + 1])
    if i not in (0, k):  # the edge of a stack
        out.append(found[i - 1])
    if i == 2 * k - 1:  # nothing moved
        out.append(found[k - 1])
    return out


def usable(m: SlotMemory, rules: SlotRules, plan: Plan, number: int, frame: int) -> bool:
    if rules.plan_near:
        if number < (plan.end if rules.plan_near_row else plan.slot_head) - m.near:
            return False
    if plan.slot_head <= number < plan.end:
        return plan.new[number - plan.slot_head] == frame
    if number < m.slot_tail and rules.plan_above_tail:
        return False
    return m.frame(number) == frame or not rules.plan_compares


def bound_of(m: SlotMemory, rules: SlotRules, tail: int, plan: Plan) -> int:
    """The least slot that rows from `tail` on and those of the plan refer to, or less."""
    least = plan.slot_head
    first = tail // m.block
    end = (m.head - 1) // m.block + 1 if rules.bound_committed else m.head // m.block + 1
    far = m.near if rules.bound_stops_late else 0
    for b in range(first, end) if tail < m.head or not rules.bound_committed else ():
        if b > first and (m.start[b % m.blocks] - far >= least or not rules.bound_scans):
            m.seen["stops"] += 1
            break
        least = min(least, m.low[b % m.blocks])
    earlier = plan.earlier()
    if rules.bound_has_plan and earlier:
        m.seen["early"] += min(earlier) < least
        least = min(least, *earlier)
    m.seen["back"] += least < m.slot_tail
    return least
