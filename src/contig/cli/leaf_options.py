"""What ``contig serve`` is told of a table's leaves: which are stored once, which are encoded.

--stack observation=4 --codecs pixels=zstd        a leaf below others: camera.pixels=zstd

[tables.online]
stack = {observation = 4}                         or [4, -1]: frames in the last axis
codecs = {camera = {pixels = "zstd"}}
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from ..tape import Storage
from ..tree import Path, show_path

__all__ = ["ByLeaf", "by_leaf", "check_stored", "codec_of", "stack_of"]

ByLeaf = dict[Path, Any]


def by_leaf(given: Mapping[str, Any], path: Path = ()) -> ByLeaf:
    """What a TOML table says of leaves, by their paths."""
    out: ByLeaf = {}
    for key, value in given.items():
        here = (*path, key)
        out |= by_leaf(value, here) if isinstance(value, Mapping) else {here: value}
    return out


def stack_of(text: str) -> tuple[Path, Any]:
    """`LEAF=FRAMES` or `LEAF=FRAMES:AXIS`, of the command line."""
    leaf, _, said = text.partition("=")
    try:
        frames, *axis = (int(x) for x in said.split(":"))
        if not leaf or len(axis) > 1:
            raise ValueError
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected LEAF=FRAMES, as in observation=4, or observation=4:-1 for frames "
            "in the last axis"
        ) from None
    return tuple(leaf.split(".")), (frames, axis[0]) if axis else frames


def codec_of(text: str) -> tuple[Path, str]:
    """`LEAF=CODEC`, of the command line."""
    leaf, _, name = text.partition("=")
    if not leaf or not name:
        raise argparse.ArgumentTypeError(f"{text!r}: expected LEAF=CODEC, as in pixels=zstd")
    return tuple(leaf.split(".")), name


def check_stored(
    storage: Storage, share_next: bool | None, stack: ByLeaf | None, spell: Callable[[str], str]
) -> None:
    """Raises ValueError if rows are not stored as it was said; `spell`: an option as it is given.
    The storage has a layout."""
    assert storage.schema is not None
    sharing = storage.schema.sharing
    frames = {} if sharing is None else {x.path: x.frames for x in sharing.leaves}
    for path, said in (stack or {}).items():
        wanted = said[0] if isinstance(said, (list, tuple)) else said
        if frames.get(path, 1) != wanted:
            raise ValueError(
                f"{spell('stack')} has no effect on {show_path(path)}: the rows that are there "
                "already are stored in another way; leave it out, or give another place"
            )
    if share_next is False and sharing is not None:
        raise ValueError(
            f"{spell('share_next')} has no effect: the rows that are there already have theirs "
            "once; leave it out, or give another place"
        )
    if share_next and (sharing is None or not sharing.paired):
        raise ValueError(
            f"{spell('share_next')} has no effect: no leaf of 8 bytes or more is at the root and "
            "below next, too, or the rows that are there already are whole"
        )
