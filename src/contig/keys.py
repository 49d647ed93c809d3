"""Paths of the leaves that contig itself writes, or looks for in what it is given."""

from __future__ import annotations

__all__ = [
    "BURN_IN",
    "CHUNK_MASK",
    "DONE",
    "FIELDS",
    "FLAGS",
    "INDEX",
    "INIT",
    "MASK",
    "NEXT",
    "RELABELED",
    "REWARD",
    "SLICE_END",
    "STEPS",
    "TERMINATED",
    "TRAJ_IDS",
    "TRAJ_LENGTH",
    "TRUNCATED",
    "VERSION",
    "WEIGHT",
]

# Of a step: what is below NEXT came of its action. Some data has reward and flags at the root:
# REWARD[1:], DONE[1:].
NEXT = ("next",)
REWARD = ("next", "reward")
DONE = ("next", "done")
TERMINATED = ("next", "terminated")
TRUNCATED = ("next", "truncated")
FLAGS = ("done", "terminated", "truncated")
INIT = ("is_init",)

# What a collector knows of a row.
TRAJ_IDS = ("collector", "traj_ids")
VERSION = ("collector", "policy_version")

# What a sample says of its rows.
INDEX = ("index",)
WEIGHT = ("priority_weight",)
STEPS = ("steps_to_next_obs",)
MASK = ("collector", "mask")
SLICE_END = ("collector", "slice_end")
BURN_IN = ("collector", "burn_in")
RELABELED = ("collector", "relabeled")
CHUNK_MASK = ("collector", "chunk_mask")
TRAJ_LENGTH = ("collector", "traj_length")
FIELDS = ("fields",)  # below it, fields of the row's trajectory
