"""Functional estimators: the table, loops with random boundaries, layouts, libraries, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import contig
from contig.learn import (
    discounted_return,
    gae,
    nstep_return,
    td0_return,
    td_lambda_return,
    vectorised,
    vtrace,
)
from tests.reference import scan as reference

Array = np.ndarray[Any, Any]
GAMMA, LMBDA = 0.9, 0.8

# -- the table ------------------------------------------------------------------------------------

TABLE = {
    "none terminated": {
        "terminated": [0, 0, 0, 0, 0],
        "gae": [7.56, 8, 3.40576, 2.508, 1.4],
        "td0": [2.8, 10, 4.6, 5.5, 6.4],
        "td_lambda": [8.56, 10, 6.40576, 6.508, 6.4],
        "vtrace": [10, 10, 7.084, 6.76, 6.4],
    },
    "step 1 terminated": {
        "terminated": [0, 1, 0, 0, 0],
        "gae": [1.08, -1, 3.40576, 2.508, 1.4],
        "td0": [2.8, 1, 4.6, 5.5, 6.4],
        "td_lambda": [2.08, 1, 6.40576, 6.508, 6.4],
        "vtrace": [1.9, 1, 7.084, 6.76, 6.4],
    },
}


@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", TABLE)
def test_the_table(case: str, dtype: str, make: Any) -> None:
    kind = getattr(np if make is np.asarray else torch, dtype)
    want = TABLE[case]
    rewards: dict[str, Any] = {"reward": make([1.0] * 5, dtype=kind), "gamma": GAMMA}
    rewards |= {"done": make([0, 1, 0, 0, 1]), "terminated": make(want["terminated"])}
    now, then = make([1, 2, 3, 4, 5.0], dtype=kind), make([2, 10, 4, 5, 6.0], dtype=kind)
    advantage, target = gae(**rewards, value=now, next_value=then, lmbda=LMBDA)
    assert advantage.dtype == kind and type(advantage) is type(now)
    np.testing.assert_allclose(advantage, want["gae"], atol=1e-5)
    np.testing.assert_allclose(target, np.add(want["gae"], [1, 2, 3, 4, 5]), atol=1e-5)
    np.testing.assert_allclose(td0_return(**rewards, next_value=then), want["td0"], atol=1e-5)
    found = td_lambda_return(**rewards, next_value=then, lmbda=LMBDA)
    np.testing.assert_allclose(found, want["td_lambda"], atol=1e-5)
    found = vtrace(**rewards, value=now, next_value=then, log_rho=make([0.0] * 5, dtype=kind))[1]
    np.testing.assert_allclose(found, want["vtrace"], atol=1e-5)
    np.testing.assert_allclose(vtrace(**rewards, value=now, next_value=then)[1], found)


def test_reached_from_the_package() -> None:
    assert contig.learn.gae is gae


# -- random boundaries ----------------------------------------------------------------------------


def steps(shape: tuple[int, ...], seed: int, dtype: str = "f8") -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    out: dict[str, Any] = {
        k: rng.normal(size=shape).astype(dtype) for k in ("reward", "value", "next_value")
    }
    out["done"] = rng.random(shape) < 0.25
    out["terminated"] = out["done"] & (rng.random(shape) < 0.5)
    out["cut"] = rng.random(shape) < 0.15
    out["log_rho"] = rng.normal(size=shape).astype(dtype)
    return out


def run(name: str, x: dict[str, Any], **options: Any) -> tuple[Any, ...]:
    """One estimator on what it takes of x."""
    drop = {
        "gae": ("log_rho",),
        "vtrace": (),
        "discounted": ("log_rho", "value", "next_value"),
    }.get(name, ("log_rho", "value"))
    x = {k: v for k, v in x.items() if k not in drop}
    functions: dict[str, Any] = {
        "gae": lambda: gae(**x, gamma=GAMMA, lmbda=LMBDA, **options),
        "td0": lambda: td0_return(**x, gamma=GAMMA, **options),
        "td_lambda": lambda: td_lambda_return(**x, gamma=GAMMA, lmbda=LMBDA, **options),
        "discounted": lambda: discounted_return(**x, gamma=GAMMA, **options),
        "bootstrapped": lambda: discounted_return(**x, gamma=GAMMA, **options),
        "vtrace": lambda: vtrace(**x, gamma=GAMMA, rho_clip=1.5, c_clip=0.9, **options),
        "nstep": lambda: nstep_return(**x, gamma=GAMMA, n=3, **options),
    }
    found = functions[name]()
    return found if isinstance(found, tuple) else (found,)


NAMES = ["gae", "td0", "td_lambda", "discounted", "bootstrapped", "vtrace", "nstep"]


def loop(name: str, x: dict[str, Any], dims: tuple[int, int, int]) -> tuple[Array, ...]:
    """The same by loops over [outer, time, inner]."""
    a = {k: np.asarray(v).reshape(dims) for k, v in x.items()}
    stop = a["done"] | a["cut"]
    tail = (stop, a["terminated"])
    values = (a["reward"], a["value"], a["next_value"])
    if name == "gae":
        return tuple(
            reference.by_lane(reference.gae, dims, *values, *tail, gamma=GAMMA, lmbda=LMBDA)
        )
    if name == "vtrace":
        ratio = np.exp(a["log_rho"])

        def one(r: Any, v: Any, v2: Any, s: Any, e: Any, rho: Any, c: Any) -> Any:
            return reference.vtrace(r, v, v2, s, e, GAMMA, rho, c)

        clipped = (np.minimum(ratio, 1.5), np.minimum(ratio, 0.9))
        return tuple(reference.by_lane(one, dims, *values, *tail, *clipped))
    if name == "nstep":
        f, options = reference.nstep, {"gamma": GAMMA, "n": 3}
        return (reference.by_lane(f, dims, a["reward"], a["next_value"], *tail, **options),)
    lmbda = {"td0": 0.0, "td_lambda": LMBDA}.get(name, 1.0)
    then = None if name == "discounted" else a["next_value"]
    f2 = reference.lambda_return
    return (reference.by_lane(f2, dims, a["reward"], then, *tail, gamma=GAMMA, lmbda=lmbda),)


@pytest.mark.parametrize("name", NAMES)
@given(st.integers(1, 30), st.integers(0, 999))
def test_flat_rows_are_as_the_loop(name: str, rows: int, seed: int) -> None:
    x = steps((rows,), seed)
    for found, want in zip(run(name, x), loop(name, x, (1, rows, 1))):
        np.testing.assert_allclose(found, want.reshape(-1), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
@given(
    st.integers(1, 6), st.integers(1, 5), st.sampled_from([(), (3,), (2, 2)]), st.integers(0, 99)
)
def test_every_layout_is_as_the_loop(
    name: str, time: int, lanes: int, more: tuple[int, ...], seed: int
) -> None:
    inner = int(np.prod(more, dtype=int))
    x = steps((time, lanes, *more), seed)
    want = loop(name, x, (1, time, lanes * inner))
    for found, w in zip(run(name, x), want):
        np.testing.assert_allclose(found, w.reshape(found.shape), rtol=1e-10, atol=1e-10)
    swapped = {k: v.swapaxes(0, 1) for k, v in x.items()}  # not contiguous
    for a, b in zip(run(name, x), run(name, swapped, time_dim=1)):
        assert np.array_equal(a, b.swapaxes(0, 1))


@pytest.mark.parametrize("name", NAMES)
def test_numpy_is_torch(name: str) -> None:
    for dtype in ("f4", "f8"):
        x = steps((7, 5, 2), 1, dtype)
        tensors = {k: torch.from_numpy(v) for k, v in x.items()}
        tensors["reward"].requires_grad_()
        for a, b in zip(run(name, x), run(name, tensors)):
            assert isinstance(b, torch.Tensor) and not b.requires_grad
            assert np.array_equal(a, b.numpy())


@pytest.mark.parametrize("name", NAMES)
@given(st.integers(1, 40), st.integers(0, 99))
def test_vectorised_is_native(name: str, rows: int, seed: int) -> None:
    """What runs on other devices, run on this one."""
    x = steps((rows,), seed)
    t = {k: torch.from_numpy(v).reshape(1, rows, 1) for k, v in x.items()}
    ends = (t["done"] | t["cut"], t["terminated"], GAMMA)
    found: dict[str, Any] = {
        "gae": lambda: vectorised.gae(t["reward"], t["value"], t["next_value"], *ends, LMBDA),
        "vtrace": lambda: vectorised.vtrace(
            t["reward"], t["value"], t["next_value"], *ends, t["log_rho"], 1.5, 0.9
        ),
        "nstep": lambda: vectorised.nstep(t["reward"], t["next_value"], *ends, 3),
    }
    lmbda = {"td0": 0.0, "td_lambda": LMBDA}.get(name, 1.0)
    then = None if name == "discounted" else t["next_value"]
    default = lambda: vectorised.lambda_return(t["reward"], then, *ends, lmbda)  # noqa: E731
    got = found.get(name, default)()
    for a, b in zip(run(name, x), got if isinstance(got, tuple) else (got,)):
        np.testing.assert_allclose(b.reshape(-1), a, rtol=1e-9, atol=1e-9)


def test_vectorised_never_reads_past_an_end() -> None:
    reward = torch.ones(1, 4, 1)
    value = torch.tensor([0.0, 0.0, float("nan"), float("inf")]).reshape(1, 4, 1)
    stop = torch.tensor([False, True, False, True]).reshape(1, 4, 1)
    advantage, _ = vectorised.gae(reward, value, torch.zeros_like(value), stop, stop, 0.9, 0.8)
    assert advantage[0, :2, 0].tolist() == pytest.approx([1.72, 1.0])


def test_a_device_without_memory_takes_the_vectorised_path() -> None:
    x = {k: torch.from_numpy(v).to("meta") for k, v in steps((5, 3), 0).items()}
    for name in NAMES:
        for out in run(name, x):
            assert out.device.type == "meta" and out.shape == (5, 3)


def test_equal_runs_are_bitwise_the_same_flat_and_in_lanes() -> None:
    x = steps((6, 10), 5, "f4")
    x["cut"][:, -1] = True
    flat = {k: v.reshape(-1) for k, v in x.items()}
    for name in NAMES:
        for a, b in zip(run(name, x, time_dim=1), run(name, flat)):
            assert np.array_equal(a.reshape(-1), b)


# -- what counts ----------------------------------------------------------------------------------


def test_each_kind_of_end_gives_another_number() -> None:
    """V(s) = 10, r = 1, three rows and then three of another trajectory whose rewards are 100."""
    r = [1.0, 1, 1, 100, 100, 100]
    last = {"reward": r, "next_value": [10.0] * 6, "gamma": 0.5, "lmbda": 1.0}
    nothing = [False] * 6
    here = [False, False, True, False, False, False]

    def target(done: Any, terminated: Any, cut: Any = None) -> float:
        found = td_lambda_return(**last, done=done, terminated=terminated, cut=cut)
        return float(found[2])

    assert target(here, here) == 1.0  # terminated: nothing follows
    assert target(here, nothing) == 1.0 + 0.5 * 10  # truncated: the next state's value follows
    assert target(nothing, nothing, here) == 1.0 + 0.5 * 10  # a slice's end: likewise
    assert target(nothing, nothing) > 80  # confused: the other trajectory follows


def test_only_done_given_means_terminated() -> None:
    x = steps((9,), 2)
    x["terminated"] = None
    same = {**x, "terminated": x["done"]}
    for name in NAMES:
        for a, b in zip(run(name, x), run(name, same)):
            assert np.array_equal(a, b)


def test_values_that_do_not_count_may_be_anything() -> None:
    x = steps((40,), 3)
    x["next_value"][x["terminated"]] = np.nan
    assert x["terminated"].any()
    for name in NAMES:
        assert all(np.isfinite(out).all() for out in run(name, x))


@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 4)])
def test_flags_may_lack_dims_after_time(shape: tuple[int, ...]) -> None:
    x = steps((6, 4), 4)
    full = dict(x)
    for k in ("done", "terminated", "cut", "log_rho"):
        x[k] = x[k] if shape == (6, 4) else x[k][:, 0].reshape(shape)
        full[k] = x[k] if shape == (6, 4) else np.repeat(x[k].reshape(6, 1), 4, 1)
    for name in NAMES:
        for a, b in zip(run(name, x), run(name, full)):
            assert np.array_equal(a, b)


def test_other_numbers_are_cast() -> None:
    found = td0_return(
        reward=np.array([1, 2]), next_value=[1.0, 1.0], done=np.array([0.0, 1.0]), gamma=0.5
    )
    assert found.dtype == np.float32 and found.tolist() == [1.5, 2.0]
    half = torch.ones(2, dtype=torch.bfloat16)
    out = td0_return(reward=half, next_value=half, done=torch.zeros(2), gamma=0.5)
    assert out.dtype == torch.float32 and out.tolist() == [1.5, 1.5]
    empty = np.empty((0,), np.float32)
    assert gae(reward=empty, value=empty, next_value=empty, done=empty, gamma=1, lmbda=1)[
        0
    ].shape == (0,)


# -- errors ---------------------------------------------------------------------------------------


def refused(match: str, **change: Any) -> None:
    x = {k: v for k, v in steps((6, 4), 0).items() if k != "log_rho"}
    with pytest.raises(ValueError, match=match):
        gae(**{**x, "gamma": 0.9, "lmbda": 0.9, **change})


def test_shapes_never_broadcast() -> None:
    refused(r"value: shape \[6, 4, 1\], expected the reward's \[6, 4\]", value=np.zeros((6, 4, 1)))
    refused(r"next_value: shape \[6, 1\]", next_value=np.zeros((6, 1)))
    refused(r"next_value: shape \[\]", next_value=np.zeros(()))
    refused(r"done: shape \[4\]", done=np.zeros(4, bool))
    refused(r"cut: shape \[6, 3\]", cut=np.zeros((6, 3), bool))
    refused(r"terminated: shape \[6, 4, 1\]", terminated=np.zeros((6, 4, 1), bool))
    refused(r"done: shape \[6\], .*dim 1", done=np.zeros(6, bool), time_dim=1)


def test_numbers_out_of_range() -> None:
    refused("gamma: expected a number from 0 to 1, got 1.5", gamma=1.5)
    refused("lmbda.*got -1", lmbda=-1)
    refused("gamma: expected one number", gamma=np.ones(3))
    refused("time_dim 2", time_dim=2)
    refused('"done": value 2', done=np.full((6, 4), 2))
    refused("value: expected numbers", value=np.zeros((6, 4), complex))
    with pytest.raises(ValueError, match="n: expected a number of steps"):
        nstep_return(reward=[1.0], next_value=[1.0], done=[0], gamma=1, n=0)
