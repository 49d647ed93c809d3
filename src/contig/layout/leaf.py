"""One leaf of a record: what it is, where it is, and the same as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ..convert import leaf_spec, numpy_dtype
from ..errors import LayoutError
from ..ragged import Blob, Ragged
from ..tree import Path, show_path

__all__ = [
    "Leaf",
    "LeafSpec",
    "ShapeDtype",
    "as_bytes",
    "leaf_from_json",
    "place_leaves",
    "plan_leaf",
    "spec_of",
]

# What a leaf is: one array of a fixed shape; an array whose first dim varies; bytes; text.
FIXED, RAGGED, BLOB, TEXT = KINDS = ("fixed", "ragged", "blob", "text")

_PLACE_BYTES = 16  # what a record has of a leaf of any size: position and length
_BYTE = np.dtype(np.uint8)


class LeafSpec(NamedTuple):
    """A leaf without its place.

    Attributes:
        path: its keys.
        shape: of one row; of a ragged leaf, of one element.
        dtype: of its numbers.
        kind: fixed, ragged, blob or text.
        codec: what a fixed leaf is encoded with when it is stored: it is one of any size then, in
            the record, and of fixed shape wherever it is used.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    kind: str = FIXED
    codec: str | None = None


class ShapeDtype(NamedTuple):
    """A leaf without data, for examples: ``ShapeDtype((84, 84), np.uint8)``.

    Attributes:
        shape: of one row.
        dtype: anything that `numpy.dtype` takes.
    """

    shape: tuple[int, ...]
    dtype: Any


class Leaf(NamedTuple):
    """One array of the record: its path, per-row shape and dtype, and its place.

    Attributes:
        shape: of one row; of a ragged leaf, of one element.
        offset, nbytes: its place in the record; of a leaf of any size, that of its position and
            length.
        kind, codec: as of a LeafSpec.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    nbytes: int
    kind: str = FIXED
    codec: str | None = None

    @property
    def spec(self) -> LeafSpec:
        """The leaf without its place."""
        return LeafSpec(self.path, self.shape, self.dtype, self.kind, self.codec)

    @property
    def ragged(self) -> bool:
        """Whether rows of it have different lengths where it is used: its column has offsets."""
        return self.kind != FIXED

    @property
    def variable(self) -> bool:
        """Whether the record has only its position and length."""
        return self.kind != FIXED or self.codec is not None

    @property
    def codec_kind(self) -> str | None:
        """What decodes it, whatever level it was encoded with."""
        return None if self.codec is None else self.codec.partition(":")[0]

    @property
    def element_bytes(self) -> int:
        """Bytes of one element; of a fixed leaf, of one row where it is used."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def stored_element_bytes(self) -> int:
        """What its lengths in the record are multiples of, if it is of any size there."""
        return 1 if self.codec is not None else self.element_bytes

    def example(self) -> Any:
        """What it is in an example of a row."""
        if self.kind == RAGGED:
            return Ragged(self.dtype, self.shape)
        if self.kind != FIXED:
            return Blob(text=self.kind == TEXT)
        return ShapeDtype(self.shape, self.dtype)

    def describe(self) -> str:
        if self.kind == RAGGED:
            return f"{self.dtype.name}{['*', *self.shape]}".replace("'", "")
        if self.kind != FIXED:
            return "text of any length" if self.kind == TEXT else "bytes of any length"
        coded = f" ({self.codec})" if self.codec is not None else ""
        return f"{self.dtype.name}{list(self.shape)}{coded}"

    def to_json(self) -> dict[str, Any]:
        out = {"path": list(self.path), "shape": list(self.shape), "dtype": self.dtype_name}
        if self.kind != FIXED:
            out["kind"] = self.kind
        if self.codec is not None:
            out["codec"] = self.codec
        return out

    def identity(self) -> list[Any]:
        """What makes it the same leaf as another, as JSON."""
        more = [self.kind, self.codec_kind] if self.variable else []
        return [self.path, self.shape, self.dtype_name, *more]

    @property
    def dtype_name(self) -> str:
        """The dtype as it is written."""
        return self.dtype.name if self.dtype.kind in "biufcV" else self.dtype.str


def spec_of(value: Any, path: Path) -> LeafSpec:
    """What a leaf of an example is: an array or number, a Ragged, a Blob, bytes or str.

    Raises:
        ValueError: something else, with a hint.
    """
    if isinstance(value, Blob):
        return LeafSpec(path, (), _BYTE, TEXT if value.text else BLOB)
    if isinstance(value, Ragged):
        if math.prod(value.inner_shape) == 0:
            raise ValueError(
                f"{show_path(path)}: Ragged elements of shape {list(value.inner_shape)} have no "
                "bytes; give an inner shape without 0"
            )
        return LeafSpec(path, value.inner_shape, numpy_dtype(value.dtype), RAGGED)
    if isinstance(value, (bytes, str)) and not isinstance(value, np.generic):
        return LeafSpec(path, (), _BYTE, TEXT if isinstance(value, str) else BLOB)
    spec = LeafSpec(path, *leaf_spec(value, path))
    if any(n < 0 for n in spec.shape):
        raise LayoutError(f"{show_path(path)}: shape {list(spec.shape)}: expected sizes from 0 on")
    return spec


def spec_of_column(value: Any, path: Path, shape: tuple[int, ...]) -> LeafSpec:
    """What leaf a column for a batch of these dims is.

    Raises:
        LayoutError: it has other dims.
    """
    if isinstance(value, Ragged):
        dims, fits = [len(value)], len(value) == math.prod(shape)
    else:
        dims, fits = list(value.shape), value.shape[: len(shape)] == shape
    if not fits:
        raise LayoutError(
            f"{show_path(path)}: shape {dims}, expected the batch's {list(shape)} first"
        )
    if isinstance(value, Ragged):
        return spec_of(value, path)
    return LeafSpec(path, value.shape[len(shape) :], value.dtype)


def leaf_from_json(data: dict[str, Any]) -> LeafSpec:
    path, shape, name = data["path"], data["shape"], data["dtype"]
    if not isinstance(path, list) or not all(type(k) in (str, int) for k in path):
        raise ValueError(f"path {path!r}: expected a list of keys")
    sizes = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
    if not sizes or len(shape) > 32:
        raise ValueError(f"shape {shape!r}: expected a list of sizes")
    # numpy reads commas and parentheses as a language of their own, and fails in its own ways.
    if not isinstance(name, str) or any(c in name for c in ",()"):
        raise ValueError(f"dtype {name!r}: expected its name")
    dtype = numpy_dtype(name)
    if dtype.hasobject or dtype.itemsize == 0 or name.startswith((">", "!")):
        raise ValueError(f"dtype {name!r}: not a little-endian one of fixed size")
    if math.prod(shape) * dtype.itemsize >= 1 << 47:
        raise ValueError(f"shape {shape!r} of {name}: too large")
    kind, codec = data.get("kind", FIXED), data.get("codec")
    if kind not in KINDS or not (codec is None or (isinstance(codec, str) and kind == FIXED)):
        raise ValueError(f"kind {kind!r} with codec {codec!r}: expected one of {list(KINDS)}")
    if kind == RAGGED and math.prod(shape) == 0:
        raise ValueError(f"shape {shape!r}: a ragged leaf's elements have bytes")
    if kind in (BLOB, TEXT) and (shape or dtype != _BYTE):
        raise ValueError(f"{name}{shape!r}: bytes have no other dtype and no shape")
    return LeafSpec(tuple(path), tuple(shape), dtype, kind, codec)


def place_leaves(specs: Iterable[Any]) -> tuple[tuple[Leaf, ...], int]:
    """The leaves at their places in a record, one after another, and the record's size.

    Args:
        specs: LeafSpecs, or (path, shape, dtype).
    """
    offset, largest = 0, 1
    leaves = []
    for path, shape, dtype, kind, codec in (LeafSpec(*x) for x in specs):
        if kind != FIXED or codec is not None:
            align, nbytes = 8, _PLACE_BYTES
        else:
            size = dtype.itemsize
            align = size if size & (size - 1) == 0 else dtype.alignment
            nbytes = math.prod(shape) * dtype.itemsize
        largest = max(largest, align)
        offset = -(-offset // align) * align
        leaves.append(Leaf(path, shape, dtype, offset, nbytes, kind, codec))
        offset += nbytes
    return tuple(leaves), max(-(-offset // largest) * largest, 1)


def plan_leaf(leaf: Leaf, encoded: bool = False) -> tuple[Any, ...]:
    """A leaf as the native planner takes it. Kinds it does not know never match a buffer.

    Args:
        encoded: leaves with codecs come as bytes that are known to be good; else the planner leaves
            them to others.
    """
    kind = leaf.dtype.kind if leaf.dtype.kind in "biufc" else "?"
    plain = (kind, leaf.dtype.itemsize, leaf.offset, leaf.nbytes, leaf.shape)
    if leaf.codec is not None:
        return ("u", 1, leaf.offset, leaf.nbytes, (), "b" if encoded else "c")
    return (*plain, leaf.kind[0]) if leaf.ragged else plain


def as_bytes(array: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
    """A contiguous array as flat uint8, without a copy."""
    assert array is not None
    return array.reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)
