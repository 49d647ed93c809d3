"""Frames and handshakes as they should not be."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

from tests.wire.naive import Fields, Run, frame, seal

EDGES = [0, 1, 2, 31, 32, 33, 255, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1]
LENGTHS = [*EDGES, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 41, 2**64 - 40, 2**64 - 1]
NUMBERS = [0, 1, 2**31, 2**62, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]
_WIDTHS = {"type": 1 << 8, "flags": 1 << 8, "reserved": 1 << 16, "runs": 1 << 32, "rows": 1 << 32}


BOOLS = 3  # bytes at the start of a tape's record: done, terminated, truncated


def items_payload(rng: random.Random, record_size: int, tape: bool) -> tuple[list[Run], int, bytes]:
    """Runs (none for a queue), rows and payload of a good ITEMS frame."""
    if not tape:
        rows = rng.randint(1, 8)
        return [], rows, rng.randbytes(rows * record_size)
    runs = []
    for _ in range(rng.randint(1, 4)):
        if rng.random() < 0.4:
            lanes = rng.choice([1, 1, 2, 3])
            flags = 16 | rng.choice([0, 32, 64])
            runs.append(Run(lanes * rng.randint(1, 3), flags, -1, -1, lanes))
        else:
            traj_id, version = rng.choice([-1, 0, 1, 2**63 - 1]), rng.choice([-1, 0, 9])
            runs.append(Run(rng.randint(1, 4), rng.randrange(8), traj_id, version, 0))
    rows = sum(run.rows for run in runs)
    records = bytearray(rng.randbytes(rows * record_size))
    if rng.random() < 0.97:
        for flag in range(min(BOOLS, record_size)):
            records[flag::record_size] = bytes(b & 1 for b in records[flag::record_size])
    return runs, rows, pack_runs(runs) + records


def pack_runs(runs: list[Run]) -> bytes:
    return b"".join(struct.pack("<IIqqII", *run) for run in runs)


def good_items(rng: random.Random, number: int, record_size: int, tape: bool) -> bytes:
    runs, rows, payload = items_payload(rng, record_size, tape)
    return frame(4, number, payload, len(runs), rows)


def bad_fields(rng: random.Random, good: bytes) -> bytes:
    """A frame with right checksums whose header says something else."""
    fields = Fields(*struct.unpack_from("<BBHQIIQ", good, 4))
    for _ in range(rng.choice([1, 1, 1, 2])):
        name = rng.choice(Fields._fields)
        if name == "length":
            value = rng.choice([*LENGTHS, fields.length - 1, fields.length + 1]) % 2**64
        elif name == "number":
            value = rng.choice([*NUMBERS, fields.number + 1]) % 2**64
        else:
            near = getattr(fields, name) + rng.choice([-1, 1])
            value = rng.choice([*EDGES, near, rng.randrange(20)]) % _WIDTHS[name]
        fields = fields._replace(**{name: value})
    return seal(fields, good[40:])


def bad_runs(rng: random.Random, number: int, record_size: int) -> bytes:
    """A frame for a tape with right checksums, one of whose runs is not as it should be."""
    runs, rows, payload = items_payload(rng, record_size, True)
    at = rng.randrange(len(runs))
    name = rng.choice(Run._fields)
    value = rng.choice([*EDGES, rng.randrange(256)])
    if name in ("traj_id", "version"):
        value = rng.choice([value, -value, 2**63 - 1, -(2**63)])
    elif name == "rows" and rng.random() < 0.5:
        value = (runs[at].rows + rng.choice([-1, 1])) % 2**32
    runs[at] = runs[at]._replace(**{name: value})
    return frame(4, number, pack_runs(runs) + payload[32 * len(runs) :], len(runs), rows)


def bad_bytes(rng: random.Random, good: bytes) -> bytes:
    """A frame that was damaged on its way."""
    data = bytearray(good)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at = rng.randrange(len(data))
        how = rng.randrange(5)
        if how == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            data[at] = rng.randrange(256)
        elif how == 2:
            data[at:at] = rng.randbytes(rng.choice([1, 2, 8, 40]))
        elif how == 3 and len(data) > 1:
            del data[at : at + rng.choice([1, 2, 8, 40])]
            data = data or bytearray(b"c")
        else:
            source = rng.randrange(len(data))
            data[at : at + 4] = data[source : source + 4]
    return bytes(data)


def mutated(rng: random.Random, number: int, record_size: int, tape: bool) -> bytes:
    """Any of them, or a good one."""
    good = good_items(rng, number, record_size, tape)
    how = rng.random()
    if how < 0.35:
        return good
    if how < 0.6:
        return bad_fields(rng, good)
    if how < 0.75:
        return bad_runs(rng, number, record_size)
    if how < 0.92:
        return bad_bytes(rng, good)
    return rng.randbytes(rng.choice([1, 7, 39, 40, 41, 80, 300]))


# -- OPEN -----------------------------------------------------------------------------------------

DEEP = 5000
SCALARS: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63 - 1,
    2**63,
    2**64,
    10**40,
    0.5,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "default",
    "\x00",
    "\ud800",
    "x" * 2000,
    "ß∂",
    [],
    {},
    [[]],
    {"a": 1},
]
DTYPES: list[Any] = [
    *("object", "O", "S8", "U4", "V16", "float32,float32", "(2,3)f4", ">f4", "M8[s]", "m8"),
    *("float8_nonsense", "bfloat16", "int4", "", "torch.float32", "float32\x00", "f4" * 500),
    *("__import__('os')", "{'names':['a'],'formats':['f4']}", "i4,i4,O", "longdouble", "c32"),
    *SCALARS,
]
SHAPES: list[Any] = [
    *([-1], [-4], [2**31], [2**62, 4], [2**63], [2**63 - 1, 2**63 - 1], [10**30], [0], [0, -1]),
    *([1] * 100, ["4"], [4.0], [True], [None], [[4]], [{}], "4", "ab", {"4": 1}, 4, None, [1e9]),
]
PATHS: list[Any] = [
    *([], [""], ["x", "y"], [0], [None], [1.5], [True], [["x"]], [{}], "x", "", {"x": 1}, None),
    *(7, ["x"] * 300, ["\ud800"], ["next", "done"], ["index"], ["__class__"], [2**70], [-1]),
]


def nested(depth: int) -> Any:
    node: Any = "leaf"
    for _ in range(depth):
        node = {"kind": "dict", "keys": ["a"], "children": [node]}
    return node


STRUCTURES: list[Any] = [
    *("leaf", "none", "dict", "nonsense", "", nested(3), nested(200), *SCALARS),
    {"kind": "dict"},
    {"kind": "tuple", "keys": [], "children": []},
    {"kind": "namedtuple", "keys": [], "children": [], "type": ["a", "B"]},
    {"kind": "dict", "keys": ["a", "b"], "children": ["leaf"]},
    {"kind": "dict", "keys": ["a"] * 5, "children": ["leaf"] * 5},
    {"kind": "dict", "keys": [["a"], {}], "children": ["leaf", "leaf"]},
    {"kind": "tuple", "keys": ["x"], "children": ["leaf"]},
    {"kind": "namedtuple", "keys": ["x"], "children": ["leaf"]},
    {"kind": "namedtuple", "keys": ["x"], "children": ["leaf"], "type": ["os", "system"]},
    {"kind": "namedtuple", "keys": ["x"], "children": ["leaf"], "type": ["a"]},
    {"kind": "namedtuple", "keys": ["class", "1", "_x"], "children": ["leaf"] * 3, "type": 5},
    {"kind": "os.system", "keys": [], "children": []},
    {"kind": {}, "keys": {}, "children": {}},
    {"kind": "dict", "keys": "ab", "children": "ab"},
    {"kind": "list", "keys": [], "children": [[], 5, None]},
]


def bad_layout(rng: random.Random, good: dict[str, Any]) -> Any:
    """A layout that is none, or another one, or the same one said strangely."""
    layout = json.loads(json.dumps(good))
    leaves = layout["leaves"]
    leaf = rng.choice(leaves)
    how = rng.randrange(12)
    if how == 0:
        leaf["shape"] = rng.choice(SHAPES)
    elif how == 1:
        leaf["dtype"] = rng.choice(DTYPES)
    elif how == 2:
        leaf["path"] = rng.choice(PATHS)
    elif how == 3:
        leaves.append(rng.choice(leaves))  # a path twice
    elif how == 4:
        leaves.remove(leaf)
    elif how == 5:
        rng.shuffle(leaves)
    elif how == 6:
        layout["structure"] = rng.choice(STRUCTURES)
    elif how == 7:
        layout["leaves"] = rng.choice(SCALARS)
    elif how == 8:
        del layout[rng.choice(list(layout))]
    elif how == 9:
        del leaf[rng.choice(list(leaf))]
    elif how == 10:
        layout["leaves"] = [leaf] * 300
    else:
        return rng.choice(SCALARS)
    return layout


def bad_open(rng: random.Random, good: dict[str, Any]) -> bytes:
    """The payload of an OPEN that should not be let in, with few exceptions."""
    content = dict(good)
    how = rng.random()
    if how < 0.5 and content["layout"] is not None:
        content["layout"] = bad_layout(rng, content["layout"])
    elif how < 0.75:
        content[rng.choice(list(content))] = rng.choice(SCALARS)
    elif how < 0.8:
        del content[rng.choice(list(content))]
    elif how < 0.9:
        return bad_bytes(rng, json.dumps(content).encode())
    elif how < 0.94:
        return json.dumps(rng.choice(SCALARS)).encode()
    elif how < 0.96:
        opening = rng.choice([b"[", b'{"a":', b'{"layout":{"structure":{"children":['])
        return opening * DEEP
    elif how < 0.98:
        name = rng.choice(["producer", "next", "layout", "table"]).encode()
        return json.dumps(good).encode()[:-1] + b', "' + name + b'": ' + b"9" * 5000 + b"}"
    else:
        return rng.choice(
            [b"", b"null", b"\xff\xfe", b"{}", b"[]", rng.randbytes(50), b"\x00" * 64]
        )
    return json.dumps(content).encode()
