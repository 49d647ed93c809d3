"""Results as text: aligned for a terminal, or as Markdown for the documentation.

A peer's cell is its microseconds and, in brackets, how many times faster contig was in the same
run; below 1x contig lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.cases import BACKENDS, CASES, CONTIG, NOT_RUN, Value
from benchmarks.results import Results

Row = Sequence[str]
Render = Callable[[Sequence[Row]], str]


def number(value: float) -> str:
    """Three digits where they mean something, none after the point above 100."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def cell(value: Value, ours: Value) -> str:
    """A peer's figure with contig's factor, or the word that stands for it."""
    if not isinstance(value, float):
        return value
    if not isinstance(ours, float):
        return number(value)
    return f"{number(value)} ({value / ours:.1f}x)"


def case_rows(results: Results) -> list[Row]:
    """The main table, heading first."""
    rows: list[Row] = [["microseconds per call", *BACKENDS, "goal", ""]]
    for case in CASES:
        values = results.cases.get(case.name)
        if values is None:
            continue
        ours = values.get(CONTIG, NOT_RUN)
        cells = [number(ours) if isinstance(ours, float) else ours]
        cells += [cell(values.get(peer, NOT_RUN), ours) for peer in BACKENDS[1:]]
        rows.append([case.title, *cells, case.goal, case.verdict(results.cases)])
    return rows


def growth_rows(results: Results) -> list[list[Row]]:
    """One table per curve: the points above, the microseconds below."""
    titles = {
        "rows": "stored rows",
        "episodes": "episodes in as many rows",
        "parts": "parts per trajectory",
    }
    tables: list[list[Row]] = []
    for curve, points in results.growth.items():
        spread = max(points.values()) / min(points.values())
        tables.append(
            [
                [titles.get(curve, curve), *(f"{int(point):,}" for point in points), "max / min"],
                ["us", *(number(value) for value in points.values()), f"{spread:.2f}x"],
            ]
        )
    return tables


def shared_rows(results: Results) -> list[Row]:
    """Appends to shared memory beside a plain copy of the same bytes."""
    rows: list[Row] = [["record x rows per append", "rows/s", "GB/s", "plain copy GB/s", "share"]]
    for label, rates in results.shared.items():
        ceiling = rates["memcpy_gb_per_s"]
        rows.append(
            [
                label,
                f"{rates['rows_per_s']:,.0f}",
                f"{rates['gb_per_s']:.2f}",
                f"{ceiling:.2f}",
                f"{rates['gb_per_s'] / ceiling:.0%}",
            ]
        )
    return rows


def aligned(rows: Sequence[Row]) -> str:
    """Columns padded to their widest cell; the first to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "-" * max(len(line) for line in lines))
    return "\n".join(lines)


def markdown(rows: Sequence[Row]) -> str:
    """The same rows as a Markdown table."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, "| --- |" + " ---: |" * (len(rows[0]) - 1))
    return "\n".join(lines)


def heading(results: Results) -> str:
    """One line on the machine and what was run."""
    machine = results.machine
    versions = ", ".join(
        f"{name} {version}"
        for backend in BACKENDS
        for name, version in list(results.versions.get(backend, {}).items())[:1]
    )
    line = (
        f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}; best of several "
        f"repeats in {machine['rounds']} alternating round(s); {versions}. 1M rows; tianshou: 20k."
    )
    return f"{line} QUICK RUN: small buffers." if machine["quick"] else line


def whole(results: Results, render: Render) -> str:
    """Every section that was measured."""
    parts = [heading(results)]
    if results.cases:
        parts.append(render(case_rows(results)))
    if results.growth:
        parts.append("Write 16 rows, then draw 32 slices of 32, as the buffer grows:")
        parts += [render(rows) for rows in growth_rows(results)]
    if results.shared:
        parts.append("Appending from another process to shared memory, after the first lap:")
        parts.append(render(shared_rows(results)))
    return "\n\n".join(parts)


def notes(results: Results) -> str:
    """Why cases failed, one line each."""
    return "\n".join(
        f"{backend}, {case}: {why}"
        for backend, cases in results.notes.items()
        for case, why in cases.items()
    )


def replaced(page: Path, name: str, tables: str, text: str | None = None) -> str:
    """A page's text, or `text`, with other tables between a name's markers.

    Raises:
        ValueError: the markers are not both there.
    """
    text = page.read_text() if text is None else text
    opening, closing = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, begin, rest = text.partition(opening)
    _, end, after = rest.partition(closing)
    if not (begin and end):
        raise ValueError(f"{page.name} needs the lines {opening} and {closing}, in this order")
    return f"{before}{opening}\n\n{tables}\n\n{closing}{after}"
