"""Observations that are not stored once on disk: it is said why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import DiskStorage
from tests.tape.disk.test_shared import episode, part


@pytest.mark.parametrize("kind", ("a codec", "any size"))
@pytest.mark.parametrize("how", ("rows", "example"))
def test_what_is_beside_leaves_of_any_size_is_logged(
    tmp_path: Path, kind: str, how: str, caplog: Any
) -> None:
    depth = np.zeros((5, 4, 4), np.uint8)
    rows = {**episode(0, 5), "note": [b"x" * n for n in range(5)] if kind == "any size" else depth}
    codecs = {"note": "zstd"} if kind == "a codec" else {}
    example = {**part(episode(0, 5), 0), "note": b"" if kind == "any size" else depth[0]}
    options = {"example": example} if how == "example" else {}
    with DiskStorage(tmp_path / "a", 100, codecs=codecs, **options) as disk:
        for _ in range(3):
            disk.default_writer.extend(rows)
        assert disk.schema.sharing is None
    with DiskStorage(tmp_path / "a", 100, codecs=codecs) as disk:
        disk.default_writer.extend(rows)
    (said,) = (x.getMessage() for x in caplog.records if x.name == "contig.disk")
    assert '"state": not stored once' in said and '("note" (' in said and "share_next=False" in said
    caplog.clear()
    with DiskStorage(tmp_path / "b", 100, codecs=codecs, share_next=False, **options) as disk:
        disk.default_writer.extend(rows)
    assert not [x for x in caplog.records if x.name == "contig.disk"]
