"""Which leaves with codecs are encoded where they are stored once, and which codecs cannot be."""

from __future__ import annotations

from collections.abc import Mapping

from ..codecs import Codec
from ..errors import LayoutError
from ..keys import NEXT
from ..layout import Layout
from ..tree import Path, show_path
from .sharing import shared_roots
from .stacks import Stacks

__all__ = ["encoded_once"]

_CODEC = "lz4"  # natively, as it is without a level


def encoded_once(
    layout: Layout,
    codecs: Mapping[Path, Codec],
    share_next: bool | None,
    stacks: Stacks | None,
    in_files: bool = False,
) -> set[Path]:
    """Leaves with codecs that are encoded where they are stored once, all or none: it was said that
    they are (`share_next=True`, or a stack), and all of them have lz4, at the root or also below
    `next`. Else they are encoded row by row, where rows are made, which the wire and checkpoints
    keep.

    Args:
        in_files: where nothing is encoded that is stored once.

    Raises:
        LayoutError: it was said of leaves whose codecs do not allow it.
    """
    if share_next is False or not (share_next or stacks) or not codecs:
        return set()
    roots, paired = shared_roots(layout, stacks)
    given = [x for root in roots for x in _places(root, paired) if x in codecs]
    names = {codecs[x].name if x in codecs else None for x in roots}
    names |= {codecs[x].name for x in given}
    if names == {_CODEC} and not in_files:
        return set(given)
    asked = roots if share_next else [x for x in roots if x in (stacks or {})]
    if any(x in codecs for root in asked for x in _places(root, paired)):
        said = "share_next=True" if share_next else "stack="
        raise LayoutError(_why_not(codecs, roots, given, said, in_files))
    return set()


def _places(root: Path, paired: bool) -> list[Path]:
    return [root, (*NEXT, *root)] if paired else [root]


def _why_not(
    codecs: Mapping[Path, Codec], roots: list[Path], given: list[Path], said: str, in_files: bool
) -> str:
    others = [x for x in given if codecs[x].name != _CODEC]
    without = [x for x in roots if x not in codecs and not in_files]
    leaf = (others or without or given)[0]
    has = codecs[leaf].name if leaf in codecs else "no codec"
    what = f"codecs: {show_path(leaf)} has {has}, and is stored once with {said}"
    if in_files:
        return f"{what}: on disk, that is not encoded; leave its codec out, or {said}"
    all_of_them = ", ".join(f'{show_path(x)}: "{_CODEC}"' for x in roots)
    return (
        f"{what}: of what is stored once, all leaves have {_CODEC}, or none has a codec. Write "
        f"codecs={{{all_of_them}}}, or leave {said} out: then each row's are encoded for themselves"
    )
