"""Exploration: how TorchRL's policies choose actions while a collector acts.

TorchRL's policies draw actions only if somebody has set tensordict's interaction type; without it
they act greedily. Its own collectors set it, and so do these, around every call of a policy.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["Exploration", "exploration_name", "seed_torch"]

_NAMES = ("random", "mode", "median", "mean", "deterministic")


def exploration_name(given: Any) -> str:
    """Returns the name of an exploration type, which needs no tensordict and can be pickled.

    Args:
        given: a name, or a member of TorchRL's `ExplorationType`; None: "random".

    Raises:
        ValueError: there is no such type.
    """
    name = "random" if given is None else str(getattr(given, "value", given)).lower()
    if name not in _NAMES:
        raise ValueError(f"exploration_type: expected one of {', '.join(_NAMES)}, got {given!r}")
    return name


class Exploration:
    """Sets tensordict's interaction type while it is entered; nothing if tensordict is not loaded.

    The type belongs to the process, not to the thread: that is tensordict's. Not re-entrant.

    Args:
        name: of the type; None: it stays as it is.
    """

    def __init__(self, name: str | None) -> None:
        self._name = name
        self._setting: Any = None  # made once: that takes longer than entering it
        self._entered = False

    def __enter__(self) -> None:
        if self._setting is None and self._name is not None:
            nn = sys.modules.get("tensordict.nn")
            # A policy may load it in its first call: until then nothing can ask for the type.
            self._setting = None if nn is None else nn.set_interaction_type(self._name)
        self._entered = self._setting is not None
        if self._entered:
            self._setting.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self._entered:
            self._setting.__exit__(*error)


def seed_torch(seed: int | None) -> None:
    """Seeds the numbers that torch's policies draw in this process, which only collects.

    Torch's generator begins at the same state in every process: without this, all workers would
    explore alike.

    Args:
        seed: None: a fresh one.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if seed is None:
        torch.seed()
    else:
        torch.manual_seed(seed)
