"""Hidden states of recurrent actors and critics: kept for every step, handed out by trajectory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ..errors import LayoutError
from .repeat import Kept
from .rows import take_rows

__all__ = ["HiddenStates"]

Tensor = torch.Tensor
States = tuple[tuple[Tensor, ...], Any] | None  # and what they came in, see `_made`

_WHOSE = ("actor", "critic")


class _Kept(NamedTuple):
    """States of one network, ``[T, layers, N, hidden]``: one tensor of a GRU, two of an LSTM."""

    tensors: tuple[Tensor, ...]
    kind: Any  # what they come in


class HiddenStates:
    """States before each step, of an actor and a critic. Either may have none. They come out in
    what they came in: a pair, a named tuple, or, of an actor only, a tensor."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self._kind: Any = tuple  # what the two come in
        self.kept: list[_Kept | None] = [None, None]

    @property
    def places(self) -> list[Kept]:
        """Where states go, as those who remember it need to know."""
        return [
            Kept(self.kept, who, kept, () if kept is None else kept.tensors)
            for who, kept in enumerate(self.kept)
        ]

    def check(self, given: Any, fresh: bool) -> list[States]:
        """What a transition brings, as tuples; a fresh rollout may bring something else.

        None, or a tuple of Nones, is a network that has not run yet: its states are zeros.

        Raises:
            LayoutError: other shapes than ``[layers, N, hidden]``, or than before; none after some.
        """
        if given is None:
            given = (None, None)
        elif isinstance(given, torch.Tensor):
            given = (given, None)
        if not isinstance(given, (tuple, list)) or len(given) != 2:
            raise LayoutError(
                "hidden_states: expected (actor, critic), each None, a tensor or a tuple of "
                f"tensors, or one tensor, got {type(given).__name__}"
            )
        return [self._of_one(who, value, fresh) for who, value in enumerate(given)]

    def _of_one(self, who: int, value: Any, fresh: bool) -> States:
        kept = None if fresh else self.kept[who]
        name = f"hidden_states of the {_WHOSE[who]}"
        pair = isinstance(value, (tuple, list))
        tensors = tuple(value) if pair else (value,)
        if all(tensor is None for tensor in tensors):
            if kept is not None:
                raise LayoutError(
                    f"{name}: missing at this step, given before; if the network was reset, pass "
                    "zeros"
                )
            return None
        for tensor in tensors:
            if not isinstance(tensor, torch.Tensor):
                raise LayoutError(
                    f"{name}: expected a tensor, a tuple of tensors or None, got "
                    f"{type(tensor).__name__}{' in a tuple' if pair else ''}"
                )
            if tensor.ndim != 3 or tensor.shape[1] != self.num_envs:
                raise LayoutError(
                    f"{name}: shape {list(tensor.shape)}, expected [layers, {self.num_envs}, "
                    "hidden]"
                )
        if kept is not None:
            expected = [(list(t.shape[1:]), t.dtype) for t in kept.tensors]
            came = [(list(t.shape), t.dtype) for t in tensors]
            if came != expected or pair != (kept.kind is not None):
                raise LayoutError(
                    f"{name}: {_shown(came, pair)}, expected "
                    f"{_shown(expected, kept.kind is not None)} as at "
                    "first"
                )
        return tensors, type(value) if pair else None

    def write(self, row: int, rows: int, states: list[States], given: Any = ()) -> None:
        """Writes what `check` returned for what was `given`."""
        if any(states):
            self._kind = None if isinstance(given, torch.Tensor) else type(given)
        for who, state in enumerate(states):
            if state is None:
                self.kept[who] = None
                continue
            tensors, kind = state
            kept = self.kept[who]
            if kept is None or kept.kind is not kind or not _fit(kept.tensors, tensors):
                with torch.inference_mode(False):  # such tensors could not be written to elsewhere
                    new = tuple(
                        torch.zeros(rows, *t.shape, dtype=t.dtype, device=t.device) for t in tensors
                    )
                kept = self.kept[who] = _Kept(new, kind)
            for mine, tensor in zip(kept.tensors, tensors):
                mine[row].copy_(tensor)

    def change(self, function: Callable[[Tensor], Tensor]) -> None:
        """Replaces every tensor."""
        for who, kept in enumerate(self.kept):
            if kept is not None:
                self.kept[who] = _Kept(tuple(function(t) for t in kept.tensors), kept.kind)

    def ordered(self, order: Callable[[Tensor], Tensor]) -> HiddenStates:
        """The same rows in another order."""
        out = HiddenStates(self.num_envs)
        out.kept, out._kind = list(self.kept), self._kind
        out.change(order)
        return out

    def at(self, steps: Tensor, envs: Tensor) -> Any:
        """States before some steps of some envs, ``[layers, n, hidden]`` for each network."""
        return _made(self._kind, [self._at(who, steps, envs) for who in range(len(_WHOSE))])

    def zeros(self, who: int) -> Any:
        """Returns a network's states after a reset; None if it has none."""
        kept = self.kept[who]
        if kept is None:
            return None
        return _made(kept.kind, [torch.zeros_like(tensor[0]) for tensor in kept.tensors])

    def _at(self, who: int, steps: Tensor, envs: Tensor) -> Any:
        kept = self.kept[who]
        if kept is None:
            return None
        out = []
        for tensor in kept.tensors:
            _, layers, count, width = tensor.shape
            layer = torch.arange(layers, device=tensor.device).unsqueeze(1)
            # Rows of [T * layers * N, hidden], so that the result needs no transposing.
            rows = (steps * layers + layer) * count + envs
            found = take_rows(tensor.reshape(-1, width), rows.reshape(-1))
            out.append(found.view(layers, -1, width))
        return _made(kept.kind, out)


def _made(kind: Any, parts: Sequence[Any]) -> Any:
    """Parts in what they came in: a tuple, a list or a named tuple, or None: the first alone."""
    if kind is None:
        return parts[0]
    return kind._make(parts) if hasattr(kind, "_make") else kind(parts)


def _fit(kept: tuple[Tensor, ...], given: tuple[Tensor, ...]) -> bool:
    """Whether states can be rows of these tensors, as they are."""
    return len(kept) == len(given) and all(
        mine.shape[1:] == new.shape and mine.dtype == new.dtype and mine.device == new.device
        for mine, new in zip(kept, given)
    )


def _shown(tensors: list[tuple[list[int], torch.dtype]], pair: bool) -> str:
    texts = [f"{dtype} {shape}" for shape, dtype in tensors]
    return f"({', '.join(texts)})" if pair else texts[0]
