"""Rollouts from files and to files. Names load when they are first used: some need torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

_WHERE = {
    "base": ("RolloutFileBase",),
    "rollouts": ("RolloutDataset", "Transition"),
    "writer": ("RolloutWriter",),
    "checkpoints": ("from_checkpoint", "to_checkpoint"),
    "directories": ("to_rollouts",),
    "hdf5": ("from_hdf5", "to_hdf5"),
    "lerobot": ("from_lerobot", "lerobot_tasks"),
    "lerobot_export": ("to_lerobot",),
    "minari": ("from_minari", "to_minari"),
    "parquet": ("to_arrow", "to_parquet"),
    "parquet_reading": ("from_parquet",),
    "ray_data": ("from_ray_dataset", "to_ray_dataset"),
    "rlinf": ("from_rlinf", "to_rlinf"),
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _WHERE)

if TYPE_CHECKING:
    from .base import RolloutFileBase as RolloutFileBase
    from .checkpoints import from_checkpoint as from_checkpoint
    from .checkpoints import to_checkpoint as to_checkpoint
    from .directories import to_rollouts as to_rollouts
    from .hdf5 import from_hdf5 as from_hdf5
    from .hdf5 import to_hdf5 as to_hdf5
    from .lerobot import from_lerobot as from_lerobot
    from .lerobot import lerobot_tasks as lerobot_tasks
    from .lerobot_export import to_lerobot as to_lerobot
    from .minari import from_minari as from_minari
    from .minari import to_minari as to_minari
    from .parquet import to_arrow as to_arrow
    from .parquet import to_parquet as to_parquet
    from .parquet_reading import from_parquet as from_parquet
    from .ray_data import from_ray_dataset as from_ray_dataset
    from .ray_data import to_ray_dataset as to_ray_dataset
    from .rlinf import from_rlinf as from_rlinf
    from .rlinf import to_rlinf as to_rlinf
    from .rollouts import RolloutDataset as RolloutDataset
    from .rollouts import Transition as Transition
    from .writer import RolloutWriter as RolloutWriter
