"""Arguments of the right kind, or an error that says what to do."""

from __future__ import annotations

import inspect
import ipaddress
import math
import numbers
from typing import Any

import numpy as np

__all__ = [
    "check_kind",
    "host_name",
    "is_loopback",
    "number",
    "one_each",
    "port_number",
    "ranks",
    "seconds",
    "seconds_or_none",
    "trajectory_ids",
    "whole",
    "whole_numbers",
]


def whole(name: str, value: Any, least: int, what: str = "a whole number") -> int:
    """A whole number of at least so much; ``1e6`` is one, too.

    Raises:
        ValueError: it is none.
    """
    if type(value) is int and value >= least:  # nearly always
        return value
    is_number = isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_))
    if is_number and np.isfinite(value) and value == int(value) and value >= least:
        return int(value)
    raise ValueError(f"{name}: expected {what}, at least {least}, got {value!r}")


def number(name: str, value: Any, least: float, most: float = math.inf) -> float:
    """A finite number between two others, or of at least so much.

    Raises:
        ValueError: it is none.
    """
    given = float(value) if isinstance(value, numbers.Real) else math.nan
    if least <= given <= most and given < math.inf:
        return given
    bound = f"of at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
    raise ValueError(f"{name}: expected a number {bound}, got {value!r}")


def port_number(name: str, value: Any, least: int) -> int:
    """A TCP port, or a ValueError."""
    port = whole(name, value, least, "a port")
    if port >= 1 << 16:
        raise ValueError(f"{name} {port}: a number of {least} to 65535")
    return port


def host_name(header: bytes) -> str:
    """Returns the host of an HTTP ``Host`` header, without its port."""
    text = header.decode("latin-1")
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address. Names are not asked for: whoever owns one says
    what it resolves to."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def seconds(name: str, value: Any) -> float:
    """A number of seconds, which may be 0 or infinite, and is neither negative nor NaN: no clock
    ever gets past a deadline that is.

    Raises:
        ValueError: it is none.
    """
    is_number = isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_))
    if not is_number or not value >= 0:
        raise ValueError(f"{name}: expected seconds, got {value!r}: give a number of at least 0")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def seconds_or_none(name: str, value: Any) -> float | None:
    """The same, where None means for ever."""
    if value is None or (type(value) is float and value >= 0):
        return value
    try:
        return seconds(name, value)
    except ValueError as error:
        raise ValueError(f"{error}, or None to wait for ever") from None


def whole_numbers(
    name: str, array: np.ndarray[Any, Any], give: str = "`index` as a sample has it"
) -> np.ndarray[Any, Any]:
    """An array of whole numbers, flat, int64.

    Args:
        give: where they come from.

    Raises:
        TypeError: they are floats, booleans or something else.
    """
    kind = array.dtype.kind
    if kind != "i" and array.size and (kind != "u" or array.max() >= 2**63):
        raise TypeError(f"{name}: expected whole numbers, got {array.dtype}; give {give}")
    return np.ascontiguousarray(array, np.int64).reshape(-1)


def one_each(priority: Any, rows: int) -> np.ndarray[Any, Any]:
    """Priorities as flat floats. Raises ValueError if there are not as many as rows."""
    p = np.ascontiguousarray(priority, float).reshape(-1)
    if len(p) != rows:
        raise ValueError(f"{len(p)} priorities for {rows} rows: give one for each")
    return p


def trajectory_ids(ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Trajectories by their `id`, flat, int64.

    Raises:
        TypeError: they are no whole numbers.
    """
    return whole_numbers("ids", ids, '`episodes()["id"]`, or some of it')


def check_kind(name: str, value: Any, kind: type, hint: str = "") -> None:
    """Looks whether an object is of a kind.

    Args:
        hint: what to write instead, for any other value.

    Raises:
        TypeError: it is something else; of a class it says to make an object.
    """
    if isinstance(value, kind):
        return
    if inspect.isclass(value) and issubclass(value, kind):
        came = f"the class {value.__name__}: write {value.__name__}(...) to make one"
    else:
        came = f"{value!r}" if isinstance(value, (int, float, str)) else type(value).__name__
        came += f": {hint}" if hint else ""
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    raise TypeError(f"{name}: expected {article} {kind.__name__}, got {came}")


def ranks(rank: Any, world_size: Any) -> tuple[int, int]:
    """Which of how many.

    Raises:
        ValueError: not 0 <= rank < world_size.
    """
    world_size = whole("world_size", world_size, 1, "a number of learners")
    rank = whole("rank", rank, 0)
    if rank >= world_size:
        raise ValueError(f"rank {rank} of {world_size}: expected 0 <= rank < world_size")
    return rank, world_size
