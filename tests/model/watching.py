"""A model of somebody who watches a server: every course of events of a list and an episode.

    watcher   asks for the list of episodes, the newest first, one at a time, until none is left;
              then for the rows of one episode, one at a time
    server    answers from what it has in that moment: episodes begin, and are evicted in any
              order; the rows of one grow at its end and are evicted at its beginning
    life      a server that was started anew has the same numbers for other things

A cut loses a request or its answer, and the request is made again: it changes nothing, so that is
all there is to say of cuts. Kept on the side: what was stored all the time.

    one life         a list, and the rows of an episode, are those of one server's life
    in order         each once, ascending; rows without a gap
    complete         what was stored all the time is in the list
    never for ever   from everywhere there is a way to the end
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple

from .exploring import Violation, explore_all

__all__ = ["RULES", "Rules", "Violation", "explore"]

EPISODES, ROWS = 3, 4  # of a life
EVENTS = 4  # that disturb


@dataclass(frozen=True)
class Rules:
    """Each True by default; the test that switches one off says what goes wrong."""

    says_left: bool = True  # a server: how many episodes there are before these, not how many
    keeps_life: bool = True  # a watcher says whose answers it has, and another server refuses
    numbers_stay: bool = True  # rows are counted from the episode's first, evicted or not


RULES = [f.name for f in fields(Rules)]

Item = tuple[int, int]  # life, number


class State(NamedTuple):
    life: int = 0
    stored: tuple[int, ...] = (0, 1, 2)  # episodes
    begun: int = EPISODES
    first: int = 0  # row of the one that is read
    end: int = 2
    disturbed: int = 0
    # The watcher
    of: int | None = None  # whose answers it has
    got: tuple[Item, ...] = ()  # the list, newest first
    always: tuple[int, ...] | None = None  # of those before what it has, stored since it began
    reading: bool = False
    kept: tuple[int, int] | None = None  # the rows it was told of
    rows: tuple[Item, ...] = ()
    over: bool = False


def following(s: State, rules: Rules) -> Iterator[State]:
    """All that can happen next. Raises Violation."""
    if not s.over:
        yield _row(s, rules) if s.reading else _episode(s, rules)
    if s.disturbed < EVENTS:
        s = s._replace(disturbed=s.disturbed + 1)
        if s.begun < EPISODES + 1:
            yield s._replace(stored=(*s.stored, s.begun), begun=s.begun + 1)
        for episode in s.stored:
            left = tuple(e for e in s.stored if e != episode)
            always = s.always and tuple(e for e in s.always if e != episode)
            yield s._replace(stored=left, always=always)
        if s.end < ROWS:
            yield s._replace(end=s.end + 1)
        if s.first + 1 < s.end:
            yield s._replace(first=s.first + 1)
        if s.life == 0:
            yield s._replace(life=1, stored=(0, 1), begun=2, first=0, end=2, always=None)


def _episode(s: State, rules: Rules) -> State:
    """The next of the list."""
    if s.of is None or (rules.keeps_life and s.of != s.life):
        s = s._replace(of=s.life, got=(), always=s.stored)
    before = s.got[-1][1] if s.got else EPISODES + 2
    below = [e for e in s.stored if e < before]
    got = (*s.got, (s.life, below[-1])) if below else s.got
    left = len(below) - 1 if rules.says_left else len(s.stored) - len(got)
    if below and left > 0:
        return s._replace(got=got)
    _check_list(got, s.always)
    return s._replace(got=got, reading=True, of=None, always=None)


def _check_list(got: tuple[Item, ...], always: tuple[int, ...] | None) -> None:
    numbers = [number for _, number in got]
    if len({life for life, _ in got}) > 1:
        raise Violation(f"a list of two lives: {got}")
    if numbers != sorted(set(numbers), reverse=True):
        raise Violation(f"a list out of order: {numbers}")
    if always is not None and not set(always) <= set(numbers):
        raise Violation(f"{always} were stored all the time, and the list is {numbers}")


def _row(s: State, rules: Rules) -> State:
    """The next row of the episode; what it has first."""
    if s.kept is None:
        return s._replace(of=s.life, kept=(s.first, s.end), rows=())
    first, end = s.kept
    if rules.keeps_life and s.of != s.life:
        return s._replace(kept=None)
    number = first + len(s.rows)
    if not rules.numbers_stay:
        number += s.first - first  # the n-th of those that are there
        if number >= s.end:
            return s._replace(kept=None)
    elif number < s.first:
        return s._replace(kept=None)
    rows = (*s.rows, (s.life, number))
    if len(rows) < end - first:
        return s._replace(rows=rows)
    if len({life for life, _ in rows}) > 1:
        raise Violation(f"rows of two lives: {rows}")
    if [n for _, n in rows] != list(range(rows[0][1], rows[0][1] + len(rows))):
        raise Violation(f"rows with a gap: {rows}")
    return s._replace(rows=rows, over=True)


def explore(rules: Rules) -> set[State]:
    """Every state that can be reached. Raises Violation, also if some of them have no way out."""
    return explore_all(State(), lambda s: following(s, rules), lambda s: s.over)
