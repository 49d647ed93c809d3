"""One layer of a GRU or an LSTM over packed rows, with the gradient written out.

Everything that does not depend on the step before is done for all rows at once, before or after the
loop over time; a step of the loop is one product and a few elementwise operations. The state after
every row comes out, the LSTM's cell state too. Gradients are those of the step-by-step loop; there
are no second derivatives.

Everything has the weights' dtype, under autocast too: a state that is rounded at every step drifts
away from what it was when its row was stored.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["as_weights", "gru_layer", "lstm_layer"]


def as_weights(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method whose first argument is a tensor, run without autocast."""

    @functools.wraps(method)
    def run(self: Any, first: Any, *rest: Any) -> Any:
        device = first.device.type
        if not torch.is_autocast_enabled(device):
            return method(self, first, *rest)
        with torch.autocast(device, enabled=False):
            return method(self, first, *rest)

    return run


def gru_layer(x: Any, h0: Any, sizes: list[int], weights: Any) -> Any:
    """States ``[N, H]`` after each packed row of x ``[N, F]``; h0 ``[pieces, H]``."""
    return _GRU.apply(x, h0, sizes, *weights)  # type: ignore[no-untyped-call]


def lstm_layer(x: Any, h0: Any, c0: Any, sizes: list[int], weights: Any) -> tuple[Any, Any]:
    """Hidden and cell states ``[N, H]`` after each packed row of x."""
    out: tuple[Any, Any] = _LSTM.apply(x, h0, c0, sizes, *weights)  # type: ignore[no-untyped-call]
    return out


def _only_once() -> None:
    if torch.is_grad_enabled():  # a backward pass with create_graph=True, and nothing else
        raise RuntimeError(
            "recurrent modules have no second derivatives in recurrent mode; where "
            "create_graph=True is needed, call the module step by step"
        )


def _steps(rows: Any, sizes: list[int]) -> Any:
    """Packed rows step by step, as views."""
    return rows.split(sizes)


def _before(h0: Any, after: Any, sizes: list[int]) -> Any:
    """The states before each packed row: h0, then each piece's state after its row before."""
    parts = [h0]
    steps = after.split(sizes)
    parts += [steps[t][: sizes[t + 1]] for t in range(len(sizes) - 1)]
    return torch.cat(parts)


def _product(x: Any, w: Any, b: Any) -> Any:
    return torch.addmm(b, x, w.t()) if b is not None else x @ w.t()


def _weight_grads(ctx: Any, d_in: Any, d_rec: Any, x: Any, before: Any, at: int) -> list[Any]:
    """Gradients of w_ih, w_hh, b_ih, b_hh, whose arguments begin at place `at`."""
    need = ctx.needs_input_grad
    return [
        d_in.t() @ x if need[at] else None,
        d_rec.t() @ before if need[at + 1] else None,
        d_in.sum(0) if need[at + 2] else None,
        d_rec.sum(0) if need[at + 3] else None,
    ]


class _GRU(torch.autograd.Function):
    @staticmethod
    @as_weights
    def forward(
        ctx: Any, x: Any, h0: Any, sizes: list[int], w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any
    ) -> Any:
        n, hidden = len(x), w_hh.shape[1]
        gates = _product(x, w_ih, b_ih)  # becomes r, z and n
        after = gates.new_empty(n, hidden)
        rz, new = gates[:, : 2 * hidden].split(sizes), gates[:, 2 * hidden :].split(sizes)
        r, z = gates[:, :hidden].split(sizes), gates[:, hidden : 2 * hidden].split(sizes)
        out = after.split(sizes)
        recurrent = gates.new_empty(len(h0), 3 * hidden)
        w, h, rows = w_hh.t(), h0, 0
        for t, size in enumerate(sizes):
            if size != rows:
                h, rec, rows = h[:size], recurrent[:size], size
                rec_rz, rec_n = rec[:, : 2 * hidden], rec[:, 2 * hidden :]
            if b_hh is None:
                torch.mm(h, w, out=rec)
            else:
                torch.addmm(b_hh, h, w, out=rec)
            rz[t].add_(rec_rz).sigmoid_()
            new[t].addcmul_(r[t], rec_n).tanh_()
            h = torch.lerp(new[t], h, z[t], out=out[t])
        ctx.sizes = sizes
        ctx.save_for_backward(x, h0, w_ih, w_hh, b_hh, gates, after)
        return after

    @staticmethod
    @as_weights
    def backward(ctx: Any, grad: Any) -> Any:
        _only_once()
        x, h0, w_ih, w_hh, b_hh, gates, after = ctx.saved_tensors
        sizes, (n, hidden) = ctx.sizes, after.shape
        before = _before(h0, after, sizes)
        last = slice(2 * hidden, None)
        rec_n = _product(before, w_hh[last], None if b_hh is None else b_hh[last])
        r, z, new = gates[:, :hidden], gates[:, hidden : 2 * hidden], gates[:, 2 * hidden :]
        # How the inputs of the gates move with the state after the row.
        d_new = (1 - z) * (1 - new * new)
        factors = gates.new_empty(n, 3, hidden)
        torch.mul(d_new, r, out=factors[:, 2])
        torch.mul(d_new * rec_n, r * (1 - r), out=factors[:, 0])
        torch.mul(before - new, z * (1 - z), out=factors[:, 1])
        d_after = torch.empty_like(after)
        d_rec = torch.empty_like(factors)
        d_h = torch.zeros_like(h0)  # a piece that has ended gets nothing from after it
        steps, factor, keep = (_steps(a, sizes) for a in (d_after, factors, z))
        given, rec = _steps(grad, sizes), _steps(d_rec, sizes)
        rows = _steps(d_rec.view(n, 3 * hidden), sizes)
        for t in range(len(sizes) - 1, -1, -1):
            earlier = d_h[: sizes[t]]
            d = torch.add(given[t], earlier, out=steps[t])
            torch.mul(d.unsqueeze(1), factor[t], out=rec[t])
            torch.mul(d, keep[t], out=earlier).addmm_(rows[t], w_hh)
        d_rec = d_rec.view(n, 3 * hidden)
        d_in = torch.cat([d_rec[:, : 2 * hidden], d_after * d_new], 1)
        d_x = d_in @ w_ih if ctx.needs_input_grad[0] else None
        return (d_x, d_h, None, *_weight_grads(ctx, d_in, d_rec, x, before, 3))


class _LSTM(torch.autograd.Function):
    @staticmethod
    @as_weights
    def forward(
        ctx: Any,
        x: Any,
        h0: Any,
        c0: Any,
        sizes: list[int],
        w_ih: Any,
        w_hh: Any,
        b_ih: Any,
        b_hh: Any,
    ) -> Any:
        n, hidden = len(x), w_hh.shape[1]
        gates = _product(x, w_ih, None if b_ih is None else b_ih + b_hh)  # i, f, g, o
        after, cell = gates.new_empty(n, hidden), gates.new_empty(n, hidden)
        squashed = gates.new_empty(n, hidden)
        whole, both = gates.split(sizes), gates[:, : 2 * hidden].split(sizes)
        i, f, g, o = (part.split(sizes) for part in gates.split(hidden, 1))
        out, cells, tanhs = after.split(sizes), cell.split(sizes), squashed.split(sizes)
        w, h, c, rows = w_hh.t(), h0, c0, 0
        for t, size in enumerate(sizes):
            if size != rows:
                h, c, rows = h[:size], c[:size], size
            whole[t].addmm_(h, w)
            both[t].sigmoid_()
            g[t].tanh_()
            o[t].sigmoid_()
            c = torch.mul(f[t], c, out=cells[t]).addcmul_(i[t], g[t])
            h = torch.mul(o[t], torch.tanh(c, out=tanhs[t]), out=out[t])
        ctx.sizes = sizes
        ctx.save_for_backward(x, h0, c0, w_ih, w_hh, gates, after, cell, squashed)
        return after, cell

    @staticmethod
    @as_weights
    def backward(ctx: Any, grad: Any, grad_cell: Any) -> Any:
        _only_once()
        x, h0, c0, w_ih, w_hh, gates, after, cell, squashed = ctx.saved_tensors
        sizes, (n, hidden) = ctx.sizes, after.shape
        before, cell_before = _before(h0, after, sizes), _before(c0, cell, sizes)
        i, f, g, o = gates.split(hidden, 1)
        # How the inputs of i, f and g move with the cell state, o's with the hidden one.
        factors = torch.stack([g * i * (1 - i), cell_before * f * (1 - f), i * (1 - g * g)], 1)
        o_factor = squashed * o * (1 - o)
        to_cell = o * (1 - squashed * squashed)
        d_gates = gates.new_empty(n, 4, hidden)
        first3, last = d_gates[:, :3].split(sizes), d_gates[:, 3].split(sizes)
        rows = d_gates.view(n, 4 * hidden).split(sizes)
        factor, of, tc = (_steps(a, sizes) for a in (factors, o_factor, to_cell))
        given, given_c, keep = grad.split(sizes), grad_cell.split(sizes), f.split(sizes)
        d_h, d_c = torch.zeros_like(h0), torch.zeros_like(c0)
        for t in range(len(sizes) - 1, -1, -1):
            size = sizes[t]
            d = given[t] + d_h[:size]
            dc = (given_c[t] + d_c[:size]).addcmul_(d, tc[t])
            torch.mul(dc.unsqueeze(1), factor[t], out=first3[t])
            torch.mul(d, of[t], out=last[t])
            torch.mul(dc, keep[t], out=d_c[:size])
            torch.mm(rows[t], w_hh, out=d_h[:size])
        d_in = d_gates.view(n, 4 * hidden)
        d_x = d_in @ w_ih if ctx.needs_input_grad[0] else None
        return (d_x, d_h, d_c, None, *_weight_grads(ctx, d_in, d_in, x, before, 4))
