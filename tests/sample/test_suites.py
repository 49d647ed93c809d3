"""contig's own storages and samplers pass the conformance suites."""

from __future__ import annotations

from typing import Any

import contig
from contig.sample import Request, Sampler
from contig.testing import SamplerSuite, StorageSuite

# -- storages -------------------------------------------------------------------------------------


class TestLazyTensorStorage(StorageSuite):
    def make_storage(
        self, capacity: int, *, ndim: int = 1, example: Any = None, fields: Any = None
    ) -> contig.Storage:
        return contig.LazyTensorStorage(capacity, ndim=ndim, example=example, fields=fields)


class TestSharedStorage(StorageSuite):
    def make_storage(
        self, capacity: int, *, ndim: int = 1, example: Any = None, fields: Any = None
    ) -> contig.Storage:
        return contig.SharedStorage(capacity, ndim=ndim, example=example, fields=fields)


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


class TestChunkSampler(SamplerSuite):
    def make_sampler(self) -> Sampler:
        return contig.ChunkSampler(4)


class TestChunkSamplerInSharedStorage(TestChunkSampler):
    def make_storage(self, capacity: int) -> contig.Storage:
        return contig.SharedStorage(capacity)


class TestChunkSamplerWhere(SamplerSuite):
    def make_sampler(self) -> Sampler:
        return contig.ChunkSampler(3, contig.SamplerWithoutReplacement(), where=("steps", ">", 1))


class TestChunksOverPriorities(SamplerSuite):
    has_priorities = True

    def make_sampler(self) -> Sampler:
        inner = contig.NStepSampler(3, 0.9, contig.PrioritizedSampler())
        return contig.ChunkSampler(3, inner)


class TestChunksOfSlices(SamplerSuite):
    batch_size = 12

    def make_sampler(self) -> Sampler:
        return contig.ChunkSampler(5, contig.SliceSampler(slice_len=4))


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


# -- whole trajectories ---------------------------------------------------------------------------


class TestTrajectorySampler(SamplerSuite):
    batch_size = 3
    refused = (2, 12)

    def make_sampler(self) -> Sampler:
        return contig.TrajectorySampler(3)

    def longest_group(self, request: Request) -> int:
        return 100


class TestTrajectorySamplerOfAny(TestTrajectorySampler):
    def make_sampler(self) -> Sampler:
        return contig.TrajectorySampler(3, complete_only=False, where=("steps", ">", 1))


class TestTrajectorySamplerThatConsumes(TestTrajectorySampler):
    runs_out = True

    def make_sampler(self) -> Sampler:
        return contig.TrajectorySampler(3, consume=True)


# -- predicates -----------------------------------------------------------------------------------


class TestSliceSamplerWhere(SamplerSuite):
    batch_size = 12

    def make_sampler(self) -> Sampler:
        return contig.SliceSampler(slice_len=4, where=[("steps", ">=", 2), ("age", "<", 90)])


class TestSliceSamplerWithoutReplacementWhere(SamplerSuite):
    batch_size = 12

    def make_sampler(self) -> Sampler:
        return contig.SliceSamplerWithoutReplacement(
            slice_len=3, where=lambda c: c["terminated"] | (c["steps"] > 1)
        )


class TestPrioritizedSliceSamplerWhere(SamplerSuite):
    batch_size = 12
    has_priorities = True

    def make_sampler(self) -> Sampler:
        return contig.PrioritizedSliceSampler(slice_len=3, where=("return", ">", -1e9))


class TestWindowWhere(SamplerSuite):
    def make_sampler(self) -> Sampler:
        return contig.WindowSampler(where=lambda c: (c["age"] < 90) & (c["steps"] > 1))


class TestWindowWhereOverPriorities(TestWindowWhere):
    has_priorities = True

    def make_sampler(self) -> Sampler:
        return contig.WindowSampler(contig.PrioritizedSampler(), where=("steps", "!=", 1))


class TestWindowWhereWithoutReplacement(SamplerSuite):
    def make_sampler(self) -> Sampler:
        return contig.WindowSampler(
            contig.SamplerWithoutReplacement(), last_rows=100, where=("steps", "in", [2, 3, 4, 5])
        )


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
