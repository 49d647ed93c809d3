"""``python -m contig``: the ``contig`` command."""

from __future__ import annotations

from .cli.main import command

if __name__ == "__main__":
    raise SystemExit(command())
