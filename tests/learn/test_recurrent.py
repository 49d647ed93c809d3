"""GRUModule and LSTMModule: sequences are as the loop over steps, forward and backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from contig import (
    Batch,
    GRUModule,
    LazyTensorStorage,
    LSTMModule,
    ReplayBuffer,
    SliceSampler,
    set_recurrent_mode,
)
from contig.learn.packing import pack

IN, HIDDEN = 3, 4
CLASSES = [GRUModule, LSTMModule]


def module(cls: Any, layers: int = 1, **options: Any) -> Any:
    states = ["h"] if cls is GRUModule else ["h", "c"]
    torch.manual_seed(0)
    return cls(
        IN,
        HIDDEN,
        layers,
        in_keys=["x", *states, "is_init"],
        out_keys=["y", *(("next", s) for s in states)],
        **{"dtype": torch.float64, **options},
    )


def states_of(net: Any) -> list[str]:
    return [k[-1] for k in net.out_keys[1:]]


def rows(net: Any, init: Any, seed: int = 0, dtype: Any = torch.float64) -> dict[str, Any]:
    """Rows with a random hidden state at each."""
    generator = torch.Generator().manual_seed(seed)
    init = torch.as_tensor(init)
    shape = tuple(init.shape)

    def random(*more: int) -> Any:
        return torch.randn(*shape, *more, generator=generator, dtype=dtype).requires_grad_()

    out: dict[str, Any] = {"x": random(IN), "is_init": init}
    return {**out, **{k: random(net.num_layers, HIDDEN) for k in states_of(net)}}


def in_sequence(net: Any, data: Any) -> Any:
    with set_recurrent_mode("recurrent"):
        return net(data)


def step_by_step(net: Any, data: dict[str, Any]) -> dict[str, Any]:
    """Flat rows through the module one at a time, the state handed on by hand."""
    names = states_of(net)
    outs: dict[str, list[Any]] = {k: [] for k in ("y", *names)}
    state: dict[str, Any] = {}
    for t in range(len(data["x"])):
        if t == 0 or bool(data["is_init"].reshape(-1)[t]):
            state = {k: data[k][t : t + 1] for k in names}
        out = net({"x": data["x"][t : t + 1], **state})
        state = {k: out["next", k] for k in names}
        outs["y"].append(out["y"])
        for k in names:
            outs[k].append(state[k])
    return {k: torch.cat(v) for k, v in outs.items()}


def gradients(net: Any, data: dict[str, Any], y: Any, states: list[Any]) -> Any:
    """Of a loss that moves with every output and every state."""
    weights = torch.linspace(0.5, 2, y.numel(), dtype=y.dtype).reshape(y.shape)
    loss = (weights * y).sin().sum() + sum((s**2).sum() * 0.3 for s in states)
    inputs = [data["x"], *(data[k] for k in states_of(net)), *net.parameters()]
    return torch.autograd.grad(loss, inputs)


STARTS = st.lists(st.booleans(), min_size=1, max_size=25)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("cls", CLASSES)
@settings(max_examples=25)
@given(STARTS, st.integers(0, 9))
def test_ragged_rows_are_as_the_loop(cls: Any, layers: int, init: list[bool], seed: int) -> None:
    net = module(cls, layers)
    data = rows(net, init, seed)
    want = step_by_step(net, data)
    out = in_sequence(net, data)
    states = [out["next", k] for k in states_of(net)]
    torch.testing.assert_close(out["y"], want["y"], rtol=0, atol=1e-12)
    for k, s in zip(states_of(net), states):
        assert s.shape == (len(init), layers, HIDDEN)
        torch.testing.assert_close(s, want[k], rtol=0, atol=1e-12)
    found = gradients(net, data, out["y"], states)
    loop = gradients(net, data, want["y"], [want[k] for k in states_of(net)])
    for a, b in zip(found, loop):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


@pytest.mark.parametrize("cls", CLASSES)
def test_ragged_rows_in_float32(cls: Any) -> None:
    net = module(cls, 2, dtype=torch.float32)
    init = torch.rand(200, generator=torch.Generator().manual_seed(1)) < 0.1
    data = rows(net, init, dtype=torch.float32)
    out, want = in_sequence(net, data), step_by_step(net, data)
    torch.testing.assert_close(out["y"], want["y"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("cls", CLASSES)
def test_gradients_by_differences(cls: Any) -> None:
    net = module(cls, bias=False)
    data = rows(net, [True, False, True, False, False])
    names = ["x", *states_of(net)]

    def run(*values: Any) -> Any:
        out = in_sequence(net, {**dict(zip(names, values)), "is_init": data["is_init"]})
        return (out["y"], *(out["next", k] for k in states_of(net)))

    assert torch.autograd.gradcheck(run, tuple(data[k] for k in names))


@pytest.mark.parametrize("cls", CLASSES)
def test_flat_is_bitwise_what_reshaped_is(cls: Any) -> None:
    net = module(cls, 2, dtype=torch.float32)
    flat = rows(net, torch.arange(24) % 6 == 0, dtype=torch.float32)
    lanes = {
        k: v.detach().reshape(4, 6, *v.shape[1:]).requires_grad_(v.is_floating_point())
        for k, v in flat.items()
    }
    a, b = in_sequence(net, flat), in_sequence(net, lanes)
    assert b["y"].shape == (4, 6, HIDDEN)
    assert torch.equal(a["y"], b["y"].reshape(24, HIDDEN))
    for k in states_of(net):
        assert torch.equal(a["next", k], b["next", k].reshape(24, 2, HIDDEN))
    lanes["is_init"] = torch.zeros(4, 6, dtype=torch.bool)  # a lane's first row starts in any case
    assert torch.equal(b["y"], in_sequence(net, lanes)["y"])
    pa = torch.autograd.grad(a["y"].sum(), list(net.parameters()))
    pb = torch.autograd.grad(b["y"].sum(), list(net.parameters()))
    assert all(torch.equal(x, y) for x, y in zip(pa, pb))


def test_stored_states_are_used_where_a_piece_starts_and_nowhere_else() -> None:
    net = module(GRUModule)
    data = rows(net, [True, False, False, True, False])
    want = in_sequence(net, data)["y"]
    zeros = in_sequence(net, {**data, "h": torch.zeros_like(data["h"])})["y"]
    assert not torch.allclose(want, zeros)
    for t in range(5):
        other = data["h"].detach().clone()
        other[t] += 1
        changed = in_sequence(net, {**data, "h": other})["y"]
        assert torch.equal(changed, want) == (t not in (0, 3))
    # A single step starts from its own state too, also where it is the first.
    first = net({"x": data["x"][:1], "h": data["h"][:1], "is_init": torch.tensor([True])})
    torch.testing.assert_close(first["y"][0], want[0])


def test_another_trajectory_starts_a_piece() -> None:
    net = module(LSTMModule)
    data = rows(net, [True, False, False, False])
    data["collector"] = {"traj_ids": torch.tensor([5, 5, 7, 7])}
    marked = {**data, "is_init": torch.tensor([True, False, True, False])}
    assert torch.equal(in_sequence(net, data)["y"], in_sequence(net, marked)["y"])


def test_a_stale_state_and_burn_in() -> None:
    """After rows of burn-in a wrong first state matters less and less; whose rows is known."""
    net = module(GRUModule, dtype=torch.float32)
    torch.nn.init.constant_(net.gru.bias_hh_l0[HIDDEN : 2 * HIDDEN], -2.0)  # it forgets
    steps = np.arange(40)
    buffer = ReplayBuffer(
        LazyTensorStorage(100), SliceSampler(slice_len=6, burn_in=10), batch_size=60, seed=0
    )
    generator = np.random.default_rng(0)
    x = generator.normal(size=(40, IN)).astype(np.float32)
    fresh = in_sequence(
        net,
        {"x": x, "h": np.zeros((40, 1, HIDDEN), np.float32), "is_init": steps == 0},
    )
    stored = np.zeros((40, 1, HIDDEN), np.float32)
    stored[1:] = fresh["next", "h"][:-1].detach()
    done = steps == 39
    buffer.extend({"x": x, "h": stored + 1, "t": steps, "next": {"done": done}})  # stale
    batch = buffer.sample()
    out = in_sequence(net, batch)
    kept = ~batch["collector", "burn_in"]
    distance = (out["y"].detach() - fresh["y"].detach()[batch["t"]]).abs().amax(-1).numpy()
    starts = batch["is_init"] & batch["collector", "burn_in"]
    assert kept.sum() == 60 and starts.any()
    long = np.repeat(
        np.add.reduceat(~kept, np.flatnonzero(batch["is_init"])) == 10,
        np.diff(np.flatnonzero(batch["is_init"]), append=len(kept)),
    )
    assert distance[kept & long].max() < 0.1 * distance[starts].max()


# -- forms ----------------------------------------------------------------------------------------


def test_dict_batch_and_tensordict_agree() -> None:
    net = module(LSTMModule, dtype=torch.float32)
    init = [True, False, True, False, False]
    data = {k: v.detach() for k, v in rows(net, init, dtype=torch.float32).items()}
    data["next"] = {"reward": torch.ones(5)}
    want = in_sequence(net, data)
    assert set(want["next"]) == {"reward", "h", "c"} and set(data["next"]) == {"reward"}
    arrays = {k: v.numpy() for k, v in data.items() if k != "next"}
    for other in (arrays, Batch.from_tree(arrays)):
        out = in_sequence(net, other)
        assert out["y"].requires_grad and torch.equal(out["y"], want["y"])
        assert torch.equal(out["next", "c"], want["next", "c"])
    td = TensorDict({**arrays, "is_init": data["is_init"][:, None]}, batch_size=[5])
    out = in_sequence(net, td)
    assert out is td and torch.equal(td["y"], want["y"])
    assert torch.equal(td["next", "h"], want["next", "h"])


def test_steps_of_any_batch_dims() -> None:
    net = module(GRUModule, 2)
    data = rows(net, torch.zeros(2, 3, dtype=torch.bool))
    out = net(data)
    assert out["y"].shape == (2, 3, HIDDEN) and out["next", "h"].shape == (2, 3, 2, HIDDEN)
    one = net({"x": data["x"][1, 2], "h": data["h"][1, 2]})
    torch.testing.assert_close(one["y"], out["y"][1, 2])
    assert one["next", "h"].shape == (2, HIDDEN)
    none = in_sequence(net, {k: v[0, :0] for k, v in data.items()})
    assert none["y"].shape == (0, HIDDEN)


def test_dropout_between_layers_while_training() -> None:
    net = module(GRUModule, 2, dropout=0.5)
    data = rows(net, [True, False, False])
    assert not torch.equal(in_sequence(net, data)["y"], in_sequence(net, data)["y"])
    net.eval()
    assert torch.equal(in_sequence(net, data)["y"], in_sequence(net, data)["y"])
    torch.testing.assert_close(in_sequence(net, data)["y"], step_by_step(net, data)["y"])


def test_weights_are_those_of_torch() -> None:
    net = module(GRUModule, 2)
    assert set(net.state_dict()) == {f"gru.{k}" for k in torch.nn.GRU(IN, HIDDEN, 2).state_dict()}


def test_the_primer_names_states_and_what_they_start_from() -> None:
    found = module(LSTMModule, 2, dtype=torch.float32).make_tensordict_primer()
    assert set(found) == {("h",), ("c",)}
    for value in found.values():
        assert value.shape == (2, HIDDEN) and value.dtype == np.float32 and not value.any()


# -- packing --------------------------------------------------------------------------------------


@given(STARTS)
def test_packing_keeps_every_row_once(starts: list[bool]) -> None:
    marks = np.array([True, *starts[1:]])
    p = pack(marks)
    n = len(marks)
    assert sorted(p.rows) == list(range(n)) and sum(p.sizes) == n
    assert p.sizes == sorted(p.sizes, reverse=True) and p.sizes[0] == marks.sum()
    assert (p.rows[p.places] == np.arange(n)).all()
    at = 0
    for step, size in enumerate(p.sizes):
        assert (p.rows[at : at + size] == p.first[:size] + step).all()
        at += size


# -- errors ---------------------------------------------------------------------------------------


def test_errors() -> None:
    net = module(GRUModule)
    data = rows(net, [True, False])
    with pytest.raises(KeyError, match=r"hidden state.*auto_register_policy_transforms"):
        net({"x": data["x"]})
    with pytest.raises(KeyError, match="first steps.*is_init"):
        in_sequence(net, {"x": data["x"], "h": data["h"]})
    with pytest.raises(KeyError, match="the input"):
        net({"h": data["h"]})
    with pytest.raises(ValueError, match=r"expected \[..., 3\]"):
        net({**data, "x": data["x"][:, :2]})
    with pytest.raises(ValueError, match=r"expected \[2, 1, 4\]"):
        net({**data, "h": data["h"][:, 0]})
    with pytest.raises(ValueError, match='"is_init": shape'):
        in_sequence(net, {**data, "is_init": torch.zeros(3)})
    with pytest.raises(ValueError, match="no sequence"):
        in_sequence(net, {"x": data["x"][0], "h": data["h"][0], "is_init": torch.tensor(True)})
    with pytest.raises(TypeError, match="expected a mapping"):
        net(data["x"])
    keys = {"in_keys": ["x", "h", "is_init"], "out_keys": ["y", ("next", "h")]}
    for change, match in (
        ({"in_keys": ["x"]}, "in_keys: expected"),
        ({"out_keys": ["y"]}, "out_keys: expected"),
        ({"out_keys": ["y", "h"]}, r'expected \("next", "h"\)'),
        ({"num_layers": 0}, "at least 1"),
    ):
        with pytest.raises(ValueError, match=match):
            GRUModule(IN, HIDDEN, **{**keys, **change})  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="no second derivatives"):
        y = in_sequence(net, data)["y"]
        torch.autograd.grad(y.sum(), data["x"], create_graph=True)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("mode", "inside"),  # torch's own backward, of single steps, does round if it runs inside
    [("recurrent", False), ("recurrent", True), ("sequential", False)],
)
@pytest.mark.parametrize("cls", CLASSES)
def test_autocast_changes_nothing(cls: Any, mode: str, inside: bool, half: Any) -> None:
    """States that were rounded at each step would not be those that acting stored."""
    net = module(cls, 2, dtype=torch.float32)
    data = rows(net, [1, 0, 0, 1, 0], dtype=torch.float32)

    def run(cast: bool) -> list[Any]:
        net.zero_grad()
        x = data["x"].detach().requires_grad_()
        with torch.autocast("cpu", half, enabled=cast), set_recurrent_mode(mode):
            out = net({**data, "x": x})
            if inside:
                out["y"].square().sum().backward()
        if not inside:
            out["y"].square().sum().backward()
        found = [out["y"], *(out["next", s] for s in states_of(net)), x.grad]
        return found + [weight.grad.clone() for weight in net.parameters()]

    for with_it, without in zip(run(True), run(False)):
        assert with_it.dtype == torch.float32
        torch.testing.assert_close(with_it, without)


@pytest.mark.parametrize("mode", ["recurrent", "sequential"])
@pytest.mark.parametrize("cls", CLASSES)
def test_what_a_layer_under_autocast_gives_is_taken(cls: Any, mode: str) -> None:
    """Its output is bfloat16, and so may the stored states be."""
    net, before = module(cls, dtype=torch.float32), torch.nn.Linear(IN, IN)
    data = rows(net, [1, 0, 0, 1, 0], dtype=torch.float32)
    short = {k: v.detach().bfloat16() for k, v in data.items() if k in states_of(net)}
    with torch.autocast("cpu"), set_recurrent_mode(mode):
        out = net({**data, **short, "x": before(data["x"])})
        out["y"].sum().backward()
    assert out["y"].dtype == torch.float32 and before.weight.grad.abs().sum() > 0
