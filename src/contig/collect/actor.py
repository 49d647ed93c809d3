"""SingleActor: a policy without a state that acts in one environment, with little around its call.

What it returns is known from its first call: a few comparisons show that it is the same again.
Anything else takes the long road, which converts it or says what is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..keys import INIT
from ..tree import Path
from .specs import Array, at_lane

if TYPE_CHECKING:
    from .roller import Roller

__all__ = ["SingleActor"]


class SingleActor:
    """Acts in lane 0 and writes what the policy returns. For one block of rows.

    Args:
        roller: whose policy, and whose plan of rows.
        columns: where outputs go, by path, without the lane dim.
    """

    def __init__(self, roller: Roller, columns: dict[Path, Array]) -> None:
        self._roller, self._columns = roller, columns
        self._paths = roller.env.spec.paths
        self._names = [str(p[0]) for p in self._paths]
        nested = any(len(p) > 1 for p in self._paths)
        self._direct = roller.policy.kind != "tensordict" and not nested
        # The action comes last. Outputs that are nested take the long road.
        flat = all(len(p) == 1 for p in columns)
        last = sorted(columns, key=lambda p: p == ("action",)) if flat else []
        self._known = [(str(p[0]), columns[p], (1, *columns[p].shape[1:])) for p in last]

    def __call__(self, obs: list[Any], init: bool, t: int) -> Any:
        """The action on an observation; everything that the policy returned is in row t."""
        policy = self._roller.policy
        if self._direct:
            given = policy.call_one(self._names, obs, init)
        else:
            given = policy.call(self._inputs(obs, init))
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
        roller, columns = self._roller, self._columns
        assert roller.plan is not None
        outputs = roller.completed(roller.policy.outputs(given, self._inputs(obs, init)))
        if outputs.keys() != columns.keys():
            raise ValueError(
                f"the policy returned {sorted(map(str, outputs))}, before it was "
                f"{sorted(map(str, columns))}"
            )
        for path, value in outputs.items():
            columns[path][t] = roller.plan.check_output(path, value)[0]
        return at_lane(roller.action_tree(outputs), 0)
