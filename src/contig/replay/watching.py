"""A dashboard of buffers: what it may know of them, and of what is drawn."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ..dashboard import Dashboard, Numbers, PageOptions, SeenRows, Told, table_numbers
from ..tape import Storage
from .ingress import Ingress

__all__ = ["Watched", "look_at_draws", "open_dashboard", "told_of"]


class Watched(Protocol):
    """A ReplayBuffer, as this module needs it."""

    ingress: Ingress
    seen: tuple[SeenRows, ...]

    @property
    def storage(self) -> Storage: ...


Looked = tuple[Ingress, SeenRows]


def look_at_draws(
    buffer: Watched, rows_per_s: float, newest: Callable[[], int | None] = lambda: None
) -> tuple[Looked, Callable[[], None]]:
    """Has a buffer's draws looked at; what is needed to tell of it, without the buffer itself, and
    what ends it. `newest` gives the policy's version that was published last."""
    seen = SeenRows(buffer.ingress.storage, rows_per_s, newest)
    buffer.seen = (*buffer.seen, seen)
    ref = weakref.ref(buffer)

    def end() -> None:
        there = ref()
        if there is not None:
            there.seen = tuple(other for other in there.seen if other is not seen)

    return (buffer.ingress, seen), end


def told_of(tables: Mapping[str, Looked]) -> Told:
    """The numbers of buffers, and what was drawn since they were told last."""
    numbers = {n: table_numbers(i.storage, i.limiter) for n, (i, _) in tables.items()}
    return Told(Numbers(numbers), {name: seen.take() for name, (_, seen) in tables.items()})


def open_dashboard(buffer: Watched, port: int, options: dict[str, Any]) -> Dashboard:
    """See `ReplayBuffer.dashboard`."""
    page = PageOptions(port=port, **options).checked()
    looked, end = look_at_draws(buffer, page.samples_per_s)
    tables, storages = {"default": looked}, {"default": buffer.storage}
    label = type(buffer).__name__
    try:
        return Dashboard("buffer", label, storages, lambda: told_of(tables), page, end)
    except BaseException:
        end()
        raise
