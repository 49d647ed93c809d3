"""Conformance suites: what any storage, sampler and way of writing must do, contig's and yours.

A backend passes by a subclass of ten lines, which pytest collects by its name:

    from contig.testing import StorageSuite

    class TestMyStorage(StorageSuite):
        def make_storage(self, capacity, *, ndim=1, example=None, fields=None):
            return MyStorage(capacity, ndim=ndim, example=example, fields=fields)

A way of rows into a storage passes by a subclass of `WriteRoute`:

    from contig.testing import OpenRoute, VerbKind, WriteRoute, check_write_route

    class MyOpenRoute(OpenRoute):
        def __init__(self, storage):
            self.mine = MyClient(storage)

        @property
        def storage(self):
            return self.mine.storage

        def write(self, verb, lane, data):
            getattr(self.mine, verb)(data)

    class MyRoute(WriteRoute):
        name = "my client"
        verbs = {"add": VerbKind.ROW, "extend": VerbKind.ROWS}

        @contextlib.contextmanager
        def open(self, needs):
            yield MyOpenRoute(LazyTensorStorage(100, example=needs.example))

    def test_my_route():
        check_write_route(MyRoute())

`World` and the functions below it are what the suites are made of: data whose values say which
step they are, and a record of what was written. `OrderedStreams` takes the place of a device's
streams where there is none.
"""

from .sampler import SamplerSuite
from .situations import EVENTS, SITUATIONS, RowSpec, Situation
from .steps import episode, identity, interleaved, row
from .storage import StorageSuite
from .streams import OrderedStreams
from .world import World
from .write_route import (
    OpenRoute,
    RouteCase,
    RouteNeeds,
    VerbKind,
    WriteRoute,
    check_route_case,
    check_write_route,
    public_members,
    route_cases,
)

__all__ = [
    "EVENTS",
    "SITUATIONS",
    "OpenRoute",
    "OrderedStreams",
    "RouteCase",
    "RouteNeeds",
    "RowSpec",
    "SamplerSuite",
    "Situation",
    "StorageSuite",
    "VerbKind",
    "World",
    "WriteRoute",
    "check_route_case",
    "check_write_route",
    "episode",
    "identity",
    "interleaved",
    "public_members",
    "route_cases",
    "row",
]
