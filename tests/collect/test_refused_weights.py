"""Weights that do not fit a policy leave it as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from contig import LayoutError
from contig.weights.policy import get_weights, set_weights

torch = pytest.importorskip("torch")


class Pair:
    """A policy of two modules."""

    def __init__(self) -> None:
        self.first, self.second = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)


def ones(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: ones(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(ones(value) for value in tree)
    return np.ones_like(np.asarray(tree))


def flat(policy: Any) -> list[float]:
    modules = [policy] if isinstance(policy, torch.nn.Module) else [policy.first, policy.second]
    return [x for m in modules for p in m.parameters() for x in p.detach().reshape(-1).tolist()]


@pytest.mark.parametrize("lack", ["a leaf", "a shape"])
def test_one_module(lack: str) -> None:
    policy = torch.nn.Linear(4, 2)
    before, weights = flat(policy), ones(get_weights(policy))
    if lack == "a leaf":
        del weights["bias"]
    else:
        weights["bias"] = np.ones(7, np.float32)
    with pytest.raises(LayoutError, match="cannot take these weights"):
        set_weights(policy, weights)
    assert flat(policy) == before


def test_the_second_of_two_modules() -> None:
    policy = Pair()
    before, weights = flat(policy), ones(get_weights(policy))
    del weights[1]["weight"]
    with pytest.raises(LayoutError, match="cannot take these weights"):
        set_weights(policy, weights)
    assert flat(policy) == before
    set_weights(policy, ones(get_weights(policy)))
    assert set(flat(policy)) == {1.0}
