"""Storages on disk pass the conformance suites, as those in memory do."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import contig
from contig.sample import Sampler
from contig.tape.disk import DiskStorage
from contig.testing import SamplerSuite, StorageSuite


class OnDisk:
    passes_to_processes = False  # one process writes; others open it to read
    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        self.made = 0

    def make_storage(
        self, capacity: int, *, ndim: int = 1, example: Any = None, fields: Any = None
    ) -> contig.Storage:
        self.made += 1
        options = {"ndim": ndim, "example": example, "fields": fields, **self.options}
        return DiskStorage(self.folder / str(self.made), capacity, **options)


class TestDiskStorage(OnDisk, StorageSuite):
    pass


@pytest.mark.skipif(find_spec("zstandard") is None, reason="zstandard is not there")
class TestCodedDiskStorage(OnDisk, StorageSuite):
    """A leaf has any size in the files: it is encoded."""

    options: ClassVar[dict[str, Any]] = {"codecs": {"observation": "zstd"}}


@pytest.mark.skipif(find_spec("zstandard") is None, reason="zstandard is not there")
class TestSliceSamplerOnCodedDisk(OnDisk, SamplerSuite):
    options: ClassVar[dict[str, Any]] = {
        "codecs": {"observation": "zstd"},
        "fields": {"task": np.int32(0)},
    }
    batch_size = 12
    refused = (13, 3)

    def make_sampler(self) -> Sampler:
        return contig.SliceSampler(slice_len=4)


class TestRandomSamplerOnDisk(OnDisk, SamplerSuite):
    def make_sampler(self) -> Sampler:
        return contig.RandomSampler()


class TestSliceSamplerOnDisk(OnDisk, SamplerSuite):
    batch_size = 12
    refused = (13, 3)

    def make_sampler(self) -> Sampler:
        return contig.SliceSampler(slice_len=4)


class TestPrioritizedSamplerOnDisk(OnDisk, SamplerSuite):
    has_priorities = True

    def make_sampler(self) -> Sampler:
        return contig.PrioritizedSampler()
