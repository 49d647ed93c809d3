"""Estimators over batches: where runs end, what counts there, value nets, forms, keys."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from contig import (
    GAE,
    TD0,
    Batch,
    DiscountedReturn,
    GRUModule,
    LazyTensorStorage,
    NStep,
    ReplayBuffer,
    SliceSampler,
    TDLambda,
    VTrace,
    learn,
    set_recurrent_mode,
)
from contig.learn import Keys
from tests.learn.rows import GAMMA, LMBDA, expected, join, trajectory, worth

ENDS = ("terminated", "truncated", "open")


def net(rows: Any) -> Any:
    return worth(rows["state"])


def estimator(**options: Any) -> GAE:
    return GAE(gamma=GAMMA, lmbda=LMBDA, **{"value_net": net, **options})


def check(batch: Any, starts: Any) -> None:
    """Every run of a batch against the numbers by hand."""
    first = np.flatnonzero(starts)
    for a, b in zip(first, [*first[1:], len(starts)]):
        states, after = np.asarray(batch["state"][a:b]), np.asarray(batch["next", "state"][a:b])
        ended = bool(np.asarray(batch["next", "terminated"])[b - 1].all())
        want, target = expected(states.reshape(-1), after.reshape(-1), ended)
        np.testing.assert_allclose(np.asarray(batch["advantage"])[a:b].reshape(-1), want, 1e-5)
        np.testing.assert_allclose(np.asarray(batch["value_target"])[a:b].reshape(-1), target, 1e-5)


# -- ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("single_call", [False, True])
def test_trajectories_that_end_in_every_way(single_call: bool) -> None:
    rows = Batch.from_tree(join(*(trajectory(i + 1, 3 + i, e) for i, e in enumerate(ENDS * 2))))
    out = estimator(single_call=single_call)(rows)
    assert isinstance(out, Batch) and len(out) == len(rows)
    check(out, rows["is_init"])
    assert "advantage" not in rows and ("advantage",) in out.extras


@pytest.mark.parametrize("single_call", [False, True])
def test_slices_of_a_buffer(single_call: bool) -> None:
    """A slice's end is no end of an episode: its next state's value counts, no row is lost."""
    buffer = ReplayBuffer(LazyTensorStorage(500), SliceSampler(slice_len=4), batch_size=64, seed=0)
    for i in range(12):
        buffer.extend_trajectory(trajectory(i + 1, 2 + i, ENDS[i % 3]))
    batch = buffer.sample()
    cut = batch["collector", "slice_end"]
    real = batch["next", "truncated"] & ~cut
    assert cut.any() and real.any() and batch["next", "terminated"].any()
    out = estimator(single_call=single_call)(batch)
    assert len(out) == len(batch)
    check(out, batch["is_init"])
    # Each confusion gives other numbers.
    last = np.flatnonzero(cut)
    terminated = out["next", "reward"][last] - worth(out["state"][last])
    assert (np.abs(out["advantage"][last] - terminated) > 1).all()


def test_a_slice_whose_end_was_not_marked() -> None:
    """Ids and first steps tell runs apart when no flag does."""
    rows = join(*(trajectory(i + 1, 4, "open") for i in range(3)))
    want = rows["is_init"]
    for leave in ("ids", "init"):
        data = {**rows, "collector": dict(rows["collector"])}
        if leave == "ids":
            data["is_init"] = np.zeros_like(want)
        else:
            del data["collector"]
        check(estimator()(data), want)
    data = {**rows, "collector": {"slice_end": np.roll(want, -1)}, "is_init": np.zeros_like(want)}
    check(estimator()(data), want)


def test_without_a_mark_the_rows_are_one_run() -> None:
    rows = {k: v for k, v in trajectory(1, 4, "open").items() if k in ("state", "next")}
    check(estimator()(rows), np.arange(4) == 0)


# -- layouts and forms ----------------------------------------------------------------------------


@pytest.mark.parametrize("single_call", [False, True])
def test_lanes(single_call: bool) -> None:
    lanes = [
        join(trajectory(1, 2, "terminated"), trajectory(2, 4, "open")),
        join(trajectory(3, 5, "truncated"), trajectory(4, 1, "terminated")),
        trajectory(5, 6, "open"),
    ]
    flat = Batch.from_tree(join(*lanes))
    want = estimator()(flat)
    out = estimator(single_call=single_call)(flat.reshape(3, 6))
    assert out.shape == (3, 6)
    np.testing.assert_array_equal(out["advantage"].reshape(-1), want["advantage"])

    def turn(node: Any) -> Any:
        return {k: turn(v) if isinstance(v, dict) else v.swapaxes(0, 1) for k, v in node.items()}

    rows = turn(flat.reshape(3, 6).tree())
    by_time = estimator(single_call=single_call, time_dim=0)(rows)
    np.testing.assert_array_equal(by_time["advantage"].swapaxes(0, 1), out["advantage"])
    with pytest.raises(ValueError, match="which dim is time"):
        estimator()(rows)


def test_dicts_tensors_and_tensordicts() -> None:
    batch = Batch.from_tree(join(trajectory(1, 5, "truncated"), trajectory(2, 4, "terminated")))
    want = estimator()(batch)
    as_dict = estimator()(batch.tree())
    np.testing.assert_array_equal(as_dict["advantage"], want["advantage"])
    tensors = estimator(single_call=True)(batch.torch())
    assert isinstance(tensors["advantage"], torch.Tensor)
    assert torch.equal(tensors["advantage"], torch.from_numpy(want["advantage"]))
    td = batch.to_tensordict()
    assert td["next", "reward"].shape == (9, 1)
    out = estimator(value_net=lambda rows: worth(rows["state"]).unsqueeze(-1))(td)
    assert out is td and isinstance(td, TensorDict)
    assert torch.equal(td["advantage"][:, 0], tensors["advantage"])


def test_a_torch_net_on_numpy_rows_runs_without_gradients() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(10.0))

        def forward(self, rows: Any) -> Any:
            assert isinstance(rows["state"], torch.Tensor)
            return {"state_value": rows["state"] * self.scale}

    batch = Batch.from_tree(trajectory(1, 5, "truncated"))
    for single_call in (False, True):
        out = estimator(value_net=Net(), single_call=single_call)(batch)
        np.testing.assert_array_equal(out["advantage"], estimator()(batch)["advantage"])
        np.testing.assert_array_equal(out["state_value"], worth(batch["state"]))


def test_stored_values_and_other_keys() -> None:
    rows = trajectory(1, 5, "truncated")
    want = estimator()(rows)
    moved = {
        "v": worth(rows["state"]),
        "r": rows["next"]["reward"],
        "next": {"v": worth(rows["next"]["state"]), **rows["next"]},
    }
    keys = Keys(reward="r", value="v", advantage=("out", "adv"), value_target=("out", "target"))
    out = GAE(gamma=GAMMA, lmbda=LMBDA, keys=keys)(moved)
    np.testing.assert_array_equal(out["out", "adv"], want["advantage"])
    np.testing.assert_array_equal(out["out", "target"], want["value_target"])
    assert "out" not in moved


def test_several_rewards() -> None:
    rows = trajectory(1, 5, "truncated")
    both = {**rows, "next": {**rows["next"], "reward": np.stack([rows["state"]] * 2, -1)}}
    for single_call in (False, True):
        out = estimator(
            value_net=lambda x: np.stack([worth(x["state"]), 0 * x["state"]], -1),
            single_call=single_call,
        )(both)
        np.testing.assert_array_equal(out["advantage"][:, 0], estimator()(rows)["advantage"])
        assert out["advantage"].shape == (5, 2)


@pytest.mark.parametrize("single_call", [False, True])
def test_the_others(single_call: bool) -> None:
    rows = join(trajectory(1, 5, "truncated"), trajectory(2, 4, "terminated"))
    rows["log_rho"] = np.linspace(-1, 1, 9).astype(np.float32)
    now, then = worth(rows["state"]), worth(rows["next"]["state"])
    common: dict[str, Any] = {k: rows["next"][k] for k in ("reward", "done", "terminated")}
    common["gamma"] = GAMMA
    options: dict[str, Any] = {"gamma": GAMMA, "value_net": net, "single_call": single_call}
    targets = {
        TD0(**options): learn.td0_return(**common, next_value=then),
        TDLambda(lmbda=0.5, **options): learn.td_lambda_return(
            **common, next_value=then, lmbda=0.5
        ),
        NStep(n=3, **options): learn.nstep_return(**common, next_value=then, n=3),
        DiscountedReturn(**options): learn.discounted_return(**common, next_value=then),
    }
    for run, target in targets.items():
        out = run(rows)
        np.testing.assert_array_equal(out["value_target"], target)
        np.testing.assert_array_equal(out["advantage"], target - now)
    out = VTrace(rho_clip=1.2, **options)(rows)
    want = learn.vtrace(**common, value=now, next_value=then, log_rho=rows["log_rho"], rho_clip=1.2)
    np.testing.assert_array_equal(out["advantage"], want[0])
    np.testing.assert_array_equal(out["value_target"], want[1])


def test_returns_without_values() -> None:
    """Rewards only: runs end at dones, other ids and slices' ends, and nothing is added there."""
    lengths, ends = (5, 4, 3), ENDS
    rows = join(*(trajectory(i + 1, n, e) for i, (n, e) in enumerate(zip(lengths, ends))))
    out = DiscountedReturn(gamma=GAMMA)(Batch.from_tree(rows))
    assert "advantage" not in out and "state_value" not in out
    want, at = [], 0
    for n in lengths:
        reward = rows["next"]["reward"][at : at + n].astype(np.float64)
        want += [float(reward[t:] @ GAMMA ** np.arange(n - t)) for t in range(n)]
        at += n
    np.testing.assert_allclose(out["value_target"], want, 1e-5)
    # With values of the next states in the batch, those count where a run is not terminated.
    rows["next"]["state_value"] = worth(rows["next"]["state"])
    more = DiscountedReturn(gamma=GAMMA)(rows)
    other = np.asarray(more["value_target"]) != np.asarray(out["value_target"])
    assert other.tolist() == [False] * 5 + [True] * 7
    rows["state_value"] = worth(rows["state"])
    full = DiscountedReturn(gamma=GAMMA)(rows)
    np.testing.assert_array_equal(full["advantage"], more["value_target"] - rows["state_value"])


# -- one call -------------------------------------------------------------------------------------


def test_one_call_is_one_call() -> None:
    sizes = []

    def counting(rows: Any) -> Any:
        sizes.append(len(rows["state"]))
        return worth(rows["state"])

    rows = join(trajectory(1, 5, "truncated"), trajectory(2, 4, "terminated"))
    estimator(value_net=counting, single_call=True)(rows)
    assert sizes == [9 + 2]
    estimator(value_net=counting)(rows)
    assert sizes[1:] == [9, 9]


@pytest.mark.parametrize("marked", [True, False])
def test_one_call_of_a_recurrent_net_goes_on_from_each_run(marked: bool) -> None:
    """The value of a run's last next state comes from the state the run led to."""
    torch.manual_seed(0)
    gru = GRUModule(
        1, 3, in_keys=["x", "h", "is_init"], out_keys=["y", ("next", "h")], dtype=torch.float64
    )
    rows = join(trajectory(1, 5, "truncated"), trajectory(2, 4, "open"))
    rows |= {"x": rows["state"][:, None] / 100, "h": np.random.default_rng(0).random((9, 1, 3))}
    rows["next"] = {**rows["next"], "x": rows["next"]["state"][:, None] / 100}
    if not marked:  # the second run is known by the end of the first only
        rows["is_init"], rows["collector"] = np.zeros(9, bool), {"slice_end": np.arange(9) == 4}
        rows["next"]["done"] = np.zeros(9, bool)

    def value(data: Any) -> Any:
        with set_recurrent_mode("recurrent"):
            return gru(data)["y"].sum(-1)

    class Net(torch.nn.Module):
        def forward(self, data: Any) -> Any:
            return value(data)

    out = estimator(value_net=Net(), single_call=True)(rows)
    with torch.no_grad():
        for first, last in ((0, 5), (5, 9)):
            h = torch.from_numpy(rows["h"][first : first + 1])
            values = []
            for x in [*rows["x"][first:last], rows["next"]["x"][last - 1]]:
                step = gru({"x": torch.from_numpy(x[None]), "h": h})
                h = step["next", "h"]
                values.append(float(step["y"].sum()))
            want = learn.gae(
                reward=rows["state"][first:last].astype(np.float64),
                value=np.array(values[:-1]),
                next_value=np.array(values[1:]),
                done=np.zeros(last - first, bool),
                gamma=GAMMA,
                lmbda=LMBDA,
            )
            np.testing.assert_allclose(out["advantage"][first:last], want[0], 1e-9)


# -- errors ---------------------------------------------------------------------------------------


def test_errors_name_what_is_missing() -> None:
    rows = trajectory(1, 3, "open")
    with pytest.raises(KeyError, match=r'no values at \\?"state_value\\?"'):
        GAE(gamma=0.9, lmbda=0.9)(rows)
    with pytest.raises(KeyError, match="reward.*keys=Keys"):
        estimator()({"state": rows["state"]})
    with pytest.raises(KeyError, match="log_rho"):
        VTrace(gamma=0.9, value_net=net)(rows)
    with pytest.raises(KeyError, match="value_net returned rows without"):
        estimator(value_net=lambda rows: {"other": 1})(rows)
    with pytest.raises(ValueError, match="value_net: got values of shape"):
        estimator(value_net=lambda rows: rows["state"][:2])(rows)
    with pytest.raises(ValueError, match=r"value: shape \[3, 1\]"):
        estimator(value_net=lambda rows: rows["state"][:, None])(rows)
    with pytest.raises(ValueError, match=r"value: shape \[3, 1\]"):
        TD0(gamma=0.9)(
            {
                **rows,
                "state_value": np.zeros((3, 1)),
                "next": {**rows["next"], "state_value": np.zeros(3, np.float32)},
            }
        )
    with pytest.raises(TypeError, match="expected a mapping"):
        estimator()([1, 2])
    with pytest.raises(ValueError, match="time_dim 3"):
        estimator(time_dim=3)(rows)
    for bad in ({"gamma": 2.0}, {"lmbda": -1.0}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            GAE(**{"gamma": 0.9, "lmbda": 0.9, **bad})
    with pytest.raises(ValueError, match="n: expected"):
        NStep(gamma=0.9, n=0)


def test_threads_share_an_estimator() -> None:
    run = estimator(single_call=True)
    batches = [Batch.from_tree(trajectory(i + 1, 50, "truncated")) for i in range(4)]
    want = [run(b)["advantage"] for b in batches]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(20):
            if not np.array_equal(run(batches[i])["advantage"], want[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
