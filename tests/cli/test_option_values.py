"""Every option of every command, with values that it cannot take: one line on stderr, and 2."""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import DiskStorage
from contig.cli.failure import warning_lines
from contig.cli.main import COMMANDS, main, parser_of

HUGE = "9" * 30
# Kinds of values, and those that none of the kind can take.
WHOLE = ("x", "1.5", "-1", "0", HUGE, "")
FROM_0 = ("x", "1.5", "-1", HUGE, "")
ANY_WHOLE = ("x", "1.5", HUGE, "")
NUMBER = ("x", "nan", "")
ABOVE_0 = (*NUMBER, "-1", "0", "inf", "1e300")
NOT_NEGATIVE = (*NUMBER, "-1")
PORT = ("x", "-1", "65536", HUGE, "")
TEXT = ("", " ")
READ = ("", "none", "dir", "binary", "secret")  # a file to be read
ROWS_FILE = (*READ, "empty", "list.json", "negative.json", "huge.json")
TOKEN = (*READ, "empty")
PICTURE = ("", "dir", "empty/x.png", "x", "x.nothing", "dir.png")
CHOICE = ("nothing", "")
PEM = ("none none", "dir dir", "empty empty", "none", " ")
NO_VALUE: tuple[str, ...] = ()  # flags

WATCHED = {
    "target": ("", "none", "none/x", "empty", "dir", "127.0.0.1:0", "127.0.0.1:65536"),
    "--table": ("", "a"),
    "--samples-per-s": (*NOT_NEGATIVE, "inf"),
    "--server-token-file": (*READ, "token"),
    "--server-tls": ("", "none", "ca.pem"),
}
# What comes before an option, so that nothing else is wrong.
BEFORE = {
    "demo": [],
    "serve": ["--example", "row.json"],
    "worker": ["127.0.0.1:1", "--env", "user:make_env", "--reconnect", "0"],
    "dashboard": ["tape"],
    "top": ["tape", "--once", "--interval", "0.01"],
    "inspect": ["tape"],
    "export": ["tape", "out", "--to", "lerobot"],
    "import": ["tape", "back"],
    "bench": ["--seconds", "0", "--rows", "1000"],
    "doctor": [],
}
WRONG: dict[str, dict[str, tuple[str, ...]]] = {
    "demo": {
        "--seconds": ABOVE_0,
        "--rows": WHOLE,
        "--actors": WHOLE,
        "--envs": WHOLE,
        "--capacity": (*WHOLE, "5"),
        "--seed": FROM_0,
        "--plot": PICTURE,
    },
    "serve": {
        "--config": (*READ, "list.json"),
        "--example": ROWS_FILE,
        "--table": TEXT,
        "--queue": WHOLE,
        "--capacity": WHOLE,
        "--disk": ("", "empty", "empty/x"),
        "--durable": NO_VALUE,
        "--sampler": CHOICE,
        "--slice-len": (*WHOLE, "8"),
        "--batch-size": WHOLE,
        "--samples-per-insert": ABOVE_0,
        "--min-size": (*WHOLE, "8"),
        "--no-share-next": NO_VALUE,
        "--stack": ("", "x", "x=", "=4", "x=none", "x=1:2:3", "nothing=4"),
        "--codecs": ("", "x", "x=", "=lz4", "x=none", "nothing=lz4"),
        "--host": ("", " ", "0.0.0.0", "nothing.invalid"),
        "--port": PORT,
        "--token-file": TOKEN,
        "--tls": PEM,
        "--metrics-port": PORT,
        "--max-frame": (*WHOLE, "10"),
        "--max-restarts": FROM_0,
        "--log-json": NO_VALUE,
        "--dashboard": PORT,
        "--dashboard-host": ("", " ", "127.0.0.1"),
        "--log-level": CHOICE,
    },
    "worker": {
        "server": ("", "here", "here:", ":1", "127.0.0.1:0", "127.0.0.1:65536", "here:x"),
        "--table": TEXT,
        "--token-file": TOKEN,
        "--tls": ("", "none", "dir", "empty"),
        "--env": ("", ":", "nothing:x", "json:", "json:nothing", "json:loads", "Nothing-v7",
                  "user:raises", "user:nothing", "user:exits", "broken:x", "wrong:x"),
        "--policy": ("", "x", "nothing:x", "json:nothing", "json:loads", "user:raises",
                     "user:nothing", "user:exits", "user:Policy", "broken:x", "wrong:x"),
        "--envs": WHOLE,
        "--processes": WHOLE,
        "--frames-per-batch": WHOLE,
        "--frames": ("x", "0", "-2", HUGE, ""),
        "--seed": FROM_0,
        "--reconnect": NOT_NEGATIVE,
        "--example": NO_VALUE,
        "--log-json": NO_VALUE,
    },
    "dashboard": {
        **WATCHED,
        "--host": ("", " ", "0.0.0.0"),
        "--port": PORT,
        "--token-file": TOKEN,
        "--tls": PEM,
    },
    "top": {
        **WATCHED,
        "--interval": ABOVE_0,
        "--once": NO_VALUE,
        "--json": NO_VALUE,
    },
    "inspect": {
        "path": ("", "none", "empty", "dir"),
        "--min-return": NUMBER,
        "--max-return": NUMBER,
        "--min-length": FROM_0,
        "--max-length": FROM_0,
        "--since": ("", "yesterday", "9d9", "-1d", "0001-01-01"),
        "--until": ("", "yesterday", "9d9", "-1d", "0001-01-01"),
        "--version": ANY_WHOLE,
        "--writer": ANY_WHOLE,
        "--limit": FROM_0,
        "--json": NO_VALUE,
        "--verify": NO_VALUE,
        "--repair": NO_VALUE,
        "--quiet": NO_VALUE,
        "--plot": PICTURE,
    },
    "export": {
        "path": ("", "none", "empty", "dir", "nothing://x"),
        "out": ("", "dir", "empty", "empty/x", "nothing://x"),
        "--to": CHOICE,
        "--drop": ("", "nothing"),
        "--fps": (*ABOVE_0, "1e9"),
        "--task": TEXT,
        "--robot-type": TEXT,
        "--video": TEXT,
        "--overwrite": NO_VALUE,
        "--quiet": NO_VALUE,
        "--json": NO_VALUE,
    },
    "import": {
        "source": ("", "none", "empty", "dir", "nothing://x", "file:///nothing/x.parquet"),
        "path": ("", "empty", "empty/x", "tape"),
        "--from": (*CHOICE, "parquet", "hdf5", "rlinf", "lerobot"),
        "--columns": ("", "obs", "=obs", "obs="),
        "--unverified": NO_VALUE,
        "--quiet": NO_VALUE,
        "--json": NO_VALUE,
    },
    "bench": {
        "--seconds": (*NOT_NEGATIVE, "inf"),
        "--rows": (*WHOLE, "999"),
        "--json": NO_VALUE,
        "--quiet": NO_VALUE,
    },
    "doctor": {
        "--rows": (*WHOLE, "5"),
        "--example": ROWS_FILE,
        "--bytes": ("", "x", "-1", "0", "8X", HUGE + "T"),
        "--clean": NO_VALUE,
        "--json": NO_VALUE,
    },
}  # fmt: skip

# Options that have no effect, or contradict others, though each of them alone is right.
IDLE = [
    "top tape --server-tls none",
    "top tape --server-token-file none",
    "top tape --table a",
    "top 127.0.0.1:1 --samples-per-s 3",
    "top 127.0.0.1:1 --table a --table a",
    "dashboard tape --server-tls none",
    "worker 127.0.0.1:1 --env user:make_env --example",
    "worker --env user:make_env --example --frames 4",
    "worker --env user:make_env --example --frames-per-batch 4",
    "worker --env user:make_env --example --processes 3",
    "worker --env user:make_env --example --tls",
    "worker --env user:make_env --example --table x",
    "worker --env user:make_env --example --token-file none",
    "worker --env user:make_env --example --seed 3",
    "worker --env user:make_env --example --reconnect 3",
    "worker --env user:make_env --example --log-json",
    "import tape back --unverified",
    "serve --example row.json --capacity 8 --samples-per-insert 1 --min-size 9",
    "serve --example row.json --capacity 8 --sampler slices --slice-len 9",
    "serve --example negative.json --disk new",
]

USER = """
import sys
from tests.cli.worked import make_env
def raises(): raise FloatingPointError("in two\\nlines")
def nothing(): return None
def exits(): sys.exit(3)
class Policy:
    def __call__(self, inputs): return inputs["nothing of the kind"]
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("options")
    leaf = {"dtype": "float32"}
    files = {
        "row.json": {"x": {"shape": [3], **leaf}},
        "list.json": [1],
        "negative.json": {"x": {"shape": [-4], **leaf}},
        "huge.json": {"x": {"shape": [10**20], **leaf}},
    }
    for name, content in files.items():
        (place / name).write_text(json.dumps(content))
    texts = {"empty": "", "token": "word", "secret": "word", "user.py": USER}
    for name, text in {**texts, "broken.py": "1 / 0", "wrong.py": "def (", "ca.pem": "x"}.items():
        (place / name).write_text(text)
    (place / "binary").write_bytes(b"\xff\xfe\x00")
    (place / "secret").chmod(0)
    for name in ("dir", "dir.png"):
        (place / name).mkdir()
    with DiskStorage(place / "tape", example={"x": 1.0, "next": {"done": False}}) as storage:
        storage.writer().extend({"x": np.ones(2), "next": {"done": np.array([False, True])}})
    return place


@pytest.fixture(autouse=True)
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))
    for variable in ("CONTIG_TOKEN", "CONTIG_DASHBOARD_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    return iter(())


def actions(command: str) -> list[argparse.Action]:
    parser, _ = parser_of(command)
    (commands,) = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return list(commands.choices[command]._actions)


def words(command: str, option: str, value: str) -> list[str]:
    """The command with this value, in place of whatever it had."""
    before = list(BEFORE[command])
    if command == "worker" and option in ("--env", "--policy"):  # before any server is asked
        before = ["--example", "--env", "user:make_env"]
    if not option.startswith("--"):
        at = 1 if (command, option) in (("export", "out"), ("import", "path")) else 0
        before[at] = value
        return [command, *before]
    while option in before:
        at = before.index(option)
        del before[at : at + 2]
    if command == "doctor" and option in ("--rows", "--example") and value not in ("", "5"):
        before += ["--rows", "5"] if option == "--example" else ["--example", "row.json"]
    if option == "--server-tls" and value == "none":
        before[0] = "127.0.0.1:1"
    return [command, *before, option, *(value.split(" ") if option == "--tls" else [value])]


CASES = [(c, o, v) for c, options in WRONG.items() for o, values in options.items() for v in values]


def refused(given: list[str], capfd: Any) -> str:
    status = main(given)
    out, err = capfd.readouterr()
    assert (status, out) == (2, ""), (status, out, err)
    assert err.startswith(f"contig {given[0]}: ") and err.count("\n") == 1, err
    assert "Traceback" not in err and "unexpected" not in err, err
    return str(err)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_table_has_every_option(command: str) -> None:
    names = {a.option_strings[-1] if a.option_strings else a.dest for a in actions(command)}
    assert names - {"--help", "--traceback"} == WRONG[command].keys()


@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_values_are_one_line(command: str, capfd: Any) -> None:
    for of, option, value in CASES:
        if of != command or (value == "secret" and os.geteuid() == 0):  # root reads everything
            continue
        given = words(command, option, value)
        try:
            refused(given, capfd)
        except BaseException as error:
            raise AssertionError(f"contig {' '.join(given)}: {error}") from error


@pytest.mark.parametrize("line", IDLE)
def test_what_has_no_effect_is_refused(line: str, capfd: Any) -> None:
    refused(line.split(), capfd)


@pytest.mark.parametrize("given", [[], ["nothing"], ["--nothing"], ["serve", "--nothing"], ["top"]])
def test_mistyped_words_are_one_line(given: list[str], capfd: Any) -> None:
    assert main(given) == 2
    err = capfd.readouterr().err
    assert err.startswith("contig") and err.count("\n") == 1 and "--help" in err, err


def test_what_users_code_raises(capfd: Any) -> None:
    """Which callable, and what it raised; with --traceback all of it."""
    given = ["worker", "--example", "--env", "user:make_env", "--policy", "user:Policy"]
    err = refused(given, capfd)
    assert "--env user:make_env --policy user:Policy: KeyError: " in err
    assert "in Policy.__call__ (user.py, line 8)" in err
    err = refused(["worker", "--example", "--env", "user:raises"], capfd)
    assert "--env user:raises: FloatingPointError: in two lines, in raises (user.py, line 4)" in err
    assert main([*given, "--traceback"]) == 2
    err = capfd.readouterr().err
    assert "Traceback (most recent call last)" in err and "nothing of the kind" in err
    assert err.splitlines()[-1].startswith("contig worker: --env user:make_env")


def test_what_nobody_expected_is_one_line(capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contig.cli.doctor.Checkup", lambda *_: 1 / 0)
    assert main(["doctor"]) == 2
    said = "unexpected: ZeroDivisionError: division by zero; --traceback shows where"
    assert capfd.readouterr().err == f"contig doctor: {said}\n"
    assert main(["doctor", "--traceback"]) == 2
    assert "Traceback" in capfd.readouterr().err


def test_warnings_are_one_line() -> None:
    with warning_lines("contig serve"):
        shown = warnings.formatwarning("too\nlarge", RuntimeWarning, "x.py", 3)
    assert shown == "contig serve: too large\n"


def test_repairs_beside_json(capfd: Any) -> None:
    assert main(["inspect", "tape", "--repair", "--json", "--quiet"]) == 0
    out, err = capfd.readouterr()
    assert [json.loads(line)["id"] for line in out.splitlines()] == [0]
    assert err == "nothing is damaged\n"


def test_defaults_of_0_are_shown(capfd: Any) -> None:
    with pytest.raises(SystemExit):
        main(["dashboard", "--help"])
    assert "0: any free one (default: 0)" in " ".join(capfd.readouterr().out.split())
