"""What is compared, with how many clients, and the goals. No measured figure is written here.

A goal is a rate (`at_least_per_s` items or `at_least_mb_per_s`) or a share of what a bare socket
does with as many streams in the same run (`share_of_raw`), the faster of one `sendall` per message
and of messages joined to 512 kB blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.cases import Value
from benchmarks.ingest.sizes import MESSAGES

CLIENTS = (1, 2, 8)
RAW = ("raw", "raw_coalesced")
ECHO = ("echo", "echo_tuned")
LOADS_MB_PER_S = (None, 500.0)
"""The learner's clients: as fast as they can, and at a rate that leaves the machine room."""
LEARNER_LOSS_POINTS = 5.0
LEARNER_LOAD_SHARE = 0.8
"""Of what the bare process receives, contig must take in at least so much to be compared."""

Rates = Mapping[str, Value]
"""Items per second by method, or a word such as "failed"."""


@dataclass(frozen=True)
class Case:
    """One message sent by contig in one way, beside the others."""

    message: str
    ours: str
    """contig's method."""
    title: str
    goal: str
    beside: tuple[str, ...] = ()
    at_least_per_s: float | None = None
    at_least_mb_per_s: float | None = None
    share_of_raw: float | None = None
    goal_clients: tuple[int, ...] = CLIENTS
    """The numbers of clients that the goal is for."""

    @property
    def in_bytes(self) -> bool:
        """Shown as MB/s."""
        return self.message in ("frame", "frames")

    def mb_per_s(self, items_per_s: float) -> float:
        return items_per_s * MESSAGES[self.message].payload_bytes / 1e6

    def verdict(self, rates: Rates, clients: int) -> str:
        """`met`, `missed`, or empty where there is no goal or a figure is missing."""
        ours = rates.get(self.ours)
        if not isinstance(ours, float) or clients not in self.goal_clients:
            return ""
        if self.at_least_per_s is not None:
            return "met" if ours >= self.at_least_per_s else "missed"
        if self.at_least_mb_per_s is not None:
            return "met" if self.mb_per_s(ours) >= self.at_least_mb_per_s else "missed"
        raw = best(rates, RAW)
        if self.share_of_raw is None or not isinstance(raw, float):
            return ""
        return "met" if ours >= self.share_of_raw * raw else "missed"


def best(rates: Rates, methods: tuple[str, ...]) -> Value | None:
    """The highest of several methods' rates; a word if there is only that; None if nothing."""
    values = [rates[method] for method in methods if method in rates]
    figures = [value for value in values if isinstance(value, float)]
    return max(figures) if figures else (values[0] if values else None)


TCP = (
    Case(
        "sample",
        "contig",
        MESSAGES["sample"].title,
        ">= 500k/s",
        beside=(*RAW, *ECHO),
        at_least_per_s=500e3,
    ),
    Case(
        "rollout",
        "contig",
        MESSAGES["rollout"].title,
        ">= 200k/s",
        beside=(*RAW, *ECHO),
        at_least_per_s=200e3,
    ),
    Case(
        "frame",
        "contig",
        MESSAGES["frame"].title,
        ">= 0.8x raw",
        beside=(*RAW, *ECHO),
        share_of_raw=0.8,
    ),
    Case(
        "frames",
        "contig",
        MESSAGES["frames"].title,
        ">= 0.9x raw",
        beside=("raw", *ECHO),
        share_of_raw=0.9,
    ),
)

SHARED = (
    Case("sample", "shared", "24 B samples, one by one", ""),
    Case(
        "sample",
        "shared_runs",
        "24 B samples, in runs of 256",
        ">= 1M/s per writer",
        at_least_per_s=1e6,
        goal_clients=(1,),
    ),
    Case("frame", "shared", MESSAGES["frame"].title, ">= 5 GB/s", at_least_mb_per_s=5000),
    Case("frames", "shared", MESSAGES["frames"].title, ">= 5 GB/s", at_least_mb_per_s=5000),
)
