"""Source distributions of other projects, which may have the tests that wheels leave out."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

__all__ = ["fetched"]

FOLDER = Path(__file__).resolve().parents[1] / "build" / "suites"


def fetched(project: str) -> Path:
    """The unpacked source distribution of the version that is installed here; from pip's index, if
    it is not in `build/suites` already.

    Raises:
        RuntimeError: pip cannot get it.
    """
    wanted = f"{project}=={version(project)}"
    place = FOLDER / wanted
    if not place.is_dir():
        incoming = FOLDER / f"{wanted}.incoming"
        incoming.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--no-binary", ":all:", "--dest", str(incoming), wanted]
        if subprocess.run(command, check=False).returncode:
            raise RuntimeError(f"{wanted}: pip cannot get its source distribution; see above")
        (archive,) = incoming.glob("*.tar.gz")
        with tarfile.open(archive) as opened:
            opened.extractall(incoming, filter="data")
        archive.unlink()
        incoming.rename(place)  # whole, or not there
    (source,) = (x for x in place.iterdir() if x.is_dir())
    return source
