"""Conformance suites: what any storage and any sampler must do, for contig's own and for yours.

A backend passes by a subclass of ten lines, which pytest collects by its name:

    from contig.testing import StorageSuite

    class TestMyStorage(StorageSuite):
        def make_storage(self, capacity, *, ndim=1, example=None, fields=None):
            return MyStorage(capacity, ndim=ndim, example=example, fields=fields)

`World` and the functions below it are what the suites are made of: data whose values say which
step they are, and a record of what was written. `OrderedStreams` takes the place of a device's
streams where there is none.
"""

from .sampler import SamplerSuite
from .steps import episode, identity, interleaved, row
from .storage import StorageSuite
from .streams import OrderedStreams
from .world import World

__all__ = [
    "OrderedStreams",
    "SamplerSuite",
    "StorageSuite",
    "World",
    "episode",
    "identity",
    "interleaved",
    "row",
]
