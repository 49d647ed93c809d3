"""Batches that clients were sent and may not have taken.

    sent ---------> its next request does not name it ------------> taken
      |                                     BYE names it ---------> given back
      +-> connection lost -> it asks for the same again ----------> given back
                               does not come back: unconfirmed, nobody knows

Only for tables whose sampler gives each once: elsewhere there is nothing to give back.
Belongs to the core's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import NamedTuple

from .. import wire

__all__ = ["Receipts", "Verdict"]

# Of a client that does not say what it has not taken. It has no more requests at a time: whoever
# asks for so many after a batch got it.
_MOST = wire.MAX_REQUESTS
_MOST_NAMED = 1024  # of one that does
_AWAY = 1024  # clients that may come back

Client = tuple[str, int]  # table and producer


class Verdict(IntEnum):
    """What becomes of a request, or of what was drawn for it; told to who draws."""

    UNWANTED = 0xFF01  # who asked is gone: it need not be drawn
    TAKEN = 0xFF02
    BACK = 0xFF03  # nobody got it


class _Receipt(NamedTuple):
    token: int
    table: str
    rows: int


class Receipts:
    """What was sent to each client, by the numbers of its requests.

    Args:
        tell: what became of a batch: its token, its table, the verdict.
    """

    def __init__(self, tell: Callable[[int, str, Verdict], None]) -> None:
        self._tell = tell
        self._sent: dict[Client, dict[int, _Receipt]] = {}
        self._away: dict[Client, None] = {}  # gone without a goodbye, the longest first
        self._naming: set[Client] = set()  # that say with each request what they have not taken
        self._given_up = 0

    def sent(self, client: Client, number: int, token: int, rows: int) -> None:
        """A batch was written to a client's socket."""
        self.asked(client, number)  # what it was sent before did not arrive
        receipts = self._sent.setdefault(client, {})
        receipts[number] = _Receipt(token, client[0], rows)
        names = client in self._naming
        if len(receipts) > (_MOST_NAMED if names else _MOST):
            oldest = receipts.pop(next(iter(receipts)))
            self._given_up += oldest.rows if names else 0
            self._settle(oldest, Verdict.TAKEN)

    def asked(self, client: Client, number: int, untaken: Iterable[int] | None = None) -> None:
        """A client asks; if it has asked so before, it did not get the answer.

        Args:
            untaken: requests whose batches it has not taken; the others before this one it has.
                None: it does not say.
        """
        receipts = self._sent.get(client, {})
        before = receipts.pop(number, None)
        if before is not None:
            self._settle(before, Verdict.BACK)
        if untaken is not None:
            self._naming.add(client)
            left = set(untaken)
            for taken in [n for n in receipts if n < number and n not in left]:
                self._settle(receipts.pop(taken), Verdict.TAKEN)

    def came(self, client: Client) -> None:
        """A client is there, perhaps again."""
        self._away.pop(client, None)

    def goodbye(self, client: Client, untaken: Iterable[int]) -> None:
        """A client ends, and says what it did not take."""
        left = set(untaken)
        for number, receipt in self._forget(client):
            self._settle(receipt, Verdict.BACK if number in left else Verdict.TAKEN)

    def lost(self, client: Client) -> None:
        """A client is gone without a word; it may come back."""
        if self._sent.get(client):
            self._away[client] = None
        else:
            self._forget(client)
        if len(self._away) > _AWAY:
            oldest = next(iter(self._away))
            del self._away[oldest]
            for _, receipt in self._forget(oldest):
                self._given_up += receipt.rows
                self._settle(receipt, Verdict.TAKEN)

    def _forget(self, client: Client) -> list[tuple[int, _Receipt]]:
        """What it was sent, by number."""
        self._naming.discard(client)
        return list(self._sent.pop(client, {}).items())

    @property
    def unconfirmed_rows(self) -> int:
        """Rows sent to clients that are gone without a word, of which some may not have been
        taken: of each its last batches."""
        away = (r.rows for c in self._away for r in self._sent.get(c, {}).values())
        return self._given_up + sum(away)

    def _settle(self, receipt: _Receipt, verdict: Verdict) -> None:
        self._tell(receipt.token, receipt.table, verdict)
