"""Reading pickles without running them: arrays, tensors and plain containers, or an error.

Pickle names functions and calls them. Here every name that arrays and tensors need stands for a
function of this module, every other name is refused, and no class of the file is ever made.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Callable
from typing import IO, Any, NoReturn

import numpy as np

from ..convert import as_array

__all__ = ["load_arrays"]

_DEPTH = 64
_PLAIN = (str, bytes, int, float, bool, type(None))


def load_arrays(file: IO[bytes]) -> Any:
    """What a pickle holds: nested dicts, lists and tuples of numpy arrays, numbers and strings.

    Raises:
        pickle.UnpicklingError: anything else is in it, or it is damaged.
    """
    try:
        return _resolve(_Unpickler(file).load(), 0)
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a damaged pickle fails in any way
        raise pickle.UnpicklingError(f"not a pickle of arrays: {error!r}") from error


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = _NAMES.get((module.replace("numpy._core", "numpy.core"), name))
        if found is None:
            _refuse(f"{module}.{name}")
        return found

    def persistent_load(self, pid: Any) -> Any:
        _refuse("a persistent id")


def _refuse(what: str) -> NoReturn:
    raise pickle.UnpicklingError(
        f"{what} is in the pickle, which may hold arrays, tensors, dicts, lists, tuples, numbers "
        "and strings only; it was not loaded"
    )


class _Dtype:
    """In place of a numpy dtype: its name and, from its state, its byte order."""

    def __init__(self, name: Any, *flags: Any) -> None:
        self.name, self.order = name, "="

    def __setstate__(self, state: Any) -> None:
        self.order = state[1]
        if state[2] is not None or state[3] is not None:
            _refuse("a structured dtype")

    def dtype(self) -> np.dtype[Any]:
        dtype = np.dtype(str(self.name))
        if dtype.kind not in "biufc":
            _refuse(f"an array of {dtype}")
        return np.dtype(self.order + dtype.str[1:]) if self.order in ("<", ">") else dtype


class _ArrayState:
    """In place of a numpy array: its shape, dtype and bytes, as its state says."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state[-4:]  # an older form begins with a version

    def array(self) -> np.ndarray[Any, Any]:
        if self.state is None:
            _refuse("an array without contents")
        shape, dtype, fortran, data = self.state
        if isinstance(data, str):  # from Python 2
            data = data.encode("latin1")
        return _array(data, dtype, shape, "F" if fortran else "C")


def _array(data: Any, dtype: Any, shape: Any, order: Any = "C") -> np.ndarray[Any, Any]:
    if not isinstance(dtype, _Dtype):
        _refuse("an array without a dtype")
    if not isinstance(data, (bytes, bytearray)):
        _refuse("an array of objects")
    out = np.frombuffer(data, dtype.dtype()).reshape(shape, order=order)
    return np.array(out, out.dtype.newbyteorder("="), order="C")


def _reconstruct(*args: Any) -> _ArrayState:
    return _ArrayState()


def _scalar(dtype: Any, data: Any) -> Any:
    return _array(data, dtype, ())[()]


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> np.ndarray[Any, Any]:
    import torch

    if not isinstance(storage, torch.Tensor):
        _refuse("a tensor without a storage")
    if int(np.prod(size, dtype=object)) > storage.numel():
        _refuse("a tensor larger than its storage")
    # as_strided checks that every element lies within the storage
    return as_array(torch.as_strided(storage, size, stride, offset))


def _storage(data: Any) -> Any:
    """A tensor of all elements of a storage; torch reads it without running anything."""
    import torch

    storage = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    if not isinstance(storage, torch.storage.TypedStorage):
        _refuse(f"a {type(storage).__name__}")
    bits: Any = storage._untyped_storage  # the public way warns
    return torch.empty(0, dtype=storage.dtype).set_(bits)


def _bytes(text: Any, encoding: Any) -> bytes:
    if encoding != "latin1":
        _refuse(f"text in {encoding!r}")
    return str(text).encode("latin1")


def _no_bytes() -> bytes:
    """How older pickles write an empty one."""
    return b""


def _kind(*args: Any) -> NoReturn:
    """In place of a class that is only ever an argument."""
    _refuse("an array without contents")


class _Name:
    """What a name in the pickle stands for: it can be called, and nothing else."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def __setstate__(self, state: Any) -> None:
        _refuse("a change of a function")


_CALLS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): _kind,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy.core.numeric", "_frombuffer"): _array,
    ("_codecs", "encode"): _bytes,
    ("__builtin__", "bytes"): _no_bytes,
    ("builtins", "bytes"): _no_bytes,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch.storage", "_load_from_bytes"): _storage,
    ("collections", "OrderedDict"): OrderedDict,
}
_NAMES = {name: _Name(call) for name, call in _CALLS.items()}


def _resolve(value: Any, depth: int) -> Any:
    """The tree with arrays in the places of what stood for them."""
    if depth > _DEPTH:
        _refuse(f"a tree deeper than {_DEPTH}")
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, (str, int)):
                _refuse(f"a key of type {type(key).__name__}")
        return {key: _resolve(child, depth + 1) for key, child in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_resolve(child, depth + 1) for child in value)
    if isinstance(value, _ArrayState):
        return value.array()
    if isinstance(value, (np.ndarray, np.generic, *_PLAIN)):
        return value
    _refuse(f"a {type(value).__name__}")
