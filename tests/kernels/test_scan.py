"""Reverse scans against loops over every lane."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contig import _native
from tests.reference import scan as reference

Array = np.ndarray[Any, Any]
SHAPES = st.tuples(st.integers(0, 11), st.integers(1, 9), st.sampled_from([1, 2, 5]))
DTYPES = st.sampled_from(["f4", "f8"])
GAMMA, LMBDA = 0.9, 0.7


def lanes(shape: tuple[int, int, int], dtype: str, seed: int) -> dict[str, Array]:
    """Values and flags; where nothing may be read, the value of the next state is not a number."""
    rng = np.random.default_rng(seed)
    stop, terminated = rng.random(shape) < 0.3, rng.random(shape) < 0.5
    terminated &= stop
    out = {k: rng.normal(size=shape).astype(dtype) for k in ("reward", "value", "next_value")}
    out["next_value"][terminated] = np.nan
    return {**out, "stop": stop, "terminated": terminated}


def close(found: Array, want: Array) -> None:
    assert found.shape == want.shape
    tolerance = 1e-5 if found.dtype == np.float32 else 1e-12
    np.testing.assert_allclose(found, want, rtol=tolerance, atol=tolerance)


def out(shape: Any, dtype: str) -> Array:
    return np.full(shape, 77, dtype)


@given(SHAPES, DTYPES, st.integers(0, 99))
def test_gae(shape: Any, dtype: str, seed: int) -> None:
    x, advantage, target = lanes(shape, dtype, seed), out(shape, dtype), out(shape, dtype)
    _native.scan_gae(**x, gamma=GAMMA, lmbda=LMBDA, advantage=advantage, target=target)
    if advantage.size:
        want = reference.by_lane(reference.gae, shape, *x.values(), gamma=GAMMA, lmbda=LMBDA)
        close(advantage, want[0])
        close(target, want[1])


@given(SHAPES, DTYPES, st.integers(0, 99), st.sampled_from([0.0, 0.7, 1.0]), st.booleans())
def test_lambda(shape: Any, dtype: str, seed: int, lmbda: float, values: bool) -> None:
    x, target = lanes(shape, dtype, seed), out(shape, dtype)
    del x["value"]
    if not values:
        x["next_value"] = None  # type: ignore[assignment]
    _native.scan_lambda(**x, gamma=GAMMA, lmbda=lmbda, target=target)
    if target.size:
        # Without values lambda only shortens the sum.
        gamma, rest = (GAMMA, lmbda) if values else (GAMMA * lmbda, 1.0)
        f = reference.lambda_return
        close(target, reference.by_lane(f, shape, *x.values(), gamma=gamma, lmbda=rest))


@given(SHAPES, DTYPES, st.integers(0, 99))
def test_vtrace(shape: Any, dtype: str, seed: int) -> None:
    x, advantage, target = lanes(shape, dtype, seed), out(shape, dtype), out(shape, dtype)
    rho, c = (np.random.default_rng(seed + i).random(shape).astype(dtype) for i in (1, 2))
    _native.scan_vtrace(**x, gamma=GAMMA, rho=rho, c=c, advantage=advantage, target=target)
    if target.size:

        def one(r: Any, v: Any, v2: Any, stop: Any, term: Any, rho: Any, c: Any) -> Any:
            return reference.vtrace(r, v, v2, stop, term, GAMMA, rho, c)

        want = reference.by_lane(one, shape, *x.values(), rho, c)
        close(advantage, want[0])
        close(target, want[1])


@given(SHAPES, DTYPES, st.integers(0, 99), st.integers(1, 12))
def test_nstep(shape: Any, dtype: str, seed: int, n: int) -> None:
    x, target = lanes(shape, dtype, seed), out(shape, dtype)
    del x["value"]
    _native.scan_nstep(**x, gamma=GAMMA, n=n, target=target)
    if target.size:
        close(target, reference.by_lane(reference.nstep, shape, *x.values(), gamma=GAMMA, n=n))


def test_more_lanes_than_fit_one_round() -> None:
    shape = (2, 3, 1200)
    x, a, g = lanes(shape, "f4", 3), out(shape, "f4"), out(shape, "f4")
    _native.scan_gae(**x, gamma=GAMMA, lmbda=LMBDA, advantage=a, target=g)
    close(a, reference.by_lane(reference.gae, shape, *x.values(), gamma=GAMMA, lmbda=LMBDA)[0])


def test_large_arrays_go_without_the_gil() -> None:
    shape = (1, 300_000, 1)
    x, a, g = lanes(shape, "f4", 4), out(shape, "f4"), out(shape, "f4")
    _native.scan_gae(**x, gamma=GAMMA, lmbda=LMBDA, advantage=a, target=g)
    again = {k: np.ascontiguousarray(v[:, -1000:]) for k, v in x.items()}
    want = reference.by_lane(reference.gae, (1, 1000, 1), *again.values(), gamma=GAMMA, lmbda=LMBDA)
    close(a[:, -1000:], want[0])


@pytest.mark.parametrize("name", ["value", "next_value", "stop", "terminated"])
def test_another_shape_raises(name: str) -> None:
    x = lanes((2, 3, 1), "f4", 0)
    x[name] = x[name][:1]
    with pytest.raises(ValueError, match=name):
        _native.scan_gae(
            **x, gamma=1, lmbda=1, advantage=out((2, 3, 1), "f4"), target=out((2, 3, 1), "f4")
        )


def test_what_is_no_such_array_raises() -> None:
    x = lanes((2, 3, 1), "f4", 0)
    a, g = out((2, 3, 1), "f4"), out((2, 3, 1), "f4")
    for name, bad in {
        "reward": x["reward"].astype("f8"),  # dtypes mixed
        "value": x["value"][..., 0],  # two dims
        "next_value": np.zeros((2, 3, 2), "f4")[..., :1],  # gaps
        "stop": x["stop"].astype("u1"),  # no bool
    }.items():
        with pytest.raises(TypeError):
            _native.scan_gae(**{**x, name: bad}, gamma=1, lmbda=1, advantage=a, target=g)
    g.flags.writeable = False
    with pytest.raises(TypeError):
        _native.scan_gae(**x, gamma=1, lmbda=1, advantage=a, target=g)
    with pytest.raises(ValueError, match="target"):
        _native.scan_gae(**x, gamma=1, lmbda=1, advantage=a, target=out((2, 2, 1), "f4"))
    del x["value"]
    with pytest.raises(ValueError, match="n must be"):
        _native.scan_nstep(**x, gamma=1, n=0, target=a)


@given(st.integers(0, 70), st.integers(1, 4), DTYPES, st.integers(0, 99))
def test_standardize(rows: int, width: int, dtype: str, seed: int) -> None:
    data = (np.random.default_rng(seed).normal(size=(rows, width)) * 3 + 5).astype(dtype)
    exact = data.astype(np.float64)
    _native.standardize(data, 1e-8)
    if rows < 2:
        assert not data.any()
    else:
        close(data, (exact - exact.mean(0)) / (exact.std(0, ddof=1) + 1e-8))


@given(st.integers(1, 9), st.integers(0, 1030), DTYPES, st.integers(0, 2), st.integers(0, 99))
def test_rollout_gae(time: int, lanes: int, dtype: str, ends: int, seed: int) -> None:
    """Of done rows, of time-outs with the row's own value, and with final values."""
    rng = np.random.default_rng(seed)
    reward, value, final = (rng.normal(size=(time, lanes)).astype(dtype) for _ in range(3))
    last = rng.normal(size=lanes).astype(dtype)
    done = rng.random((time, lanes)) < 0.3
    late = (rng.random((time, lanes)) < 0.2) if ends else None
    final[~late if late is not None else ...] = np.nan  # is not read
    advantages, returns = out((time, lanes), dtype), out((time, lanes), dtype)
    given_final = final if ends == 2 else None
    _native.rollout_gae(
        reward, value, last, done, late, given_final, GAMMA, LMBDA, advantages, returns
    )
    carry, after = np.zeros(lanes, dtype), last
    for t in reversed(range(time)):
        over = done[t] if late is None else done[t] | late[t]
        boot = np.where(over, 0, after)
        if late is not None:
            boot = np.where(late[t], final[t] if ends == 2 else value[t], boot)
        carry = reward[t] + GAMMA * boot - value[t] + GAMMA * LMBDA * np.where(over, 0, carry)
        after = value[t]
        close(advantages[t], carry.astype(dtype))
        close(returns[t], (carry + value[t]).astype(dtype))


@pytest.mark.parametrize("name", ["value", "done", "time_out", "final_value", "returns"])
def test_another_shape_of_a_rollout_raises(name: str) -> None:
    shape = (3, 4)
    x: dict[str, Any] = {k: np.zeros(shape, "f4") for k in ("reward", "value", "final_value")}
    x |= {"done": np.zeros(shape, bool), "time_out": np.zeros(shape, bool)}
    x |= {"advantages": out(shape, "f4"), "returns": out(shape, "f4")}
    x["last_value"] = np.zeros(4, "f4")
    _native.rollout_gae(**x, gamma=1, lmbda=1)
    with pytest.raises(ValueError, match="last_value needs one number per lane"):
        _native.rollout_gae(**{**x, "last_value": np.zeros(3, "f4")}, gamma=1, lmbda=1)
    with pytest.raises(ValueError, match=name):
        _native.rollout_gae(**{**x, name: x[name][:2]}, gamma=1, lmbda=1)
