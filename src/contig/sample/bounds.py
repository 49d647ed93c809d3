"""Whether it is known of a storage's rows where their trajectories end."""

from __future__ import annotations

import numpy as np

from ..errors import NothingEligibleError
from .base import Index

__all__ = ["KnownBounds"]


class KnownBounds:
    """Belongs to one sampler, which draws from one storage."""

    def __init__(self) -> None:
        self._told = False
        self._told_none = -1  # trajectories the storage had ever had when it was not

    def need(self, index: Index, who: str) -> None:
        """Raises NothingEligibleError, which says who needs them, if they are not known."""
        schema = index.storage.schema
        if self._told or schema is None or schema.boundaries.any:
            return
        # Without marks in the data there may still be trajectories whose bounds were told; each of
        # those is a new one, so there is nothing to look for before there are more.
        begun = int(index.storage.tape.trajectories)
        if begun != self._told_none:
            table = index.storage.episodes()
            told = table["terminated"] | table["truncated"] | (table["traj_id"] != -1)
            self._told = bool(told.any()) or not np.diff(np.sort(table["writer"])).all()
            self._told_none = begun
        if not self._told:
            raise NothingEligibleError(
                f"{who} need to know where trajectories end, and the data has none of "
                f"{schema.boundaries.looked_for}; add one of them, name one with traj_key= or "
                "end_key=, or write with extend_trajectory"
            )
