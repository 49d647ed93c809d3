"""Every sampler that contig exports has a row in the table of benchmarks, and is measured by it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

import contig
from benchmarks import contig_cases, contig_samplers
from benchmarks.cases import CASE_NAMES
from benchmarks.timing import Effort
from contig.sample import OuterSampler, Sampler

ROWS = 4096
EXPORTED = {
    name
    for name in contig.__all__
    if isinstance(kind := getattr(contig, name, None), type)
    and issubclass(kind, Sampler)
    and kind not in (Sampler, OuterSampler)
}


def once(work: Callable[[], Any], effort: Effort) -> float:
    work()
    return 0.0


def test_every_sampler_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn_by: dict[str, set[str]] = defaultdict(set)
    draw = contig.ReplayBuffer.draw
    case = ""

    def noted(buffer: contig.ReplayBuffer, *args: Any, **options: Any) -> Any:
        drawn_by[type(buffer.sampler).__name__].add(case)
        return draw(buffer, *args, **options)

    monkeypatch.setattr(contig.ReplayBuffer, "draw", noted)
    for module in (contig_cases, contig_samplers):
        monkeypatch.setattr(module, "best_us", once)
    caches = (contig_cases.uniform, contig_cases.slicing, contig_cases.prioritized)
    effort = Effort(rows=ROWS, priority_slice_rows=ROWS)
    try:
        for case, measure in contig_cases.CASES.items():
            if not case.startswith(("sample_256_", "add_1_")):  # other libraries' forms
                measure(effort)
    finally:
        for cached in caches:
            cached.cache_clear()
    assert len(EXPORTED) >= 13
    missing = {name for name in EXPORTED if not drawn_by[name] & set(CASE_NAMES)}
    assert not missing, f"no row of the table draws with {missing}; add one to benchmarks/cases.py"


def test_every_row_of_the_table_has_its_measurement() -> None:
    assert set(contig_cases.CASES) == set(CASE_NAMES)
