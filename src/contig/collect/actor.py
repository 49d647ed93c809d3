"""Actors: what a policy returns becomes an action, and columns of the rows.

Actor         any lanes; the first actions may be drawn
SingleActor   a policy without a state in one environment, with little around its call
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import numpy as np

from ..errors import LayoutError
from ..keys import INIT
from ..tree import Path, show_path
from .column_blocks import RowPlan
from .places import check_apart
from .policy import PolicyRunner
from .random_policy import RandomPolicy
from .specs import Array, Spec, as_space, at_lane, nest, spec_of_space
from .stepping import SteppedEnv, wide

__all__ = ["Actor", "SingleActor"]

_OTHER = 1_000_003  # random frames draw other numbers than a random policy


class Actor:
    """A policy whose outputs are checked, and whose first actions may be drawn instead.

    Args:
        policy: runs in any case.
        env: whose lanes it acts in; made already.
        random_frames: frames whose action is random, at first.
        seed: of these.

    Attributes:
        random_left: frames that still get a random action.
        drawn: lanes whose action was drawn in this step, the first ones.
    """

    def __init__(
        self, policy: PolicyRunner, env: SteppedEnv, random_frames: int, seed: int | None
    ) -> None:
        self.policy, self.random_left, self.drawn = policy, random_frames, 0
        self._lanes, self._space = env.num_envs, env.action_space
        self._known = False  # whether it has acted
        try:
            self._spec: Spec | None = (
                None if self._space is None else spec_of_space(self._space, "action")
            )
        except LayoutError:
            self._spec = None  # a space without a shape: what the policy returns decides
        self._random: RandomPolicy | None = None
        if random_frames:
            self._random = RandomPolicy(self._space, None if seed is None else seed + _OTHER)

    def completed(
        self, outputs: dict[Path, Array], hidden: Container[Path] = ()
    ) -> dict[Path, Array]:
        """The policy's outputs, checked, with an action in the dtypes of its space.

        The action is random while those are asked for.

        Args:
            hidden: paths of the hidden states that are started at a reset.
        """
        for path in outputs:
            if path[0] == "next" and path[1:] not in hidden:
                raise LayoutError(
                    f"{show_path(path)}: the policy returns a hidden state, but no primer says "
                    f"what {show_path(path[1:])} is at a reset: use "
                    "auto_register_policy_transforms=True, GymEnv(..., policy=policy) or a "
                    "TensorDictPrimer"
                )
        if not self._known:
            check_apart({"what the policy returns": outputs})
            self._known = True
        self.drawn = min(max(self.random_left, 0), self._lanes)
        if self.drawn:
            outputs = self._with_random(outputs)
        if self._spec is not None:
            tree = nest({p: v for p, v in outputs.items() if p[0] == "action"})["action"]
            checked = self._spec.checked(tree, (self._lanes,))
            outputs.update(zip(self._spec.paths, checked))
        return outputs

    def _with_random(self, outputs: dict[Path, Array]) -> dict[Path, Array]:
        """The policy's outputs, with an action drawn for the first lanes."""
        assert self._random is not None
        drawn = self._random.batch(self._lanes)
        flat = [drawn] if self._spec is None else self._spec.flat(drawn)
        paths: list[Path] = [("action",)] if self._spec is None else self._spec.paths
        actions = dict(zip(paths, flat))
        if self.drawn < self._lanes:
            which = np.arange(self._lanes) < self.drawn
            actions = {p: np.where(wide(which, v), v, outputs[p]) for p, v in actions.items()}
        return {**{p: v for p, v in outputs.items() if p[0] != "action"}, **actions}

    def action_tree(self, outputs: dict[Path, Array]) -> Any:
        """The action as the environment wants it."""
        if ("action",) in outputs:
            return outputs["action",]
        tree = nest({p: v for p, v in outputs.items() if p[0] == "action"})["action"]
        return as_space(self._space, tree)


class SingleActor:
    """Acts in lane 0 and writes what the policy returns. For one block of rows.

    What it returns is known from its first call: a few comparisons show that it is the same again.
    Anything else takes the long road, which converts it or says what is wrong.

    Args:
        actor: whose policy.
        plan: of the rows.
        paths: of the observation.
        columns: where outputs go, by path, without the lane dim.
    """

    def __init__(
        self, actor: Actor, plan: RowPlan, paths: list[Path], columns: dict[Path, Array]
    ) -> None:
        self._actor, self._plan, self._columns = actor, plan, columns
        self._policy, self._paths = actor.policy, paths
        self._names = [str(p[0]) for p in paths]
        nested = any(len(p) > 1 for p in paths)
        self._direct = self._policy.kind != "tensordict" and not nested
        # The action comes last. Outputs that are nested take the long road.
        flat = all(len(p) == 1 for p in columns)
        last = sorted(columns, key=lambda p: p == ("action",)) if flat else []
        self._known = [(str(p[0]), columns[p], (1, *columns[p].shape[1:])) for p in last]

    def __call__(self, obs: list[Any], init: bool, t: int) -> Any:
        """The action on an observation; everything that the policy returned is in row t."""
        if self._direct:
            given = self._policy.call_one(self._names, obs, init)
        else:
            given = self._policy.call(self._inputs(obs, init))
        values = given if type(given) is dict else {"action": given}
        if len(values) != len(self._known):
            return self._write(given, obs, init, t)
        try:
            for key, column, shape in self._known:
                value = values[key]
                if type(value) is not np.ndarray:
                    value = value.numpy()
                if value.shape != shape or value.dtype != column.dtype:
                    return self._write(given, obs, init, t)
                row = column[t] = value[0]
        except (AttributeError, KeyError, TypeError, RuntimeError):
            # Another key; no tensor; or one on a device, or of a dtype that numpy lacks.
            return self._write(given, obs, init, t)
        return row

    def _inputs(self, obs: list[Any], init: bool) -> dict[Path, Array]:
        return {**{p: x[None] for p, x in zip(self._paths, obs)}, INIT: np.array([init])}

    def _write(self, given: Any, obs: list[Any], init: bool, t: int) -> Any:
        columns = self._columns
        outputs = self._actor.completed(self._policy.outputs(given, self._inputs(obs, init)))
        if outputs.keys() != columns.keys():
            raise ValueError(
                f"the policy returned {sorted(map(str, outputs))}, before it was "
                f"{sorted(map(str, columns))}"
            )
        for path, value in outputs.items():
            columns[path][t] = self._plan.check_output(path, value)[0]
        return at_lane(self._actor.action_tree(outputs), 0)
