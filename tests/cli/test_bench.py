"""`contig bench`: figures that add up."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contig.cli.bench import measure
from contig.cli.main import main


def test_figures(capsys: Any) -> None:
    assert main(["bench", "--json", "--seconds", "0.01", "--rows", "2000"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["contig"] and told["rows"] == 2000
    names = [f["name"] for f in told["figures"]]
    assert [n.split()[0] for n in names] == ["append", "append", "sample", "sample", "sample"]
    for f in told["figures"]:
        assert f["rows_per_s"] > 0
        assert f["rows_per_s"] * f["us_per_call"] == pytest.approx(1e6 * f["rows"])
    assert main(["bench", "--seconds", "0.01", "--rows", "2000"]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 5 and "rows/s" in out


def test_every_call_counts() -> None:
    calls = []
    figure = measure("x", 3, lambda: calls.append(1), 0.001)
    assert figure.rows == 3 and len(calls) >= 6


def test_errors(capsys: Any) -> None:
    for options in (["--seconds", "-1"], ["--rows", "10"]):
        assert main(["bench", *options]) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"contig bench: {options[0]}") and err.count("\n") == 1
