"""Leaves with codecs: which ones, as a storage's user asked for, and their values in rows that are
about to be written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..codecs import Codec, codec_of
from ..convert import plain_tree
from ..errors import LayoutError
from ..keys import NEXT
from ..layout import Encoded, Layout, Leaf, encoded_rows, fit_encoded, is_column
from ..tree import Path, as_path, flatten, show_path

__all__ = [
    "Codecs",
    "Encoder",
    "check_codecs",
    "coded_row",
    "codecs_of",
    "codecs_to_json",
    "with_next",
]

Codecs = dict[Path, Codec]


def codecs_of(given: Any) -> Codecs:
    """The argument `codecs` of a storage: names by leaf.

    Raises:
        TypeError, ValueError: no mapping, or a name that is none.
        ImportError: a codec's library is not installed, with what to do.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(
            f'codecs: expected names by leaf, as in {{"pixels": "zstd"}}, got {given!r}'
        )
    out = {}
    for key, name in given.items():
        path = as_path(key)
        try:
            out[path] = codec_of(name)
        except ValueError as error:
            raise ValueError(f"codecs: {show_path(path)}: {error}") from None
        out[path].load()
    return out


def codecs_to_json(codecs: Codecs) -> list[Any]:
    """Pairs of path and name, which `codecs_of` takes as a dict."""
    return [[list(path), codec.name] for path, codec in codecs.items()]


def with_next(layout: Layout, codecs: Codecs) -> Codecs:
    """With the codecs of observations for their next ones, too, which would be the larger part
    without. Not with lossy ones: those change only what they were given for; nor where rows are
    encoded already.
    """

    def alike(path: Path) -> bool:
        leaf, other = layout.by_path.get(path), layout.by_path.get((*NEXT, *path))
        if leaf is None or other is None or leaf.variable or other.variable:
            return False
        return (leaf.shape, leaf.dtype) == (other.shape, other.dtype)

    implied = {(*NEXT, *path): x for path, x in codecs.items() if x.lossless and alike(path)}
    return codecs | {path: x for path, x in implied.items() if path not in codecs}


def coded_row(row: Layout, codecs: Codecs, tree: Any, batch_ndim: int) -> Layout:
    """The layout of rows whose first data is a tree, which may have encoded bytes already: their
    header says what shape they have.

    Raises:
        LayoutError: a leaf is missing, cannot be held by its codec, or does not say its shape.
    """
    if not codecs:
        return row
    specs = {x.path: x.spec for x in row.leaves}
    paths, values, _ = flatten(tree, is_column)
    for path, value in zip(paths, values):
        leaf, codec = row.by_path.get(path), codecs.get(path)
        if codec is None or leaf is None or not leaf.ragged:
            continue
        found = encoded_rows(leaf, value, batch_ndim)
        if found is None or not len(found[0]):
            continue  # which is refused with a better reason
        try:
            shape, dtype = codec.described(memoryview(found[0][0]))
        except ValueError as error:
            raise LayoutError(
                f"{show_path(path)}: {error}; give the storage an example of a row, or arrays first"
            ) from None
        specs[path] = specs[path]._replace(kind="fixed", shape=shape, dtype=dtype)
    return Layout.of(row.structure, specs.values()).with_codecs(codecs)


def check_codecs(stored: Codecs, asked: Codecs) -> None:
    """Raises LayoutError if what is stored has other codecs than were asked for."""
    for path, codec in asked.items():
        has = stored[path].name if path in stored else None
        if has != codec.name:
            raise LayoutError(
                f"{show_path(path)}: stored with {has or 'no codec'}, asked for {codec.name}; "
                "leave codecs= out to take what is there"
            )


class Encoder:
    """Encodes the leaves with codecs of rows, in trees that are otherwise as they were. Stateless;
    thread-safe.
    """

    def __init__(self, leaves: list[Leaf]) -> None:
        self._leaves = [(leaf, codec_of(leaf.codec)) for leaf in leaves]

    @staticmethod
    def of(layout: Layout) -> Encoder | None:
        """That of a layout's leaves; None if it has none with a codec."""
        leaves = [x for x in layout.leaves if x.codec is not None]
        return Encoder(leaves) if leaves else None

    def row(self, tree: Any) -> Any:
        """A row without batch dims: its coded leaves as bytes. A tree of another form comes back as
        it is: whoever packs it knows how to say so.

        Raises:
            LayoutError, ValueError: a value that does not fit its leaf.
        """
        for leaf, codec in self._leaves:
            tree = _changed(tree, leaf.path, _RowEncoder(leaf, codec))
        return tree

    def rows(self, tree: Any, batch_ndim: int) -> Any:
        """The same of many rows: coded leaves as flat columns."""
        tree = plain_tree(tree)[0]
        for leaf, _ in self._leaves:
            tree = _changed(tree, leaf.path, _ColumnEncoder(leaf, batch_ndim))
        return tree


class _RowEncoder:
    def __init__(self, leaf: Leaf, codec: Codec) -> None:
        self._leaf, self._codec = leaf, codec

    def __call__(self, value: Any) -> bytes:
        leaf = self._leaf
        if type(value) is np.ndarray and value.dtype == leaf.dtype and value.shape == leaf.shape:
            return self._codec.encode(np.ascontiguousarray(value))
        column, _ = fit_encoded(leaf, value, 0)
        row: bytes = column[0]
        return row


class _ColumnEncoder:
    def __init__(self, leaf: Leaf, batch_ndim: int) -> None:
        self._leaf, self._batch_ndim = leaf, batch_ndim

    def __call__(self, value: Any) -> Encoded:
        return Encoded(*fit_encoded(self._leaf, value, self._batch_ndim))


def _changed(node: Any, path: Path, change: Callable[[Any], Any]) -> Any:
    """A tree with another value at a path; the containers on the way are new ones."""
    if not path:
        return change(node)
    key: Any = path[0]
    if isinstance(node, Mapping):
        return {**node, key: _changed(node[key], path[1:], change)} if key in node else node
    if hasattr(node, "_fields"):
        found = getattr(node, str(key), None)
        return node._replace(**{str(key): _changed(found, path[1:], change)})
    if type(node) in (list, tuple) and isinstance(key, int) and key < len(node):
        items = list(node)
        items[key] = _changed(items[key], path[1:], change)
        return type(node)(items)
    return node
