"""What is compared: the cases, in the order of the table, and the goal that contig has for each.

A goal is one of three kinds. A factor (`at_least={"cpprb": 7}`) says how many times faster than
that library contig is to be in the same run; it does not depend on the machine. `beside` says the
same of another case of contig's own: at most so many times as long, and so many microseconds more.
An absolute bound (`at_most_us`) stands where no such factor is set. No measured figure is written
here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

CONTIG = "contig"
REFERENCE = "index_select"
BACKENDS = (CONTIG, "torchrl", "cpprb", "sb3", "tianshou", REFERENCE)

NOT_RUN = "not run"
NOT_APPLICABLE = "n/a"
FAILED = "failed"

Value = float | str
"""Microseconds, or one of the words above."""


@dataclass(frozen=True)
class Beside:
    """At most `times` what contig takes for another case, and `plus_us` more."""

    case: str
    times: float = 1
    plus_us: float = 0


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    name: str
    title: str
    goal: str
    at_least: Mapping[str, float] = field(default_factory=dict)
    at_most_us: float | None = None
    beside: Beside | None = None

    def verdict(self, all_values: Mapping[str, Mapping[str, Value]]) -> str:
        """`met`, `missed`, or empty where something that decides it was not measured.

        Args:
            all_values: of every case, microseconds by library.
        """
        values = all_values.get(self.name, {})
        ours = values.get(CONTIG)
        if not isinstance(ours, float):
            return ""
        if self.beside is not None:
            other = all_values.get(self.beside.case, {}).get(CONTIG)
            if not isinstance(other, float):
                return ""
            if ours > self.beside.times * other + self.beside.plus_us:
                return "missed"
            if not self.at_least:
                return "met"
        if self.at_most_us is not None:
            return "met" if ours <= self.at_most_us else "missed"
        theirs = {peer: values.get(peer) for peer in self.at_least}
        measured = {peer: value for peer, value in theirs.items() if isinstance(value, float)}
        if any(value < self.at_least[peer] * ours for peer, value in measured.items()):
            return "missed"
        return "met" if measured and len(measured) == len(theirs) else ""


CASES = (
    Case(
        "extend_1000",
        "extend 1000 rows",
        "10x torchrl, ahead of cpprb",
        at_least={"torchrl": 10, "cpprb": 1},
    ),
    Case(
        "add_1",
        "add 1 row",
        "ahead of all",
        at_least={"torchrl": 1, "cpprb": 1, "sb3": 1, "tianshou": 1},
    ),
    Case("add_1_torch", "the same, a dict of torch tensors", "<= 10 us", at_most_us=10),
    Case(
        "add_1_tensordict",
        "the same, a TensorDict",
        "10x torchrl",
        at_least={"torchrl": 10},
    ),
    Case(
        "sample_256",
        "sample 256 uniform",
        "7x cpprb, 15x torchrl",
        at_least={"cpprb": 7, "torchrl": 15},
    ),
    Case("sample_4096", "sample 4096 uniform", "<= 200 us", at_most_us=200),
    Case("sample_128", "sample 128 uniform", ""),
    Case(
        "nstep_128",
        "sample 128 of 3 steps each",
        "2x uniform, ahead of sb3",
        at_least={"sb3": 1},
        beside=Beside("sample_128", times=2),
    ),
    Case("chunks_128", "sample 128 with the next 16 actions each", ""),
    Case(
        "slices_cached",
        "32 slices of 32, nothing written",
        "17x torchrl cached",
        at_least={"torchrl": 17},
    ),
    Case(
        "slices_uncached",
        "the same, torchrl without its cache",
        "",
    ),
    Case(
        "write_then_slices",
        "write 16 rows + 32 slices of 32",
        "60x torchrl",
        at_least={"torchrl": 60},
    ),
    Case("priority_sample_256", "prioritized sample 256", "<= 50 us", at_most_us=50),
    Case("priority_update_256", "prioritized update 256", "<= 10 us", at_most_us=10),
    Case(
        "write_then_priority_slices",
        "write 16 rows + 32 prioritized slices of 32, 100k rows",
        "<= 100 us",
        at_most_us=100,
    ),
    Case(
        "without_replacement_256",
        "sample 256 without replacement",
        "ahead of torchrl",
        at_least={"torchrl": 1},
    ),
    Case("window_256", "sample 256 of the last 100k rows", ""),
    Case(
        "hindsight_256",
        "sample 256, goals relabelled, 100k rows",
        "ahead of sb3",
        at_least={"sb3": 1},
    ),
    Case(
        "slices_without_replacement",
        "32 slices of 32, each trajectory once",
        "ahead of torchrl",
        at_least={"torchrl": 1},
    ),
    Case("trajectories_8", "8 whole trajectories", ""),
    Case("fifo_16", "write 16 rows + the 16 oldest, once each", ""),
    Case("lifo_16", "write 16 rows + the 16 newest, once each", ""),
    Case(
        "sample_256_torch",
        "sample 256 uniform, as torch tensors",
        "15 us more than numpy",
        beside=Beside("sample_256", plus_us=15),
    ),
    Case(
        "sample_256_tensordict",
        "the same, as a TensorDict",
        "15 us more than numpy",
        beside=Beside("sample_256", plus_us=15),
    ),
    Case(
        "sample_256_jax",
        "the same, as jax arrays",
        "15 us more than numpy",
        beside=Beside("sample_256", plus_us=15),
    ),
)

CASE_NAMES = tuple(case.name for case in CASES)
