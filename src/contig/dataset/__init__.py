"""Rollouts from files and to files. Names load when they are first used: some need torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_WHERE = {
    "contig.dataset.base": ("RolloutFileBase",),
    "contig.dataset.rollouts": ("RolloutDataset", "Transition"),
    "contig.dataset.writer": ("RolloutWriter",),
    "contig.dataset.hdf5": ("from_hdf5",),
    "contig.dataset.minari": ("from_minari", "to_minari"),
    "contig.dataset.parquet": ("to_parquet",),
    "contig.dataset.rlinf": ("from_rlinf",),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}
__all__ = list(_MODULE_OF)

if TYPE_CHECKING:
    from .base import RolloutFileBase as RolloutFileBase
    from .hdf5 import from_hdf5 as from_hdf5
    from .minari import from_minari as from_minari
    from .minari import to_minari as to_minari
    from .parquet import to_parquet as to_parquet
    from .rlinf import from_rlinf as from_rlinf
    from .rollouts import RolloutDataset as RolloutDataset
    from .rollouts import Transition as Transition
    from .writer import RolloutWriter as RolloutWriter


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(importlib.import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module 'contig.dataset' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
