"""What breaks the contract of the native transport raises: nothing is read or written elsewhere.

``python -m tests.wire.test_native_misuse`` runs each case in a process of its own, because a
failure may be the end of it, and prints how they ended.
"""

from __future__ import annotations

import functools
import struct
import textwrap

import numpy as np
import pytest

from contig import Layout, _native
from contig._native import Received
from contig.tape import BatchQueue
from tests.attempts import attempt_all, expect_raised, outcomes
from tests.kernels.misuse import b
from tests.wire.naive import Fields, frame, seal

NAMES = {"np": np, "Layout": Layout, "_native": _native, "struct": struct, "Received": Received}
NAMES |= {"Fields": Fields, "frame": frame, "seal": seal, "b": b}
CASES = {
    "records of no bytes": "_native.FrameBuilder(0, False, 0, 100).add_records(b(8))",
    "no frame": "receiver.pop()",
    "a frame popped twice": """
        receiver.feed(frame(6, 0, b"") + bytes(100))
        receiver.next(), receiver.pop(), receiver.pop()
    """,
    "half a frame for a queue": """
        receiver.feed(seal(Fields(4, rows=100_000, length=800_000_000), b""))
        receiver.next(), queue.native.accept_frame(receiver, 5)
    """,
    "records of another size": """
        receiver.feed(frame(4, 0, bytes(80), rows=10))
        assert receiver.next() == Received.READY and receiver.check_items(8, False)
        queue.native.accept_frame(receiver, 5)
    """,
    "runs for a queue": """
        entry = struct.pack("<IIqqII", 1, 1, 0, 0, 0, 0)
        receiver.feed(frame(4, 0, entry + bytes(8000), runs=1, rows=1))
        assert receiver.next() == Received.READY and receiver.check_items(8000, True)
        queue.native.accept_frame(receiver, 5)
    """,
    "a plan for other records": """
        layout = Layout({"x": np.zeros(2)})
        _native.FrameBuilder(8, False, 0, 100).pack(layout.plan, {"x": np.zeros(2)})
    """,
    "part of a record": "_native.FrameBuilder(8, False, 0, 100).add_records(b(12))",
    "a run of nothing": "_native.FrameBuilder(8, False, 0, 100).add_run(b(0), 0, 0, 0, 0, False)",
    "more than there is room for": "receiver.feed(bytes((1 << 16) + 1))",
    "more memory than there is": "receiver.resize(1 << 60)",
    # Never done; but it must not look for a run where there is none.
    "records and runs in one": """
        box = _native.FrameBuilder(8, False, 0, 100)
        box.add_records(b(8))
        box.add_run(b(8), 0, -1, -1, 0, True)
        raise ValueError("it did not")
    """,
}


def attempt(code: str) -> None:
    queue = BatchQueue.create(Layout({"x": np.zeros(1000)}), 4, 3)
    receiver = _native.Receiver(1 << 16, 1 << 30)
    exec(textwrap.dedent(code), {**NAMES, "queue": queue, "receiver": receiver})


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    return outcomes("tests.wire.test_native_misuse")


@pytest.mark.parametrize("case", CASES)
def test_raises(case: str, found: dict[str, str]) -> None:
    expect_raised(found[case])


if __name__ == "__main__":
    attempt_all({name: functools.partial(attempt, code) for name, code in CASES.items()})
