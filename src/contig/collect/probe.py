"""The layout of rows before any are collected, so that workers never race to define it."""

from __future__ import annotations

from typing import Any

from ..layout import Layout
from .adapters import is_env
from .env import EnvBase
from .policy import PolicyRunner, register_primers
from .roller import Roller

__all__ = ["probe_layout"]


def probe_layout(
    first: EnvBase, given: Any, policy: Any, *, register: bool, seed: int | None, wanted: bool
) -> Layout | None:
    """Rows' layout, by one reset, policy call and step of one environment.

    Args:
        first: the environment that was made of what was given.
        given: an environment, or a function that makes one.
        register: give it the hidden states that the policy needs.
        wanted: if not, only what was made is closed.

    Returns:
        None if it is not wanted, or if the environment given cannot be copied.
    """
    made = first is not given and not is_env(given) and not isinstance(given, str)
    probe = first if not wanted or (made and not first.batch_shape) else first.probe()
    try:
        if not wanted or probe is given:
            return None
        if register and policy is not None:
            register_primers(probe, policy)
        roller = Roller(probe, PolicyRunner(policy, probe.action_space), 1, seed=seed)
        roller.begin()
        roller.step()
        assert roller.plan is not None
        return roller.plan.layout
    finally:
        if made:
            first.close()
        if probe is not first:
            probe.close()
