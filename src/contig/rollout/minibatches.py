"""Minibatches of a rollout: rows in random order, or trajectories of some envs.

flat     [rows, ...]           a new permutation in every epoch
padded   [T, trajectories]     zeros behind a trajectory's end, and a mask
packed   [envs * T, ...]       no padding, and marks of where trajectories begin
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .field import Field, FieldView
from .hidden import HiddenStates
from .rows import FilledRows, clear_rows, take_rows
from .transition import DistillationBatch, MiniBatch, mini_batch_type

__all__ = ["flat", "packed", "padded", "starts", "steps"]

Tensor = torch.Tensor

_BY_TRAJECTORY = ("obs", "critic_obs", "next_obs", "next_critic_obs")


def flat(
    views: dict[str, FieldView],
    num_envs: int,
    batches: int,
    epochs: int,
    chosen: torch.Generator | Tensor,
) -> Iterator[MiniBatch]:
    """Every row once in each epoch, or those that are chosen, in that order."""
    first = views["obs"].tensors[0]
    rows = first.shape[0] * num_envs
    if isinstance(chosen, torch.Tensor):
        _check_order(chosen, rows)
        _check(batches, epochs, len(chosen), "rows")
    else:
        _check(batches, epochs, rows, "rows")
    flat_views = {
        name: FieldView([t.flatten(0, 1) for t in view.tensors], view.build)
        for name, view in views.items()
    }

    def generate() -> Iterator[MiniBatch]:
        for _ in range(epochs):
            if isinstance(chosen, torch.Generator):
                order = torch.randperm(rows, generator=chosen, device=first.device)
            else:
                order = chosen
            for part in order.tensor_split(batches):
                pick = _PickRows(part)
                yield _batch({name: view.map(pick, 1) for name, view in flat_views.items()})

    return generate()


def _check_order(given: Tensor, rows: int) -> None:
    """Numbers of rows are of rows that are there: copying does not look."""
    if given.dtype != torch.int64 or given.ndim != 1:
        raise ValueError(
            f"order: {given.dtype} {list(given.shape)}, expected a vector of torch.int64"
        )
    if len(given) and (int(given.min()) < 0 or int(given.max()) >= rows):
        raise ValueError(
            f"order: rows {int(given.min())} to {int(given.max())}, expected 0 to {rows - 1}"
        )


def steps(fields: list[Field | None], filled: FilledRows) -> Iterator[DistillationBatch]:
    """Steps in time order, all envs of each; None of a field that is not there."""
    for i in range(filled.rows):
        row = (filled.first + i) % filled.rows
        yield DistillationBatch._make(
            None if f is None else f.build([t[row] for t in f.tensors], 1) for f in fields
        )


def starts(done: Tensor) -> Tensor:
    """Where trajectories begin, ``[T, N]``: at the first row, and behind every done one."""
    out = torch.ones_like(done, dtype=torch.bool)
    out[1:] = done[:-1]
    return out


def padded(
    views: dict[str, FieldView], done: Tensor, hidden: HiddenStates, batches: int, epochs: int
) -> Iterator[MiniBatch]:
    """Trajectories of some envs, padded to T steps."""
    steps, envs = done.shape
    _check(batches, epochs, envs, "envs")
    begins = starts(done)

    def generate() -> Iterator[MiniBatch]:
        for _ in range(epochs):
            for low, high in _spans(envs, batches):
                at = begins[:, low:high].t()  # env by env
                env, step = at.nonzero(as_tuple=True)
                count = len(env)
                number = at.reshape(-1).cumsum(0).sub_(1)  # of each row's trajectory
                within = torch.arange(steps, device=done.device).repeat(high - low)
                place = (within - step[number]).mul_(count).add_(number)
                mask = torch.zeros(steps * count, dtype=torch.bool, device=done.device)
                mask[place] = True
                source = torch.zeros(steps * count, dtype=torch.long, device=done.device)
                source[place] = _env_rows(steps, envs, low, high, done.device)
                pad = _Padding(source, mask, (steps, count), slice(low, high))
                yield _batch(
                    {
                        name: view.map(pad if name in _BY_TRAJECTORY else pad.plain, 2)
                        for name, view in views.items()
                    },
                    hidden_states=hidden.at(step, env + low),
                    masks=mask.view(steps, count),
                )

    return generate()


class _PickRows:
    """Picks rows by number."""

    def __init__(self, chosen: Tensor) -> None:
        self._chosen = chosen

    def __call__(self, tensor: Tensor) -> Tensor:
        return take_rows(tensor, self._chosen)


class _Padding:
    """Puts rows of some envs where their trajectories want them, and zeros elsewhere."""

    def __init__(self, source: Tensor, mask: Tensor, shape: tuple[int, int], envs: slice) -> None:
        self._source, self._shape, self._envs = source, shape, envs
        self._none = (~mask).nonzero()[:, 0]

    def plain(self, tensor: Tensor) -> Tensor:
        return tensor[:, self._envs]

    def __call__(self, tensor: Tensor) -> Tensor:
        out = take_rows(tensor.flatten(0, 1), self._source)
        return clear_rows(out, self._none).view(*self._shape, *tensor.shape[2:])


def _env_rows(steps: int, envs: int, low: int, high: int, device: torch.device) -> Tensor:
    """Numbers of the rows of some envs, env by env, among those of all, step by step."""
    step = torch.arange(steps, device=device)
    return (step * envs + torch.arange(low, high, device=device).unsqueeze(1)).reshape(-1)


def packed(
    views: dict[str, FieldView], done: Tensor, hidden: HiddenStates, batches: int, epochs: int
) -> Iterator[MiniBatch]:
    """Rows of some envs, env by env, in time order."""
    steps, envs = done.shape
    _check(batches, epochs, envs, "envs")
    begins = starts(done)
    flat_views = {
        name: FieldView([t.flatten(0, 1) for t in view.tensors], view.build)
        for name, view in views.items()
    }

    def generate() -> Iterator[MiniBatch]:
        for _ in range(epochs):
            for low, high in _spans(envs, batches):
                at = begins[:, low:high].t()
                rows = _PickRows(_env_rows(steps, envs, low, high, done.device))
                env, step = at.nonzero(as_tuple=True)
                yield _batch(
                    {
                        **{name: view.map(rows, 1) for name, view in flat_views.items()},
                        "is_init": at.reshape(-1),
                    },
                    hidden_states=hidden.at(step, env + low),
                )

    return generate()


def _batch(columns: dict[str, Any], **more: Any) -> Any:
    columns.setdefault("critic_obs", columns["obs"])
    if "next_obs" in columns:
        columns.setdefault("next_critic_obs", columns["next_obs"])
    usual = {name: columns.pop(name, None) for name in MiniBatch._fields[:9]}
    kind = mini_batch_type(tuple(columns))
    return kind(
        **usual,
        hidden_states=more.get("hidden_states", (None, None)),
        masks=more.get("masks"),
        **columns,
    )


def _spans(count: int, parts: int) -> Iterator[tuple[int, int]]:
    """Contiguous parts, the first ones longer by one if the numbers do not divide."""
    each, more = divmod(count, parts)
    low = 0
    for part in range(parts):
        high = low + each + (part < more)
        yield low, high
        low = high


def _check(batches: int, epochs: int, things: int, what: str) -> None:
    if not 1 <= batches <= things:
        raise ValueError(
            f"num_mini_batches={batches}: expected 1 to {things}, as many as there are {what}"
        )
    if epochs < 1:
        raise ValueError(f"num_epochs={epochs}: expected at least 1")
