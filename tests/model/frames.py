"""A model of items in frames: runs with fields, rows with bytes, cut, sent again, taken in in part.

    calls of a user -> items (the last one may grow) -> frames -> a server that takes in what it can

Rows of one lane: a done row ends a trajectory, the next one begins another. Fields of a call are
those of every trajectory it has rows of, leaf by leaf; what is given last counts. Each row has some
bytes, and each byte says whose it is; a record has their position and length, within the frame's
bytes on the way and within all bytes once stored. A row has two observations, its own and the one
it leads to, which is the next row's own unless it is done; they are in slots of the frame, each
once, and in slots of the table then. Both sides do what docs/design/wire.md says.

Kept on the side: what the user did. After as many rows as are stored,

    each row is there once, in order, with its own bytes and observations
    trajectories have the fields that these calls gave them, and no others
    a call is stored whole or not at all

`Rules` switches single rules off, to show that the model finds out.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import NamedTuple

LEAVES = ("task", "group")
Fields = dict[str, int]


class Violation(AssertionError):
    pass


@dataclass(frozen=True)
class Rules:
    """Each True by default; the test that switches one off says what goes wrong."""

    compares_fields: bool = True  # a run grows only by rows with the same fields
    gcalledunsent: bool = True  # and only before it is on its way
    frame_positions: bool = True  # positions are within the frame's bytes, not the call's
    drops_seen: bool = True  # of a frame half taken in, the rest
    skips_fields: bool = True  # fields of what is dropped are passed over
    rebases: bool = True  # what is left of a frame's positions begins at 0 again
    leaves_bytes: bool = True  # of items that find no room, bytes are not taken either
    checks_order: bool = True  # positions of a damaged frame are not believed
    frame_slots: bool = True  # references are to the frame's slots, not to the item's
    serves_slots: bool = True  # those that items brought which are dropped serve the others
    compares_slots: bool = True  # what the last row led to is taken for the next one if it is it


RULES = [f.name for f in fields(Rules)]


class Row(NamedTuple):
    name: int
    length: int  # bytes, each of them its name
    done: bool

    @property
    def observations(self) -> tuple[int, int]:
        """Its own, and what it leads to."""
        return 2 * self.name, 2 * self.name + (1 if self.done else 2)


@dataclass
class Run:
    """An item: rows of some calls, and what they all gave."""

    rows: list[Row]
    given: Fields | None


@dataclass
class Frame:
    """As it is on the wire: a table of runs, the fields of those that have some, records, bytes."""

    first: int
    runs: list[tuple[int, bool]] = field(default_factory=list)  # rows, whether it has fields
    given: list[Fields] = field(default_factory=list)
    records: list[tuple[int, bool, int, int]] = field(default_factory=list)
    data: list[int] = field(default_factory=list)
    references: list[tuple[int, int]] = field(default_factory=list)  # of each record
    slots: list[int] = field(default_factory=list)

    def add(self, run: Run, rules: Rules) -> None:
        self.runs.append((len(run.rows), run.given is not None))
        if run.given is not None:
            self.given.append(run.given)
        at = len(self.data) if rules.frame_positions else 0
        for row in run.rows:
            self.records.append((row.name, row.done, at, row.length))
            self.data += [row.name] * row.length
            at += row.length
        first = 0 if rules.frame_slots else len(self.slots)
        for row in run.rows:
            now, led_to = row.observations
            # What the row before led to, if it is this.
            if not self.slots or self.slots[-1] != now or len(self.slots) == first:
                self.slots.append(now)
            self.slots.append(led_to)
            self.references.append((len(self.slots) - 2 - first, len(self.slots) - 1 - first))

    def in_order(self) -> bool:
        """Whether positions are packed, one behind the other, and the bytes end with them."""
        at = 0
        for _, _, position, length in self.records:
            if position != at:
                return False
            at += length
        return at == len(self.data)


class Lane:
    """Which trajectory each row belongs to, and what its fields are."""

    def __init__(self) -> None:
        self.fields: list[Fields] = []
        self.open = False

    def add(self, rows: list[Row], given: Fields | None) -> None:
        for row in rows:
            if not self.open:
                self.fields.append({})
            self.fields[-1].update(given or {})
            self.open = not row.done


class Server:
    def __init__(self, world: World) -> None:
        self.world = world
        self.seen = 0  # items
        self.records: list[tuple[int, int, int]] = []  # name, absolute position, length
        self.data: list[int] = []
        self.slots: list[int] = []
        self.references: list[tuple[int, int]] = []
        self.lane = Lane()
        self.front: Frame | None = None

    def take(self, frame: Frame, most_rows: int) -> bool:
        """As much of a frame as there is room for, in one append; False: not all of it."""
        rules = self.world.rules
        if rules.checks_order and not frame.in_order():
            raise Violation("a frame was refused")
        if frame.first > self.seen:
            raise Violation(f"a gap: {frame.first} after {self.seen}")
        again = min(self.seen - frame.first, len(frame.runs)) if rules.drops_seen else 0
        skipped = sum(rows for rows, _ in frame.runs[:again])
        passed = sum(has for _, has in frame.runs[:again]) if rules.skips_fields else 0
        end, taken = skipped, again
        for rows, _ in frame.runs[again:]:
            if taken > again and end + rows - skipped > most_rows:
                break
            end, taken = end + rows, taken + 1
        if taken > again:
            self.append(frame, again, taken, skipped, end, passed)
            self.seen = max(self.seen, frame.first + taken)
        self.world.seen["parts"] += again < taken < len(frame.runs)
        self.world.seen["again"] += again > 0
        return taken == len(frame.runs)

    def append(
        self, frame: Frame, again: int, taken: int, skipped: int, end: int, passed: int
    ) -> None:
        rules, records = self.world.rules, frame.records[skipped:end]
        first = records[0][2]
        upto = records[-1][2] + records[-1][3] if rules.leaves_bytes else len(frame.data)
        base = len(self.data) - (first if rules.rebases else 0)
        self.data += frame.data[first:upto]
        self.records += [(name, base + at, n) for name, _, at, n in records]
        self.append_slots(frame, skipped, end)
        given, row = iter(frame.given[passed:]), 0
        for rows, has in frame.runs[again:taken]:
            named = [Row(name, n, done) for name, done, _, n in records[row : row + rows]]
            self.lane.add(named, next(given, None) if has else None)
            row += rows

    def append_slots(self, frame: Frame, skipped: int, end: int) -> None:
        """Each that these rows refer to once; but for the first, if the last row led to it."""
        rules, known = self.world.rules, {}
        base = 0 if rules.serves_slots else frame.references[skipped][0]
        for row, pair in enumerate(frame.references[skipped:end]):
            for number in pair:
                value = frame.slots[min(max(number - base, 0), len(frame.slots) - 1)]
                led_to = self.references[-1][1] if self.references and row == 0 else None
                if number in known:
                    continue
                if number == pair[0] and led_to is not None:
                    if self.slots[led_to] == value or not rules.compares_slots:
                        known[number] = led_to
                        self.world.seen["shared"] += 1
                        continue
                known[number] = len(self.slots)
                self.slots.append(value)
            self.references.append((known[pair[0]], known[pair[1]]))


class Client:
    def __init__(self, world: World) -> None:
        self.world = world
        self.calls: list[tuple[list[Row], Fields | None]] = []
        self.names = 0
        self.acked = self.next = 0
        self.runs: list[Run] = []  # all that there ever were
        self.sent = 0  # of them, on their way at least once

    def call(self) -> None:
        rng, rows = self.world.rng, []
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            rows.append(Row(self.names, rng.choice((0, 0, 1, 2, 5)), rng.random() < 0.3))
            self.names += 1
        given = None
        if rng.random() < 0.4:
            leaves = rng.sample(LEAVES, rng.choice((1, 1, 2)))
            given = {leaf: rng.randrange(3) for leaf in leaves}
        self.calls.append((rows, given))
        self.put(rows, given)

    def put(self, rows: list[Row], given: Fields | None) -> None:
        rules, last = self.world.rules, self.runs[-1] if self.runs else None
        unsent = len(self.runs) > self.sent or (not rules.gcalledunsent and self.runs)
        if last is not None and unsent and len(last.rows) + len(rows) <= 4:
            if last.given == given or not rules.compares_fields:
                last.rows += rows
                last.given = given if last.given is None else last.given
                self.world.seen["grown"] += 1
                return
        self.runs.append(Run(list(rows), given))

    def frame(self) -> Frame | None:
        """The next items, as many as come to mind: also of those that were sent before."""
        if self.next == len(self.runs):
            return None
        n = min(self.world.rng.choice((1, 1, 2, 3, 5)), len(self.runs) - self.next)
        frame = Frame(self.next)
        for run in self.runs[self.next : self.next + n]:
            frame.add(run, self.world.rules)
        self.next += n
        self.sent = max(self.sent, self.next)
        return frame


class World:
    def __init__(self, seed: int, rules: Rules | None = None) -> None:
        self.rng = random.Random(seed)
        self.rules = Rules() if rules is None else rules
        self.seen: Counter[str] = Counter()
        self.client, self.server = Client(self), Server(self)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            act = self.rng.random()
            if act < 0.45:
                self.client.call()
            elif act < 0.95:
                self.serve()
            else:
                self.cut()
            self.check()

    def serve(self) -> None:
        server, client = self.server, self.client
        if server.front is None:
            server.front = client.frame()
        if server.front is not None and server.take(server.front, self.rng.choice((0, 1, 2, 4, 9))):
            server.front = None
            client.acked = max(client.acked, server.seen)

    def cut(self) -> None:
        """What of a frame is in stays in; the client may not know it, and sends from anywhere."""
        self.seen["cuts"] += 1
        self.server.front = None
        low = self.client.acked
        self.client.next = (
            self.rng.randint(low, self.server.seen)
            if self.rng.random() < 0.5
            else (self.server.seen)
        )

    def check(self) -> None:
        server = self.server
        for number, (name, at, length) in enumerate(server.records):
            if name != number:
                raise Violation(f"row {name} where {number} belongs")
            if server.data[at : at + length] != [name] * length:
                raise Violation(f"row {name} has bytes of others")
        stored = [(server.slots[a], server.slots[b]) for a, b in server.references]
        called = [row for mine, _ in self.client.calls for row in mine]
        if stored != [row.observations for row in called[: len(stored)]]:
            raise Violation("a row has observations of others")
        truth, rows = Lane(), 0
        for mine, given in self.client.calls:
            if rows == len(server.records):
                break
            truth.add(mine, given)
            rows += len(mine)
        if rows != len(server.records):
            raise Violation("a part of a call is stored")
        if truth.fields != server.lane.fields:
            raise Violation(f"fields {server.lane.fields}, expected {truth.fields}")
        if sum(n for _, _, n in server.records) != len(server.data):
            raise Violation("bytes that belong to no row")
