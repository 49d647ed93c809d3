"""Policies, called as TorchRL's collectors call them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from tensordict import is_tensor_collection
from tensordict.nn import TensorDictModule, TensorDictModuleBase

__all__ = ["Explored", "weights_of"]


class Explored(TensorDictModuleBase):  # type: ignore[misc, unused-ignore]  # untyped before 0.15
    """A policy that gets a TensorDict of the environment's own batch shape.

    Its weights are the policy's own, under their own names.

    Args:
        policy: a TensorDictModule, any function of a TensorDict, or an nn.Module of observations.
        batch_shape: of the environment; ``()``: of one lane, the TensorDict has no batch dims.
        observations: names of what the environment emits.
    """

    def __init__(
        self,
        policy: Any,
        batch_shape: tuple[int, ...],
        observations: Iterable[str],
    ) -> None:
        super().__init__()
        self.policy = policy
        self.in_keys: list[Any] = []
        self.out_keys: list[Any] = ["action"]
        self._shape = batch_shape
        # Not under a name of its own: its weights would be there twice.
        self._call = [_callable(policy, list(observations))]

    def forward(self, td: Any) -> Any:
        lanes = td.batch_size
        out = self.act(td.reshape(self._shape) if self._shape else td[0])
        return out.reshape(lanes) if self._shape else out.unsqueeze(0)

    @property
    def reads_init(self) -> bool:
        """Whether the policy may want `is_init`: one that says what it reads, and does not say
        that, does not."""
        keys = getattr(self._call[0], "in_keys", None)
        return keys is None or "is_init" in keys

    def act(self, td: Any) -> Any:
        """The same for a TensorDict of the environment's own."""
        out = self._call[0](td)
        return out if is_tensor_collection(out) else td.set("action", torch.as_tensor(out))

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        inner = self.policy
        return inner.state_dict(*args, **kwargs) if isinstance(inner, torch.nn.Module) else {}

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        return self.policy.load_state_dict(state_dict, *args, **kwargs)


def _callable(policy: Any, observations: list[str]) -> Any:
    """What to call with a TensorDict.

    Raises:
        TypeError: an nn.Module of tensors, and it is not clear which.
    """
    plain = isinstance(policy, torch.nn.Module) and not isinstance(policy, TensorDictModuleBase)
    if not plain or hasattr(policy, "make_tensordict_primer"):
        return policy
    wanted: list[Any] = list(inspect.signature(policy.forward).parameters)
    if any(name not in observations for name in wanted):
        if len(wanted) != 1 or len(observations) != 1:
            raise TypeError(
                f"policy: {type(policy).__name__}.forward takes {', '.join(wanted)}, the "
                f"environment has {', '.join(observations)}: wrap it in a TensorDictModule with "
                "in_keys"
            )
        wanted = list(observations)
    return TensorDictModule(policy, in_keys=wanted, out_keys=["action"])


def weights_of(given: Any) -> Any:
    """Weights as a collector takes them: a TensorDict's names are joined by dots, as in a state
    dict."""
    if is_tensor_collection(given):
        flat = given.flatten_keys(".")
        return {str(k): v for k, v in flat.items()}
    return given
