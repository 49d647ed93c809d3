"""Leaves that come in, as numpy arrays that keep their values."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..tree import Path, show_path

__all__ = ["as_array", "cast", "is_number", "is_reward", "leaf_spec", "numpy_dtype"]

# Dtypes that torch and jax have and numpy lacks; ml_dtypes gives numpy those.
_BEYOND_NUMPY = ("bfloat16", "float8", "int4", "uint4")

_SCALARS: dict[type, np.dtype[Any]] = {
    bool: np.dtype(np.bool_),
    int: np.dtype(np.int64),
    float: np.dtype(np.float32),
    complex: np.dtype(np.complex64),
}


def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """A numpy, torch or jax dtype, or its name, as a little-endian numpy dtype.

    Raises:
        TypeError: it is none, or has no fixed size.
        ImportError: numpy lacks it, and there is no ml_dtypes.
    """
    name = str(dtype).removeprefix("torch.") if not isinstance(dtype, (np.dtype, type)) else dtype
    if isinstance(name, str) and name.startswith(_BEYOND_NUMPY):
        name = _beyond_numpy(name)
    found = np.dtype(name)
    if (
        found.kind in "OSUV"
        and found.name not in ("bfloat16",)
        and not found.name.startswith("flo")
    ):
        raise TypeError(str(found))
    return found.newbyteorder("<") if found.byteorder == ">" else found


def _beyond_numpy(name: str) -> Any:
    try:
        import ml_dtypes
    except ImportError:
        raise ImportError(
            f"dtype {name}: numpy has it only with the package ml_dtypes, which is not installed; "
            "pip install ml_dtypes (contig's extras torch and jax bring it), or convert "
            "the data to float32 first",
            name="ml_dtypes",
        ) from None
    found = getattr(ml_dtypes, name, None)
    if found is None:
        raise TypeError(f"{name}: no such dtype")
    return found


def is_number(dtype: np.dtype[Any]) -> bool:
    """Whether it is a bool, an integer or a float, bfloat16 and the like included."""
    return _kind(dtype) in "biuf"


def leaf_spec(value: Any, path: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of a leaf. A Python float, int or bool means float32, int64 or bool; a reward
    is a number, whose first value happens to be whole: float32.

    Raises:
        ValueError: strings, objects and ragged lists, with a hint.
    """
    if type(value) in _SCALARS:
        return (), _SCALARS[float if is_reward(path) and type(value) is int else type(value)]
    if type(value).__module__.startswith("torch"):
        _refuse_no_array(value, path)
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        raise ValueError(
            f"{show_path(path)}: expected an array, a number or a spec with shape and dtype, got "
            f"{f'the class {value.__name__}' if isinstance(value, type) else type(value).__name__}"
            f"{_hint(value)}"
        )
    try:
        return tuple(int(n) for n in shape), numpy_dtype(dtype)
    except TypeError as error:
        raise ValueError(
            f"{show_path(path)}: dtype {dtype} has no fixed-size numeric form{_hint(value)}"
        ) from error
    except ImportError as error:
        raise ImportError(f"{show_path(path)}: {error}", name=error.name) from None


def is_reward(path: Path) -> bool:
    """Returns whether a leaf's name says that it is a reward."""
    return bool(path) and path[-1] in ("reward", "rewards")


def _hint(value: Any) -> str:
    if isinstance(value, type):
        return f"; write {value.__name__}(...) to make one"
    if (
        isinstance(value, (str, bytes))
        or getattr(getattr(value, "dtype", None), "kind", "-") in "SU"
    ):
        return (
            "; encode text as integers (token ids), or make it a leaf of any size: contig.Blob in "
            "the storage's example"
        )
    if getattr(getattr(value, "dtype", None), "kind", "") == "O":
        return (
            "; an object array is usually a ragged list: pad it to one length, or make it a leaf "
            "of any size: contig.Ragged in the storage's example"
        )
    return ""


def as_array(value: Any, path: Path = ()) -> np.ndarray[Any, Any]:
    """Any leaf as a numpy array on the host, without a copy where there is one already.

    Raises:
        ValueError: a tensor that is no array of values: sparse, nested, or on the meta device.
    """
    if type(value) is np.ndarray:  # nearly always
        return value
    if isinstance(value, np.ndarray):
        if isinstance(value, np.ma.MaskedArray):
            raise ValueError(
                f"{show_path(path)}: a masked array, and stored rows have no mask; call "
                ".filled(value), and store the mask as a leaf of its own"
            )
        return value
    if type(value) in _SCALARS:
        # int64 and float64 here: `cast` decides whether the value fits.
        return np.asarray(value)
    if type(value).__module__.startswith("torch"):
        try:
            return np.asarray(value.numpy())
        except (TypeError, RuntimeError):
            pass  # on another device, with a gradient, conjugated, or of a dtype numpy lacks
        _refuse_no_array(value, path)
        if getattr(value, "is_meta", False):
            raise ValueError(
                f"{show_path(path)}: a tensor on the meta device has a shape and no values; move "
                "the module or the data to a real device first"
            )
        tensor = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        name = str(tensor.dtype).removeprefix("torch.")
        if name.startswith(_BEYOND_NUMPY):
            import torch

            bits = tensor.view(torch.int16 if tensor.element_size() == 2 else torch.uint8)
            return np.asarray(bits.numpy().view(numpy_dtype(name)))
        return np.asarray(tensor.numpy())
    return np.asarray(value)


def _refuse_no_array(value: Any, path: Path) -> None:
    """Sparse and nested tensors: they say that they have a shape, or fail when they are asked."""
    if getattr(value, "is_nested", False):
        raise ValueError(
            f"{show_path(path)}: a nested tensor, whose rows have different lengths; pad it "
            "(torch.nested.to_padded_tensor), or, if they differ in their first dim only, make it "
            "a leaf of any size: contig.Ragged in the storage's example"
        )
    if str(getattr(value, "layout", "torch.strided")) != "torch.strided":
        raise ValueError(
            f"{show_path(path)}: a sparse tensor ({value.layout}), and records are dense; call "
            ".to_dense() first"
        )


def cast(array: np.ndarray[Any, Any], dtype: np.dtype[Any], path: Path) -> np.ndarray[Any, Any]:
    """The array in another dtype, if that keeps its values.

    float64 to float32 and int or bool to float are allowed; float to int only for integral values
    in range; numbers to bool only for 0 and 1. Bools come out as 0 or 1, whatever their bytes were.

    Raises:
        ValueError: with the path, the first value that does not fit, and what to do.
    """
    if array.dtype.kind == "b":
        array = _plain_bools(array)
    if array.dtype == dtype:
        return array
    source, target = _kind(array.dtype), _kind(dtype)
    if source == "?" or target == "?" or (source == "c" and target != "c"):
        raise ValueError(
            f"{show_path(path)}: cannot store {array.dtype} as {dtype}; convert the data first"
        )
    with np.errstate(all="ignore"):
        out = array.astype(dtype)
        if target in "fc":
            bad = np.isfinite(array) & ~np.isfinite(out)
        else:
            bad = (out.astype(array.dtype) != array) | ~np.isfinite(array)
            if target in "iu" and source in "iu":
                bad |= (out < 0) != (array < 0)
            if source == "f" and target in "iu":  # the far end of the range rounds up
                bad |= (array >= 2.0 ** (8 * dtype.itemsize - (target == "i"))) | (
                    array < np.iinfo(dtype).min
                )
    if np.any(bad):
        value = np.asarray(array)[np.broadcast_to(bad, array.shape)].flat[0]
        hint = {
            "b": "only 0 and 1 become bool",
            "f": "the value overflows; store a wider dtype",
        }.get(target, "only integral values in range become integers; store a float dtype or round")
        raise ValueError(
            f"{show_path(path)}: value {value} of {array.dtype} cannot be stored as {dtype}: {hint}"
        )
    return out


def _plain_bools(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Bools whose bytes are 0 or 1: a view of other bytes may have any."""
    raw = array.view(np.uint8)
    if raw.size == 0 or np.maximum.reduce(raw, axis=None) <= 1:  # `max` costs twice that
        return array
    return np.asarray(raw != 0)


def _kind(dtype: np.dtype[Any]) -> str:
    if dtype.kind in "biufc":
        return dtype.kind
    return "f" if dtype.name.startswith(("bfloat16", "float8")) else "?"
