"""DeviceStorage, on the CPU as a device, passes the conformance suites of storages and samplers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import contig
from contig.tape.device.writer import DeviceWriter
from contig.testing import SamplerSuite, StorageSuite
from tests.sample import test_suites as host

torch = pytest.importorskip("torch")


class TestDeviceStorage(StorageSuite):
    passes_to_processes = False

    def make_storage(
        self, capacity: int, *, ndim: int = 1, example: Any = None, fields: Any = None
    ) -> contig.Storage:
        return contig.DeviceStorage(capacity, "cpu", ndim=ndim, example=example, fields=fields)


class _Settled(DeviceWriter):
    """A late writer whose rows are there when it returns, for suites that look at once."""

    def extend(self, *args: Any, **options: Any) -> Any:
        before = super().extend(*args, **options)
        return np.concatenate([before, self.settle()])

    def add_env_step(self, *args: Any, **options: Any) -> Any:
        before = super().add_env_step(*args, **options)
        return np.concatenate([before, self.settle()])


class _Late(contig.DeviceStorage):
    def writer(self, orphans: list[Any] | None = None) -> DeviceWriter:
        self.check_open()
        writer = _Settled(self, orphans)
        self._writers.add(writer)
        return writer


class TestLateDeviceStorage(TestDeviceStorage):
    """The same, by the way that rows take which are late."""

    def make_storage(
        self, capacity: int, *, ndim: int = 1, example: Any = None, fields: Any = None
    ) -> contig.Storage:
        return _Late(capacity, "cpu", ndim=ndim, example=example, fields=fields, late=True)


class _OnDevice:
    def make_storage(self, capacity: int) -> contig.Storage:
        return contig.DeviceStorage(capacity, "cpu")


# Every suite of a sampler that there is for storages in host memory.
for _name, _suite in list(vars(host).items()):
    if isinstance(_suite, type) and issubclass(_suite, SamplerSuite) and _name.startswith("Test"):
        if "make_storage" in vars(_suite):
            continue  # the same sampler in another storage
        globals()[_name] = type(_name, (_OnDevice, _suite), {"__module__": __name__})
