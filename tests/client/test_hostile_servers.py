"""Answers of a server that may be anything: an error of ours, short and printable."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

from contig import ServerError
from contig.batch import Batch
from contig.client.replies import read_batch, read_reply
from contig.errors import ConnectionClosedError
from contig.ragged import Ragged
from contig.wire import Refused, Type
from contig.wire.frames import described, json_frame
from contig.wire.handshake import raise_refusal
from tests.spoiled import spoiled

JUNK = [None, True, -1, 2**70, 1e400, "", "x", [], {}, [[]], [2**40], [-1, 2], ["a"], "\ud800"]
HEAD = len(json_frame(Type.REPLY, {})) - 2


def payload_of(parts):
    return b"".join(bytes(part) for part in parts)[HEAD:]


def batch():
    ragged = Ragged.of([np.arange(n, dtype=np.int32) for n in (2, 0, 3)])
    return Batch.from_tree({"x": np.arange(3.0), "tokens": ragged}, 1)


def head_and_block():
    rows = batch()
    head = {"layout": rows.layout.to_json(), "shape": list(rows.shape), "extras": []}
    return head, bytes(rows.sealed_block)


def frame_of(head, block):
    return payload_of(described(head, block, Type.BATCH, 1))


def test_a_good_batch_is_read():
    rows = read_batch(Type.BATCH, frame_of(*head_and_block()))
    assert rows["x"].tolist() == [0.0, 1.0, 2.0]
    assert [len(row) for row in rows["tokens"]] == [2, 0, 3]


@pytest.mark.parametrize("text", [b"", b"[1, 2]", b"{", b"\xff", b"null", b'"x"'])
def test_replies_that_are_no_json_object(text):
    with pytest.raises(ServerError, match="makes no sense"):
        read_reply(Type.REPLY, text)
    with pytest.raises(ServerError, match="makes no sense"):
        read_batch(Type.REPLY, text)


@pytest.mark.parametrize("kind", ["annotations", "__name__", "Any", "OSError", 3, None, ["x"]])
def test_an_error_of_an_unknown_kind(kind):
    with pytest.raises(RuntimeError, match="why"):
        read_reply(Type.REPLY, json.dumps({"error": kind, "message": "why"}).encode())


def test_every_part_of_a_batch_may_be_nonsense():
    head, block = head_and_block()
    for tree in spoiled(head, JUNK):
        try:
            rows = read_batch(Type.BATCH, frame_of(tree, block))
        except ServerError:
            continue
        for leaf in rows.layout.leaves:
            np.array(rows[leaf.path] if not leaf.ragged else rows[leaf.path].values)


def test_a_block_of_every_length():
    head, block = head_and_block()
    for length in range(len(block)):
        try:
            rows = read_batch(Type.BATCH, frame_of(head, block[:length]))
        except ServerError:
            continue
        assert len(block) - length < 64  # only what fills the last column up is missing
        assert rows["x"].tolist() == [0.0, 1.0, 2.0]


def test_offsets_of_leaves_of_any_size_may_be_anything():
    head, block = head_and_block()
    layout = batch().layout
    at = layout.block_columns(3).views[layout.number["tokens",]][2]
    for number in range(4):
        for value in (-1, 1, 2**31, 2**62, -(2**63)):
            spoiled = bytearray(block)
            struct.pack_into("<q", spoiled, at + 8 * number, value)
            try:
                rows = read_batch(Type.BATCH, frame_of(head, bytes(spoiled)))
            except ServerError:
                continue
            assert sum(len(row) for row in rows["tokens"]) <= len(block)


@pytest.mark.parametrize("reason", ["layout", "busy", "token", ["x"], None])
def test_what_a_server_says_of_a_refusal_is_bounded_and_printable(reason):
    with pytest.raises((ValueError, ConnectionClosedError)) as caught:
        raise_refusal({"reason": reason, "message": "\x1b[31m" + "x" * 1_000_000})
    assert len(str(caught.value)) < 3000 and str(caught.value).isprintable()


def test_what_a_client_sent_is_bounded_in_the_log():
    refused = Refused("frame", "expected a number, got " + "\x1b\r" * 1_000_000)
    assert len(str(refused)) < 10_000 and str(refused).isprintable()
