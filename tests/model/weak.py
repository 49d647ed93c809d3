"""Relaxed memory with one writer at a time: what a reader without the lock may find in it.

Stores are made by whoever holds the lock, so they have one order. A reader may find any of a word's
values that is not older than one it found there before, nor than what its fences and acquiring
loads made it see. A value says how far that is: a releasing store's up to itself, a relaxed
store's up to its process's last fence.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

Word = tuple[Any, ...]  # which word: (array, place, ...)


class Value(NamedTuple):
    when: int
    value: Any
    shows: int  # whoever acquires this sees all stores until then


class Weak:
    """All words that readers load without the lock."""

    def __init__(self) -> None:
        self.now = 0
        self.words: dict[Word, list[Value]] = {}

    def values(self, word: Word) -> list[Value]:
        return self.words.setdefault(word, [Value(0, None, 0)])

    def __getitem__(self, word: Word) -> Any:
        """As the holder of the lock finds it: the newest."""
        return self.values(word)[-1].value

    def store(self, word: Word, value: Any, shows: int) -> None:
        self.now += 1
        self.values(word).append(Value(self.now, value, shows))

    def release(self, word: Word, value: Any) -> None:
        self.store(word, value, self.now + 1)


class Sight:
    """What one reader must see."""

    def __init__(self, memory: Weak, rnd: random.Random) -> None:
        self.memory, self.rnd = memory, rnd
        self.all = memory.now  # stores until then, of every word
        self.next = 0  # and until then after the next fence
        self.of: dict[Word, int] = {}  # and of a word until then, because it was loaded before

    def load(self, word: Word) -> Any:
        return self._find(word).value

    def acquire(self, word: Word) -> Any:
        found = self._find(word)
        self.all = max(self.all, found.shows)
        return found.value

    def fence(self) -> None:
        self.all = max(self.all, self.next)

    def _find(self, word: Word) -> Value:
        values = self.memory.values(word)
        least = max(self.all, self.of.get(word, 0))
        at = len(values) - 1
        if self.rnd.random() < 0.5:
            while values[at].when > least and self.rnd.random() < 0.6:
                at -= 1
        self.of[word] = values[at].when
        self.next = max(self.next, values[at].shows)
        return values[at]
