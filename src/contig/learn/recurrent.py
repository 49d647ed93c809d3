"""GRU and LSTM over rows: one step at a time while acting, whole trajectories while learning.

In "recurrent" mode (see `set_recurrent_mode`) rows are sequences, flat ``[N]`` or ``[B, T]``. They
are cut at `is_init`, where ``("collector", "traj_ids")`` changes, and at the first step of each
lane; each piece starts from the hidden state stored at its first row. Pieces are packed by length:
nothing is padded. In "sequential" mode every row is a step of its own, from its own hidden state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..lazy import requires_extra

with requires_extra("contig.learn", "torch"):
    import torch

from ..convert import numpy_dtype
from ..keys import INIT
from ..tree import Path, as_path, show_path
from .cells import as_weights, gru_layer, lstm_layer
from .mode import recurrent_mode_state
from .packing import Packing, pack
from .rows import boundaries, leaves, read, tensors, write

__all__ = ["GRUModule", "LSTMModule"]


class _Recurrent(torch.nn.Module, ABC):
    """What both modules share: keys, shapes, cutting and packing."""

    states: int  # how many hidden states there are
    name: str  # of the attribute that holds the weights
    kind: Any  # torch's module for them

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        in_keys: Sequence[Any],
        out_keys: Sequence[Any],
        bias: bool = True,
        dropout: float = 0.0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.num_layers, self.hidden_size = num_layers, hidden_size
        if self.num_layers < 1 or self.hidden_size < 1:
            raise ValueError(
                f"num_layers {self.num_layers} and hidden_size {self.hidden_size} must be at "
                "least 1"
            )
        ins, outs = [as_path(k) for k in in_keys], [as_path(k) for k in out_keys]
        if len(ins) == self.states + 1:
            ins.append(INIT)
        names = ["input", *["hidden state"] * self.states]
        if len(ins) != self.states + 2:
            raise ValueError(
                f"in_keys: expected {', '.join(names)} and is_init, {self.states + 2} keys, got "
                f"{len(in_keys)}"
            )
        if len(outs) != self.states + 1:
            raise ValueError(
                f"out_keys: expected the output and {self.states} next hidden state(s), "
                f"{self.states + 1} keys, got {len(out_keys)}"
            )
        for key, after in zip(ins[1:], outs[1:]):
            if after != ("next", *key):
                raise ValueError(
                    f"out_keys: {show_path(after)} for the hidden state {show_path(key)}, expected "
                    f"{show_path(('next', *key))}: that is how it becomes the next step's"
                )
        self._input, self._hidden, self._init = ins[0], ins[1:-1], ins[-1]
        self.in_keys, self.out_keys = [_key(k) for k in ins], [_key(k) for k in outs]
        self._outs = outs
        options = {"dropout": dropout, "device": device, "dtype": dtype}
        setattr(self, self.name, self.kind(input_size, hidden_size, num_layers, bias, **options))

    @property
    def rnn(self) -> Any:
        """The torch module that holds the weights."""
        return getattr(self, self.name)

    def make_tensordict_primer(self) -> dict[Path, Any]:
        """By path, the hidden states of one environment at a reset: zeros ``[num_layers, hidden]``.

        `TensorDictPrimer` takes it; environments and collectors that are given the policy ask for
        it themselves.
        """
        dtype = numpy_dtype(self._weights(0)[0].dtype)
        return {k: np.zeros((self.num_layers, self.hidden_size), dtype) for k in self._hidden}

    def forward(self, data: Any) -> Any:
        """The rows with the output ``[..., hidden]`` and the state after each row, under "next".

        A TensorDict is changed in place and returned. For a mapping or a Batch, nested dicts of
        tensors come back, what came in included; numpy arrays are taken as tensors.

        Raises:
            KeyError: a leaf that is needed is not there.
            ValueError: a leaf of another shape.
        """
        data = tensors(data)
        x = self._need(data, self._input, "the input")
        size = self._weights(0)[0].shape[1]
        if x.ndim == 0 or x.shape[-1] != size:
            raise ValueError(
                f"{show_path(self._input)}: shape {list(x.shape)}, expected [..., {size}] "
                "(input_size)"
            )
        shape = tuple(x.shape[:-1])
        state_shape = (*shape, self.num_layers, self.hidden_size)
        given = []
        for key in self._hidden:
            h = self._need(data, key, "a hidden state")
            if tuple(h.shape) != state_shape:
                raise ValueError(
                    f"{show_path(key)}: shape {list(h.shape)}, expected {list(state_shape)}: "
                    "batch, num_layers, hidden_size"
                )
            given.append(self._like_weights(h.reshape(-1, self.num_layers, self.hidden_size)))
        x = self._like_weights(x.reshape(-1, size))
        if recurrent_mode_state() == "recurrent":
            output, states = self._sequences(x, given, self._starts(data, shape))
        else:
            output, states = self._step(x, given)
        new = {self._outs[0]: output.reshape(*shape, self.hidden_size)}
        for key, state in zip(self._outs[1:], states):
            new[key] = state.reshape(state_shape)
        return write(data, new)

    def _need(self, data: Any, key: Path, what: str) -> Any:
        found = read(data, key)
        if found is None:
            known = ", ".join(show_path(p) for p in leaves(data))
            hint = (
                "; an environment provides it if it was made with policy=, or the collector with "
                "auto_register_policy_transforms=True"
                if key != self._input
                else ""
            )
            raise KeyError(f"{what} {show_path(key)} is not there; there are {known}{hint}")
        return found

    def _like_weights(self, x: Any) -> Any:
        weight = self._weights(0)[0]
        return x if x.dtype == weight.dtype else x.to(weight.dtype)

    def _starts(self, data: Any, shape: tuple[int, ...]) -> Any:
        if not shape:
            raise ValueError(
                f"{show_path(self._input)}: one step without batch dims is no sequence; use "
                'set_recurrent_mode("sequential") or give [N] or [B, T] rows'
            )
        self._need(data, self._init, "the mark of first steps")
        return boundaries(data, shape, init=self._init).reshape(-1)

    def _sequences(self, x: Any, given: list[Any], starts: Any) -> tuple[Any, list[Any]]:
        packing = pack(starts)
        rows, places, first = (
            torch.from_numpy(a).to(x.device) for a in (packing.rows, packing.places, packing.first)
        )
        x = x.index_select(0, rows)
        begin = [h.index_select(0, first) for h in given]
        layers: list[list[Any]] = [[] for _ in given]
        for number in range(self.num_layers):
            after = self._layer(number, x, [h[:, number] for h in begin], packing)
            for kept, state in zip(layers, after):
                kept.append(state)
            x = after[0]
            if self.rnn.dropout and number < self.num_layers - 1:
                x = torch.nn.functional.dropout(x, self.rnn.dropout, self.training)
        # Two dims: torch gathers rows of those much faster.
        wide = [kept[0] if len(kept) == 1 else torch.cat(kept, 1) for kept in layers]
        out = [state.index_select(0, places) for state in wide]
        return out[0][:, -self.hidden_size :], out

    @as_weights
    def _step(self, x: Any, given: list[Any]) -> tuple[Any, list[Any]]:
        states = [h.transpose(0, 1).contiguous() for h in given]
        output, after = self.rnn(x.unsqueeze(0), states[0] if len(states) == 1 else tuple(states))
        after = [after] if len(states) == 1 else list(after)
        return output[0], [h.transpose(0, 1) for h in after]

    def _weights(self, layer: int) -> list[Any]:
        names = [f"weight_ih_l{layer}", f"weight_hh_l{layer}"]
        biases = [f"bias_ih_l{layer}", f"bias_hh_l{layer}"]
        found = [getattr(self.rnn, n) for n in names]
        return found + ([getattr(self.rnn, n) for n in biases] if self.rnn.bias else [None, None])

    @abstractmethod
    def _layer(self, number: int, x: Any, begin: list[Any], packing: Packing) -> list[Any]:
        """Hidden states of one layer after every packed row; the first is its output."""


def _key(path: Path) -> Any:
    return path[0] if len(path) == 1 else path


class GRUModule(_Recurrent):
    """A GRU that reads and writes leaves of rows.

    Args:
        input_size, hidden_size, num_layers, bias, dropout: as in `torch.nn.GRU`, which holds the
            weights (`self.gru`).
        in_keys: input ``[..., input_size]``, hidden state ``[..., num_layers, hidden_size]``,
            is_init ``[...]`` or ``[..., 1]``.
        out_keys: output ``[..., hidden_size]``, and the next hidden state, under "next".
        device, dtype: of the weights.
    """

    states, name, kind = 1, "gru", torch.nn.GRU
    gru: torch.nn.GRU

    def _layer(self, number: int, x: Any, begin: list[Any], packing: Packing) -> list[Any]:
        return [gru_layer(x, begin[0], packing.sizes, self._weights(number))]


class LSTMModule(_Recurrent):
    """An LSTM that reads and writes leaves of rows.

    Args:
        input_size, hidden_size, num_layers, bias, dropout: as in `torch.nn.LSTM`, which holds the
            weights (`self.lstm`).
        in_keys: input, hidden state, cell state, is_init; shapes as in `GRUModule`.
        out_keys: output, next hidden state, next cell state.
        device, dtype: of the weights.
    """

    states, name, kind = 2, "lstm", torch.nn.LSTM
    lstm: torch.nn.LSTM

    def _layer(self, number: int, x: Any, begin: list[Any], packing: Packing) -> list[Any]:
        return list(lstm_layer(x, begin[0], begin[1], packing.sizes, self._weights(number)))
