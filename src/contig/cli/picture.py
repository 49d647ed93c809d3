"""Pictures that commands draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .failure import fail, one_line

__all__ = ["save_picture"]


def save_picture(figure: Any, path: Path) -> None:
    """Writes matplotlib's figure to a file, whose directory is made if it is not there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        fail(f"--plot {path}: {one_line(error)}")
