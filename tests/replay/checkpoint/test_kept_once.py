"""Checkpoints of the same rows, whose observations the storage had once, kept in `kept/once`: one
with whole rows, as contigs up to format 4 wrote it, and one that has them once, too.

Stacks of four frames at `obs`, and `state`, both also below next; some rows are not what their
names say: other NaNs, negative zeros, frames that do not move up.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import DiskStorage, LazyTensorStorage, ReplayBuffer
from contig.layout import Layout

from .buffers import read_meta

KEPT = Path(__file__).parent / "kept" / "once"
WHOLE = KEPT / "format-2"


def stored() -> dict[Any, bytes]:
    """The rows of the one that has them whole, read without contig's help."""
    meta = read_meta(WHOLE)
    layout = Layout.from_json(meta["layout"])
    records = np.fromfile(WHOLE / "records.bin", np.uint8).reshape(-1, layout.record_size)
    records = records[meta["tail"] - meta["file_first"] :]
    assert len(records) == meta["head"] - meta["tail"] == 30
    return {x.path: records[:, x.offset : x.offset + x.nbytes].tobytes() for x in layout.leaves}


@pytest.mark.parametrize("name", ["format-2", "format-5"])
@pytest.mark.parametrize("kind", ["memory", "told", "plain", "small", "disk"])
def test_kept(name: str, kind: str, tmp_path: Path) -> None:
    assert read_meta(KEPT / name)["format"] == int(name[-1])
    storages: dict[str, Any] = {
        "memory": lambda: LazyTensorStorage(30),
        "told": lambda: LazyTensorStorage(300, stack={"obs": 4}),
        "plain": lambda: LazyTensorStorage(30, share_next=False),
        "small": lambda: LazyTensorStorage(11),
        "disk": lambda: DiskStorage(tmp_path / "store", 30),
    }
    with storages[kind]() as storage:
        buffer = ReplayBuffer(storage)
        buffer.load(KEPT / name)
        batch, expected = buffer[:], stored()
        for leaf in storage.layout.leaves:
            found = np.ascontiguousarray(batch[leaf.path]).tobytes()
            assert found == expected[leaf.path][-len(found) :], leaf.path
            assert len(found) == (11 if kind == "small" else 30) * leaf.nbytes
        if name == "format-5" and kind != "plain":
            frames = {x.path: x.frames for x in storage.schema.sharing.leaves}
            assert frames == {("obs",): 4, ("state",): 1}
