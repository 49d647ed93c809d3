"""The arguments of an estimator, checked and in the form that the scans take.

Arrays become ``[outer, time, inner]``: the dims before time, time, and the dims after it. numpy
arrays and CPU tensors share their memory with the scans; tensors of other devices stay there.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import _native
from ..convert import as_array, cast, to_torch

__all__ = ["ScanInput", "is_tensor", "number"]

Array = np.ndarray[Any, Any]
Dims = tuple[int, int, int]


def is_tensor(value: Any) -> bool:
    """Whether it is a torch tensor; does not import torch."""
    return type(value).__module__.startswith("torch") and hasattr(value, "device")


def number(name: str, value: Any, low: float, high: float) -> float:
    """A plain number of a range, from a float or an array with one element."""
    try:
        out = float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name}: expected one number, got {type(value).__name__}") from error
    if not low <= out <= high or math.isnan(out):
        raise ValueError(f"{name}: expected a number from {low:g} to {high:g}, got {out:g}")
    return out


class ScanInput:
    """Rewards, values and flags of many steps, all of the reward's shape.

    Args:
        reward: ``[..., time, ...]``; says what the shape is.
        floats: values and the like by name; each of exactly that shape.
        flags: done, terminated, cut; dims after time may be missing, or be 1.
        time_dim: which dim is time.
        partial: names among `floats` that may lack dims as flags may.

    Raises:
        ValueError: a shape or a value that does not fit, with the argument's name.
    """

    def __init__(
        self,
        reward: Any,
        floats: dict[str, Any],
        flags: tuple[Any, Any, Any],
        time_dim: int,
        *,
        partial: tuple[str, ...] = (),
    ) -> None:
        done, terminated, cut = flags
        given = {"reward": reward, **floats, "done": done, "terminated": terminated, "cut": cut}
        self.tensors = any(is_tensor(x) for x in given.values())
        self.device = next((x.device for x in given.values() if is_tensor(x)), None)
        self.on_host = self.device is None or self.device.type == "cpu"
        self.shape = _shape(reward)
        ndim = len(self.shape)
        if ndim == 0 or not -ndim <= time_dim < ndim:
            raise ValueError(
                f"time_dim {time_dim}: the reward has shape {list(self.shape)}, which has no such "
                "dim; 0 is flat or [T, B], 1 is [B, T]"
            )
        self.time = time_dim % ndim
        before, after = self.shape[: self.time], self.shape[self.time + 1 :]
        self.dims: Dims = (math.prod(before), self.shape[self.time], math.prod(after))
        double = any(_is_double(x) for x in (reward, *floats.values()) if x is not None)
        self.dtype = np.dtype(np.float64 if double else np.float32)
        self.reward = self._float("reward", reward, False)
        self.floats = {k: self._float(k, v, k in partial) for k, v in floats.items()}
        stop = self._flag("done", done)
        self.terminated = stop if terminated is None else self._flag("terminated", terminated)
        self.stop = stop if cut is None else stop | self._flag("cut", cut)

    # -- in ---------------------------------------------------------------------------------

    def _float(self, name: str, value: Any, partial: bool) -> Any:
        if value is None:
            return None
        shape = _shape(value)
        if shape != self.shape:
            if not partial:
                raise ValueError(
                    f"{name}: shape {list(shape)}, expected the reward's {list(self.shape)}; "
                    "nothing is broadcast: reshape one of them (value.squeeze(-1), say)"
                )
            self._check_partial(name, shape)
        if not self.on_host:
            import torch

            dtype = torch.float64 if self.dtype == np.float64 else torch.float32
            tensor = torch.as_tensor(value, device=self.device).detach().to(dtype)
            return self._spread(tensor, shape).expand(self.shape).reshape(self.dims)
        if is_tensor(value) and value.is_floating_point() and value.element_size() < 4:
            value = value.detach().float()  # numpy lacks some of these
        array = as_array(value)
        if array.dtype.kind not in "fiub" and not array.dtype.name.startswith("bfloat16"):
            raise ValueError(f"{name}: expected numbers, got {array.dtype}")
        array = array.astype(self.dtype, copy=False)
        return self._contiguous(array, shape)

    def _flag(self, name: str, value: Any) -> Any:
        shape = _shape(value)
        self._check_partial(name, shape)
        if not self.on_host:
            import torch

            tensor = torch.as_tensor(value, device=self.device)
            if tensor.dtype != torch.bool:
                if not bool(((tensor == 0) | (tensor == 1)).all()):
                    raise ValueError(f"{name}: flags are 0 or 1, and some are neither")
                tensor = tensor != 0
            return self._spread(tensor, shape).expand(self.shape).reshape(self.dims)
        return self._contiguous(cast(as_array(value), np.dtype(np.bool_), (name,)), shape)

    def _check_partial(self, name: str, shape: tuple[int, ...]) -> None:
        """Dims up to time must agree; those after it may be missing or 1."""
        known = self.time + 1
        rest = zip(shape[known:], self.shape[known:])
        fits = shape[:known] == self.shape[:known] and all(a in (1, b) for a, b in rest)
        if not fits or len(shape) > len(self.shape):
            raise ValueError(
                f"{name}: shape {list(shape)}, expected {list(self.shape)} as the reward has; only "
                f"dims after time (dim {self.time}) may be missing"
            )

    def _spread(self, array: Any, shape: tuple[int, ...]) -> Any:
        return array.reshape(shape + (1,) * (len(self.shape) - len(shape)))

    def _contiguous(self, array: Array, shape: tuple[int, ...]) -> Array:
        if shape != self.shape:
            array = np.broadcast_to(self._spread(array, shape), self.shape)
        return np.ascontiguousarray(array).reshape(self.dims)

    # -- out --------------------------------------------------------------------------------

    def new(self) -> Array:
        """Memory for a result of the native scans."""
        block = _native.Block(max(1, math.prod(self.dims) * self.dtype.itemsize))
        return np.ndarray(self.dims, self.dtype, block)  # type: ignore[arg-type]

    def result(self, value: Any) -> Any:
        """A result in the reward's shape, as tensor if tensors came in."""
        out = value.reshape(self.shape)
        return to_torch(out) if self.tensors and self.on_host else out


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(np.shape(value))


def _is_double(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)
    return str(dtype) in ("float64", "torch.float64")
