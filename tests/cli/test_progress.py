"""Progress bars: rich's, one by hand, lines in a log."""

from __future__ import annotations

import io
import sys
import threading
from typing import Any

import pytest

from contig.cli import progress as module
from contig.cli.progress import Progress, watching


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def no_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rich", "rich.console", "rich.progress"):
        monkeypatch.setitem(sys.modules, name, None)


def test_by_hand(no_rich: None) -> None:
    stream = Terminal()
    progress = Progress(stream)
    for done in range(1, 5):
        progress(done, 4)
    progress.end()
    progress.end()
    last = stream.getvalue().split("\r")[-1]
    assert last == "[##############################] 4 of 4 trajectories, 0 s left \n"


def test_by_hand_without_a_total(no_rich: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REDRAW_S", 0.0)
    stream = Terminal()
    with Progress(stream, "rows") as progress:
        progress(1200, None)
    assert stream.getvalue() == "\r1,200 rows, 0 s \n"


def test_rich() -> None:
    stream = Terminal()
    with Progress(stream, "rows") as progress:
        progress(2, 4)
        progress(4, 4)
    assert "4 of 4 rows" in stream.getvalue()


def test_quiet_and_short() -> None:
    for quiet in (Progress(Terminal(), show=False), Progress(io.StringIO())):
        quiet(4, 4)
        quiet.end()
        stream: Any = quiet._stream
        assert quiet.done == 4 and stream.getvalue() == ""


def test_lines_in_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LINE_S", 0.0)
    stream = io.StringIO()
    with Progress(stream) as progress:
        progress(1, 2)
        progress(2, 2)
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("1 of 2 trajectories, ") and lines[1].startswith("2 of 2 ")


def test_watching(no_rich: None) -> None:
    seen = threading.Event()

    def count() -> int:
        seen.set()
        return 7

    progress = Progress(Terminal())
    with watching(progress, count):
        assert seen.wait(60)
    assert progress.done == 7
    with pytest.raises(OSError), watching(Progress(io.StringIO()), lambda: 1):
        raise OSError
