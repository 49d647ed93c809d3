"""What goes out as jax arrays, and batches as nodes of jax's trees.

Only this module imports jax, and only where somebody asks for its arrays. That batches are nodes is
told to jax when somebody else imports it, whether before contig or after.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import _native
from ..tree import Nested, Path, show_path

__all__ = ["BlockSplitter", "register_nodes", "to_jax"]

Array = np.ndarray[Any, Any]
View = tuple[tuple[int, ...], np.dtype[Any], int]

_WORTH_SHARING = 1 << 16  # below this, a copy takes less time than DLPack
_FLOATS = ("float16", "bfloat16", "float32")  # that jax has, whatever it is told
# 64-bit integers, and what fits into those that jax has in their place.
_SIGNED, _UNSIGNED = (-(2**31), 2**31 - 1), (0, 2**32 - 1)
_NARROWED = {"l": _SIGNED, "q": _SIGNED, "L": _UNSIGNED, "Q": _UNSIGNED}
_ALIGNED = 64  # what XLA asks of memory that it did not allocate


def to_jax(array: Array, path: Path, copy: bool = True) -> Any:
    """A jax array with the same values; jax makes 64-bit numbers 32-bit ones unless told not to.

    Args:
        copy: False: over the same memory, if it is large, aligned and where jax computes.

    Raises:
        ValueError: an integer that does not fit.
    """
    import jax.numpy as jnp

    if not copy and array.nbytes >= _WORTH_SHARING and _can_share(array):
        return jnp.from_dlpack(array)
    return _checked(jnp.asarray(array), array, path)


def _checked(out: Any, array: Array, path: Path) -> Any:
    """A jax array, unless jax's numbers are too small for what the array has."""
    limits = _NARROWED.get(array.dtype.char)
    if limits is None or not array.size or out.dtype == array.dtype:
        return out
    if 0 <= int(np.bitwise_or.reduce(array, None)) <= limits[1]:
        return out  # no negative number, no high bit: what nearly all of them are, by one pass
    least, most = int(np.minimum.reduce(array, None)), int(np.maximum.reduce(array, None))
    if limits[0] <= least and most <= limits[1]:
        return out
    raise ValueError(
        f"{show_path(path)}: {array.dtype} values from {least} to {most} do not fit jax's "
        f'{out.dtype}; set jax.config.update("jax_enable_x64", True)'
    )


class BlockSplitter:
    """The columns of blocks of one shape as jax arrays: the block goes over in one piece, and a
    compiled function cuts it there. An array for itself takes jax some 20 us; all of a batch take
    as long so, and to another device it is one copy. Compiled at the first call, in some 50 ms.

    Args:
        views: shape, dtype and place of each column; places are multiples of 4 bytes.
        paths: their names.
    """

    def __init__(self, views: Sequence[View], paths: Sequence[Path]) -> None:
        import jax

        def split(words: Any) -> list[Any]:
            return [_cut(words, *view) for view in views]

        self._split = jax.jit(split)
        # 64-bit integers become 32-bit ones, unless jax is told not to.
        self._checked = [
            (number, paths[number], dtype, math.prod(shape), offset, dtype.kind == "i")
            for number, (shape, dtype, offset) in enumerate(views)
            if dtype.char in _NARROWED
        ]

    @staticmethod
    def takes(views: Sequence[View]) -> bool:
        """Whether all columns have numbers that jax has, of the same bytes."""
        return all(dtype.kind in "biu" or dtype.name in _FLOATS for _, dtype, _ in views)

    def __call__(self, memory: Any) -> list[Any]:
        """The columns of a block, whose bytes nobody writes to any more.

        Raises:
            ValueError: an integer that does not fit.
        """
        out: list[Any] = self._split(np.frombuffer(memory, np.uint32))
        for number, path, dtype, count, offset, with_sign in self._checked:
            values = np.frombuffer(memory, np.int64, count, offset)
            if not _native.fit_32_bits(values, with_sign):
                _checked(out[number], values.view(dtype), path)
        return out


def _cut(words: Any, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int) -> Any:
    """A column out of a block of uint32 words."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    count = math.prod(shape)
    first, length = offset // 4, -(-count * dtype.itemsize // 4)
    part = lax.slice(words, (first,), (first + length,))
    if dtype.itemsize == 8 and jax.dtypes.canonicalize_dtype(dtype) != dtype:
        narrow = jnp.int32 if dtype.kind == "i" else jnp.uint32
        column = lax.bitcast_convert_type(part.reshape(count, 2)[:, 0], narrow)
    elif dtype.itemsize == 8:
        column = lax.bitcast_convert_type(part.reshape(count, 2), dtype)
    elif dtype.itemsize == 4:
        column = lax.bitcast_convert_type(part, dtype)
    elif dtype.kind == "b":
        column = lax.bitcast_convert_type(part, jnp.uint8).reshape(-1)[:count].astype(bool)
    else:
        column = lax.bitcast_convert_type(part, dtype).reshape(-1)[:count]
    return column.reshape(shape)


def _can_share(array: Array) -> bool:
    """Whether jax can compute with this very memory."""
    import jax

    return (
        jax.default_backend() == "cpu"
        and getattr(jax.config, "jax_default_device", None)
        is None  # else DLPack's would be on another one
        and array.ctypes.data % _ALIGNED == 0
        and array.dtype.isbuiltin == 1  # DLPack of numpy has no others
        and bool(jax.dtypes.canonicalize_dtype(array.dtype) == array.dtype)
    )


def register_nodes(batch: type, tree_of: Callable[[Any], Any]) -> None:
    """Makes a class of batches, and `Nested`, nodes of jax's trees, as soon as jax is imported.

    Args:
        batch: the class.
        tree_of: a batch's tree.
    """
    if sys.modules.get("jax") is not None:  # None: somebody says that there is none
        _register(batch, tree_of)
    else:
        sys.meta_path.insert(0, _WhenImported(lambda: _register(batch, tree_of)))


class _WhenImported(importlib.abc.MetaPathFinder):
    """Waits for somebody to import jax. It finds nothing itself."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != "jax":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("jax")
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def run_and_tell(module: Any) -> None:
            run(module)
            self._then()

        spec.loader.exec_module = run_and_tell  # type: ignore[method-assign]
        return spec


def _register(batch: type, tree_of: Callable[[Any], Any]) -> None:
    from jax import tree_util

    def keys_of(tree: Any) -> tuple[Any, ...] | None:
        return tuple(sorted(tree)) if isinstance(tree, dict) else None

    def flatten(node: Any) -> tuple[list[Any], Any]:
        tree = node if isinstance(node, Nested) else tree_of(node)
        keys = keys_of(tree)
        return ([tree] if keys is None else [tree[key] for key in keys]), keys

    def flatten_with_keys(node: Any) -> tuple[list[Any], Any]:
        children, keys = flatten(node)
        if keys is None:
            return [(tree_util.GetAttrKey("tree"), children[0])], keys
        return [(tree_util.DictKey(key), child) for key, child in zip(keys, children)], keys

    def unflatten(keys: tuple[Any, ...] | None, children: Any) -> Any:
        """Nested dicts with paths as keys; a tree that is no dict as it is."""
        return next(iter(children)) if keys is None else Nested(zip(keys, children))

    for node in (batch, Nested):
        tree_util.register_pytree_with_keys(node, flatten_with_keys, unflatten, flatten)
