"""Samplers with TorchRL's arguments and defaults: `strict_length` is True, capacities are given."""

from __future__ import annotations

from typing import Any

from ... import sample
from ...sample import RandomSampler
from .arguments import refused, without_effect

__all__ = [
    "PrioritizedSampler",
    "PrioritizedSliceSampler",
    "RandomSampler",
    "SamplerWithoutReplacement",
    "SliceSampler",
    "SliceSamplerWithoutReplacement",
]

_REDUCTIONS = ("max", "mean", "median", "min")


class SamplerWithoutReplacement(sample.SamplerWithoutReplacement):
    """Each row once per epoch. Iteration over a buffer ends with the epoch.

    Args:
        drop_last: an epoch ends before a batch that it cannot fill.
        shuffle: always.
    """

    def __init__(self, drop_last: bool = False, shuffle: bool = True) -> None:
        _check_shuffle(shuffle)
        super().__init__(drop_last)


class PrioritizedSampler(sample.PrioritizedSampler):
    """Rows by priority.

    Args:
        max_capacity: without effect: it is the storage's.
        alpha, beta, eps: as in contig.PrioritizedSampler.
        reduction: what a row's priority is if a batch has several for it: "max", "mean", "median"
            or "min".
        dtype, max_priority_within_buffer, device: without effect; new rows get the largest priority
            ever set.
    """

    def __init__(
        self,
        max_capacity: int,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: Any = None,
        reduction: str = "max",
        max_priority_within_buffer: bool = False,
        device: Any = None,
    ) -> None:
        without_effect(max_capacity, dtype, max_priority_within_buffer, device)
        super().__init__(alpha=alpha, beta=beta, eps=eps)
        self.reduction = _reduction(reduction)


class SliceSampler(sample.SliceSampler):
    """Slices of trajectories.

    Args:
        num_slices, slice_len, end_key, traj_key, truncated_key, init_key, pad_output, span: as in
            contig.SliceSampler.
        strict_length: only trajectories of at least `slice_len` rows, as in TorchRL.
        step_key, fragmented, cache_values, compile, use_gpu: without effect: where trajectories
            begin and end is known from writing, their pieces too.
        end_keys, ends, trajectories: not taken.
        options: `complete_only`, `burn_in`, `over`, `where`, `fields` of contig's own.
    """

    def __init__(
        self,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        end_key: Any = None,
        end_keys: Any = None,
        traj_key: Any = None,
        step_key: Any = "step_count",
        fragmented: bool = False,
        ends: Any = None,
        trajectories: Any = None,
        cache_values: bool = False,
        truncated_key: Any = ("next", "truncated"),
        init_key: Any = "is_init",
        strict_length: bool = True,
        pad_output: bool = False,
        compile: bool | dict[str, Any] = False,
        span: Any = False,
        use_gpu: Any = False,
        **options: Any,
    ) -> None:
        without_effect(step_key, fragmented, cache_values, compile, use_gpu)
        _check_marks(end_keys, ends, trajectories)
        super().__init__(
            num_slices=num_slices,
            slice_len=slice_len,
            end_key=end_key,
            traj_key=traj_key,
            truncated_key=truncated_key,
            init_key=init_key,
            strict_length=strict_length,
            pad_output=pad_output,
            span=span,
            **options,
        )


class SliceSamplerWithoutReplacement(sample.SliceSamplerWithoutReplacement):
    """Slices, each trajectory once per epoch. Iteration over a buffer ends with the epoch.

    Args:
        drop_last, shuffle: as in `SamplerWithoutReplacement`.
        strict_length, end_keys, ends, trajectories, compile, use_gpu, slices: as in `SliceSampler`.
    """

    def __init__(
        self,
        *,
        drop_last: bool = False,
        end_keys: Any = None,
        ends: Any = None,
        trajectories: Any = None,
        strict_length: bool = True,
        shuffle: bool = True,
        compile: bool | dict[str, Any] = False,
        use_gpu: Any = False,
        **slices: Any,
    ) -> None:
        without_effect(compile, use_gpu)
        _check_shuffle(shuffle)
        _check_marks(end_keys, ends, trajectories)
        super().__init__(drop_last=drop_last, strict_length=strict_length, **slices)


class PrioritizedSliceSampler(sample.PrioritizedSliceSampler):
    """Slices that start where priorities say.

    Args:
        max_capacity, alpha, beta, eps, dtype, reduction, max_priority_within_buffer: as in
            `PrioritizedSampler`.
        strict_length, end_keys, ends, trajectories, cache_values, compile, slices: as in
            `SliceSampler`.
        span: not taken.
    """

    def __init__(
        self,
        max_capacity: int,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: Any = None,
        reduction: str = "max",
        *,
        end_keys: Any = None,
        ends: Any = None,
        trajectories: Any = None,
        cache_values: bool = False,
        strict_length: bool = True,
        compile: bool | dict[str, Any] = False,
        max_priority_within_buffer: bool = False,
        span: Any = False,
        **slices: Any,
    ) -> None:
        without_effect(max_capacity, dtype, cache_values, compile, max_priority_within_buffer)
        _check_marks(end_keys, ends, trajectories)
        if span:
            slices["span"] = span  # whose meaning contig's own says there is none of
        super().__init__(alpha=alpha, beta=beta, eps=eps, strict_length=strict_length, **slices)
        self.reduction = _reduction(reduction)


def _reduction(name: str) -> str:
    if name not in _REDUCTIONS:
        raise ValueError(f"reduction: expected one of {', '.join(_REDUCTIONS)}, got {name!r}")
    return name


def _check_shuffle(shuffle: bool) -> None:
    if not shuffle:
        raise ValueError(
            "shuffle=False: rows in the order of writing are buffer[:], or contig.FifoSampler, "
            "each once"
        )


def _check_marks(end_keys: Any, ends: Any, trajectories: Any) -> None:
    hint = "trajectories are known from writing: give traj_key or end_key, before the first row"
    refused(end_keys=(end_keys, hint), ends=(ends, hint), trajectories=(trajectories, hint))
