"""Accumulators: data of several timescales gathered into one record, on the client's side.

    add("step", ...)     ┐
    add("step", ...)     ├─ one record of Layout(example) ─── build() ─── client.send(...)
    add("episode", ...)  ┘

What an accumulator does not do: send, run in threads, or keep a rollout after `build`.
"""

from __future__ import annotations

from .accumulator import Built, TrajectoryAccumulator

__all__ = ["Built", "TrajectoryAccumulator"]
