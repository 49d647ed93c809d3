"""Tables, charts and figures of the documentation are those of the stored results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import drop_ins
from benchmarks.charts import bars, lines
from benchmarks.pages import ROOT, files
from benchmarks.table import markdown

FILES = files()


@pytest.mark.parametrize("path", FILES, ids=str)
def test_pages_say_what_the_results_say(path: object) -> None:
    hint = "run `python -m benchmarks.pages` after measuring"
    assert (ROOT / str(path)).read_text() == FILES[path], hint  # type: ignore[index]


def svg(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


NAMESPACE = "{http://www.w3.org/2000/svg}"


def test_bars_are_as_long_as_their_logarithms() -> None:
    root = svg(bars("t", {"a": {"x": 10.0, "y": 100.0}, "b": {"x": 1000.0}}, ["x", "y"]))
    drawn = [
        r for r in root.iter(f"{NAMESPACE}rect") if r.get("height") == "11" and r.get("y") != "34"
    ]
    widths = [float(r.get("width", "0")) for r in drawn]
    assert len(widths) == 3
    assert widths[0] < 3  # at the axis' end, and still there
    assert widths[2] == pytest.approx(2 * widths[1], rel=0.01)


def test_lines_start_at_zero() -> None:
    root = svg(lines("t", {"a": {10.0: 5.0, 1000.0: 10.0}}))
    (line,) = root.iter(f"{NAMESPACE}polyline")
    (_, low), (_, high) = (map(float, p.split(",")) for p in line.get("points", "").split())
    assert (292 - high) == pytest.approx(2 * (292 - low), rel=0.01)


def test_text_is_escaped() -> None:
    assert "&lt;b&gt;" in bars("<b>", {"a": {"x": 1.0, "y": 2.0}}, ["x", "y"])


SIDES = {"contig": 1.0, "original": 2.5}
IN_BUFFER = {"contig": 20.0, "original": 50.0}


def test_drop_ins_are_recorded_by_library_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drop_ins, "RESULTS", tmp_path / "results-adapters.json")
    returns = {"contig": [1.0, 2.0], "original": [1.0, 3.0]}
    first = drop_ins.DropIn(
        {"DQN": drop_ins.Training("step", SIDES, SIDES, IN_BUFFER, returns)}, {"all": 2}
    )
    again = drop_ins.DropIn({"PPO": drop_ins.Training("update", SIDES, note="equal")}, {"one": 1})
    drop_ins.record("skrl", again)
    drop_ins.record("stable-baselines3", first)
    drop_ins.record("skrl", again)
    known = drop_ins.load(drop_ins.RESULTS)
    assert list(known) == ["stable-baselines3", "skrl"]  # in the order of the page
    assert known["stable-baselines3"].trainings == first.trainings
    text = drop_ins.whole(known, markdown)
    assert "| | | ms, contig | ms, original | | us in the buffer, contig |" in text.replace(
        "  ", " "
    )
    both = "1.00 | 2.50 | 2.50x"
    assert f"| stable-baselines3: DQN | step | {both} | 20.0 | 50.0 | 2.50x | {both} |" in text
    assert f"| skrl: PPO; equal | update | {both} |  |  |  |  |  |  |" in text
    assert "| stable-baselines3: DQN | original | 1 | 3 | 2 |" in text
    assert "| skrl: one | 1 |" in text
    assert (
        "Not in the file of results yet: torchrl (`python -m benchmarks.adapters_torchrl`)" in text
    )


def test_without_results_the_page_says_how_to_get_them(tmp_path: Path) -> None:
    text = drop_ins.whole(drop_ins.load(tmp_path / "none.json"), markdown)
    assert text.startswith("Not in the file of results yet: stable-baselines3") and "|" not in text


def test_one_command_measures_every_drop_in_once() -> None:
    found = drop_ins.commands(["--quick"])
    modules = [command[1] for command in found]
    assert len(modules) == len(set(modules)) and all(c[-1] == "--quick" for c in found)
    root = Path(drop_ins.__file__).parents[1]
    assert all((root / f"{module.replace('.', '/')}.py").is_file() for module in modules)
    assert {said.split()[0] for said in drop_ins.LIBRARIES.values()} == {
        module.removeprefix("benchmarks.") for module in modules
    }


def test_measuring_changes_no_recorded_file(tmp_path: Path) -> None:
    """A run without --record leaves the file of results as it was."""
    root = Path(drop_ins.__file__).parents[1]
    results = [root / "benchmarks" / name for name in ("results.json", "ingest/results.json")]
    before = [path.read_bytes() for path in results]
    command = [sys.executable, "-m", "benchmarks.run", "--quick", "--only", "sample_256"]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "contig" in ended.stdout
    assert [path.read_bytes() for path in results] == before
