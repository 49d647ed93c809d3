"""Rollouts from files and to files. Names load when they are first used: some need torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_WHERE = {
    "contig.dataset.base": ("RolloutFileBase",),
    "contig.dataset.rollouts": ("RolloutDataset", "Transition"),
    "contig.dataset.writer": ("RolloutWriter",),
    "contig.dataset.directories": ("to_rollouts",),
    "contig.dataset.hdf5": ("from_hdf5", "to_hdf5"),
    "contig.dataset.lerobot": ("from_lerobot", "lerobot_tasks"),
    "contig.dataset.minari": ("from_minari", "to_minari"),
    "contig.dataset.parquet": ("from_parquet", "to_arrow", "to_parquet"),
    "contig.dataset.rlinf": ("from_rlinf", "to_rlinf"),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}
__all__ = list(_MODULE_OF)

if TYPE_CHECKING:
    from .base import RolloutFileBase as RolloutFileBase
    from .directories import to_rollouts as to_rollouts
    from .hdf5 import from_hdf5 as from_hdf5
    from .hdf5 import to_hdf5 as to_hdf5
    from .lerobot import from_lerobot as from_lerobot
    from .lerobot import lerobot_tasks as lerobot_tasks
    from .minari import from_minari as from_minari
    from .minari import to_minari as to_minari
    from .parquet import from_parquet as from_parquet
    from .parquet import to_arrow as to_arrow
    from .parquet import to_parquet as to_parquet
    from .rlinf import from_rlinf as from_rlinf
    from .rlinf import to_rlinf as to_rlinf
    from .rollouts import RolloutDataset as RolloutDataset
    from .rollouts import Transition as Transition
    from .writer import RolloutWriter as RolloutWriter


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(importlib.import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module 'contig.dataset' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
