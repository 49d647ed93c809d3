"""Where the leaves of an observation are in a row.

    Box, Tuple, ...   observation
    Dict              its keys at the root
                      a key that rows use themselves: observation.<key>

A row has `action`, `is_init`, `collector` and `next` at its root, and `reward` and the flags beside
the next observation. An observation of such a name is moved, at the root and under `next` alike, so
that it never shares a place with them. If anything is moved, a key `observation` is too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from ..errors import LayoutError
from ..tree import Path, show_path

__all__ = ["check_apart", "place_of", "quiet", "say_moved"]

log = logging.getLogger("contig.collect")

_ROOT = "observation"
_OWN = ("action", "collector", "done", "is_init", "next", "reward", "terminated", "truncated")
_said: set[frozenset[str]] = set()  # what was said, so that it is said once
_quiet = False


def place_of(leaves: Iterable[Path]) -> dict[Path, Path]:
    """The path in a row of each leaf of a Dict observation, by its path in the observation."""
    sources = list(leaves)
    moved = {p[0] for p in sources if p[0] in _OWN}
    if moved:
        moved.add(_ROOT)  # or it would be where the others go
    return {p: (_ROOT, *p) if p[0] in moved else p for p in sources}


def quiet() -> None:
    """Another process says what is moved: this one need not."""
    global _quiet
    _quiet = True


def say_moved(places: Mapping[Path, Path]) -> None:
    """Says which keys of an observation were moved, once in a process."""
    moved = {str(source[0]) for source, place in places.items() if source != place}
    if not moved or _quiet or frozenset(moved) in _said:
        return
    _said.add(frozenset(moved))
    names = ", ".join(f"{k!r} is at {show_path((_ROOT, k))}" for k in sorted(moved))
    log.warning(
        "rows have keys of their own where this environment has observations, which are moved, "
        "also for the policy: %s",
        names,
    )


def check_apart(groups: Mapping[str, Iterable[Path]]) -> None:
    """Raises LayoutError if two leaves share a place, or one is inside another.

    Args:
        groups: paths, by what they are.
    """
    owner: dict[Path, str] = {}
    for what, paths in groups.items():
        for path in paths:
            if path in owner:
                raise LayoutError(
                    f"{show_path(path)}: {what} and {owner[path]} would share this place in a row; "
                    "rename one of them"
                )
            owner[path] = what
    for path, what in owner.items():
        for n in range(1, len(path)):
            above = owner.get(path[:n])
            if above is not None:
                raise LayoutError(
                    f"{show_path(path)}: {what} would lie inside {show_path(path[:n])}, which is "
                    f"{above}; rename one of them"
                )
