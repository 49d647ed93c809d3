"""Samplers: index arithmetic that says which rows to train on."""

from .at_once import UniformRows, UniformSlices
from .base import (
    Draw,
    Index,
    Mass,
    OuterSampler,
    Request,
    Rng,
    Sampler,
    Window,
)
from .chunk import ChunkSampler
from .fifo import FifoSampler, LifoSampler
from .hindsight import HindsightRelabel, RelabeledRows
from .limiter import RateLimiter
from .nstep import NStepSampler
from .predicate import Predicate, Where
from .prioritized import PrioritizedSampler, PrioritizedSliceSampler
from .slices import SliceSampler, SliceSamplerWithoutReplacement
from .trajectories import TrajectorySampler, TrajectoryStats
from .undo import Change
from .uniform import RandomSampler, SamplerWithoutReplacement
from .window import WindowSampler

__all__ = [
    "Change",
    "ChunkSampler",
    "Draw",
    "FifoSampler",
    "HindsightRelabel",
    "Index",
    "LifoSampler",
    "Mass",
    "NStepSampler",
    "OuterSampler",
    "Predicate",
    "PrioritizedSampler",
    "PrioritizedSliceSampler",
    "RandomSampler",
    "RateLimiter",
    "RelabeledRows",
    "Request",
    "Rng",
    "Sampler",
    "SamplerWithoutReplacement",
    "SliceSampler",
    "SliceSamplerWithoutReplacement",
    "TrajectorySampler",
    "TrajectoryStats",
    "UniformRows",
    "UniformSlices",
    "Where",
    "Window",
    "WindowSampler",
]
