"""A model of a client's session and its server: cuts, silence, stops, restarts, goodbyes, no room.

Time goes by in ticks; in each, client, server, consumer and mischief act in random order. Both
sides do what docs/design/wire.md says: frames of numbered items, cumulative acks, beats, BYE. Kept
on the side: what was really stored, and for how long nothing was done to anybody.

    exactly once     the store is 0, 1, 2, ... without gap or repetition; nothing acked is missing
    never for ever   a call ends though the server is away, silent, stopped or never takes anything
    no false alarm   while nothing is done to anybody, nobody is taken for lost, room or no room
    a way back       only a closed server ends a client for good

`Rules` switches single rules off, to show that the model finds out.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, fields

BEAT_T = 12  # heartbeat_s
RECONNECT_T = 30  # reconnect_s
ATTEMPT_T = 6  # for an answer to a handshake
PROVEN_T = 4
WIRE = 4  # frames that fit into a socket
SLACK = 2 * ATTEMPT_T + PROVEN_T + 8


class Violation(AssertionError):
    pass


@dataclass(frozen=True)
class Rules:
    """Each True by default; the test that switches one off says what goes wrong."""

    client_beats: bool = True
    server_beats: bool = True
    beats_under_pressure: bool = True  # a server that does not read says that it is there
    spares_unread: bool = True  # a server does not judge whom it does not read
    spares_after_stop: bool = True  # nor whom it could not have heard
    client_judges: bool = True  # silence is a loss
    server_judges: bool = True
    drops_seen: bool = True  # a server takes each number once, also of a frame half taken in
    resumes_at_seen: bool = True  # a client goes on where the server says
    ends_final_only: bool = True  # a server that comes back says no BYE
    flapping_is_lost: bool = True  # a connection counts when it did something, or lasted


RULES = [f.name for f in fields(Rules)]


class Wire:
    """A connection: what is on its way, and whether an end of it was closed."""

    def __init__(self) -> None:
        self.up: deque[tuple[str, int, int]] = deque()  # kind, first item, items
        self.down: deque[tuple[str, int]] = deque()
        self.cut = False
        self.accepted = False


class Server:
    """Its store outlives it; connections do not."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.store: list[int] = []
        self.room = 4
        self.up, self.closed, self.stopped, self.poisoned = True, False, False, False
        self.backlog: list[Wire] = []
        self.conns: list[Conn] = []
        self.stepped_at = 0

    def step(self) -> None:
        if not self.up or self.stopped:
            return
        now, rules = self.world.now, self.world.rules
        if now - self.stepped_at > BEAT_T // 3 and rules.spares_after_stop:
            for conn in self.conns:
                conn.heard = now
        self.stepped_at = now
        for wire in self.backlog:
            if not wire.cut:
                for other in self.conns:
                    other.wire.cut |= not other.ghost  # the client came back
                wire.down.append(("accept", len(self.store)))
                self.conns.append(Conn(wire, now))
        self.backlog.clear()
        for conn in self.conns:
            if not conn.wire.cut:
                self.serve(conn)
        self.conns = [c for c in self.conns if not c.wire.cut]

    def serve(self, conn: Conn) -> None:
        now, rules = self.world.now, self.world.rules
        turns = [self.read, self.judge]  # a timer may come before what there is to read
        self.world.rng.shuffle(turns)
        for turn in turns:
            if not conn.wire.cut:
                turn(conn)
        pressed = conn.front is not None and not rules.beats_under_pressure
        if rules.server_beats and not pressed and now - conn.spoke >= BEAT_T // 3:
            self.say(conn, "beat", 0)

    def read(self, conn: Conn) -> None:
        wire = conn.wire
        if conn.front is not None:
            self.take(conn)
        for _ in range(3):
            if conn.front is not None or not wire.up or self.world.silent:
                break
            kind, first, n = wire.up.popleft()
            conn.heard = self.world.now
            if kind == "items" and self.poisoned:
                wire.cut = True  # REFUSE internal
                return
            if kind == "items":
                conn.front = (first, n)
                self.take(conn)

    def judge(self, conn: Conn) -> None:
        now, rules = self.world.now, self.world.rules
        if conn.front is not None and rules.spares_unread:
            conn.heard = now
        if rules.server_judges and now - conn.heard >= BEAT_T:
            self.world.lost("server")
            if conn.wire.up and now - self.world.silent_at > BEAT_T:
                raise Violation("the server took a peer for lost whose words it had not read")
            conn.wire.cut = True

    def take(self, conn: Conn) -> None:
        assert conn.front is not None
        first, n = conn.front
        if first > len(self.store):
            raise Violation(f"a gap: {first} after {len(self.store)}")
        new = max(first + n - len(self.store), 0)
        if not self.world.rules.drops_seen:
            new = n
        taken = min(new, self.room)
        for number in range(first + n - new, first + n - new + taken):
            if number != len(self.store):
                raise Violation(f"stored {number} after {len(self.store)} items")
            self.store.append(number)
        self.room -= taken
        if taken:
            self.say(conn, "ack", len(self.store))
        if taken == new:
            conn.front = None

    def say(self, conn: Conn, kind: str, number: int) -> None:
        conn.wire.down.append((kind, number))
        conn.spoke = self.world.now

    def end(self, final: bool) -> None:
        """Everything a process has is gone; who reads what was said before finds it."""
        for conn in self.conns:
            if final or not self.world.rules.ends_final_only:
                conn.wire.down.append(("bye", 0))
            conn.wire.cut = True
        self.conns, self.backlog = [], []
        self.up, self.closed = False, self.closed or final


class Conn:
    def __init__(self, wire: Wire, now: int) -> None:
        self.wire = wire
        self.heard = self.spoke = now
        self.front: tuple[int, int] | None = None  # a frame that is not all in
        self.ghost = False  # its client lost power: it says nothing, and nobody says so


class Client:
    """The session and, at most, one call that waits."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.wire: Wire | None = None
        self.trying: tuple[Wire, int] | None = None
        self.retry_at = 0
        self.added = self.acked = self.next = 0
        self.heard = self.spoke = self.up_at = 0
        self.proven, self.failed = True, False
        self.acked_then = 0
        self.call: tuple[int, int] | None = None  # upto, since when the server was in trouble
        self.called_at = 0

    def step(self) -> None:
        if self.failed:
            return
        if self.wire is None:
            self.reconnect()
        else:
            self.pump(self.wire)
        self.wait()

    def reconnect(self) -> None:
        now, server = self.world.now, self.world.server
        if self.trying is None:
            if now >= self.retry_at:
                self.retry_at = now + 2
                if server.up:  # the system answers, whether the process does or not
                    self.trying = (Wire(), now)
                    server.backlog.append(self.trying[0])
            return
        wire, began = self.trying
        if wire.down and not self.world.silent:
            _, seen = wire.down.popleft()
            self.acked = max(self.acked, seen)
            self.next = seen if self.world.rules.resumes_at_seen else self.next
            self.wire, self.trying = wire, None
            self.heard = self.spoke = self.up_at = now
        elif wire.cut or now - began >= ATTEMPT_T:
            wire.cut = True
            self.trying = None

    def pump(self, wire: Wire) -> None:
        now, rules = self.world.now, self.world.rules
        while wire.down and not self.world.silent:
            kind, number = wire.down.popleft()
            self.heard = now
            if kind == "ack":
                self.acked = max(self.acked, number)
            if kind == "bye":
                self.failed = True
                return
        silent = rules.client_judges and now - self.heard >= BEAT_T
        if wire.cut or silent:
            if silent and not wire.cut:
                self.world.lost("client")
            wire.cut = True
            self.wire, self.proven, self.acked_then = None, False, self.acked
            return
        if len(wire.up) < WIRE:
            if self.next < self.added:
                n = min(self.added - self.next, self.world.rng.randint(1, 3))
                wire.up.append(("items", self.next, n))
                self.next += n
                self.spoke = now
            elif rules.client_beats and now - self.spoke >= BEAT_T // 3:
                wire.up.append(("beat", 0, 0))
                self.spoke = now

    def wait(self) -> None:
        now = self.world.now
        if self.call is None:
            if self.world.rng.random() < 0.3:
                self.added += self.world.rng.randint(1, 6)
                self.call, self.called_at = (self.added, now), now
            return
        upto, lost_since = self.call
        if self.acked >= upto:
            self.call = None
            self.world.seen["calls"] += 1
            return
        if self.wire is not None and not self.proven:
            lasts = now - self.up_at >= PROVEN_T or not self.world.rules.flapping_is_lost
            self.proven = lasts or self.acked > self.acked_then
        if self.wire is not None and self.proven:
            self.call = (upto, now)
        elif now - lost_since >= RECONNECT_T:
            self.call = None
            self.world.raised()


class World:
    def __init__(self, seed: int, rules: Rules | None = None) -> None:
        self.rng = random.Random(seed)
        self.rules = Rules() if rules is None else rules
        self.now = 0
        self.silent = False
        self.silent_at = -BEAT_T
        self.seen: Counter[str] = Counter()
        self.server = Server(self)
        self.client = Client(self)
        self.calm = 0  # ticks since something was done to somebody
        self.useless = 0  # ticks since the server could last have taken anything
        self.until = 0  # the fault lasts
        self.fault = ""
        self.thirst = True  # whether the consumer takes something

    def run(self, ticks: int) -> None:
        for _ in range(ticks):
            self.now += 1
            actors = [self.client.step, self.server.step, self.consume, self.mischief]
            self.rng.shuffle(actors)
            for act in actors:
                act()
            self.check()

    def consume(self) -> None:
        if self.rng.random() < 0.01:
            self.thirst = not self.thirst  # for long: nobody may mind
        if self.thirst and self.rng.random() < 0.5:
            self.server.room = min(self.server.room + 2, 6)

    def mischief(self) -> None:
        server, rng = self.server, self.rng
        if self.fault and self.now >= self.until:
            self.fault, self.silent = "", False
            server.stopped = server.poisoned = False
            server.up = not server.closed
        if self.fault or rng.random() > 0.01:
            return
        self.fault = rng.choice(["cut", "silent", "stop", "restart", "poison", "ghost", "end"])
        if self.fault == "end" and rng.random() > 0.05:
            self.fault = "cut"
        self.seen[self.fault] += 1
        self.until = self.now + rng.choice([1, 4, 10, 20, 90])
        if self.fault == "cut":
            self.until = self.now + 1
            if self.client.wire is not None:
                self.client.wire.cut = True
        if self.fault == "ghost" and server.up:
            server.conns.append(Conn(Wire(), self.now))
            server.conns[-1].ghost = True
        self.silent = self.fault == "silent"
        server.stopped, server.poisoned = self.fault == "stop", self.fault == "poison"
        if self.fault in ("restart", "end"):
            server.end(self.fault == "end")

    def lost(self, who: str) -> None:
        self.seen[f"{who} judged"] += 1
        if who == "client" and self.calm > BEAT_T + SLACK:
            raise Violation("the client took a server for lost to which nothing was done")

    def raised(self) -> None:
        self.seen["raised"] += 1
        if self.calm > SLACK + BEAT_T:
            raise Violation("a call gave up on a server to which nothing was done")

    def check(self) -> None:
        server, client = self.server, self.client
        self.silent_at = self.now if self.silent else self.silent_at
        faulty = bool(self.fault) or server.closed
        self.calm = 0 if faulty else self.calm + 1
        pressed = any(c.front is not None for c in server.conns)  # it waits for room, as it should
        out = self.silent or server.stopped or not server.up or (server.poisoned and not pressed)
        self.useless = self.useless + 1 if out else 0
        waits = min(self.useless, self.now - client.called_at)
        if client.acked > len(server.store):
            raise Violation(f"acked {client.acked} of {len(server.store)}")
        if client.failed and not server.closed:
            raise Violation("a client ended for good, and the server was not closed")
        if waits > BEAT_T + RECONNECT_T + SLACK and client.call and not client.failed:
            raise Violation("a call still waits")
        if self.calm > 3 * BEAT_T + SLACK and not client.failed:
            if client.wire is None:
                raise Violation("nothing is wrong, and the client is not back")
            if len(server.conns) > 1:
                raise Violation("a connection of a client that is gone was kept")
