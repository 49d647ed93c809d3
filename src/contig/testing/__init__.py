"""Conformance suites: what any storage and any sampler must do, for contig's own and for yours.

A backend passes by a subclass of ten lines, which pytest collects by its name:

    from contig.testing import StorageSuite

    class TestMyStorage(StorageSuite):
        def make_storage(self, capacity, *, ndim=1, example=None):
            return MyStorage(capacity, ndim=ndim, example=example)

`World` and the functions below it are what the suites are made of: data whose values say which
step they are, and a record of what was written.
"""

from .sampler import SamplerSuite
from .steps import episode, identity, interleaved, row
from .storage import StorageSuite
from .world import World

__all__ = ["SamplerSuite", "StorageSuite", "World", "episode", "identity", "interleaved", "row"]
