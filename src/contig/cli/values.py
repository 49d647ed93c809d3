"""Values of options: what argparse makes of a word, or one line about what was expected.

Each function here is the `type=` of an option, or makes one. What is out of range is refused
before a command does anything.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

__all__ = ["MOST_ROWS", "above", "column", "number", "path", "picture", "port", "text", "whole"]

MOST_ROWS = 1 << 40  # no machine has more, and the index of a tape takes some bytes of each
_INT64 = (1 << 63) - 1
_PICTURES = (".png", ".svg", ".pdf", ".jpg")


def _refuse(expected: str, word: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"expected {expected}, got {word!r}")


def whole(least: int, most: int = _INT64) -> Callable[[str], int]:
    """A whole number in a range."""
    bound = f"of at least {least}" if most == _INT64 else f"from {least} to {most}"

    def read(word: str) -> int:
        try:
            value = int(word)
        except ValueError:
            raise _refuse(f"a whole number {bound}", word) from None
        if not least <= value <= most:
            shown = f"from {least} to {most}" if value > most else bound
            raise _refuse(f"a whole number {shown}", word)
        return value

    return read


port = whole(0, 65535)


def number(least: float = -math.inf, most: float = math.inf) -> Callable[[str], float]:
    """A number in a range, never NaN; infinite only where there is no bound."""
    if most != math.inf:
        bound = f"a number from {least:g} to {most:g}"
    else:
        bound = "a number" if least == -math.inf else f"a number of at least {least:g}"

    def read(word: str) -> float:
        value = _float(word)
        if not least <= value <= most:
            raise _refuse(bound, word)
        return value

    return read


def above(least: float, most: float) -> Callable[[str], float]:
    """A number above one, and up to another."""

    def read(word: str) -> float:
        value = _float(word)
        if not least < value <= most:
            raise _refuse(f"a number above {least:g}, up to {most:g}", word)
        return value

    return read


def _float(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return math.nan


def text(word: str) -> str:
    """A name, or other words: not empty."""
    if not word.strip():
        raise argparse.ArgumentTypeError("it is empty")
    return word


def path(word: str) -> Path:
    """A path: not empty, which would be the working directory."""
    return Path(text(word))


def picture(word: str) -> Path:
    """A file that a picture can be written to; its directory may have to be made."""
    where = path(word)
    if where.suffix.lower() not in _PICTURES:
        raise _refuse(f"a file's name that ends in {', '.join(_PICTURES)}", word)
    if where.is_dir():
        raise argparse.ArgumentTypeError(f"{word} is a directory: give a file's name")
    above_it = next((p for p in where.parents if p.exists()), None)
    if above_it is not None and not above_it.is_dir():
        raise argparse.ArgumentTypeError(f"{above_it} is no directory: give another name")
    return where


def column(word: str) -> tuple[str, str]:
    """A column of a table, and what it is taken as."""
    name, equals, leaf = word.rpartition("=")
    if not (name and equals and leaf):
        raise _refuse("COLUMN=LEAF, such as obs=observation", word)
    return name, leaf
