"""`contig dashboard`, `contig top` and `contig serve --dashboard`, as they are typed."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager

import numpy as np
import pytest
import trustme

from contig import (
    DiskStorage,
    LazyTensorStorage,
    ReplayBuffer,
    Server,
    SharedStorage,
    TcpClient,
    TcpTransport,
)
from contig.cli.main import main
from tests.dashboard.pages import ask
from tests.processes import alive
from tests.waiting import WAIT_S, until

ROW = {"obs": np.float32(0), "next": {"reward": 0.0, "done": False}}
EXAMPLE = {
    "obs": {"shape": [], "dtype": "float32"},
    "next": {
        "reward": {"shape": [], "dtype": "float32"},
        "done": {"shape": [], "dtype": "bool"},
    },
}


def rows(n):
    return {"obs": np.arange(n), "next": {"reward": np.ones(n)}}


@pytest.fixture
def folder(tmp_path):
    with DiskStorage(tmp_path / "runs", 1000, example=ROW) as storage:
        for n in (3, 5, 7):
            storage.writer().extend_trajectory(rows(n), terminated=True)
    return tmp_path / "runs"


@contextmanager
def command(*args, lines=1, env=None):
    """A command that runs until the block ends: the process, and its first lines."""
    process = subprocess.Popen(
        [sys.executable, "-m", "contig.cli.main", *map(str, args)],
        stdout=subprocess.PIPE, text=True, env={**os.environ, **(env or {})},
    )  # fmt: skip
    try:
        yield process, [process.stdout.readline().strip() for _ in range(lines)]
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(WAIT_S)
        finally:
            process.kill()
            process.stdout.close()


def test_a_directory(folder):
    with command("dashboard", folder) as (process, (line,)):
        assert line.startswith(f"dashboard of {folder}: http://127.0.0.1:")
        url = line.rpartition(" ")[2]
        told = ask(url, "/api/tables/runs/episodes").json
        assert [e["steps"] for e in told["episodes"]] == [7, 5, 3]
        assert ask(url, "/").body.startswith(b"<!doctype html>")
    assert process.returncode == 0


def test_what_viewers_elsewhere_need(folder, tmp_path):
    (tmp_path / "token").write_text("s3cret\n")
    args = ("dashboard", folder, "--host", "0.0.0.0", "--token-file", tmp_path / "token")
    with command(*args) as (_, (line,)):
        url = line.rpartition(" ")[2].replace("0.0.0.0", "127.0.0.1")
        assert url.endswith("/?token=s3cret")
        assert ask(url, "/api/numbers").status == 401
        assert ask(url, "/api/numbers", authorization="Bearer s3cret").status == 200


def test_serve_with_a_dashboard(tmp_path):
    (tmp_path / "row.json").write_text(json.dumps(EXAMPLE))
    args = ("serve", "--example", tmp_path / "row.json", "--table", "online", "--dashboard", 0)
    with command(*args, lines=2) as (process, (listening, page)):
        port = int(listening.split()[2].rpartition(":")[2])
        url = page.removeprefix("dashboard on ")
        with TcpClient("127.0.0.1", port, table="online") as client:
            client.send_trajectory(rows(9), terminated=True)
            client.wait()
            told = ask(url, "/api/numbers").json
            assert told["tables"]["online"]["rows_in"] == 9
            assert [c["rows"] for c in told["clients"]] == [9]
            assert ask(url, "/api/tables/online/episodes/0").json["rows"] == 9
    assert process.returncode == 0
    with pytest.raises(ConnectionError):
        ask(url, "/api/numbers")


def test_serve_with_a_dashboard_for_others(tmp_path, capsys):
    """It is reached as clients reach the server: by TLS, with the token."""
    (tmp_path / "row.json").write_text(json.dumps(EXAMPLE))
    (tmp_path / "token").write_text("s3cret+&\n")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    plain = ("serve", "--example", tmp_path / "row.json", "--token-file", tmp_path / "token")
    args = (*plain, "--dashboard", 0, "--dashboard-host", "0.0.0.0")
    assert main([str(a) for a in args]) == 2
    assert "--dashboard-host 0.0.0.0: viewers would send the token" in capsys.readouterr().err
    tls = ("--tls", tmp_path / "cert.pem", tmp_path / "key.pem")
    with command(*args, *tls, lines=2) as (_, (_, page)):
        url = page.removeprefix("dashboard on ").replace("0.0.0.0", "127.0.0.1")
        assert url.startswith("https://")
        context = ssl.create_default_context()
        authority.configure_trust(context)
        asked = urllib.request.Request(f"{url}api/numbers")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(asked, context=context)
        asked.add_header("Authorization", "Bearer s3cret+&")
        with urllib.request.urlopen(asked, context=context) as answer:
            assert "default" in json.loads(answer.read())["tables"]
        with pytest.raises(OSError):  # nothing is said without it
            ask(url, "/api/numbers", authorization="Bearer s3cret+&")


def test_a_killed_process_leaves_no_page(tmp_path):
    (tmp_path / "row.json").write_text(json.dumps(EXAMPLE))
    args = ("serve", "--example", tmp_path / "row.json", "--dashboard", 0)
    with command(*args, lines=2) as (process, (_, page)):
        url = page.removeprefix("dashboard on ")
        assert ask(url, "/api/numbers").status == 200
        process.kill()
        process.wait(WAIT_S)

        def refused():
            try:
                ask(url, "/api/numbers")
            except ConnectionError:
                return True
            return False

        until(refused, "the page's process ends")
        assert not alive(process.pid)


def test_top_of_a_directory(folder, capsys):
    assert main(["top", str(folder), "--once", "--json", "--interval", "0.05"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["tables"]["runs"]["rows"] == 15
    assert told["tables"]["runs"]["rows_in_per_s"] == 0.0
    assert told["ages"]["runs"]["rows"]["count"] > 0


def test_top_of_tables_below_a_directory(folder, capsys):
    with DiskStorage(folder.parent / "demo", 1000, example=ROW) as storage:
        storage.writer().extend_trajectory(rows(4), terminated=True)
    args = ["top", str(folder.parent), "--once", "--json", "--interval", "0.05"]
    assert main(args) == 0
    told = json.loads(capsys.readouterr().out)
    assert {name: t["rows"] for name, t in told["tables"].items()} == {"demo": 4, "runs": 15}


def test_top_on_a_terminal(folder, capsys):
    assert main(["top", str(folder), "--once", "--interval", "0.05"]) == 0
    out = capsys.readouterr().out
    (heads,) = [line for line in out.splitlines() if "per insert" in line]
    (line,) = [line for line in out.splitlines() if line.split()[:1] == ["runs"]]
    assert heads.split()[:3] == ["table", "in/s", "out/s"]
    assert line.split()[:3] == ["runs", "0", "–"]
    assert max(map(len, (heads, line))) <= 80


def test_top_of_shared_memory(name, capsys):
    with SharedStorage(100, name, example=ROW) as storage:
        storage.writer().extend_trajectory(rows(25), terminated=True)
        assert main(["top", name, "--once", "--json", "--interval", "0.05"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["tables"][name]["fill"] == 0.25
        assert len(storage) == 25


def test_top_of_a_server_by_its_name(name, capsys):
    storage = SharedStorage(100, f"{name}-t", example=ROW)
    with storage, Server(buffer=ReplayBuffer(storage, batch_size=4), name=name):
        storage.writer().extend_trajectory(rows(5), terminated=True)
        assert main(["top", name, "--once", "--json", "--interval", "0.05"]) == 0
        assert json.loads(capsys.readouterr().out)["tables"]["default"]["rows"] == 5
    buffer = ReplayBuffer(LazyTensorStorage(100, example=ROW), batch_size=4)
    with Server(buffer=buffer, name=name):
        assert main(["top", name, "--once", "--json"]) == 2
        assert "no table in shared memory with a name" in capsys.readouterr().err


def test_top_of_a_server(capsys):
    buffer = ReplayBuffer(LazyTensorStorage(100, example=ROW), batch_size=4)
    with Server(tables={"online": buffer}, transport=TcpTransport()) as server:
        buffer.extend_trajectory(rows(50), terminated=True)
        where = f"127.0.0.1:{server.port}"
        args = ["top", where, "--table", "online", "--once", "--json", "--interval", "0.05"]
        assert main(args) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["tables"]["online"]["rows"] == 50 and told["clients"] == []
        assert main([*args, "--samples-per-s", "5"]) == 2
        assert "--samples-per-s: nothing is drawn" in capsys.readouterr().err
        assert main(["top", where, "--once", "--json", "--interval", "0.05"]) == 0  # all of them
        assert list(json.loads(capsys.readouterr().out)["tables"]) == ["online"]
        assert main(["top", where, "--once", "--table", "offline"]) == 2
        assert "no table 'offline'; this server has: online" in capsys.readouterr().err


def test_commands_that_cannot_be(folder, tmp_path, capsys):
    for args, said in (
        (["top", "no-such-name"], "no directory, no HOST:PORT, and no shared memory"),
        (["dashboard", "no-such-name"], "no directory, no HOST:PORT, and no shared memory"),
        (["dashboard", str(tmp_path / "none")], "none"),
        (["top", str(folder), "--table", "x"], "--table"),
        (["top", str(folder), "--interval", "0"], "--interval"),
        (["dashboard", str(folder), "--host", "0.0.0.0"], "give the dashboard a token"),
    ):
        assert main(args) == 2
        captured = capsys.readouterr()
        assert said in captured.err and len(captured.err.strip().splitlines()) == 1
        assert "Traceback" not in captured.err


def test_a_taken_port(folder, capsys):
    buffer = ReplayBuffer(LazyTensorStorage(100, example=ROW), batch_size=4)
    with buffer.dashboard() as page:
        assert main(["dashboard", str(folder), "--port", str(page.port)]) == 2
        assert f"cannot listen on 127.0.0.1:{page.port}" in capsys.readouterr().err
