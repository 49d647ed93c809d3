"""A model of the table of producers: who sent how much, and who may be forgotten.

Memory is sequentially consistent; every store of shared memory is one step (a `yield`), at which
the ingest process may be killed. It does what native/tape/producers.h and `Queue::accept` do;
core and connections are its own memory and go with it. Clients keep what is not acked and send it
again.

The table has room for twice as many as may be connected. What is promised: each item once and in
order, if a client that lost its connection comes back before the table is full of others that have
been connected meanwhile.

`Rules` switches single rules off, to show that the model finds out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

FREE, NOBODY = 0, -1
NONE = -1

Process = Iterator[None]


class Violation(AssertionError):
    pass


@dataclass(frozen=True)
class Rules:
    """Each True by default; the test that switches one off says what goes wrong."""

    pins: bool = True  # a slot is not given away while its producer is connected
    pins_at_handshake: bool = True  # a known producer's slot is pinned before its first item
    slot_at_first_item: bool = True  # not at the handshake
    leaving_is_use: bool = True  # who was idle and leaves is not the longest idle one
    attaching_unpins: bool = True  # what a killed process had pinned
    attaching_is_use: bool = True  # and they have left only now
    strict_clock: bool = True  # no two are idle for equally long
    id_last: bool = True  # a slot that changes hands gets its id after its number
    nobody_between: bool = True  # and belongs to nobody before
    undo: bool = True  # an append that did not commit does not count for its producer
    undo_head_last: bool = True


class Slot:
    __slots__ = ("id", "seq", "used", "pinned")

    def __init__(self) -> None:
        self.id = FREE
        self.seq = self.used = self.pinned = 0


class Memory:
    def __init__(self, slots: int) -> None:
        self.slots = [Slot() for _ in range(slots)]
        self.head = self.clock = 0
        self.undo_head = self.undo_slot = NONE
        self.undo_seq = 0
        # The truth: items by producer, as of the stores of head.
        self.stored: dict[int, list[int]] = {}


class Client:
    """Somebody who sends numbers from 0 on, and keeps those that are not acked."""

    def __init__(self, producer: int, items: int) -> None:
        self.producer, self.items = producer, items
        self.acked = 0
        self.others: set[int] = set()  # who was connected while it was away


class Connection:
    def __init__(self, client: Client, sends: bool) -> None:
        self.client, self.sends = client, sends
        self.seen = 0
        self.open = False
        self.frame: tuple[int, int] | None = None  # first item, and past the last


class Ingest:
    """One incarnation of the ingest process."""

    def __init__(
        self, m: Memory, rules: Rules, rnd: random.Random, on_take: Callable[[], None]
    ) -> None:
        self.m, self.rules, self.rnd, self.on_take = m, rules, rnd, on_take
        self.connections: list[Connection] = []

    def attach(self) -> Process:
        yield from self.repair()
        for slot in self.m.slots:
            if slot.pinned and self.rules.attaching_unpins:
                if self.rules.attaching_is_use:
                    yield from self.use(slot)
                slot.pinned = 0
                yield

    def repair(self) -> Process:
        m = self.m
        if m.undo_head != m.head:
            return
        m.slots[m.undo_slot].seq = m.undo_seq
        yield
        m.undo_head = NONE
        yield

    def use(self, slot: Slot) -> Process:
        self.m.clock += 1
        yield
        slot.used = self.m.clock if self.rules.strict_clock else self.m.head
        yield

    def find(self, producer: int) -> Slot | None:
        for slot in self.m.slots:
            if slot.id == producer:
                return slot
            if slot.id == FREE:
                return None
        return None

    def take(self, producer: int, seq: int) -> Process:
        """A slot for a producer that has none, from the longest idle one that is not connected."""
        free = [s for s in self.m.slots if s.id == FREE]
        idle = [s for s in self.m.slots if not (s.pinned and self.rules.pins)]
        if not free and not idle:
            raise Violation("every slot is pinned")
        idle.sort(key=lambda s: (s.id != NOBODY, s.used))
        slot = (free or idle)[0]
        self.on_take()
        yield from self.use(slot)
        if self.rules.nobody_between:
            slot.id = NOBODY
            yield
        if not self.rules.id_last:
            slot.id = producer
            yield
        slot.seq = seq
        yield
        slot.pinned = 1
        yield
        slot.id = producer
        yield

    def open(self, connection: Connection) -> Process:
        yield from self.repair()
        client = connection.client
        slot = self.find(client.producer)
        if slot is None and not self.rules.slot_at_first_item:
            yield from self.take(client.producer, client.acked)
            slot = self.find(client.producer)
        connection.seen = client.acked if slot is None else slot.seq
        if slot is not None and self.rules.pins_at_handshake:
            slot.pinned = 1
            yield
        connection.open = True

    def accept(self, connection: Connection) -> Process:
        """As much of the frame at the front as finds room."""
        yield from self.repair()
        m, client = self.m, connection.client
        assert connection.frame is not None
        first, end = connection.frame
        slot = self.find(client.producer)
        if slot is None:
            yield from self.take(client.producer, first)
            slot = self.find(client.producer)
        assert slot is not None
        if not slot.pinned:
            slot.pinned = 1
            yield
        start = max(first, slot.seq)
        if slot.seq < first:
            raise Violation(f"producer {client.producer}: {first} after {slot.seq}")
        upto = min(end, start + self.rnd.choice((0, 1, 1, 2, 3)))
        if upto > start:
            if self.rules.undo:
                if not self.rules.undo_head_last:
                    m.undo_head = m.head
                    yield
                m.undo_slot = m.slots.index(slot)
                yield
                m.undo_seq = slot.seq
                yield
                if self.rules.undo_head_last:
                    m.undo_head = m.head
                    yield
            yield from self.use(slot)
            slot.seq = upto
            yield
            m.stored.setdefault(client.producer, []).extend(range(start, upto))
            m.head += upto - start  # the commit
            yield
        if upto >= end:
            connection.frame = None
            if self.rnd.random() < 0.7:  # an ack may be on its way when all ends
                client.acked = max(client.acked, end)

    def leave(self, connection: Connection) -> Process:
        yield from self.repair()
        slot = self.find(connection.client.producer)
        if slot is None or not slot.pinned:
            return
        if self.rules.leaving_is_use:
            yield from self.use(slot)
        slot.pinned = 0
        yield


class World:
    """Some clients that stay, many that pass by, and an ingest process that dies now and then."""

    def __init__(self, seed: int, rules: Rules | None = None) -> None:
        self.rnd = random.Random(seed)
        self.rules = rules or Rules()
        self.most = self.rnd.choice((2, 3, 4))  # connections
        self.m = Memory(2 * self.most)
        self.kill = self.rnd.choice((0.0, 0.01, 0.03))
        self.producers = 0
        self.kills = self.evicted = self.again = 0
        self.stayers = [self.client(1 << 30) for _ in range(self.most - 1)]
        self.passers: list[Client] = []
        self.gone: list[Client] = []  # with all acked; they may be forgotten, and come again
        self.patience = self.rnd.choice((0.02, 0.3))  # of those that lost their connection
        self.lazy = self.rnd.choice((0.05, 0.5))  # how often those that stay send
        self.ingest = Ingest(self.m, self.rules, self.rnd, self.took)

    def client(self, items: int) -> Client:
        self.producers += 1
        return Client(self.producers, items)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.work(self.turn())
        for c in (*self.stayers, *self.passers, *self.gone):
            stored = self.m.stored.get(c.producer, [])
            if c.acked > len(stored):
                raise Violation(f"producer {c.producer}: {c.acked} acked, {len(stored)} stored")

    def work(self, process: Process) -> None:
        for _ in process:
            if self.rnd.random() < self.kill:
                self.die()
                break
        for producer, stored in self.m.stored.items():
            if stored != list(range(len(stored))):
                raise Violation(f"producer {producer} has {stored}")

    def die(self) -> None:
        """Everything but the shared memory is gone; another one starts, perhaps killed too."""
        self.kills += 1
        for connection in self.ingest.connections:
            connection.client.others = self.senders()
        self.ingest = Ingest(self.m, self.rules, self.rnd, self.took)
        self.work(self.ingest.attach())

    def turn(self) -> Process:
        """What happens next."""
        rnd, ingest = self.rnd, self.ingest
        here = {c.client.producer for c in ingest.connections}
        away = [c for c in (*self.stayers, *self.passers) if c.producer not in here]
        # Who is away must not be overtaken by more than there is room for.
        urgent = [c for c in away if len(c.others) >= len(self.m.slots) - 1]
        room = len(ingest.connections) < self.most
        if ingest.connections and rnd.random() < (0.3 if urgent and not room else 0.05):
            yield from self.cut(rnd.choice(ingest.connections))
        elif room and away and (urgent or rnd.random() < self.patience):
            yield from self.connect(rnd.choice(urgent or away), True)
        elif room and rnd.random() < 0.3:
            if rnd.random() < 0.3:
                yield from self.connect(self.client(0), False)  # asks for weights
            elif not urgent:
                again = self.gone and rnd.random() < 0.3
                client = self.gone.pop(rnd.randrange(len(self.gone))) if again else self.client(0)
                client.items += rnd.choice((1, 2, 4))
                self.passers.append(client)
                yield from self.connect(client, True)
        elif ingest.connections:
            connection = rnd.choice(ingest.connections)
            if connection.client in self.stayers and rnd.random() > self.lazy:
                return
            if not urgent or ingest.find(connection.client.producer) is not None:
                yield from self.stream(connection)

    def connect(self, client: Client, sends: bool) -> Process:
        connection = Connection(client, sends)
        self.ingest.connections.append(connection)
        self.overtake()
        yield from self.ingest.open(connection)

    def cut(self, connection: Connection) -> Process:
        self.ingest.connections.remove(connection)
        connection.client.others = self.senders()
        yield from self.ingest.leave(connection)

    def stream(self, connection: Connection) -> Process:
        client = connection.client
        if not connection.open or not connection.sends:
            yield from self.cut(connection)
            return
        if connection.frame is None:
            if client.acked >= client.items:  # all is acked: it leaves for good
                if client in self.passers:
                    self.passers.remove(client)
                    self.gone.append(client)
                yield from self.cut(connection)
                return
            first = client.acked if self.rnd.random() < 0.3 else max(client.acked, connection.seen)
            end = min(first + self.rnd.choice((1, 2, 4)), client.items)
            connection.frame = (first, end)
            self.again += first < len(self.m.stored.get(client.producer, []))
        yield from self.ingest.accept(connection)

    def took(self) -> None:
        self.evicted += all(s.id != FREE for s in self.m.slots)

    def overtake(self) -> None:
        for other in (*self.stayers, *self.passers):
            other.others |= self.senders()

    def senders(self) -> set[int]:
        return {c.client.producer for c in self.ingest.connections if c.sends}


RULES = [field.name for field in fields(Rules)]
