"""The rows of a checkpoint without a buffer: for those who read episodes of it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import LayoutError
from ..layout import Layout
from ..tape import Snapshot
from ..tape.disk import files
from ..tape.sharing import Sharing
from .checkpoint import META, read_contents, read_layouts, read_meta, verify
from .folder import reading
from .saved_bytes import BYTES_FILE
from .saved_once import SLOTS_FILE

__all__ = ["SavedRows", "is_checkpoint", "saved_rows"]

_PART_ROWS = 1 << 16  # of rows that are in one file


class SavedRows(NamedTuple):
    """What a checkpoint has of a tape.

    Attributes:
        fields: of trajectories.
        keys: `traj_key` and `end_key`.
        quarantine: trajectories that are damaged, by `id`, with the reason.
        rows_per_extent: rows of one file, or of what is best read at a time.
        stamp: of this checkpoint; another at the same path has another.
        nbytes: of its rows in files, with leaves of any size and what is stored once.
    """

    layout: Layout
    fields: Layout | None
    keys: tuple[object, object]
    contents: Snapshot
    quarantine: dict[int, str]
    rows_per_extent: int
    stamp: int
    nbytes: int

    def whole(self) -> Snapshot:
        """All that is not damaged."""
        ordinals = self.contents.ordinals()
        kept = ordinals[~np.isin(ordinals, list(self.quarantine))]
        return self.contents if len(kept) == len(ordinals) else self.contents.only(kept.tolist())


def is_checkpoint(path: Path) -> bool:
    """Whether a directory is a checkpoint of a ReplayBuffer, and no storage."""
    return files.is_file(path / META) and not files.exists(path / "layout.json")


@contextmanager
def saved_rows(path: Path, check: bool = True) -> Iterator[SavedRows]:
    """Opens a checkpoint; who saves over it waits meanwhile.

    Args:
        check: whether its files are compared with their checksums. Rows that are in extent files
            have their own, which are checked whenever they are read.

    Raises:
        FileNotFoundError: no checkpoint there, or not all of it.
        LayoutError: it is damaged.
    """
    with reading(path, META) as found:
        try:
            meta = read_meta(found)
            if check:
                verify(found, meta["files"])
            layout, fields = read_layouts(meta)
            linked = meta.get("extents")
            saved = SavedRows(
                layout,
                fields,
                (meta["keys"]["traj_key"], meta["keys"]["end_key"]),
                read_contents(found, meta, layout, fields),
                {int(o): str(reason) for o, reason in meta.get("quarantine", {}).items()},
                _PART_ROWS if linked is None else int(linked["rows_per_extent"]),
                zlib.crc32(files.read(found / META)),
                _nbytes(meta, layout),
            )
        except (FileNotFoundError, NotADirectoryError, LayoutError):
            raise
        except (KeyError, TypeError, ValueError, IndexError, OverflowError, OSError) as error:
            raise LayoutError(f"{path}: the checkpoint is damaged: {error!r}") from error
        yield saved


def _nbytes(meta: dict[str, Any], layout: Layout) -> int:
    rows, linked = int(meta["head"]) - int(meta["tail"]), meta.get("extents")
    if linked is not None:
        _, tail, head = linked.get("blobs") or (0, 0, 0)
        return rows * int(linked["stride"]) + int(head) - int(tail)
    each, shared = layout.record_size, meta.get("shared")
    if shared is not None:
        each = int(Sharing.from_json(shared).native(layout).row_bytes)
    more = (int(meta["files"].get(name, (0,))[0]) for name in (BYTES_FILE, SLOTS_FILE))
    return rows * each + sum(more)
