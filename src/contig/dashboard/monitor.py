"""How fast numbers change: two looks at a source, and what was seen before.

Source ── numbers ──> Monitor ──> rates, history ──> the page, `contig top`
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from .numbers import Numbers
from .source import Source

__all__ = ["Monitor"]

_HISTORY = 600  # looks that are kept
_RATES = ("rows_in", "rows_out", "episodes")
_CURVES = ("rows_in_per_s", "rows_out_per_s", "rows", "sampled_age_rows", "samples_per_insert")


class Monitor:
    """Looks at a source, at most once per interval, whoever asks. Thread-safe.

    Nothing is looked at while nobody asks.

    Args:
        source: what is watched.
        interval_s: between two looks.
    """

    def __init__(self, source: Source, interval_s: float = 1.0) -> None:
        self.source = source
        self.interval_s = interval_s
        self._lock = threading.Lock()
        self._last: tuple[float, Numbers] | None = None
        self._shown: dict[str, Any] = {}
        self._history: dict[str, deque[dict[str, Any]]] = {}

    def now(self) -> dict[str, Any]:
        """The numbers, with rates, as JSON."""
        with self._lock:
            now = time.time()
            # A little less: who asks once per interval gets a new look each time.
            if self._last is None or not 0 <= now - self._last[0] < 0.8 * self.interval_s:
                self._look(now)
            return self._shown

    def history(self, table: str, since: float = 0.0) -> list[dict[str, Any]]:
        """What was seen of a table, the oldest first."""
        with self._lock:
            return [look for look in self._history.get(table, ()) if look["time"] > since]

    def _look(self, now: float) -> None:
        numbers = self.source.numbers()
        before = self._last
        seconds = 0.0 if before is None else now - before[0]
        then = Numbers({}) if before is None else before[1]
        tables = {
            name: _with_rates(table, then.tables.get(name), seconds)
            for name, table in numbers.tables.items()
        }
        for name, table in tables.items():
            history = self._history.setdefault(name, deque(maxlen=_HISTORY))
            history.append({"time": now, **{key: table.get(key) for key in _CURVES}})
        self._shown = {
            "time": now,
            "source": {"kind": self.source.kind, "label": self.source.label},
            "notes": self.source.notes,
            "tables": tables,
            "server": numbers.server,
            "clients": _client_rates(numbers.clients, then.clients, seconds),
        }
        self._last = (now, numbers)


def _per_second(now: float | None, before: float | None, seconds: float) -> float | None:
    if now is None or before is None or seconds <= 0:
        return None
    return max(now - before, 0) / seconds


def _with_rates(
    table: dict[str, Any], before: dict[str, Any] | None, seconds: float
) -> dict[str, Any]:
    """A table's numbers with what changed per second; rates are None at the first look."""
    before = {} if before is None else before
    out = {key: value for key, value in table.items() if key != "drawn"}
    for key in _RATES:
        out[f"{key}_per_s"] = _per_second(table.get(key), before.get(key), seconds)
    inserted, sampled = table.get("rows_inserted", table.get("rows_in")), table.get("rows_out")
    out["samples_per_insert"] = sampled / inserted if inserted and sampled is not None else None
    out["fill"] = table["rows"] / table["capacity"] if table.get("capacity") else None
    out["sampled_age_rows"] = _mean_age(table.get("drawn"), before.get("drawn"))
    return out


def _mean_age(drawn: list[int] | None, before: list[int] | None) -> float | None:
    """The mean age of rows drawn since the last look; of all, if none were."""
    if drawn is None:
        return None
    count, age = drawn
    if before is not None and count > before[0]:
        count, age = count - before[0], age - before[1]
    return max(age / count, 0.0) if count > 0 else None


def _client_rates(
    clients: list[dict[str, Any]] | None, before: list[dict[str, Any]] | None, seconds: float
) -> list[dict[str, Any]] | None:
    if clients is None:
        return None
    known = {(c["peer"], c["producer"]): c for c in before or ()}
    out = []
    for client in clients:
        then = known.get((client["peer"], client["producer"]), {})
        # A producer's number has 63 bits, more than a page's numbers have.
        told = {**client, "producer": str(client["producer"])}
        for key in ("rows", "bytes"):
            told[f"{key}_per_s"] = _per_second(client.get(key), then.get(key), seconds)
        out.append(told)
    return out
