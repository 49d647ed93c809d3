"""A model of slots that are carried over: a frame leaves out those that came before it.

    client    keeps its items whole; makes frames of the next one or two of them, says of some that
              their slots are to be kept, and leaves out of each what it knows to be kept
    wire      in order, and gone with everything on it when it is cut
    server    puts in what was left out, takes items in, some at a time; keeps the last slots that
              came, as it was told; is started anew without its rows

An item is one row, with two observations: its own, and what it leads to. Sequence numbers, `seen`
and acks are those of docs/design/wire.md. After every step

    each row that is stored is there once, in order, with its own observations
    no frame of this client was refused
    no more is kept than was said

`Rules` switches single rules off, to show that the model finds out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple

from .exploring import Violation, explore_all

__all__ = ["RULES", "TRUTH", "Frame", "Plan", "Rules", "State", "Violation", "complete", "explore"]

# What rows consist of: the second one is of another trajectory, in the third nothing moves.
TRUTH = ((0, 1), (5, 6), (1, 1), (1, 2))
Pair = tuple[int, int]
Slots = tuple[int, ...]


@dataclass(frozen=True)
class Rules:
    """Each True by default; the test that switches one off says what goes wrong."""

    # A client
    forgets: bool = True  # on a new connection nothing came yet
    keeps_whole: bool = True  # what is sent again is made of items that have all of their slots
    compares: bool = True  # a slot is left out if it is the same, not if it should be
    drops: bool = True  # it knows that the oldest slots are gone
    knows_kept: bool = True  # and that those of frames that are not to be kept are not there
    # A server
    keeps_sent: bool = True  # slots that were put in are not kept once more
    keeps_seen: bool = True  # those of a frame of which it has everything already are kept
    puts_in_once: bool = True  # a frame that is taken in in parts is completed before the first
    bounded: bool = True
    each_once: bool = True  # a slot is carried over once at most


RULES = [f.name for f in fields(Rules)]


class Plan(NamedTuple):
    """How large the world is, and how many slots a server keeps."""

    cuts: int = 2
    restarts: int = 1
    carry: int = 3


class Frame(NamedTuple):
    """Rows from `first` on; of slots that are left out, the own number, and how many came since."""

    first: int
    rows: tuple[Pair, ...]
    slots: Slots = ()
    carried: tuple[Pair, ...] = ()
    kept: bool = False  # for those behind it
    whole: bool = False  # rows have observations themselves

    def own(self) -> Slots:
        """Those that are sent."""
        out = {own for own, _ in self.carried}
        return tuple(s for n, s in enumerate(self.slots) if n not in out)


class State(NamedTuple):
    # The client
    next: int = 0
    acked: int = 0
    known: Slots = ()  # what it takes the server to keep, the newest last
    sent: tuple[Frame, ...] = ()  # as they were; only if that is what is sent again
    # The wire
    up: tuple[Frame, ...] = ()
    # The server: what it has of the frame at its front is `done`
    base: int = 0  # rows before are another life's
    store: tuple[Pair, ...] = ()
    keeps: Slots = ()
    front: Frame | None = None
    done: int = 0
    # Mischief
    cuts: int = 0
    restarts: int = 0

    @property
    def seen(self) -> int:
        return self.base + len(self.store)


def complete(frame: Frame, sent: Slots, keeps: Slots, rules: Rules) -> Slots:
    """The slots of a frame of which some were left out, as a server has them. Raises Violation."""
    numbers = [n for row in frame.rows for n in row]
    count, since = max(numbers) + 1, [n for _, n in frame.carried]
    if any(n >= len(keeps) for n in since) or len(sent) + len(since) != count:
        raise Violation("refused: slots that are not there")
    if rules.each_once and len(set(since)) < len(since):
        raise Violation("refused: a slot twice")
    put, rest = dict(frame.carried), iter(sent)
    return tuple(keeps[-1 - put[n]] if n in put else next(rest) for n in range(count))


def made(state: State, first: int, n: int, rules: Rules) -> Frame:
    """The next items as a frame: it has all slots, and says which of them need not be sent."""
    slots: list[int] = []
    rows: list[Pair] = []
    carried: list[Pair] = []
    for now, led_to in TRUTH[first : first + n]:
        if rows and slots[rows[-1][1]] == now:
            own = rows[-1][1]
        else:
            own = len(slots)
            slots.append(now)
            # What a row before led to, where it is to be expected: not far behind.
            since = 0 if not rules.compares else _last(state.known, now)
            if not rows and state.known and since is not None:
                carried.append((own, since))
        following = own if led_to == now else len(slots)
        if following == len(slots):
            slots.append(led_to)
        rows.append((own, following))
    return Frame(first, tuple(rows), tuple(slots), tuple(carried))


def _last(known: Slots, slot: int) -> int | None:
    """How many came since this one."""
    return known[::-1].index(slot) if slot in known else None


def send(state: State, frame: Frame, plan: Plan, rules: Rules) -> State:
    known = state.known
    if frame.kept or not rules.knows_kept:
        known += frame.own()
    known = known[-plan.carry :] if rules.drops else known
    kept = () if rules.keeps_whole else (*state.sent, frame)
    following = frame.first + len(frame.rows)
    return state._replace(next=following, known=known, sent=kept, up=(*state.up, frame))


def sends(state: State, plan: Plan, rules: Rules) -> Iterator[State]:
    again = [f for f in state.sent if f.first == state.next]
    if again:
        yield send(state, again[0], plan, rules)
        return
    for n in (1, 2):
        if state.next + n <= len(TRUTH):
            frame = made(state, state.next, n, rules)
            yield send(state, frame._replace(kept=True), plan, rules)
            if n == 2:
                yield send(state, frame, plan, rules)
    if state.next < len(TRUTH):
        row = TRUTH[state.next : state.next + 1]
        yield send(state, Frame(state.next, row, whole=True), plan, rules)


def take(state: State, n: int, plan: Plan, rules: Rules) -> State:
    """So many more items of the frame at the front; what is there already is dropped."""
    frame = state.front
    assert frame is not None
    if frame.first > state.seen:
        raise Violation(f"a gap: {frame.first} after {state.seen}")
    again = state.seen >= frame.first + len(frame.rows) and state.done == 0
    slots: Slots | None = None
    if not frame.whole:
        slots = complete(frame, frame.own(), state.keeps, rules)
    done = max(state.done, state.seen - frame.first)
    some = frame.rows[done : done + n]
    rows = some if slots is None else tuple((slots[a], slots[b]) for a, b in some)
    done += len(rows)
    state = state._replace(store=state.store + rows, done=done)
    if done < len(frame.rows) and rules.puts_in_once:
        return state
    if slots is not None and frame.kept and (not again or rules.keeps_seen):
        keeps = state.keeps + (frame.own() if rules.keeps_sent else slots)
        state = state._replace(keeps=keeps[-plan.carry :] if rules.bounded else keeps)
    if done < len(frame.rows):
        return state
    return state._replace(front=None, done=0)


def connect(state: State, following: int, rules: Rules) -> State:
    """A new connection, on which the client goes on from an item that the server has, or not."""
    known = () if rules.forgets else state.known
    sent = tuple(f for f in state.sent if f.first + len(f.rows) > following)
    begun = [f.first for f in sent if f.first <= following]
    back = state._replace(up=(), keeps=(), front=None, done=0, known=known, sent=sent)
    return back._replace(next=min([following, *begun]))


def following(state: State, plan: Plan, rules: Rules) -> Iterator[State]:
    if len(state.up) < 2:
        yield from sends(state, plan, rules)
    if state.front is None and state.up:
        yield state._replace(front=state.up[0], up=state.up[1:])
    if state.front is not None:
        yield take(state, 1, plan, rules)
        yield take(state, 2, plan, rules)
    if state.acked < state.seen:
        sent = tuple(f for f in state.sent if f.first + len(f.rows) > state.seen)
        yield state._replace(acked=state.seen, sent=sent)
    if state.cuts < plan.cuts:
        cut = state._replace(cuts=state.cuts + 1)
        # Also what the old connection had received may still go in, behind the new one's ACCEPT.
        for number in range(state.acked, state.seen + 1):
            yield connect(cut, number, rules)
    if state.restarts < plan.restarts:
        new = state._replace(restarts=state.restarts + 1, base=state.acked, store=())
        yield connect(new, state.acked, rules)


def check(state: State, plan: Plan) -> None:
    if state.store != TRUTH[state.base : state.seen]:
        raise Violation(f"stored {state.store}, expected {TRUTH[state.base : state.seen]}")
    if len(state.keeps) > plan.carry:
        raise Violation("more is kept than was said")


def explore(rules: Rules, plan: Plan) -> set[State]:
    """Every state that can be reached. Raises Violation."""

    def after(state: State) -> Iterator[State]:
        for one in following(state, plan, rules):
            check(one, plan)
            yield one

    return explore_all(State(), after, lambda s: s.seen == len(TRUTH) and not s.up and not s.front)
