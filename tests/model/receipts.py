"""A model of batches that are given once, and of clients that do not take them.

    client    asks ahead, takes in any order, waits for some for ever; says BYE, is dropped, or is
              killed at any moment; its connection is cut, and it comes back with the same numbers
    wire      two directions, in order; each side notices a cut when it likes, and reads or does not
              read what had come before
    ingest    hands requests to who draws, passes answers on, keeps receipts; then a line, in order
    learner   draws one item for each order, in any order of orders; hears verdicts
    another   takes what there is, in one go: all that clients share is what can be drawn

Numbers of requests count from 1, and a batch has one item. Kept on the side: who took what.

    at most once     nothing is taken twice, also with an old client or an old server
    none lost        in the end everything was taken, or can be drawn, if the server heard a BYE;
                     else what is missing was counted as unconfirmed
    not for nobody   nothing is drawn for who is known to be gone
    never for ever   from everywhere there is a way to the end
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple

from .exploring import Violation, explore_all

__all__ = ["RULES", "Plan", "Rules", "State", "Violation", "explore"]


@dataclass(frozen=True)
class Rules:
    """Each True by default; the test that switches one off says what goes wrong."""

    # A client
    bye_names: bool = True  # what it did not take
    drop_names: bool = True  # that nobody closed, as well
    bye_again: bool = True  # after a cut, rather than ask again
    takes_nothing_after_bye: bool = True
    forgets_taken: bool = True  # what it took is not named
    same_numbers: bool = True  # when it comes back
    same_producer: bool = True
    asks_what_is_missing: bool = True  # not what it has and did not take
    closes_old: bool = True  # what an old connection holds is not read after a new one was made
    asks_name: bool = True  # a request says which before it are not taken
    # An ingest process
    asked_again_is_back: bool = True
    back_if_named: bool = True  # only what a BYE names
    names_before: bool = True  # a request says nothing of those after it
    keeps_named: bool = True  # however many were sent since
    ignores_gone: bool = True  # requests of a connection that is gone
    keeps_written: bool = True  # what was written to who is lost may have been read
    counts_written: bool = True
    back_if_unwritten: bool = True
    tells_unwanted: bool = True
    # Who draws
    heeds_unwanted: bool = True
    counts_broken: bool = True  # what an ingest process that died had been given


RULES = [f.name for f in fields(Rules)]


class Plan(NamedTuple):
    """How large the world is, and who is old: has none of the rules about what was not taken."""

    items: int = 2
    requests: int = 2
    cuts: int = 1
    deaths: int = 0  # of the ingest process
    most: int = 2  # receipts that a server keeps of a client that names nothing, as it asks at once
    old_client: bool = False
    old_server: bool = False


Token = tuple[int, int, int]  # producer, number, and which of those that were asked so
Names = tuple[int, ...] | None  # None: it says nothing of that


class Frame(NamedTuple):
    """What a client says: that it asks (a number above 0), or ends."""

    number: int
    names: Names


class Order(NamedTuple):
    """With who draws."""

    token: Token
    wanted: bool = True
    item: int | None = None  # drawn


class State(NamedTuple):
    # What can be drawn, and who took what
    pool: tuple[int, ...]
    taken: frozenset[int] = frozenset()
    # The client. Its requests by number: None: not answered; an item: not taken; 0: taken.
    here: bool = True
    closing: bool = False
    producer: int = 0
    asked: tuple[tuple[int, int | None], ...] = ()
    last: int = 0  # number
    dropped: frozenset[int] = frozenset()  # that nobody waits for any more
    # The wire; each end of it may be closed
    near: bool = True
    far: bool = True
    up: tuple[Frame, ...] = ()
    down: tuple[tuple[int, int], ...] = ()  # number, item; 0: BYE
    left: tuple[Frame, ...] = ()  # received from a connection that is gone, and not handled
    # The ingest process
    tokens: tuple[tuple[Token, bool], ...] = ()  # what is with the learner; whether it is wanted
    receipts: tuple[Token, ...] = ()  # in the order in which they were sent
    away: frozenset[int] = frozenset()  # producers
    heard_bye: bool = False
    # Between it and the learner
    told: tuple[tuple[str, Token], ...] = ()
    answers: tuple[tuple[Token, int], ...] = ()
    # The learner
    orders: tuple[Order, ...] = ()
    broken: frozenset[int] = frozenset()  # counted: drawn for an ingest process that died
    # What may still be done to them
    cuts: int = 0
    deaths: int = 0

    @property
    def untaken(self) -> tuple[int, ...]:
        return tuple(n for n, item in self.asked if item != 0)

    @property
    def unconfirmed(self) -> frozenset[int]:
        """Items that the server counts."""
        drawn = {o.token: o.item for o in self.orders}
        away = {drawn[t] for t in self.receipts if t[0] in self.away and drawn.get(t) is not None}
        return self.broken | frozenset(i for i in away if i is not None)


class World:
    """All that can happen next.

    Args:
        plan, rules: see there.
    """

    def __init__(self, plan: Plan, rules: Rules) -> None:
        self.plan, self.rules = plan, rules
        self.names = not plan.old_client

    def start(self) -> State:
        plan = self.plan
        return State(tuple(range(1, plan.items + 1)), cuts=plan.cuts, deaths=plan.deaths)

    def following(self, s: State) -> Iterator[State]:
        """Raises Violation."""
        return map(self.simple, self.steps(s))

    def simple(self, s: State) -> State:
        """Without what makes no difference any more."""
        if not s.here:
            s = s._replace(asked=(), last=0, dropped=frozenset(), closing=True)
        if not s.near and (self.rules.closes_old or not s.here):
            s = s._replace(down=())
        if self.rules.ignores_gone and s.left:
            s = s._replace(left=tuple(f for f in s.left if not f.number))
        while s.told and s.told[0][0] in ("draw", "taken"):  # heard sooner, these do the same
            s = self.hear(s._replace(told=s.told[1:]), *s.told[0])
        return s

    def steps(self, s: State) -> Iterator[State]:
        if self.over(s):
            self.check_end(s)
        if s.pool:  # another client, which takes at once
            yield self.take(s._replace(pool=s.pool[1:]), s.pool[0])
        if s.here:
            yield from self.client(s)
        yield from self.server(s)
        yield from self.learner(s)
        if s.cuts and s.near and s.far:
            yield s._replace(cuts=s.cuts - 1, near=False)
            yield self.lose(s._replace(cuts=s.cuts - 1))  # the server gives up first
        if s.deaths:
            yield self.die(s._replace(deaths=s.deaths - 1))

    # -- the client ---------------------------------------------------------------------------

    def client(self, s: State) -> Iterator[State]:
        yield s._replace(here=False, near=False)  # it is killed, or its time is over
        takes = not s.closing or not self.rules.takes_nothing_after_bye
        for number, item in s.asked:
            if takes and item and number not in s.dropped:
                yield self.take(_answered(s, number, 0), item)
            if item != 0 and not s.closing and not s.dropped:  # a Ctrl-C
                yield s._replace(dropped=s.dropped | {number})
        if not s.near:
            yield self.come_back(s)
            return
        if s.down:
            yield self.read(s._replace(down=s.down[1:]), *s.down[0])
        elif not s.far:
            yield s._replace(near=False)  # it notices
        open_ = [n for n, item in s.asked if item is None]
        if not s.closing and len(open_) < self.plan.most and len(s.asked) < self.plan.requests:
            asks = s._replace(last=s.last + 1, asked=(*s.asked, (s.last + 1, None)))
            yield self.say(asks, [asks.last])
        if not s.closing:
            yield self.say(s._replace(closing=True), [0])
            named = self.bye(s) if self.rules.drop_names else Frame(0, None)
            yield s._replace(here=False, near=False, up=(*s.up, named))  # nobody closed it

    def read(self, s: State, number: int, item: int) -> State:
        if not number:
            return s._replace(here=False, near=False)
        return _answered(s, number, item) if dict(s.asked).get(number, 0) is None else s

    def bye(self, s: State) -> Frame:
        if not self.rules.bye_names or not self.names:
            return Frame(0, None)
        numbers = s.untaken if self.rules.forgets_taken else tuple(n for n, _ in s.asked)
        return Frame(0, numbers)

    def say(self, s: State, numbers: list[int]) -> State:
        """Asks for some, or says BYE: 0."""
        names = self.names and self.rules.asks_name
        frames = []
        for number in numbers:
            before = tuple(n for n in s.untaken if n < number)
            frames.append(Frame(number, before if names else None) if number else self.bye(s))
        return s._replace(up=(*s.up, *frames))

    def come_back(self, s: State) -> State:
        """The server lets go of the old connection; what it had received, it may still handle."""
        rest = () if self.rules.closes_old else s.down
        if s.far:
            s = self.leave(s)
        s = s._replace(near=True, far=True, up=(), down=rest)
        if not self.rules.same_producer:
            s = s._replace(producer=s.producer + 1)
        s = s._replace(away=s.away - {s.producer})
        if s.closing and self.rules.bye_again:
            return self.say(s, [0])
        missing = [n for n, item in s.asked if item is None and n not in s.dropped]
        if not self.rules.asks_what_is_missing:
            missing = [n for n in s.untaken if n not in s.dropped]
        if not self.rules.same_numbers:
            had = tuple(x for x in s.asked if x[0] not in missing)
            missing = [s.last + 1 + i for i in range(len(missing))]
            s = s._replace(asked=(*had, *((n, None) for n in missing)), last=s.last + len(missing))
        return self.say(s, missing)

    def take(self, s: State, item: int) -> State:
        if item in s.taken:
            raise Violation(f"{item} was taken twice")
        return s._replace(taken=s.taken | {item})

    # -- the ingest process -------------------------------------------------------------------

    def server(self, s: State) -> Iterator[State]:
        if s.far and s.up:
            yield self.handle(s._replace(up=s.up[1:]), s.up[0])
        if s.left:
            yield self.handle_left(s._replace(left=s.left[1:]), s.left[0])
        if s.far and not s.near:
            yield self.lose(s)
        if s.answers:
            (token, item), rest = s.answers[0], s.answers[1:]
            yield self.pass_on(s._replace(answers=rest), token, item)

    def handle(self, s: State, frame: Frame) -> State:
        if not frame.number:
            return self.goodbye(s, frame.names)
        s = self.asked(s, frame)
        token = _new_token(s, frame.number)
        return _tell(s._replace(tokens=(*s.tokens, (token, True))), "draw", token)

    def handle_left(self, s: State, frame: Frame) -> State:
        """What had come before a connection was gone, and is handled only now."""
        if not frame.number:
            return self.goodbye(s, frame.names) if not s.here or s.closing else s
        if self.rules.ignores_gone:
            return s
        return self.asked(s, frame)

    def asked(self, s: State, frame: Frame) -> State:
        """What a request says of those that were sent."""
        for token in s.receipts if not self.plan.old_server else ():
            producer, number, _ = token
            if producer != s.producer:
                continue
            if number == frame.number:
                s = _settle(s, token, "back" if self.rules.asked_again_is_back else "")
            elif frame.names is not None and number not in frame.names:
                if number < frame.number or not self.rules.names_before:
                    s = _settle(s, token, "taken")
        return s

    def goodbye(self, s: State, names: Names) -> State:
        if not self.plan.old_server:
            for token in s.receipts:
                back = token[1] in (names or ()) or not self.rules.back_if_named
                if token[0] == s.producer:
                    s = _settle(s, token, "back" if back else "taken")
        s = s._replace(heard_bye=True)
        return self.leave(s._replace(down=(*s.down, (0, 0))))._replace(far=False) if s.far else s

    def leave(self, s: State) -> State:
        """A connection is gone, and with it what it wanted."""
        for token, wanted in s.tokens:
            if wanted and self.rules.tells_unwanted and not self.plan.old_server:
                s = _tell(s, "unwanted", token)
        tokens = tuple((token, False) for token, _ in s.tokens)
        return s._replace(tokens=tokens, left=s.up, up=())

    def lose(self, s: State) -> State:
        """The server notices that a client is gone, or gives up on it."""
        s = self.leave(s)._replace(far=False)
        if not self.rules.keeps_written:
            for token in s.receipts:
                s = _settle(s, token, "back")
        if self.rules.counts_written and any(t[0] == s.producer for t in s.receipts):
            s = s._replace(away=s.away | {s.producer})
        return s

    def pass_on(self, s: State, token: Token, item: int) -> State:
        wanted = dict(s.tokens)[token]
        s = s._replace(tokens=tuple(t for t in s.tokens if t[0] != token))
        if self.plan.old_server:
            return s._replace(down=(*s.down, (token[1], item))) if s.far and wanted else s
        if not wanted or not s.far:
            return _tell(s, "back", token) if item and self.rules.back_if_unwritten else s
        if not item:
            return s
        s = s._replace(down=(*s.down, (token[1], item)), receipts=(*s.receipts, token))
        own = [t for t in s.receipts if t[0] == s.producer]
        names = self.names and self.rules.asks_name and self.rules.keeps_named
        return _settle(s, own[0], "taken") if len(own) > self.plan.most and not names else s

    def die(self, s: State) -> State:
        """Another one takes its place, which knows nothing."""
        drawn = frozenset(o.item for o in s.orders if o.item is not None)
        if self.rules.counts_broken:
            s = s._replace(broken=s.broken | drawn)
        s = s._replace(far=False, up=(), left=(), told=(), answers=(), orders=())
        return s._replace(tokens=(), receipts=(), away=frozenset())

    # -- who draws ----------------------------------------------------------------------------

    def learner(self, s: State) -> Iterator[State]:
        if s.told:
            (what, token), rest = s.told[0], s.told[1:]
            yield self.hear(s._replace(told=rest), what, token)
        for order in s.orders:
            if order.item is not None:
                continue
            if order.wanted or not self.rules.heeds_unwanted:
                if s.pool:
                    yield self.draw(s, order)
            else:
                others = tuple(o for o in s.orders if o is not order)
                yield s._replace(orders=others, answers=(*s.answers, (order.token, 0)))

    def draw(self, s: State, order: Order) -> State:
        wanted = dict(s.tokens).get(order.token, False)
        if not wanted and not s.told and not self.plan.old_server:
            raise Violation(f"{s.pool[0]} was drawn for {order.token}, whose client is gone")
        item, pool = s.pool[0], s.pool[1:]
        orders = tuple(o._replace(item=item) if o is order else o for o in s.orders)
        if self.plan.old_server:
            orders = tuple(o for o in s.orders if o is not order)
        return s._replace(pool=pool, orders=orders, answers=(*s.answers, (order.token, item)))

    def hear(self, s: State, what: str, token: Token) -> State:
        order = next((o for o in s.orders if o.token == token), None)
        others = tuple(o for o in s.orders if o is not order)
        if what == "draw":
            return s._replace(orders=(*s.orders, Order(token)))
        if order is None:
            return s
        if what == "unwanted":
            orders = tuple(o._replace(wanted=False) if o is order else o for o in s.orders)
            return s._replace(orders=orders)
        if what == "taken" or order.item is None:
            return s._replace(orders=others)
        return s._replace(orders=others, pool=tuple(sorted((*s.pool, order.item))))

    # -- the end ------------------------------------------------------------------------------

    def over(self, s: State) -> bool:
        """Nobody is there, and all was told."""
        if s.here or s.near or s.far or s.told or s.answers:
            return False
        return not s.tokens or self.plan.old_server  # which waits with them for ever

    def check_end(self, s: State) -> None:
        if self.plan.old_client or self.plan.old_server:
            return  # at most once is all there is
        lost = set(range(1, self.plan.items + 1)) - s.taken - set(s.pool)
        if lost - s.unconfirmed:
            raise Violation(f"{lost} were lost, and {set(s.unconfirmed)} are counted")
        if lost - s.broken and s.heard_bye:
            raise Violation(f"{lost} were lost, though the server was told")


def _answered(s: State, number: int, item: int) -> State:
    return s._replace(asked=tuple((n, item if n == number else x) for n, x in s.asked))


def _tell(s: State, what: str, token: Token) -> State:
    return s._replace(told=(*s.told, (what, token)))


def _new_token(s: State, number: int) -> Token:
    """One that nobody knows any more, or never did."""
    known = {*dict(s.tokens), *s.receipts, *(o.token for o in s.orders), *(t for _, t in s.told)}
    return next(t for k in range(99) if (t := (s.producer, number, k)) not in known)


def _settle(s: State, token: Token, verdict: str) -> State:
    s = s._replace(receipts=tuple(t for t in s.receipts if t != token))
    return _tell(s, verdict, token) if verdict else s


def explore(rules: Rules, plan: Plan | None = None) -> set[State]:
    """Every state that can be reached. Raises Violation, also if some of them have no way out."""
    world = World(plan or Plan(), rules)
    return explore_all(world.start(), world.following, world.over)
