"""Every state of a small model, and whether each of them has a way to the end."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

__all__ = ["Violation", "explore_all"]

S = TypeVar("S", bound=Hashable)


class Violation(AssertionError):
    """Something happened that must not."""


def explore_all(
    start: S, following: Callable[[S], Iterable[S]], is_over: Callable[[S], bool]
) -> set[S]:
    """Every state that can be reached. Raises Violation, also if some of them have no way out."""
    seen, todo, before = {start}, [start], dict[S, set[S]]()
    while todo:
        state = todo.pop()
        for after in following(state):
            before.setdefault(after, set()).add(state)
            if after not in seen:
                seen.add(after)
                todo.append(after)
    ends = [s for s in seen if is_over(s)]
    out = set(ends)
    while ends:
        for state in before.get(ends.pop(), ()):
            if state not in out:
                out.add(state)
                ends.append(state)
    if out != seen:
        raise Violation(f"no way out of {next(iter(seen - out))}")
    return seen
