"""Build the sdist and the wheel, and install them where nothing else is.

    python tools/check_dist.py [PYTHON ...]     default: every supported Python that is found

The wheel is built from the sdist, so that nothing is missing there. `twine check` reads both. Then,
for each Python, a fresh virtual environment gets the wheel if it fits, else the sdist, which is
compiled; in an empty directory it imports contig, stores and samples rows, and runs the command.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    subprocess.run([str(part) for part in command], cwd=cwd, check=True)


def supported() -> list[str]:
    """Versions that the classifiers name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = (line.rsplit(" ", 1)[1] for line in project["classifiers"])
    return [version for version in named if version.startswith("3.")]


def interpreters() -> list[Path]:
    """One of each supported version, from the path or from pyenv."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = []
    for version in supported():
        here = [*sorted(kept.glob(f"{version}.*/bin/python")), shutil.which(f"python{version}")]
        found += [Path(path) for path in here if path is not None][:1]
    return found


def build(out: Path) -> tuple[Path, Path]:
    """The sdist and the wheel, checked."""
    run(sys.executable, "-m", "build", "--outdir", out)
    run(sys.executable, "-m", "twine", "check", "--strict", *out.iterdir())
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    check_contents(sdist, wheel)
    return sdist, wheel


def check_contents(sdist: Path, wheel: Path) -> None:
    """What must be in there, and what must not."""
    packed = zipfile.ZipFile(wheel).namelist()
    for name in ("contig/__init__.py", "contig/py.typed", "contig/_native.pyi"):
        assert name in packed, f"{wheel.name} lacks {name}"
    assert any(n.startswith("contig/_native.") and n.endswith((".so", ".pyd")) for n in packed), (
        f"{wheel.name} lacks the native module"
    )
    strays = [n for n in packed if not n.startswith(("contig/", "contig-"))]
    assert not strays, f"{wheel.name} has {strays[:3]}"
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml"):
        assert name in inside, f"{sdist.name} lacks {name}"
    assert not any(".so" in Path(name).suffixes for name in inside), f"{sdist.name} has binaries"


def fits(wheel: Path, python: Path) -> bool:
    code = "import sys; print(f'cp{sys.version_info.major}{sys.version_info.minor}')"
    tag = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout
    return f"-{tag.strip()}-" in wheel.name


def install(python: Path, package: Path) -> None:
    """Into a fresh environment, and try it there."""
    with tempfile.TemporaryDirectory(prefix="contig-dist-") as name:
        place = Path(name)
        run(python, "-m", "venv", place / "venv")
        scripts = place / "venv" / ("Scripts" if os.name == "nt" else "bin")
        inside = scripts / "python"
        pip = (inside, "-m", "pip", "--disable-pip-version-check")
        run(*pip, "install", "--quiet", package, cwd=place)
        run(*pip, "check", cwd=place)
        run(inside, "-I", ROOT / "tools" / "smoke.py", cwd=place)
        run(scripts / "contig", "--help", cwd=place)


def main() -> int:
    parser = argparse.ArgumentParser(description="Build, check and install the distributions.")
    parser.add_argument("pythons", nargs="*", type=Path, help="default: every supported one")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    arguments = parser.parse_args()
    shutil.rmtree(arguments.out, ignore_errors=True)
    sdist, wheel = build(arguments.out)
    pythons = arguments.pythons or interpreters()
    if not pythons:
        print(f"none of Python {', '.join(supported())} was found: name one", file=sys.stderr)
        return 1
    for python in pythons:
        package = wheel if fits(wheel, python) else sdist
        print(f"== {python}: {package.name}", flush=True)
        install(python, package)
    return 0


if __name__ == "__main__":
    sys.exit(main())
