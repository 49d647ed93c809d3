"""The table of commands: help, versions, exit statuses, and errors in one line for each of them."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contig
from contig import DiskStorage, Server, TcpTransport
from contig.cli.main import COMMANDS, main

ROW = {"x": {"shape": [3], "dtype": "float32"}}


def command(*words: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "contig", *map(str, words)],
        capture_output=True, text=True, check=False, timeout=100, **options,
    )  # fmt: skip


def test_version() -> None:
    done = command("--version")
    assert (done.returncode, done.stdout) == (0, f"contig {contig.__version__}\n")


def test_it_loads_what_is_used_only() -> None:
    code = (
        "import sys; from contig.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "loaded = {'numpy', 'torch', 'contig._native', 'contig.cli.serve'} & set(sys.modules)\n"
        "raise SystemExit(bool(loaded))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    for name in COMMANDS:
        assert re.search(rf"^    {name}\s", done.stdout, re.M)
    assert "exit status:" in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_help(name: str, capsys: Any) -> None:
    """Defaults and an example each."""
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert f"contig {name} " in out.split("examples:")[1]
    assert "exit status:" in out
    if name not in ("export", "import", "doctor"):  # all of theirs are given, or not
        assert "(default: " in out


def test_every_option_has_help(capsys: Any) -> None:
    for name in COMMANDS:
        with pytest.raises(SystemExit):
            main([name, "--help"])
        out = capsys.readouterr().out
        lines = out.splitlines()
        for i, line in enumerate(lines):
            if found := re.match(r"  (-[-\w, ]+\S*)(?: [A-Z{\[].*)?$", line):
                after = lines[i + 1] if i + 1 < len(lines) else ""
                explained = "  " in line.strip() or after.startswith(" " * 20)
                assert explained, f"contig {name}: {found[1]} has no help"


# -- errors --------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "row.json").write_text(json.dumps(ROW))
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "empty").write_text("")
    with DiskStorage("tape", example={"x": 1.0, "next": {"done": False}}) as storage:
        storage.writer().extend({"x": np.ones(2), "next": {"done": np.array([False, True])}})
    return tmp_path


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock.getsockname()[1]


SERVE = ["serve", "--example", "row.json"]
WORK = ["worker", "127.0.0.1:1", "--reconnect", "0"]
ERRORS = [
    (["serve"], "nothing says what a row is: give --example"),
    (["serve", "--example", "none.json"], "none.json: no such file or directory"),
    (["serve", "--example", "bad.json"], "bad.json: not JSON"),
    ([*SERVE, "--table", "a", "--table", "b", "--table", "a"], "--table a is given twice"),
    ([*SERVE, "--durable"], "--durable needs --disk"),
    ([*SERVE, "--slice-len", "8"], "--slice-len needs --sampler slices"),
    ([*SERVE, "--min-size", "8"], "--min-size needs --samples-per-insert"),
    ([*SERVE, "--queue", "4", "--capacity", "8"], "--capacity has no effect with --queue"),
    ([*SERVE, "--queue", "4", "--table", "a"], "give --queue or tables (--table), not both"),
    ([*SERVE, "--disk", "d", "--max-restarts", "1"], "--max-restarts has no effect with --disk"),
    ([*SERVE, "--capacity", "0"], "--capacity: expected a whole number from 1"),
    ([*SERVE, "--host", "0.0.0.0"], "give a token"),
    ([*SERVE, "--token-file", "empty"], "there is no token in it"),
    ([*SERVE, "--tls", "none.pem", "none.key"], "none.pem"),
    ([*SERVE, "--port", "{taken}"], "port {taken} of 127.0.0.1: address already in use"),
    ([*SERVE, "--metrics-port", "{taken}"], "metrics_port {taken} of 127.0.0.1: address already"),
    (["serve", "--config", "none.toml"], "none.toml: no such file or directory"),
    (["worker", "--env", "CartPole-v1"], "which server?"),
    ([*WORK, "--env", "nothing:make"], "--env nothing:make: No module named 'nothing'"),
    ([*WORK, "--env", "json:nothing"], "--env json:nothing: json has no nothing"),
    ([*WORK, "--env", ":x"], "expected an import path"),
    ([*WORK, "--env", "CartPole-v1", "--policy", "x"], "--policy x: expected an import path"),
    ([*WORK, "--env", "CartPole-v1", "--envs", "0"], "--envs: expected a whole number from 1"),
    ([*WORK, "--env", "Nothing-v7"], "--env Nothing-v7: Environment `Nothing` doesn't exist"),
    ([*WORK, "--env", "CartPole-v1", "--token-file", "none"], "none: no such file or directory"),
    ([*WORK, "--env", "CartPole-v1"], "no contig server at 127.0.0.1:1"),
    (["inspect", "none"], "none"),
    (["inspect", "empty"], "empty"),
    (["export", "none", "out.parquet"], "none"),
    (["export", "tape", "out"], "say which format with --to"),
    (["export", "tape", "out.parquet", "--fps", "3"], "--fps: only --to lerobot has it"),
    (["export", "tape", "out.parquet", "--overwrite"], "--overwrite is for urls"),
    (["import", "none.parquet", "back"], "no such file or directory"),
    (["import", "empty", "back"], "say which format with --from"),
]


@pytest.mark.parametrize(("words", "reason"), ERRORS, ids=lambda x: " ".join(x)[:50])
def test_errors_are_one_line(
    words: list[str], reason: str, place: Path, taken: int, capfd: Any
) -> None:
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    status = main([w.format(taken=taken) for w in words])
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == before
    assert not logging.getLogger("contig").handlers
    out, err = capfd.readouterr()
    assert status == 2 and out == ""
    assert err.startswith(f"contig {words[0]}: "), err
    assert reason.format(taken=taken) in err and err.count("\n") == 1, err


def test_a_worker_whose_rows_are_others(place: Path, capfd: Any) -> None:
    item = {"x": np.zeros(3, np.float32)}
    with Server(item, 4, TcpTransport()) as server:
        assert main(["worker", f"127.0.0.1:{server.port}", "--env", "CartPole-v1"]) == 2
    err = capfd.readouterr().err
    assert err.startswith("contig worker: ") and "action" in err and err.count("\n") == 1


def test_json_of_exports_and_imports(place: Path, capsys: Any) -> None:
    assert main(["export", "tape", "out.parquet", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "out": "out.parquet",
        "format": "parquet",
        "trajectories": 1,
        "rows": 2,
        "left_out": 0,
        "unread": [],
    }
    assert main(["import", "out.parquet", "back", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"path": "back", "trajectories": 1, "before": 0}


def test_output_that_nobody_reads() -> None:
    done = subprocess.run(
        f"{sys.executable} -m contig bench --seconds 0.01 --rows 1000 | true",
        shell=True, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert "Traceback" not in done.stderr


def test_bars_of_inspect(place: Path) -> None:
    """Reading every row takes long: it is shown, on a terminal, unless it is to be quiet."""
    for option in ("--verify", "--repair"):
        for quiet in ([], ["--quiet"]):
            ours, theirs = pty.openpty()
            done = subprocess.run(
                [sys.executable, "-m", "contig", "inspect", "tape", option, *quiet],
                stderr=theirs, stdout=subprocess.DEVNULL, check=False, timeout=60,
            )  # fmt: skip
            os.write(theirs, b"end\n")  # so that there is something to read
            os.close(theirs)
            shown = os.read(ours, 65536).decode()
            os.close(ours)
            assert done.returncode == 0, shown
            assert ("2 of 2 rows" in shown) == (not quiet), shown
