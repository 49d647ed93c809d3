"""contig's own storages and samplers pass the conformance suites."""

from __future__ import annotations

from typing import Any

import contig
from contig.sample import Request, Sampler
from contig.testing import SamplerSuite, StorageSuite

# -- storages -------------------------------------------------------------------------------------


class TestLazyTensorStorage(StorageSuite):
    def make_storage(self, capacity: int, *, ndim: int = 1, example: Any = None) -> contig.Storage:
        return contig.LazyTensorStorage(capacity, ndim=ndim, example=example)


class TestSharedStorage(StorageSuite):
    def make_storage(self, capacity: int, *, ndim: int = 1, example: Any = None) -> contig.Storage:
        return contig.SharedStorage(capacity, ndim=ndim, example=example)


# -- samplers of rows -----------------------------------------------------------------------------


class TestRandomSampler(SamplerSuite):
    def make_sampler(self) -> Sampler:
        return contig.RandomSampler()


class TestRandomSamplerInSharedStorage(TestRandomSampler):
    def make_storage(self, capacity: int) -> contig.Storage:
        return contig.SharedStorage(capacity)


class TestRandomSamplerThatRetires(SamplerSuite):
    runs_out = True

    def make_sampler(self) -> Sampler:
        return contig.RandomSampler(max_times_sampled=2)


class TestSamplerWithoutReplacement(SamplerSuite):
    def make_sampler(self) -> Sampler:
        return contig.SamplerWithoutReplacement()


class TestSamplerWithoutReplacementDropLast(SamplerSuite):
    def make_sampler(self) -> Sampler:
        return contig.SamplerWithoutReplacement(drop_last=True)


class TestPrioritizedSampler(SamplerSuite):
    has_priorities = True

    def make_sampler(self) -> Sampler:
        return contig.PrioritizedSampler()


class TestFifoSampler(SamplerSuite):
    random = False
    runs_out = True

    def make_sampler(self) -> Sampler:
        return contig.FifoSampler(max_times_sampled=3)


class TestLifoSampler(SamplerSuite):
    random = False
    runs_out = True

    def make_sampler(self) -> Sampler:
        return contig.LifoSampler(max_times_sampled=2)


class TestNStepSampler(SamplerSuite):
    def make_sampler(self) -> Sampler:
        return contig.NStepSampler(3, 0.9)

    def longest_group(self, request: Request) -> int:
        return 3


class TestNStepOverPriorities(TestNStepSampler):
    has_priorities = True

    def make_sampler(self) -> Sampler:
        return contig.NStepSampler(3, 0.9, contig.PrioritizedSampler())


# -- samplers of slices ---------------------------------------------------------------------------


class TestSliceSampler(SamplerSuite):
    batch_size = 12
    refused = (13, 3)

    def make_sampler(self) -> Sampler:
        return contig.SliceSampler(slice_len=4)


class TestSliceSamplerNumSlices(SamplerSuite):
    batch_size = 12
    refused = (13, 2)

    def make_sampler(self) -> Sampler:
        return contig.SliceSampler(num_slices=4)


class TestSliceSamplerBoth(SamplerSuite):
    batch_size = 12
    refused = (24, 11)

    def make_sampler(self) -> Sampler:
        return contig.SliceSampler(num_slices=4, slice_len=3, over="steps")


class TestSliceSamplerStrict(SamplerSuite):
    batch_size = 12

    def make_sampler(self) -> Sampler:
        return contig.SliceSampler(slice_len=4, strict_length=True)


class TestSliceSamplerOverSteps(SamplerSuite):
    batch_size = 12

    def make_sampler(self) -> Sampler:
        return contig.SliceSampler(slice_len=3, over="steps", complete_only=True)


class TestSliceSamplerSpan(SamplerSuite):
    batch_size = 12

    def make_sampler(self) -> Sampler:
        return contig.SliceSampler(slice_len=4, over="steps", span=(True, 2))


class TestSliceSamplerBurnInPadded(SamplerSuite):
    batch_size = 12

    def make_sampler(self) -> Sampler:
        return contig.SliceSampler(slice_len=4, burn_in=2, pad_output=True)

    def longest_group(self, request: Request) -> int:
        return request.length + 2


class TestSliceSamplerWithoutReplacement(SamplerSuite):
    batch_size = 12

    def make_sampler(self) -> Sampler:
        return contig.SliceSamplerWithoutReplacement(slice_len=3)


class TestSliceSamplerWithoutReplacementDropLast(SamplerSuite):
    batch_size = 12

    def make_sampler(self) -> Sampler:
        return contig.SliceSamplerWithoutReplacement(num_slices=4, drop_last=True)


class TestPrioritizedSliceSampler(SamplerSuite):
    batch_size = 12
    has_priorities = True

    def make_sampler(self) -> Sampler:
        return contig.PrioritizedSliceSampler(slice_len=4, burn_in=1)

    def longest_group(self, request: Request) -> int:
        return request.length + 1


class TestFifoTrajectories(SamplerSuite):
    batch_size = 3
    random = False
    runs_out = True

    def make_sampler(self) -> Sampler:
        return contig.FifoSampler(per="trajectories", max_times_sampled=2)

    def longest_group(self, request: Request) -> int:
        return 100


class TestLifoTrajectories(TestFifoTrajectories):
    def make_sampler(self) -> Sampler:
        return contig.LifoSampler(per="trajectories")


# -- windows --------------------------------------------------------------------------------------


class TestWindowLastRows(SamplerSuite):
    def make_sampler(self) -> Sampler:
        return contig.WindowSampler(last_rows=40)


class TestWindowLastTrajectories(SamplerSuite):
    batch_size = 12

    def make_sampler(self) -> Sampler:
        return contig.WindowSampler(contig.SliceSampler(slice_len=3), last_trajectories=9)


class TestWindowStaleness(SamplerSuite):
    has_priorities = True

    def make_sampler(self) -> Sampler:
        return contig.WindowSampler(contig.PrioritizedSampler(), max_staleness=2)
