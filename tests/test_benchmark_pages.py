"""Tables, charts and figures of the documentation are those of the stored results."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from benchmarks.charts import bars, lines
from benchmarks.pages import ROOT, files

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
