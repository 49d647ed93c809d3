"""What `sample` hands out: numpy, torch, jax or tensordict; and what transforms do on the way."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from ..batch import Batch
from ..convert import Transfers, device_of, is_tensor, tensordict_shape
from ..keys import TRAJ_LENGTH
from ..tape import DeviceRows, Storage
from ..tree import Nested, flatten
from .arriving import ArrivingBatch

__all__ = ["advise_output", "hooks_of", "info_of", "output_of", "to_output", "transfers_to"]


log = logging.getLogger("contig.replay")


def output_of(kind: str | None, device: Any, storage: Storage) -> str:
    """The output of a buffer: what was asked for, else numpy, or torch where a device is."""
    if kind is not None:
        return kind
    return "numpy" if device is None and storage.device is None else "torch"


def transfers_to(device: Any, storage: Storage, blocks: int) -> Transfers | None:
    """What copies a storage's batches to a device; None: nothing does, or a copy is done when it
    returns."""
    if device is None or storage.device is not None:
        return None
    return Transfers.to(device_of(device), blocks)


def to_output(
    kind: str, device: Any, transfers: Transfers | None = None, on: Any = None
) -> Callable[[Batch], Any]:
    """A function from a Batch to the output a buffer was asked for.

    Args:
        kind: of the output.
        device: where to.
        transfers: what copies to it, if that is not done when a copy returns.
        on: the device that the rows are on, if that is not the host.

    Raises:
        ValueError: no such output, or a device that it does not have.
    """
    if kind not in ("numpy", "torch", "jax", "tensordict"):
        raise ValueError(f'output: expected "numpy", "torch", "jax" or "tensordict", got {kind!r}')
    if device is not None and kind in ("numpy", "jax"):
        raise ValueError(f'device={device!r} goes with output="torch" or "tensordict"')
    outputs: dict[str, Callable[[Batch], Any]] = {
        "numpy": lambda batch: batch,
        "torch": lambda batch: Nested.of(batch.torch(device)),
        "jax": lambda batch: batch.jax(copy=False),  # nobody else has this batch
        "tensordict": lambda batch: batch.to_tensordict(device),
    }
    if on is not None and kind == "numpy":
        return lambda batch: batch.host() if isinstance(batch, DeviceRows) else batch
    if transfers is None or on is not None:
        return outputs[kind]
    then = outputs[kind]

    def send_then(batch: Batch) -> Any:
        if not isinstance(batch, ArrivingBatch):  # it was not drawn ahead
            batch = ArrivingBatch.sent(batch, transfers)
        return then(batch)

    return send_then


def advise_output(data: Any) -> None:
    """Logs which output would give tensors, if data has some: without any, samples are numpy's."""
    if isinstance(data, (list, tuple)) and data:
        data = data[0]
    kind = "torch"
    if tensordict_shape(data) is not None:
        kind = "tensordict"
    elif isinstance(data, Batch) or not any(is_tensor(leaf) for leaf in flatten(data)[1]):
        return
    log.warning(
        "the rows are tensors, and samples are a Batch of numpy arrays: for tensors write "
        'ReplayBuffer(..., output="%s"), or output="numpy" if that is meant',
        kind,
    )


def _lengths(of_rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Rows of each trajectory, from those that each row says its own has."""
    out, at = [], 0
    while at < len(of_rows):
        out.append(int(of_rows[at]))
        at += out[-1]
    return np.array(out, np.int64)


def info_of(batch: Batch) -> dict[str, Any]:
    """What `sample` returns beside a batch, if asked. Copies: of a batch that went out as jax
    arrays the memory may be theirs, and those are constants."""
    info = {"index": batch["index"].copy()}
    if "priority_weight" in batch:
        info["priority_weight"] = batch["priority_weight"].copy()
    if TRAJ_LENGTH in batch.extras:
        info["lengths"] = _lengths(batch[TRAJ_LENGTH])
    return info


def hooks_of(transform: Any) -> tuple[Any, Any]:
    """What a transform does to what is written, and to samples; None where it does nothing."""
    if transform is None:
        return None, None
    on_write, on_sample = (getattr(transform, n, None) for n in ("on_write", "on_sample"))
    if on_write is None and on_sample is None:
        if not callable(transform):
            raise TypeError("transform: expected a callable or an object with on_write / on_sample")
        return transform, None
    return on_write, on_sample
