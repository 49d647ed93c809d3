"""Policies of TorchRL's explore while a collector acts, as in TorchRL's own collectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchrl")
from tensordict.nn import TensorDictModule  # noqa: E402
from torchrl.collectors import Collector as TheirCollector  # noqa: E402
from torchrl.envs import GymEnv as TheirEnv  # noqa: E402
from torchrl.envs.utils import ExplorationType, exploration_type, set_exploration_type  # noqa: E402
from torchrl.modules import ProbabilisticActor  # noqa: E402

from contig import Collector, GymEnv, MultiCollector  # noqa: E402


class Level(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """A normal distribution around 0.25, whatever is observed."""

    def forward(self, observation: Any) -> Any:
        loc = observation[..., :1].float() * 0 + 0.25
        return loc, torch.ones_like(loc)


def actor() -> Any:
    module = TensorDictModule(Level(), in_keys=["observation"], out_keys=["loc", "scale"])
    return ProbabilisticActor(
        module, in_keys=["loc", "scale"], distribution_class=torch.distributions.Normal
    )


def wrapped(inputs: Any) -> Any:
    """A plain function that calls such a policy."""
    from tensordict import TensorDict

    seen = torch.as_tensor(inputs["observation"])
    return actor()(TensorDict({"observation": seen}, [len(seen)]))["action"].numpy()


def make_env() -> Any:
    return GymEnv("Pendulum-v1")


def actions(workers: int, policy: Any, **options: Any) -> Any:
    """The actions of each worker."""
    given: dict[str, Any] = {"frames_per_batch": 20 * max(workers, 1), "seed": 3, **options}
    given["total_frames"] = given["frames_per_batch"]
    if workers:
        with MultiCollector([make_env] * workers, policy, **given) as multi:
            return [a.ravel() for a in next(iter(multi))["action"]]
    with Collector(make_env(), policy, **given) as collector:
        return [next(iter(collector))["action"].ravel()]


def test_torchrl_s_own_collector_explores() -> None:
    collector = TheirCollector(
        lambda: TheirEnv("Pendulum-v1"),
        actor(),
        frames_per_batch=20,
        total_frames=20,
        auto_register_policy_transforms=False,
    )
    assert len(np.unique(next(iter(collector))["action"].numpy())) == 20
    collector.shutdown()


@pytest.mark.parametrize("policy", [actor(), wrapped], ids=["actor", "function"])
def test_actions_are_drawn(policy: Any) -> None:
    (drawn,) = actions(0, policy)
    assert len(np.unique(drawn)) == 20
    assert exploration_type() is None  # it is set while a policy acts only


def test_workers_explore_and_not_alike() -> None:
    """Torch's generator begins at the same state in every process."""
    first, second = actions(2, actor())
    assert len(np.unique(first)) == len(np.unique(second)) == 20
    assert not np.isin(first, second).any()


@pytest.mark.parametrize(
    ("workers", "given"), [(0, "mode"), (0, "MEAN"), (1, ExplorationType.DETERMINISTIC)]
)
def test_greedy_actions_if_they_are_asked_for(workers: int, given: Any) -> None:
    for taken in actions(workers, actor(), exploration_type=given):
        assert (taken == 0.25).all()


def test_whatever_is_set_around_it() -> None:
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        assert len(np.unique(actions(0, actor())[0])) == 20
        assert exploration_type() is ExplorationType.DETERMINISTIC
        # A rollout of an environment is not a collector's: it acts as its caller has set it.
        rows = make_env().rollout(20, actor())
    assert (rows["action"] == 0.25).all()


def test_what_is_no_exploration_type() -> None:
    with pytest.raises(ValueError, match="exploration_type: expected one of random"):
        Collector(make_env(), actor(), frames_per_batch=2, exploration_type="greedy")
