"""Hostile layouts for a table that has none yet: refused, or such that the learner can go on."""

from __future__ import annotations

import json
import random
import struct
from collections import Counter
from typing import Any

import numpy as np

from contig import LazyTensorStorage
from contig.replay import Ingress
from contig.server.connection import Connection
from contig.server.core import ServerCore
from contig.server.tables import TapeTable
from tests.wire import mutate
from tests.wire.arena import LIMITS, STEP, Loop, Transport
from tests.wire.naive import frame


def open_fresh(rng: random.Random, **leaf_or_structure: Any) -> str:
    """One hostile OPEN to a table that has no layout yet; what came of it."""
    good = {"producer": 7, "proof": "", "next": 0, "layout": STEP.to_json(), "ack": "committed"}
    good["table"] = "fresh"
    if leaf_or_structure:
        layout: Any = good["layout"]
        del layout["record_size"]
        target = layout if "structure" in leaf_or_structure else layout["leaves"][3]
        target.update(leaf_or_structure)
        payload = json.dumps(good).encode()
    else:
        payload = mutate.bad_open(rng, good)
    storage = LazyTensorStorage(100_000)
    core = ServerCore(Loop(), {"fresh": TapeTable(Ingress(storage))}, None, LIMITS)  # type: ignore[arg-type]

    def attempt(payload: bytes) -> Transport:
        connection, transport = Connection(core), Transport()
        connection.connection_made(transport)
        data = struct.pack("<8sII32s", b"contig/1", 1, 0, bytes(32)) + frame(1, 0, payload)
        while data and not transport.closing:
            room = connection.get_buffer(-1)
            piece = data[: len(room)]
            room[: len(piece)] = piece
            connection.buffer_updated(len(piece))
            data = data[len(piece) :]
        connection.connection_lost(None)
        return transport

    try:
        attempt(payload)
        refused = "".join(core.stats.rejected)
        assert "internal" not in refused, payload[:2000]
        schema = storage.schema
        if refused:
            assert schema is None, "a refused client fixed the layout"
            good["layout"] = STEP.to_json()
            assert not attempt(json.dumps(good).encode()).closing, payload[:2000]
            return refused
        if schema is not None and schema.layout.record_size < 1 << 20:
            # It was let in: then it must be a layout that the learner can work with.
            layout = schema.layout
            row = layout.unpack(np.zeros(layout.record_size, np.uint8))
            storage.default_writer.add(row)
            batch, _ = storage.gather(np.arange(1))
            assert len(batch.stored() and batch) == 1
        return "accepted"
    finally:
        storage.close()


def test_layouts_of_a_fresh_table() -> None:
    rng = random.Random(2)
    ends = Counter(open_fresh(rng) for _ in range(1500))
    assert ends["layout"] > 200 and ends["accepted"] > 50
    for shape in mutate.SHAPES:
        open_fresh(rng, shape=shape)
    for dtype in mutate.DTYPES:
        open_fresh(rng, dtype=dtype)
    for path in mutate.PATHS:
        assert open_fresh(rng, path=path) == "layout"
    for structure in mutate.STRUCTURES:
        assert open_fresh(rng, structure=structure) == "layout"
