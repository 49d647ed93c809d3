"""A model of weights that a client publishes: every course of events of three publications.

    client   asks for versions 1, 2, ..., one after another, each until it has an answer
    wire     holds one request and one answer, in order; a cut loses both
    server   takes a version that is larger than its newest, else says no; a new one knows nothing

After a cut, the client asks again for what it has no answer to: what it asked for may have been
done. Kept on the side: how often each publication was done by one server.

    no false no      a client whose versions grow is never told that they do not
    once             no publication is done twice by one server
    not lost         what was answered is what the server has, unless it was started anew since
    never for ever   from everywhere there is a way to the end
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple

from .exploring import Violation, explore_all

__all__ = ["RULES", "Rules", "Violation", "explore"]

VERSIONS, CUTS, RESTARTS = 3, 2, 2


@dataclass(frozen=True)
class Rules:
    """Each True by default; the test that switches one off says what goes wrong."""

    asks_again: bool = True  # a client whose connection was cut
    knows_last: bool = True  # a server: which publication it did last
    one_at_a_time: bool = True  # a client waits for an answer before it asks for the next


RULES = [f.name for f in fields(Rules)]


class State(NamedTuple):
    asked: int = 0  # the newest version the client has asked for
    answered: int = 0
    up: tuple[int, ...] = ()
    down: tuple[tuple[int, bool], ...] = ()
    newest: int = 0
    last: int = 0
    done: tuple[int, ...] = ()  # by this server, in order
    fresh: bool = False  # it was started anew since the last answer
    cuts: int = CUTS
    restarts: int = RESTARTS

    @property
    def over(self) -> bool:
        return self.answered == VERSIONS


def following(s: State, rules: Rules) -> Iterator[State]:
    """All that can happen next. Raises Violation."""
    idle = s.asked == s.answered or (not rules.one_at_a_time and not s.down)
    if idle and s.asked < VERSIONS:
        yield s._replace(asked=s.asked + 1, up=(*s.up, s.asked + 1))
    if s.up:
        yield _take(s, rules)
    if s.down:
        (version, well), rest = s.down[0], s.down[1:]
        if not well:
            raise Violation(f"version {version} was refused, and it is larger than any before")
        if version > s.newest and not s.fresh:
            raise Violation(f"version {version} was answered, and the server has {s.newest}")
        yield s._replace(answered=max(s.answered, version), down=rest, fresh=False)
    if s.cuts:
        yield _cut(s._replace(cuts=s.cuts - 1), rules)
    if s.restarts:
        anew = s._replace(restarts=s.restarts - 1, newest=0, last=0, done=(), fresh=True)
        yield _cut(anew, rules)


def _take(s: State, rules: Rules) -> State:
    version, rest = s.up[0], s.up[1:]
    if rules.knows_last and version == s.last:
        return s._replace(up=rest, down=(*s.down, (version, True)))
    if version <= s.newest:
        return s._replace(up=rest, down=(*s.down, (version, False)))
    if version in s.done:
        raise Violation(f"version {version} was done twice")
    now = s._replace(newest=version, last=version, done=(*s.done, version))
    return now._replace(up=rest, down=(*s.down, (version, True)))


def _cut(s: State, rules: Rules) -> State:
    left = range(s.answered + 1, s.asked + 1) if rules.asks_again else ()
    return s._replace(up=tuple(left), down=())


def explore(rules: Rules) -> set[State]:
    """Every state that can be reached. Raises Violation, also if some of them have no way out."""
    return explore_all(State(), lambda s: following(s, rules), lambda s: s.over)
