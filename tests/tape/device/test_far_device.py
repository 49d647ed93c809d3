"""A device whose memory the host cannot touch: no code of the host does, and copies are ordered.

It is a torch backend of its own (`far_device.cpp`), built once per session; each test is a process
(`far_side.py`), which dies where host code reads or writes the device's memory.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.timeout(300)  # the first one builds it: 10 s, or as long as others take
HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built backend."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++ to build the far device with")
    place = Path(torch.__file__).parent
    built = tmp_path_factory.mktemp("far") / "far_device.so"
    headers = [place / "include", place / "include" / "torch" / "csrc" / "api" / "include"]
    subprocess.run(
        [
            *(compiler, "-std=c++20", "-O0", "-w", "-fPIC", "-shared", HERE / "far_device.cpp"),
            *(f"-I{x}" for x in headers),
            *(f"-L{place / 'lib'}", "-ltorch_cpu", "-lc10", "-o", built),
        ],
        check=True,
    )
    return built


def run(library: Path, name: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.tape.device.far_side", str(library), name]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_check_itself(library: Path) -> None:
    assert run(library, "touch").returncode == -signal.SIGSEGV


@pytest.mark.parametrize("name", ["storage", "odd", "batches", "rollouts", "streams"])
def test_the_host_never_touches_it(library: Path, name: str) -> None:
    done = run(library, name)
    assert done.returncode == 0, done.stdout + done.stderr
