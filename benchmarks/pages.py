"""The stored results as pages: tables and charts of docs/benchmarks.md, figures of README.md.

    python -m benchmarks.pages

Reads `results.json`, `results-adapters.json` and `ingest/results.json`; measures nothing. A test
sees to it that the pages say what the files say.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeGuard

from benchmarks import drop_ins
from benchmarks.cases import BACKENDS, CASES, CONTIG, Value
from benchmarks.charts import bars, lines
from benchmarks.ingest import report
from benchmarks.results import Results
from benchmarks.table import markdown, replaced, whole

ROOT = Path(__file__).resolve().parents[1]
PAGE, README = Path("docs/benchmarks.md"), Path("README.md")
IMAGES = Path("docs/images")

_GROWTH = {
    "rows": "stored rows",
    "episodes": "episodes in 1M rows",
    "parts": "parts of a trajectory",
}
_ITEMS = {
    "sample": "24 B samples",
    "rollout": "1.6 kB rollouts",
    "frame": "28 kB frames",
    "frames": "452 kB rollouts",
}
#: Whose rows the tables have.
SIDES = {"raw", "echo", "contig", "learner"}
_SIDES = {"contig": "contig", "echo_tuned": "echo, tuned", "echo": "echo", "raw": "bare socket"}


def files(root: Path = ROOT) -> dict[Path, str]:
    """Every file that is made of results, by its path below `root`, with its text."""
    results = Results.load(root / "benchmarks" / "results.json")
    served = report.Results.load(root / "benchmarks" / "ingest" / "results.json")
    page = replaced(root / PAGE, "bench", whole(results, markdown))
    page = replaced(root / PAGE, "ingest", report.whole(served, SIDES, markdown), page)
    known = drop_ins.load(root / "benchmarks" / drop_ins.RESULTS.name)
    page = replaced(root / PAGE, "drop-ins", drop_ins.whole(known, markdown), page)
    return {
        PAGE: page,
        README: replaced(root / README, "figures", figures(results, served)),
        IMAGES / "bench-calls.svg": calls(results),
        IMAGES / "bench-growth.svg": growth(results),
        IMAGES / "bench-ingest.svg": items(served),
    }


def calls(results: Results) -> str:
    """Microseconds per call, of those that somebody else has too."""
    groups = {
        case.title: {
            name: value for name, value in results.cases[case.name].items() if _known(value)
        }
        for case in CASES
        if case.name in results.cases
    }
    groups = {title: row for title, row in groups.items() if len(row) > 1 and CONTIG in row}
    return bars("microseconds per call (logarithmic; less is better)", groups, BACKENDS)


def growth(results: Results) -> str:
    """Slices after a write, as the buffer grows."""
    curves = {
        _GROWTH[name]: {float(at): value for at, value in points.items()}
        for name, points in results.growth.items()
    }
    return lines("microseconds to write 16 rows and draw 32 slices of 32", curves)


def items(served: report.Results) -> str:
    """Items per second from one client."""
    groups = {
        title: {
            _SIDES[s]: v for s, v in served.rates[kind]["1"].items() if s in _SIDES and _known(v)
        }
        for kind, title in _ITEMS.items()
    }
    return bars(
        "items per second over TCP, one client (more is better)", groups, [*_SIDES.values()]
    )


def figures(results: Results, served: report.Results) -> str:
    """Four figures beside the best of the others."""
    rows = [["", "contig", "others, in the same run"]]
    named = {
        "sample_256": "sample 256 of a million rows",
        "write_then_slices": "write 16 rows, then draw 32 slices of 32",
        "priority_sample_256": "the same 256 rows, by priority",
    }
    for name, title in named.items():
        row = results.cases[name]
        others = sorted(
            (value, peer)
            for peer, value in row.items()
            if _known(value) and peer not in (CONTIG, "index_select")
        )
        rows.append([title, f"{row[CONTIG]:.0f} us", _listed(others)])
    rate = served.rates["sample"]["1"]
    rows.append(
        [
            "24-byte items over TCP, one client",
            f"{rate['contig'] / 1000:,.0f}k/s",
            f"echo {rate['echo_tuned'] / 1000:,.0f}k/s",
        ]
    )
    return markdown(rows)


def _known(value: Value) -> TypeGuard[float]:
    return isinstance(value, float)


def _listed(others: list[tuple[float, str]]) -> str:
    less = {"tianshou": " (of 20k)"}  # it takes one step at a time: its buffer is smaller
    return ", ".join(f"{peer}{less.get(peer, '')} {value:,.0f} us" for value, peer in others)


def main() -> None:
    for path, text in files().items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text)
        print(path)


if __name__ == "__main__":
    main()
