"""Reading pickles without running them: arrays, tensors and plain containers, or an error.

Pickle names functions and calls them. Here every name that arrays and tensors need stands for a
function of this module, every other name is refused, and no class of the file is ever made.

A pickle can also refer to the same thing again and again: a few bytes are then a tree without end,
for whoever walks it, hashes it or prints it. So nothing but text and numbers becomes a key, a name
or part of a message, everything is walked once, and what it all comes to is bounded by the file.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable
from typing import IO, Any, ClassVar, NoReturn

import numpy as np

from .convert import as_array

__all__ = ["check_torch", "load_arrays"]

_DEPTH = 64
_NODES = 4_000_000  # of a tree, each counted as often as it is in it
_TIMES = 16  # as much memory as the file has, so many times: arrays may share what they are made of
_SMALL = 1 << 20
_LEGACY_PICKLES = 5  # that begin a file of torch's older format
_PLAIN = (str, bytes, int, float, bool, type(None))


def load_arrays(file: IO[bytes]) -> Any:
    """What a pickle holds: nested dicts, lists and tuples of numpy arrays, numbers and strings.

    Raises:
        pickle.UnpicklingError: anything else is in it, or it is damaged.
    """
    try:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        made = _Made(_TIMES * size + _SMALL)
        return _Tree().resolve(_Unpickler(file, made).load(), 0)
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a damaged pickle fails in any way
        said = [arg for arg in error.args if isinstance(arg, str)]  # others may be without end
        kind = type(error).__name__
        raise pickle.UnpicklingError(f"not a pickle of arrays: {kind}: {said[:1]}") from error


class _Made:
    """How many bytes of arrays a pickle has come to.

    Args:
        most: how many it may.
    """

    def __init__(self, most: int) -> None:
        self._left = most

    def take(self, nbytes: int) -> None:
        self._left -= nbytes
        if self._left < 0:
            _refuse(f"more than {_TIMES} times as much data as the file has")


class _Unpickler(pickle._Unpickler):
    """Python's own, in Python: its memo is a dict, where the other one's is as long as the file
    says, and its steps can be replaced.

    Args:
        file: to read.
        made: counts what arrays take.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def __init__(self, file: IO[bytes], made: _Made) -> None:
        super().__init__(file)
        self._made = made

    def find_class(self, module: str, name: str) -> Any:
        found = _CALLS.get((module.replace("numpy._core", "numpy.core"), name))
        if found is None:
            _refuse(f"{module}.{name}")
        return _Name(found, self._made)

    def persistent_load(self, pid: Any) -> Any:
        _refuse("a persistent id")

    def _keys(self, keys: Any) -> None:
        for key in keys:
            if not isinstance(key, (str, int)):  # before it is hashed
                _refuse(f"a key of type {type(key).__name__}")

    def _set_item(self) -> None:
        self._keys(self.stack[-2:-1])  # type: ignore[attr-defined]
        self.load_setitem()  # type: ignore[attr-defined]

    def _set_items(self) -> None:
        self._keys(self.stack[::2])  # type: ignore[attr-defined]
        self.load_setitems()  # type: ignore[attr-defined]

    def _dict(self) -> None:
        self._keys(self.stack[::2])  # type: ignore[attr-defined]
        self.load_dict()  # type: ignore[attr-defined]

    def _set(self) -> None:
        _refuse("a set")

    dispatch[pickle.SETITEM[0]] = _set_item
    dispatch[pickle.SETITEMS[0]] = _set_items
    dispatch[pickle.DICT[0]] = _dict
    for _opcode in (pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET):
        dispatch[_opcode[0]] = _set


def _refuse(what: str) -> NoReturn:
    raise pickle.UnpicklingError(
        f"{what} is in the pickle, which may hold arrays, tensors, dicts, lists, tuples, numbers "
        "and strings only; it was not loaded"
    )


class _Dtype:
    """In place of a numpy dtype: its name and, from its state, its byte order."""

    def __init__(self, made: _Made, name: Any, *flags: Any) -> None:
        if not isinstance(name, str):
            _refuse("a dtype without a name")
        self.name, self.order = name, "="

    def __setstate__(self, state: Any) -> None:
        order = state[1]
        if state[2] is not None or state[3] is not None or not isinstance(order, str):
            _refuse("a structured dtype")
        self.order = order

    def dtype(self) -> np.dtype[Any]:
        dtype = np.dtype(self.name)
        if dtype.kind not in "biufc":
            _refuse(f"an array of {dtype}")
        return np.dtype(self.order + dtype.str[1:]) if self.order in ("<", ">") else dtype


class _ArrayState:
    """In place of a numpy array: its shape, dtype and bytes, as its state says."""

    state: Any = None

    def __init__(self, made: _Made) -> None:
        self._made = made

    def __setstate__(self, state: Any) -> None:
        self.state = state[-4:]  # an older form begins with a version

    def array(self) -> np.ndarray[Any, Any]:
        if self.state is None:
            _refuse("an array without contents")
        shape, dtype, fortran, data = self.state
        if isinstance(data, str):  # from Python 2
            data = data.encode("latin1")
        return _array(self._made, data, dtype, shape, "F" if fortran else "C")


def _array(
    made: _Made, data: Any, dtype: Any, shape: Any, order: Any = "C"
) -> np.ndarray[Any, Any]:
    if not isinstance(dtype, _Dtype):
        _refuse("an array without a dtype")
    if not isinstance(data, (bytes, bytearray)):
        _refuse("an array of objects")
    if not _is_sizes(shape) or order not in ("C", "F"):
        _refuse("an array without a shape")
    made.take(len(data))
    out = np.frombuffer(data, dtype.dtype()).reshape(shape, order=order)
    return np.array(out, out.dtype.newbyteorder("="), order="C")


def _is_sizes(value: Any) -> bool:
    """Whether it is a number or a tuple of them, as shapes and strides are."""
    several = value if isinstance(value, (tuple, list)) else (value,)
    return len(several) <= _DEPTH and all(isinstance(n, int) for n in several)


def _reconstruct(made: _Made, *args: Any) -> _ArrayState:
    return _ArrayState(made)


def _scalar(made: _Made, dtype: Any, data: Any) -> Any:
    return _array(made, data, dtype, ())[()]


def _tensor(
    made: _Made, storage: Any, offset: Any, size: Any, stride: Any, *rest: Any
) -> np.ndarray[Any, Any]:
    import torch

    if not isinstance(storage, torch.Tensor):
        _refuse("a tensor without a storage")
    if not (_is_sizes(size) and _is_sizes(stride) and _is_sizes(offset)):
        _refuse("a tensor without a shape")
    count = int(np.prod(size, dtype=object))
    if count > storage.numel():
        _refuse("a tensor larger than its storage")
    made.take(count * storage.element_size())
    # as_strided checks that every element lies within the storage
    return as_array(torch.as_strided(storage, size, stride, offset))


def _storage(made: _Made, data: Any) -> Any:
    """A tensor of all elements of a storage; torch reads it without running anything."""
    import torch

    if not isinstance(data, (bytes, bytearray)):
        _refuse("a storage without contents")
    made.take(len(data))
    check_torch(io.BytesIO(data))
    storage = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    if not isinstance(storage, torch.storage.TypedStorage):
        _refuse(f"a {type(storage).__name__}")
    bits: Any = storage._untyped_storage  # the public way warns
    return torch.empty(0, dtype=storage.dtype).set_(bits)


def check_torch(file: IO[bytes]) -> None:
    """Checks a file for torch before torch reads it, which runs nothing but has no bounds: what it
    keeps is stored as it is, and its pickles are as bounded as others.

    Raises:
        pickle.UnpicklingError: it is an archive with more in it than its size, or a pickle of it
            is not.
    """
    try:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        if not zipfile.is_zipfile(file):
            file.seek(0)
            for _ in range(_LEGACY_PICKLES):
                _check_pickle(file)
            return
        with zipfile.ZipFile(file) as archive:
            inside = sum(member.file_size for member in archive.infolist())
            if inside > size:
                _refuse(f"{inside:,} bytes of packed data in {size:,}")
            for member in archive.namelist():
                if member.endswith("data.pkl"):
                    _check_pickle(io.BytesIO(archive.read(member)))
    except pickle.UnpicklingError:
        raise
    except Exception as error:
        raise pickle.UnpicklingError(f"not a file of torch: {type(error).__name__}") from error
    finally:
        file.seek(0)


def _check_pickle(file: IO[bytes]) -> None:
    _Tree(_Inert).resolve(_DryUnpickler(file, _Made(0)).load(), 0)


class _Inert:
    """In place of everything that torch makes."""

    def __call__(self, *args: Any) -> _Inert:
        return _Inert()

    def __setstate__(self, state: Any) -> None:
        pass


class _DryUnpickler(_Unpickler):
    """Makes containers, text and numbers, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        return _Inert()

    def persistent_load(self, pid: Any) -> Any:
        return _Inert()


def _bytes(made: _Made, text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or encoding != "latin1":
        _refuse("text in another encoding than latin1")
    made.take(len(text))
    return text.encode("latin1")


def _no_bytes(made: _Made) -> bytes:
    """How older pickles write an empty one."""
    return b""


def _no_hooks(made: _Made, *args: Any) -> dict[Any, Any]:
    """In place of the OrderedDict that each tensor has."""
    if args:
        _refuse("an OrderedDict made of something")
    return {}


def _kind(*args: Any) -> NoReturn:
    """In place of a class that is only ever an argument."""
    _refuse("an array without contents")


class _Name:
    """What a name in the pickle stands for: it can be called, and nothing else."""

    __slots__ = ("_call", "_made")

    def __init__(self, call: Callable[..., Any], made: _Made) -> None:
        self._call, self._made = call, made

    def __call__(self, *args: Any) -> Any:
        return self._call(self._made, *args)

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
    ("collections", "OrderedDict"): _no_hooks,
}


class _Tree:
    """Makes a tree with arrays in the places of what stood for them. What is in it several times
    is made once.

    Args:
        leaf: a class whose objects stay as they are.
    """

    def __init__(self, leaf: type = np.ndarray) -> None:
        self._leaves = (np.ndarray, np.generic, *_PLAIN, leaf)
        self._done: dict[int, tuple[Any, Any, int]] = {}  # by id: it, what it became, its nodes

    def resolve(self, value: Any, depth: int) -> Any:
        return self._resolved(value, depth)[0]

    def _resolved(self, value: Any, depth: int) -> tuple[Any, int]:
        if isinstance(value, self._leaves):
            return value, 1
        known = self._done.get(id(value))
        if known is not None:
            return known[1:]
        if depth > _DEPTH:
            _refuse(f"a tree deeper than {_DEPTH}")
        made: Any
        nodes = 1
        if isinstance(value, dict):
            made = {}
            for key, child in value.items():
                made[key], count = self._resolved(child, depth + 1)
                nodes += count
        elif type(value) in (list, tuple):
            pairs = [self._resolved(child, depth + 1) for child in value]
            made = type(value)(child for child, _ in pairs)
            nodes += sum(count for _, count in pairs)
        elif isinstance(value, _ArrayState):
            made = value.array()
        else:
            _refuse(f"a {type(value).__name__}")
        if nodes > _NODES:
            _refuse(f"a tree of more than {_NODES:,} values")
        self._done[id(value)] = (value, made, nodes)
        return made, nodes
