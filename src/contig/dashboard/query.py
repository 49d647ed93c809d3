"""What is typed into the search box: terms that all have to hold.

return>100 length<50      columns, and fields, compared with numbers
version=3..7              a range, both ends included
age<10m                   since the last row came: s, m, h, d
terminated -trimmed       flags; a minus: not
17                        the episode of this id, or of this trajectory id
"""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["ALIASES", "FLAGS", "search"]

Array = np.ndarray[Any, Any]

FLAGS = ("terminated", "truncated", "open", "complete", "trimmed")
ALIASES = {"length": "steps", "version": "policy_version", "traj": "traj_id"}
_TERM = re.compile(r"(?P<name>[^<>=!:]+)(?P<op><=|>=|!=|=|<|>|:)(?P<value>.*)")
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    ":": operator.eq,
    "!=": operator.ne,
}
_MOST = 500  # characters


def search(text: str, episodes: Array) -> Array:
    """A mask of the episodes that a query is true of.

    Raises:
        ValueError: a term that cannot be read, or a column that is not there; it names it, and
            what is.
    """
    if len(text) > _MOST:
        raise ValueError(f"a search of {len(text)} characters; {_MOST} at most")
    keep = np.ones(len(episodes), np.bool_)
    for term in text.split():
        keep &= _holds(term, episodes)
    return keep


def _holds(term: str, episodes: Array) -> Array:
    if re.fullmatch(r"#?\d{1,19}", term):
        number = int(term.lstrip("#"))
        return np.asarray((episodes["id"] == number) | (episodes["traj_id"] == number))
    wanted = not term.startswith(("-", "!"))
    if term.lstrip("-!") in FLAGS:
        return np.asarray(_flag(term.lstrip("-!"), episodes) == wanted)
    found = _TERM.fullmatch(term)
    if found is None:
        raise ValueError(
            f"{term!r}: expected a comparison such as return>100, a flag ({', '.join(FLAGS)}) "
            "or an id"
        )
    column = _column(found["name"], episodes)
    seconds = found["name"] == "age"
    if ".." in found["value"] and found["op"] in "=:":
        low, _, high = found["value"].partition("..")
        mask = np.ones(column.shape, np.bool_)
        if low:
            mask &= column >= _number(term, low, seconds)
        if high:
            mask &= column <= _number(term, high, seconds)
    else:
        mask = _COMPARE[found["op"]](column, _number(term, found["value"], seconds))
    # Of a field of several values, one is enough.
    return np.asarray(mask.any(axis=tuple(range(1, mask.ndim))))


def _flag(name: str, episodes: Array) -> Array:
    if name == "open":
        return np.asarray(~(episodes["terminated"] | episodes["truncated"]))
    return np.asarray(episodes[name])


def _column(name: str, episodes: Array) -> Array:
    if name == "age":
        return np.asarray(time.time() - episodes["time"])
    known = episodes.dtype.names or ()
    if name not in known:  # a field of that name comes before a column's other name
        name = ALIASES.get(name, name)
    if name not in known:
        there = [*ALIASES, *(n for n in known if n not in FLAGS), "age"]
        raise ValueError(f"no column {name!r}; there are {', '.join(there)}")
    return np.asarray(episodes[name])


def _number(term: str, text: str, seconds: bool) -> float | int:
    if text in ("true", "false"):
        return int(text == "true")
    unit = ""
    if seconds and text[-1:] in _UNITS and text[-1:]:
        text, unit = text[:-1], text[-1]
    try:
        if not seconds and re.fullmatch(r"[+-]?\d{1,40}", text):
            return int(text)  # an id has 63 bits, and a float 53
        value = float(text)
    except ValueError:
        raise ValueError(f"{term!r}: expected a number, got {text!r}") from None
    return value * _UNITS[unit]
