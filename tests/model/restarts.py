"""A model of trajectories whose server goes away and comes back while they are open.

A client has a few lanes, and puts rows of their trajectories into items; rows of several calls may
become one item. It keeps the items that are not acked and sends them again. The server has a writer
for the client, which knows each lane's trajectory; a restart forgets the writer, and perhaps the
table too, or the newest items that were acked. What is promised: a trajectory of the table is
complete only if all of its rows are there, and if nothing was lost, there are no others.

`Rules` switches single rules off, to show that the model finds out.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, fields


class Violation(AssertionError):
    pass


@dataclass(frozen=True)
class Rules:
    """Each True by default; the test that switches one off says what goes wrong."""

    says_open: bool = True  # an item says that its first row goes on with an earlier item's
    says_several: bool = True  # or which of its trajectories do, if it is not only the first
    own_item: bool = True  # such a row does not become part of an item that did not say so
    lanes_in_index: bool = True  # a new writer finds where each lane was
    with_lane: bool = True  # by lane, not only by the trajectory's own id
    newest_run: bool = True  # and takes the last run, not any that is open
    nothing_received: bool = True  # but not if acked items may be missing between


@dataclass
class Row:
    name: tuple[int, int]  # lane, and the row's number in it
    id: int
    ends: bool


@dataclass
class Item:
    rows: list[Row]
    open: set[int]  # which of its trajectories go on, in the order in which they come


@dataclass
class Trajectory:
    lane: int
    id: int
    begins: bool
    names: list[tuple[int, int]] = field(default_factory=list)
    ended: bool = False


class Client:
    """Says what is open; gathers rows of a lane in items."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.items: list[Item] = []
        self.sent = 0  # items that were on their way once: these never change
        self.acked = 0
        self.open: set[tuple[int, int]] = set()

    def add(self, rows: list[Row]) -> None:
        open_before, seen = set(self.open), set[tuple[int, int]]()
        first = last = None
        several, goes = False, set[int]()
        for row in rows:
            key = (row.name[0], row.id)
            first = first or key
            if key in open_before and key not in seen:
                several = several or bool(seen)
                goes.add(len(seen))
            seen.add(key)
            last = key
            (self.open.discard if row.ends else self.open.add)(key)
        goes_on = first in open_before
        if len(self.items) > self.sent and self._grows(first, goes_on, several):
            self.items[-1].rows += rows
        else:
            said = goes if self.rules.says_several else goes & {0}
            self.items.append(Item(list(rows), said if self.rules.says_open else set()))
        self.last = last

    def _grows(self, first: object, goes_on: bool, several: bool) -> bool:
        same_lane = self.items[-1].rows[-1].name[0] == first[0]  # type: ignore[index]
        safe = not several and (not goes_on or first == self.last)
        return same_lane and (safe or not self.rules.own_item)


class Server:
    """A table, how many items of the client it has, and a writer that a restart forgets."""

    def __init__(self, rules: Rules, acks_received: bool) -> None:
        self.rules, self.acks_received = rules, acks_received
        self.table: list[Trajectory] = []
        self.seen: int | None = None  # None: the client is not known
        self.held: dict[tuple[int, int], Trajectory] | None = None  # the writer
        self.order: list[Trajectory] = []  # whose run is the newest, last

    def connect(self, following: int, received: int) -> int:
        """Items that are in; those up to `received` will not come again."""
        known = self.seen is not None
        seen = received if self.seen is None else self.seen
        if received > seen:
            seen, self.held = received, None
        if self.held is None:
            self.held = {}
            may_miss = self.acks_received and self.rules.nothing_received
            if not may_miss and known:
                self.take_up()
        self.seen = seen
        return seen

    def take_up(self) -> None:
        if not self.rules.lanes_in_index:
            return
        assert self.held is not None
        runs = reversed(self.order) if self.rules.newest_run else iter(self.order)
        shadowed = set()
        for trajectory in runs:
            lanes = [trajectory.lane] if self.rules.with_lane else range(LANES)
            for lane in lanes:
                key = (lane, trajectory.id)
                if key not in shadowed:
                    shadowed.add(key)
                    if not trajectory.ended:
                        self.held[key] = trajectory

    def take(self, item: Item) -> None:
        assert self.held is not None and self.seen is not None
        fresh: set[tuple[int, int]] = set()
        for row in item.rows:
            key = (row.name[0], row.id)
            at = self.held.get(key)
            if at is None:
                told = key not in fresh and len(fresh) in item.open
                at = self.held[key] = Trajectory(*key, begins=not told)
                self.table.append(at)
            fresh.add(key)
            if at in self.order:
                self.order.remove(at)
            self.order.append(at)
            at.names.append(row.name)
            if row.ends:
                at.ended = True
                del self.held[key]
        self.seen += 1


LANES = 2


class World:
    def __init__(self, seed: int, rules: Rules | None = None) -> None:
        self.rng = random.Random(seed)
        self.rules = rules or Rules()
        self.received = self.rng.random() < 0.3  # acks come before items are committed
        self.client, self.server = Client(self.rules), Server(self.rules, self.received)
        self.truth: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self.whole: list[list[tuple[int, int]]] = []
        self.numbers = [0] * LANES
        self.lost = False  # something that was acked
        self.forgotten = False  # who the client is
        self.restarts = self.continued = 0
        self.server.connect(0, 0)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            turn = self.rng.random()
            if turn < 0.45:
                self.write()
            elif turn < 0.93:
                self.send()
            else:
                self.restart()
        while self.client.acked < len(self.client.items):
            self.send()
        self.check()

    def write(self) -> None:
        lane, rows = self.rng.randrange(LANES), []
        for _ in range(self.rng.choice((1, 1, 2, 4))):
            row = Row((lane, self.numbers[lane]), self.rng.choice((0, 1)), self.rng.random() < 0.3)
            self.numbers[lane] += 1
            rows.append(row)
            mine = self.truth.setdefault((lane, row.id), [])
            mine.append(row.name)
            if row.ends:
                self.whole.append(self.truth.pop((lane, row.id)))
        self.client.add(rows)

    def send(self) -> None:
        client, server = self.client, self.server
        assert server.seen is not None
        if server.seen < len(client.items):
            client.sent = max(client.sent, server.seen + 1)
            server.take(client.items[server.seen])
        if self.rng.random() < 0.8:  # else the ack is lost, if all ends now
            client.acked = max(client.acked, server.seen)

    def restart(self) -> None:
        server, kind = self.server, self.rng.choice(("writer", "writer", "table"))
        self.restarts += 1
        self.continued += any(not t.ended for t in server.table)
        server.held = None
        if kind == "table":
            self.lost |= bool(server.table)
            server.table, server.order, server.seen = [], [], None
        elif self.received and server.seen and self.client.acked == server.seen:
            self.forget_newest()
        elif self.client.acked == server.seen and self.rng.random() < 0.1:  # in favour of others
            server.seen, self.forgotten = None, True
        server.connect(self.client.acked, self.client.acked)

    def forget_newest(self) -> None:
        """An item that was acked as received was in the server's memory only."""
        server = self.server
        assert server.seen is not None
        server.seen -= 1
        self.lost = True
        names = {row.name for row in self.client.items[server.seen].rows}
        ends = {row.name for row in self.client.items[server.seen].rows if row.ends}
        for t in server.table:
            if ends & set(t.names):
                t.ended = False
            t.names = [n for n in t.names if n not in names]
        server.table = [t for t in server.table if t.names]
        server.order = [t for t in server.order if t.names]
        server.order.sort(key=lambda t: t.names[-1])

    def check(self) -> None:
        complete = [t.names for t in self.server.table if t.begins and t.ended]
        for names in complete:
            if names not in self.whole:
                raise Violation(f"{names} is complete, and no whole trajectory")
        names = [n for t in self.server.table for n in t.names]
        if len(set(names)) != len(names):
            raise Violation("a row is there twice")
        if not self.lost and not self.forgotten and not self.received:
            if sorted(complete) != sorted(self.whole):
                raise Violation("a trajectory is not complete, though nothing was lost")


RULES = [f.name for f in fields(Rules)]
