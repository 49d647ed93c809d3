"""Samplers: index arithmetic that says which rows to train on."""

from .base import Draw, Index, Mass, Request, Rng, Sampler, Window
from .fifo import FifoSampler, LifoSampler
from .limiter import RateLimiter
from .nstep import NStepSampler
from .prioritized import PrioritizedSampler, PrioritizedSliceSampler
from .slices import SliceSampler, SliceSamplerWithoutReplacement
from .uniform import RandomSampler, SamplerWithoutReplacement
from .window import WindowSampler

__all__ = [
    "Draw",
    "FifoSampler",
    "Index",
    "LifoSampler",
    "Mass",
    "NStepSampler",
    "PrioritizedSampler",
    "PrioritizedSliceSampler",
    "RandomSampler",
    "RateLimiter",
    "Request",
    "Rng",
    "Sampler",
    "SamplerWithoutReplacement",
    "SliceSampler",
    "SliceSamplerWithoutReplacement",
    "Window",
    "WindowSampler",
]
