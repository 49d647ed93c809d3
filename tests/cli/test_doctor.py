"""`contig doctor`: what it finds, and what it removes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from contig import SharedStorage
from contig.cli.checkup import Checkup, Finding, size
from contig.cli.doctor import byte_count
from contig.cli.main import main

ROW = {"x": {"shape": [250], "dtype": "float32"}}  # 1000 bytes


def found(checkup: Checkup, name: str) -> Finding:
    return next(f for f in checkup.findings() if f.name == name)


def doctor(capsys: Any, *options: Any, status: int = 0) -> Any:
    assert main(["doctor", "--json", *map(str, options)]) == status
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] == (status == 0)
    return {check["name"]: check for check in told["checks"]}


def test_this_machine(capsys: Any) -> None:
    checks = doctor(capsys)
    names = {"versions", "native module", "memory", "shared memory", "locks", "file descriptors"}
    assert names | {"huge pages", "leftovers"} == set(checks)
    assert "contig 0.1.0" in checks["versions"]["found"]
    assert checks["native module"]["found"].endswith(".so")
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("ok     versions") and out.endswith("nothing is wrong\n")


def test_room_for_a_buffer(tmp_path: Path, capsys: Any) -> None:
    example = tmp_path / "row.json"
    example.write_text(json.dumps(ROW))
    checks = doctor(capsys, "--rows", 1000, "--example", example)
    assert "needs 976.6 KiB" in checks["shared memory"]["found"]
    checks = doctor(capsys, "--rows", 10**12, "--example", example, status=1)
    for name in ("memory", "shared memory"):
        assert checks[name]["status"] == "wrong" and checks[name]["remedy"]
    assert "--shm-size=" in checks["shared memory"]["remedy"]
    checks = doctor(capsys, "--bytes", "900T", status=1)
    assert "needs 900.0 TiB" in checks["memory"]["found"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--rows", "10"], "--rows has no effect without --example"),
        (["--example", "x.json"], "--example has no effect without --rows"),
        (["--rows", "10", "--example", "no.json"], "no.json: no such file or directory"),
        (["--bytes", "1G", "--rows", "10"], "give --bytes, or --rows and --example"),
    ],
)
def test_errors(options: list[str], reason: str, capsys: Any) -> None:
    assert main(["doctor", *options]) == 2
    assert capsys.readouterr().err == f"contig doctor: {reason}\n"


def test_bytes() -> None:
    assert [byte_count(t) for t in ("12", "2K", "1.5m", "8G", "1TiB")] == [
        12,
        2048,
        3 << 19,
        8 << 30,
        1 << 40,
    ]
    assert [size(n) for n in (12, 2048, 3 << 29)] == ["12 bytes", "2.0 KiB", "1.5 GiB"]
    assert main(["doctor", "--bytes", "many"]) == 2


def test_machines_that_lack_something(tmp_path: Path) -> None:
    nowhere = Checkup(shm=tmp_path / "shm", pages=tmp_path / "pages")
    assert found(nowhere, "shared memory").status == "wrong"
    assert found(nowhere, "huge pages").status == "note"
    for chosen, kernel, status in (
        ("always within_size [advise] never", (5, 10), "ok"),
        ("always [never]", (5, 10), "note"),
        ("always [never]", (6, 1), "ok"),
        ("always never [deny]", (6, 12), "note"),
    ):
        (tmp_path / "shmem_enabled").write_text(chosen)
        assert found(Checkup(pages=tmp_path, kernel=kernel), "huge pages").status == status


def test_a_native_module_that_is_broken(tmp_path: Path) -> None:
    """The one thing that is wrong is told, in spite of all that needs it."""
    code = """
        import sys
        sys.modules["contig._native"] = None
        from contig.cli.main import main
        raise SystemExit(main(["doctor"]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "WRONG  native module     it cannot be loaded" in done.stdout
    assert "Traceback" not in done.stderr


LEAVES = """
    import os, signal
    from contig import SharedStorage
    storage = SharedStorage(1000, name={name!r}, example={{"x": 1.0}})
    print("ready", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_leftovers(capsys: Any) -> None:
    """Of a process that was killed, and only of that."""
    name = f"doctor-{os.getpid()}"
    with SharedStorage(100, name=f"{name}-alive", example={"x": 1.0}):
        left = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(LEAVES.format(name=name))],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert left.returncode == -signal.SIGKILL, left.stderr
        ours, alive = Path(f"/dev/shm/contig-{name}"), Path(f"/dev/shm/contig-{name}-alive")
        assert ours.exists() and alive.exists()
        told = doctor(capsys)["leftovers"]
        assert told["status"] == "note" and "contig doctor --clean" in told["remedy"]
        assert ours.exists()  # a look changes nothing
        told = doctor(capsys, "--clean")["leftovers"]
        assert told["status"] == "ok" and "removed" in told["found"]
        assert not ours.exists() and alive.exists()
