"""Value estimators over batches: they read leaves by key and write the advantage and the target.

Where one run ends and the next begins is taken from the batch: ends of episodes, slices and lanes,
first steps, and changes of the trajectory id. A slice's end is none of an episode: the value of its
next state counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ..convert import as_array, to_torch
from ..keys import DONE, INIT, REWARD, SLICE_END, TERMINATED, TRAJ_IDS
from ..tree import Path, as_path, show_path
from . import returns
from .rows import batch_shape, boundaries, column, leaves, read, write
from .steps import Array, is_tensor, number
from .values import values_of

__all__ = ["GAE", "TD0", "TDLambda", "VTrace", "NStep", "DiscountedReturn", "Keys"]


@dataclass(frozen=True)
class Keys:
    """Where estimators read and write; a tuple is a path.

    Attributes:
        reward, done, terminated: of the step; below "next" unless told otherwise.
        value: of the state, and below "next" of the next one.
        advantage, value_target: what estimators add.
        log_rho: log of the ratio of policies, for V-trace.
        is_init, traj_ids, cut: where a flat batch is cut into runs.
    """

    reward: Any = REWARD
    done: Any = DONE
    terminated: Any = TERMINATED
    value: Any = "state_value"
    advantage: Any = "advantage"
    value_target: Any = "value_target"
    log_rho: Any = "log_rho"
    is_init: Any = INIT
    traj_ids: Any = TRAJ_IDS
    cut: Any = SLICE_END

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, as_path(getattr(self, field.name)))


class _Estimator(ABC):
    """What all estimators share. Calling one is thread-safe if its `value_net` is.

    Args:
        gamma: the discount.
        value_net: takes rows (nested dicts, or a TensorDict) and returns values of the reward's
            shape, or rows with them under `keys.value`. A torch module gets tensors. None: the
            batch has the values, and those of the next states below "next".
        value_network: `value_net`, under TorchRL's name.
        single_call: run `value_net` once, on the rows and on the last next state of each run, and
            not twice. Within a run a row's next state must be the next row's state.
        time_dim: which batch dim is time; None: the last one of a Batch or TensorDict, 0 for flat
            dicts.
        keys: where leaves are.
    """

    needs_values = True

    def __init__(
        self,
        *,
        gamma: float,
        value_net: Callable[[Any], Any] | None = None,
        value_network: Callable[[Any], Any] | None = None,
        single_call: bool = False,
        time_dim: int | None = None,
        keys: Keys | None = None,
    ) -> None:
        self.gamma = number("gamma", gamma, 0, 1)
        if value_net is not None and value_network is not None:
            raise TypeError("value_net and value_network are two names of one thing; give one")
        self.value_net = value_net if value_network is None else value_network
        self.single_call = single_call
        self.time_dim = time_dim
        self.keys = keys if keys is not None else Keys()

    def __call__(self, data: Any) -> Any:
        """The data with the value, the advantage and the value target of each row.

        A TensorDict is changed in place; a Batch or dicts are not. None has gradients.

        Raises:
            KeyError: a leaf that is needed is not there.
            ValueError: leaves whose shapes do not fit.
        """
        keys = self.keys
        reward = self._need(data, keys.reward)
        done, terminated = read(data, keys.done), read(data, keys.terminated)
        if done is None:
            done = self._need(data, keys.done if terminated is None else keys.terminated)
        shape, time = self._batch_dims(data, done)
        cut = self._cuts(data, shape, time)
        stop = cut | _per_row(done, shape)
        value, next_value = self._values(data, stop, time)
        like = reward if is_tensor(reward) else None
        value, next_value = _as_kind(value, like), _as_kind(next_value, like)
        steps: dict[str, Any] = {
            "reward": reward,
            "value": value,
            "next_value": next_value,
            "done": _drop_last(done, np.shape(reward)),
            "terminated": _drop_last(done if terminated is None else terminated, np.shape(reward)),
            "cut": cut,
            "time_dim": time,
            "gamma": self.gamma,
        }
        advantage, target = self._estimate(data, steps)
        new = {keys.value: value, keys.advantage: advantage, keys.value_target: target}
        return write(data, {path: found for path, found in new.items() if found is not None})

    @abstractmethod
    def _estimate(self, data: Any, steps: dict[str, Any]) -> tuple[Any, Any]:
        """The advantage and the value target, from the arguments of `contig.learn.returns`."""

    def _values(self, data: Any, stop: Array, time: int) -> tuple[Any, Any]:
        """Of the rows and of their next states; None if there are none and none are needed."""
        key = self.keys.value
        if not self.needs_values and self.value_net is None:
            return read(data, key), read(data, ("next", *key))
        return values_of(
            data,
            stop,
            time=time,
            net=self.value_net,
            single_call=self.single_call,
            key=key,
            init=self.keys.is_init,
        )

    def _need(self, data: Any, path: Path) -> Any:
        found = read(data, path)
        if found is None:
            known = ", ".join(show_path(p) for p in leaves(data))
            raise KeyError(
                f"no leaf {show_path(path)}; there are {known}; other names go into keys=Keys(...)"
            )
        return found

    def _batch_dims(self, data: Any, done: Any) -> tuple[tuple[int, ...], int]:
        """The batch dims, and which of them is time."""
        known = batch_shape(data)
        if known is None:
            known = tuple(np.shape(done))
            if len(known) > 1 and known[-1] == 1:
                known = known[:-1]
            if len(known) > 1 and self.time_dim is None:
                raise ValueError(
                    f"{show_path(self.keys.done)} has shape {list(known)}: which dim is time? Say "
                    "time_dim=0 for [T, B], time_dim=1 for [B, T]"
                )
        if not known:
            raise ValueError("a single row without batch dims has no trajectory to estimate over")
        time = len(known) - 1 if self.time_dim is None else self.time_dim
        if not -len(known) <= time < len(known):
            raise ValueError(f"time_dim {time}: the batch has dims {list(known)}")
        return known, time % len(known)

    def _cuts(self, data: Any, shape: tuple[int, ...], time: int) -> Array:
        """Where a run ends that is none of the recorded ends of episodes."""
        cut = np.zeros(shape, np.bool_)
        marked = column(data, self.keys.cut, shape)
        if marked is not None:
            cut |= marked.astype(np.bool_)
        last = (*shape[:time], *shape[time + 1 :], shape[time])
        moved = {
            path: np.moveaxis(found, time, -1).reshape(last)
            for path in (self.keys.is_init, self.keys.traj_ids)
            if (found := column(data, path, shape)) is not None
        }
        starts = boundaries(write({}, moved), last, init=self.keys.is_init, ids=self.keys.traj_ids)
        ends = np.ones(last, np.bool_)
        ends[..., :-1] = starts[..., 1:]
        return cut | np.moveaxis(ends, -1, time)


def _per_row(flag: Any, shape: tuple[int, ...]) -> Array:
    """Whether any of a row's flags is set."""
    array = as_array(flag)
    if array.shape[: len(shape)] != shape:
        raise ValueError(
            f"the done flags have shape {list(array.shape)}, expected the batch's {list(shape)} "
            "first"
        )
    return np.asarray(array.astype(np.bool_).reshape(*shape, -1).any(-1))


def _drop_last(flag: Any, shape: tuple[int, ...]) -> Any:
    """Flags ``[N, 1]`` of rewards ``[N]`` as ``[N]``."""
    found = np.shape(flag)
    return flag.reshape(shape) if found == (*shape, 1) else flag


def _as_kind(value: Any, like: Any) -> Any:
    """A value as a tensor beside `like`, or as numpy if there is no such."""
    if value is None:
        return None
    if like is None:
        return as_array(value)
    tensor = value if is_tensor(value) else to_torch(as_array(value))
    return tensor.detach().to(like.device)


class GAE(_Estimator):
    """Generalized advantages; the target is advantage + value.

    Args:
        gamma: the discount.
        lmbda: how far errors are carried: 0 is one step, 1 the whole run.
        options: `value_net`, `single_call`, `time_dim`, `keys`, as in every estimator.
    """

    def __init__(self, *, gamma: float, lmbda: float, **options: Any) -> None:
        super().__init__(gamma=gamma, **options)
        self.lmbda = number("lmbda", lmbda, 0, 1)

    def _estimate(self, data: Any, steps: dict[str, Any]) -> tuple[Any, Any]:
        return returns.gae(**steps, lmbda=self.lmbda)


class TD0(_Estimator):
    """One-step targets; the advantage is target - value.

    Args:
        gamma, value_net, single_call, time_dim, keys: as in every estimator.
    """

    def _estimate(self, data: Any, steps: dict[str, Any]) -> tuple[Any, Any]:
        value = steps.pop("value")
        target = returns.td0_return(**steps)
        return _less(target, value, steps), target


class TDLambda(_Estimator):
    """TD(lambda) targets; the advantage is target - value.

    Args:
        gamma: the discount.
        lmbda: how far errors are carried: 0 is one step, 1 the whole run.
        options: `value_net`, `single_call`, `time_dim`, `keys`, as in every estimator.
    """

    def __init__(self, *, gamma: float, lmbda: float, **options: Any) -> None:
        super().__init__(gamma=gamma, **options)
        self.lmbda = number("lmbda", lmbda, 0, 1)

    def _estimate(self, data: Any, steps: dict[str, Any]) -> tuple[Any, Any]:
        value = steps.pop("value")
        target = returns.td_lambda_return(**steps, lmbda=self.lmbda)
        return _less(target, value, steps), target


class NStep(_Estimator):
    """Targets of up to n rewards and the value after them; the advantage is target - value.

    Args:
        gamma: the discount.
        n: steps.
        options: `value_net`, `single_call`, `time_dim`, `keys`, as in every estimator.
    """

    def __init__(self, *, gamma: float, n: int, **options: Any) -> None:
        super().__init__(gamma=gamma, **options)
        if int(n) != n or n < 1:
            raise ValueError(f"n: expected a number of steps, at least 1, got {n}")
        self.n = int(n)

    def _estimate(self, data: Any, steps: dict[str, Any]) -> tuple[Any, Any]:
        value = steps.pop("value")
        target = returns.nstep_return(**steps, n=self.n)
        return _less(target, value, steps), target


class DiscountedReturn(_Estimator):
    """Discounted sums of rewards up to the end of each run.

    Values are not needed. Where there are some, by `value_net` or in the batch, a run that does not
    end terminated goes on with the value of its next state, and the advantage is target - value.

    Args:
        gamma, value_net, single_call, time_dim, keys: as in every estimator.
    """

    needs_values = False

    def _estimate(self, data: Any, steps: dict[str, Any]) -> tuple[Any, Any]:
        value = steps.pop("value")
        target = returns.discounted_return(**steps)
        return None if value is None else _less(target, value, steps), target


class VTrace(_Estimator):
    """V-trace; reads the log ratio of the policies from `keys.log_rho`.

    Args:
        gamma: the discount.
        rho_clip, c_clip: upper bounds of the ratio, where it weighs a step and where it weighs
            all that comes after it.
        options: `value_net`, `single_call`, `time_dim`, `keys`, as in every estimator.
    """

    def __init__(
        self, *, gamma: float, rho_clip: float = 1.0, c_clip: float = 1.0, **options: Any
    ) -> None:
        super().__init__(gamma=gamma, **options)
        self.rho_clip = number("rho_clip", rho_clip, 0, float("inf"))
        self.c_clip = number("c_clip", c_clip, 0, float("inf"))

    def _estimate(self, data: Any, steps: dict[str, Any]) -> tuple[Any, Any]:
        log_rho = self._need(data, self.keys.log_rho)
        log_rho = _drop_last(log_rho, np.shape(steps["reward"]))
        return returns.vtrace(**steps, log_rho=log_rho, rho_clip=self.rho_clip, c_clip=self.c_clip)


def _less(target: Any, value: Any, steps: dict[str, Any]) -> Any:
    if np.shape(value) != np.shape(target):
        raise ValueError(
            f"value: shape {list(np.shape(value))}, expected the reward's "
            f"{list(np.shape(target))}; nothing is broadcast: reshape one of them "
            "(value.squeeze(-1), say)"
        )
    return target - value
