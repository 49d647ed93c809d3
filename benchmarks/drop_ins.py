"""What the benchmarks of drop-ins found beside the originals: `results-adapters.json`, by library.

Each benchmark replaces its library's part, quick runs in `results-adapters-quick.json`; the page
`docs/benchmarks.md` shows the file as tables (`benchmarks.pages`).

    python -m benchmarks.drop_ins [--quick]

runs all of them, one after another, and fails if one does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.results import RECORD_HELP, describe_machine, rounded
from benchmarks.table import number

RESULTS = Path(__file__).with_name("results-adapters.json")
#: Libraries in the order of the page, and what measures each.
LIBRARIES = {
    "stable-baselines3": "adapters_sb3 --returns",
    "torchrl": "adapters_torchrl",
    "cleanrl": "adapters_cleanrl",
    "rsl-rl-lib": "adapters_rsl_rl",
    "skrl": "adapters_rsl_rl",
}

Sides = dict[str, float]
SIDES = ("contig", "original")


@dataclass
class Training:
    """One training on contig's class and on the original.

    Attributes:
        step: what a time is of.
        time_ms, memory_mb: by side: "contig", "original", or one that only contig has.
        buffer_us: of that time, what is spent in the buffer, where it was measured by itself.
        returns: by side, of each seed.
        note: what else is to be said.
    """

    step: str
    time_ms: Sides
    memory_mb: Sides = field(default_factory=dict)
    buffer_us: Sides = field(default_factory=dict)
    returns: dict[str, list[float]] = field(default_factory=dict)
    note: str = ""


@dataclass
class DropIn:
    """What was measured of a library's drop-in.

    Attributes:
        trainings: by name.
        lines: lines that change in a script, by what is changed.
        machine, versions: where, and of what.
    """

    trainings: dict[str, Training]
    lines: dict[str, int]
    machine: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def load(path: Path = RESULTS) -> dict[str, DropIn]:
    """What was recorded, by library; nothing if there is no file."""
    if not path.is_file():
        return {}
    out = {}
    for library, part in json.loads(path.read_text()).items():
        trainings = {name: Training(**x) for name, x in part.pop("trainings").items()}
        out[library] = DropIn(trainings, **part)
    return out


def record(library: str, found: DropIn) -> None:
    """Puts a library's part into the file of results."""
    known = load(RESULTS)
    found.machine = describe_machine(1, quick=False)
    packages = ("contig", "torch", *([] if library == "cleanrl" else [library]))
    found.versions = {name: version(name) for name in packages}
    known[library] = found
    ordered = {name: asdict(known[name]) for name in LIBRARIES if name in known}
    RESULTS.write_text(json.dumps(_rounded(ordered), indent=1) + "\n")


def _rounded(value: Any) -> Any:
    """`rounded`, in lists too."""
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return rounded(value)


# -- the page ---------------------------------------------------------------------------------


def whole(known: dict[str, DropIn], render: Any) -> str:
    """Tables of what was recorded, and the commands of what was not."""
    parts = []
    measured = {name: part for name, part in known.items() if part.trainings}
    if measured:
        parts = [heading(measured), render(cost_rows(measured))]
        returns = return_rows(measured)
        if len(returns) > 1:
            parts += ["Returns, the mean of the last episodes, by seed:", render(returns)]
        parts.append(render(line_rows(measured)))
    missing = [name for name in LIBRARIES if name not in measured]
    if missing:
        said = ", ".join(f"{name} (`python -m benchmarks.{LIBRARIES[name]}`)" for name in missing)
        parts.append(f"Not in the file of results yet: {said}.")
    return "\n\n".join(parts)


def heading(known: dict[str, DropIn]) -> str:
    """Machines and versions, each once."""
    machines, versions = set(), {}
    for part in known.values():
        m = part.machine
        quick = " (QUICK RUN: figures mean nothing)" if m["quick"] else ""
        machines.add(f"{m['cpu']}, {m['cores']} cores, Python {m['python']}{quick}")
        versions.update(part.versions)
    said = ", ".join(f"{name} {number}" for name, number in versions.items())
    return f"{'; '.join(sorted(machines))}; {said}."


def cost_rows(known: dict[str, DropIn]) -> list[list[str]]:
    """Time and memory of each training."""
    sides = [f"{unit}, {side}" for unit in ("ms", "us in the buffer", "MB") for side in SIDES]
    head = ["", "", *(x for i in (0, 2, 4) for x in (*sides[i : i + 2], ""))]
    rows = [head]
    for library, part in known.items():
        for name, training in part.trainings.items():
            title = f"{library}: {name}" + (f"; {training.note}" if training.note else "")
            measured = (training.time_ms, training.buffer_us, training.memory_mb)
            cells = [cell for found in measured for cell in _beside(found)]
            rows.append([title, training.step, *cells])
    return rows


def _beside(sides: Sides) -> list[str]:
    """Both sides' figures, and how many times contig's the original's is."""
    mine, other = (sides.get(side) for side in SIDES)
    shown = ["" if x is None else _digits(x) for x in (mine, other)]
    return [*shown, f"{other / mine:.2f}x" if mine and other else ""]


def _digits(value: float) -> str:
    return number(value) if value >= 1 else f"{value:.3f}"


def return_rows(known: dict[str, DropIn]) -> list[list[str]]:
    """Returns by seed, a row for each side."""
    found = [
        (f"{library}: {name}", side, values)
        for library, part in known.items()
        for name, training in part.trainings.items()
        for side, values in training.returns.items()
    ]
    seeds = max((len(values) for _, _, values in found), default=0)
    rows = [["", "", *(f"seed {i}" for i in range(seeds)), "mean"]] if found else [[]]
    for title, side, values in found:
        cells = [f"{x:.4g}" for x in values] + [""] * (seeds - len(values))
        rows.append([title, side, *cells, f"{sum(values) / len(values):.4g}"])
    return rows


def line_rows(known: dict[str, DropIn]) -> list[list[str]]:
    """Lines that change in a script."""
    rows = [["lines of a script that change", ""]]
    for library, part in known.items():
        rows += [[f"{library}: {what}", str(lines)] for what, lines in part.lines.items()]
    return rows


# -- all of them ------------------------------------------------------------------------------


def commands(more: list[str]) -> list[list[str]]:
    """Returns the arguments of python that measure each library once, with `more` behind them."""
    each = [said.split() for said in dict.fromkeys(LIBRARIES.values())]
    return [["-m", f"benchmarks.{module}", *options, *more] for module, *options in each]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only show that everything runs")
    parser.add_argument("--record", action="store_true", help=RECORD_HELP)
    args = parser.parse_args()
    failed = []
    more = [f"--{name}" for name in ("quick", "record") if getattr(args, name)]
    for command in commands(more):
        start = time.monotonic()
        # A process of its own: what one library leaves behind is not measured with the next.
        code = subprocess.call([sys.executable, *command], stdout=subprocess.DEVNULL)
        said = "done" if code == 0 else f"failed with {code}"
        minutes = (time.monotonic() - start) / 60
        print(f"{' '.join(command[1:])}: {said}, {minutes:.1f} minutes", file=sys.stderr)
        failed += [command[1]] if code else []
    if failed:
        sys.exit(f"no new figures of {', '.join(failed)}: what it printed says why")


if __name__ == "__main__":
    main()
