"""TorchRL's ReplayBufferEnsemble."""

from __future__ import annotations

from typing import Any

from ...replay import ReplayBufferEnsemble as Ensemble
from .arguments import refused, seed_of, without_effect
from .buffers import ReplayBuffer
from .transforms import Transforms

__all__ = ["ReplayBufferEnsemble"]


class ReplayBufferEnsemble(Ensemble):
    """Several buffers sampled as one; batches are flat, with `buffer_ids`.

    Args:
        rbs: the members, without transforms of their own for samples.
        transform: of the ensemble's samples.
        p, sample_from_all, batch_size: as in contig.ReplayBufferEnsemble.
        generator: as in `ReplayBuffer`.
        shared: without effect.
        collate_fn, num_buffer_sampled: not taken; the error says what to use.
        options: `seed` and others of contig's own.
    """

    def __init__(
        self,
        *rbs: Any,
        transform: Any = None,
        batch_size: int | None = None,
        collate_fn: Any = None,
        p: Any = None,
        sample_from_all: bool = False,
        num_buffer_sampled: int | None = None,
        generator: Any = None,
        shared: bool = False,
        **options: Any,
    ) -> None:
        without_effect(shared)
        hint = "a batch has rows of any number of members, drawn by p"
        refused(num_buffer_sampled=(num_buffer_sampled, hint))
        refused(collate_fn=(collate_fn, "batches are flat: give transform= a function"))
        for i, rb in enumerate(rbs):
            if isinstance(rb, ReplayBuffer) and len(rb.transforms):
                raise ValueError(
                    f"rbs[{i}]: its transforms would be passed by: give them to the ensemble"
                )
        super().__init__(
            *rbs,
            sample_from_all=sample_from_all,
            p=None if p is None else [float(x) for x in p],
            batch_size=batch_size,
            output="tensordict",
            **{"seed": seed_of(generator), **options},
        )
        self.transforms = Transforms(transform)

    def append_transform(self, transform: Any, *, invert: bool = False) -> ReplayBufferEnsemble:
        """Adds a transform of samples after the others."""
        self.transforms.append(transform, invert)
        return self

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        td, info = super().sample(batch_size, return_info=True)
        td = self.transforms.to_learner(td)
        return (td, info) if return_info else td
