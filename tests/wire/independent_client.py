"""A client written from docs/design/wire.md alone, with nothing of contig: it proves the page.

Values travel as flat lists of numbers in C order, one per leaf; nothing here knows numpy.
"""

import hashlib
import hmac
import itertools
import json
import os
import socket
import struct

OPEN, ACCEPT, REFUSE, ITEMS, ACK, BYE, GET, WEIGHTS, SAMPLE, BATCH, PRIORITY, STATS, REPLY = (
    *range(1, 14),
)
HEADER = struct.Struct("<4sBBHQIIQI")  # and behind it its own crc32c
CODES = {"bool": "?", "float16": "e", "float32": "f", "float64": "d"}  # as struct spells them
CODES |= {"int8": "b", "int16": "h", "int32": "i", "int64": "q"}
CODES |= {"uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q"}
CRC_TABLE = list(range(256))
for _ in range(8):
    CRC_TABLE = [c >> 1 ^ 0x82F63B78 * (c & 1) for c in CRC_TABLE]


def crc32c(data, crc=0):
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC_TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def make_frame(kind, number=0, payload=b"", runs=0, rows=0, flags=0):
    number &= (1 << 64) - 1
    head = HEADER.pack(b"cFrm", kind, flags, 0, number, runs, rows, len(payload), crc32c(payload))
    return head + struct.pack("<I", crc32c(head)) + payload


def up(offset, step):
    return -(-offset // step) * step


def places(layout, rows=1, align=None):
    """(path, format, offset) of each leaf, and the size: of a record, or of a block's columns."""
    found, end, largest = [], 0, 1
    for leaf in layout["leaves"]:
        count, code = rows, CODES[leaf["dtype"]]
        if "kind" in leaf:  # its place, or the offsets of all rows
            count, code = (2, "Q") if align is None else (rows + 1, "q")
        for size in leaf["shape"] if "kind" not in leaf else ():
            count *= size
        step = align or struct.calcsize("<" + code)
        end, largest = up(end, step), max(largest, step)
        found.append((tuple(leaf["path"]), f"<{count}{code}", end))
        end += struct.calcsize(found[-1][1])
    return found, up(end, largest)


def pack_record(layout, tree):
    leaves, size = places(layout)
    record = bytearray(size)
    for path, spelled, offset in leaves:
        struct.pack_into(spelled, record, offset, *tree[path])
    return bytes(record)


def unpack(layout, raw, rows=1, align=None):
    return {p: list(struct.unpack_from(f, raw, at)) for p, f, at in places(layout, rows, align)[0]}


def pack_rows(layout, trees):
    """Records of some rows, and the bytes of their leaves of any size."""
    records, data = [], b""
    for tree in trees:
        row = dict(tree)
        for leaf in layout["leaves"]:
            if "kind" in leaf:
                value = row[tuple(leaf["path"])]
                if leaf["kind"] == "ragged":
                    value = struct.pack(f"<{len(value)}{CODES[leaf['dtype']]}", *value)
                row[tuple(leaf["path"])] = [len(data), len(value)]
                data += value
        records.append(pack_record(layout, row))
    return records, data


def frame_of(leaf, value, frames, leading, number):
    """The bytes of one frame of a leaf that is a stack."""
    size = struct.calcsize("<" + CODES[leaf["dtype"]])
    whole = len(value) if leading else leaf["shape"][-1] * size
    part = whole // frames
    starts = range(number * part, len(value), whole)
    return b"".join(value[at : at + part] for at in starts)


def compact(schema, records):
    """Compact rows of some records, and their slots, each different one once."""
    layout, shared = schema["layout"], schema["shared"]
    found, _ = places(layout)
    where = {path: (at, struct.calcsize(spelled)) for path, spelled, at in found}
    leaves = {tuple(leaf["path"]): leaf for leaf in layout["leaves"]}
    k = max(frames for _, frames, _ in shared["leaves"])
    sides = [(), ("next",)] if shared["paired"] else [()]
    taken = {(*side, *path) for side in sides for path, *_ in shared["leaves"]}
    rows, slots = [], []
    for record in records:
        numbers = []
        for side in sides:
            for j in range(k):
                slot = b""
                for path, frames, leading in shared["leaves"]:
                    at, n = where[(*side, *path)]
                    own = max(j - (k - frames), 0)
                    slot += frame_of(leaves[tuple(path)], record[at : at + n], frames, leading, own)
                slot = slot.ljust(up(len(slot), 4), b"\0")
                if slot not in slots:
                    slots.append(slot)
                numbers.append(slots.index(slot))
        row = struct.pack(f"<{len(numbers)}I", *numbers)
        for unit in (8, 4, 2, 1):
            for path, (at, n) in where.items():
                if path not in taken and unit == next(u for u in (8, 4, 2, 1) if n % u == 0):
                    row = row.ljust(up(len(row), unit), b"\0") + record[at : at + n]
        rows.append(row.ljust(up(len(row), 4), b"\0"))
    return rows, slots


def pack_given(layout, given):
    """Fields, of which some are given."""
    mask, tree = 0, {}
    for i, leaf in enumerate(layout["leaves"]):
        path, count = tuple(leaf["path"]), 1
        for size in leaf["shape"]:
            count *= size
        mask |= (path in given) << i
        tree[path] = given.get(path, [0] * count)
    record = pack_record(layout, tree)
    return struct.pack("<Q", mask) + record.ljust(up(len(record), 8), b"\0")


def values_of(layout, raw, rows):
    """Of a block: the bytes of each row of its leaves of any size, by path."""
    found, end = places(layout, rows, 64)
    out = {}
    for leaf, (path, spelled, at) in zip(layout["leaves"], found):
        if "kind" in leaf:
            size = struct.calcsize("<" + CODES[leaf["dtype"]])
            for dim in leaf["shape"]:
                size *= dim
            offsets = [size * n for n in struct.unpack_from(spelled, raw, at)]
            out[path] = [raw[end + a : end + b] for a, b in itertools.pairwise(offsets)]
            end += up(offsets[-1], 64)
    return out


def described(payload):
    size = struct.unpack_from("<Q", payload)[0]
    return json.loads(payload[8 : 8 + size]), payload[8 + size :]


class Client:
    def __init__(
        self, host, port, *, table="default", layout=None, token=None, newest=0, **opening
    ):
        self.acked, self.batch_layout, self.kept = 0, None, []
        self.sock = socket.create_connection((host, port), timeout=30)
        mine = os.urandom(32)
        self.sock.sendall(struct.pack("<8sII32s", b"contig/1", 1, newest, mine))
        magic, version, flags, theirs, self.max_frame, _ = struct.unpack(
            "<8sII32sQQ", self._exactly(64)
        )
        assert (magic, version) == (b"contig/1", newest or 1) and flags & 1 == (token is not None)

        def proof(text):
            return hmac.new(token.encode(), text, hashlib.sha256).hexdigest() if token else ""

        self.producer = 1 + int.from_bytes(os.urandom(7), "little")
        said = {"table": table, "producer": self.producer, "next": 0, "ack": "committed"}
        said |= {"layout": layout, "proof": proof(b"contig client" + theirs + mine)}
        self.send(OPEN, 0, json.dumps(said | opening).encode())
        self.accept = json.loads(self.until(ACCEPT)[2])
        assert hmac.compare_digest(self.accept["proof"], proof(b"contig server" + mine + theirs))
        self.next = self.accept["seen"]

    def send(self, kind, number=0, payload=b"", runs=0, rows=0, flags=0):
        self.sock.sendall(make_frame(kind, number, payload, runs, rows, flags))

    def send_records(self, records):
        """Into a queue: each record is an item."""
        self.send(ITEMS, self.next, b"".join(records), 0, len(records))
        self.next += len(records)

    def send_runs(self, runs):
        """Into a tape: each of (records, flags, trajectory, policy version, lanes) is an item."""
        entries = [struct.pack("<IIqqII", len(r), *told, 0) for r, *told in runs]
        records = [record for run in runs for record in run[0]]
        self.send(ITEMS, self.next, b"".join(entries + records), len(runs), len(records))
        self.next += len(runs)

    def send_rich(self, layout, fields, runs):
        """The same in version 2: each of (trees, flags, trajectory, version, lanes, given)."""
        entries, said, trees = [], [], []
        for rows, flags, *told, given in runs:
            flags |= 128 * bool(given)
            entries.append(struct.pack("<IIqqII", len(rows), flags, *told, len(given)))
            said += [pack_given(fields, one) for one in given]
            trees += rows
        records, data = pack_rows(layout, trees)
        payload = b"".join([*entries, *said, *records, data])
        self.send(ITEMS, self.next, payload, len(runs), len(trees))
        self.next += len(runs)

    def send_compact(self, runs):
        """As `send_runs`, in version 3."""
        entries = [struct.pack("<IIqqII", len(r), *told, 0) for r, *told in runs]
        records = [record for run in runs for record in run[0]]
        rows, slots = compact(self.accept["schema"], records)
        payload = b"".join(entries + rows + slots)
        self.send(ITEMS, self.next, payload, len(runs), len(records), 1)
        self.next += len(runs)
        return len(slots)

    def send_carried(self, runs):
        """The same in version 4: what came before is left out; how many slots were sent."""
        entries = [struct.pack("<IIqqII", len(r), *told, 0) for r, *told in runs]
        records = [record for run in runs for record in run[0]]
        rows, slots = compact(self.accept["schema"], records)
        table = {}
        for number, slot in enumerate(slots):
            since = self.kept[::-1].index(slot) if slot in self.kept else None
            if since is not None and since not in table.values():
                table[number] = since
        sent = [slot for number, slot in enumerate(slots) if number not in table]
        said = [struct.pack("<I", len(table))] if table else []
        said += [struct.pack("<II", *pair) for pair in table.items()]
        payload = b"".join(entries + said + rows + sent)
        flags = 1 | 4 | (2 if table else 0)
        self.send(ITEMS, self.next, payload, len(runs), len(records), flags)
        self.next += len(runs)
        places = self.accept["schema"]["shared"]["carry"] // len(slots[0])
        self.kept = (self.kept + sent)[-places:]
        return len(sent)

    def wait(self):
        while self.acked < self.next:
            self.until(ACK)

    def get(self, newer_than=-1, seconds=0.0):
        """(version, leaves by path), or None if there was nothing newer in time."""
        self.send(GET, newer_than, struct.pack("<d", seconds))
        _, number, payload = self.until(WEIGHTS)
        if payload:
            head, raw = described(payload)
            return number - (number >> 63 << 64), unpack(head["layout"], raw)

    def sample(self, request, rows=0):
        self.send(SAMPLE, request, struct.pack("<Q", rows))
        kind, number, payload = self.until(BATCH, REPLY)
        assert number == request
        if kind == REPLY:
            raise RuntimeError(json.loads(payload))
        head, raw = described(payload)
        self.batch_layout = head["layout"] or self.batch_layout
        self.batch_values = values_of(self.batch_layout, raw, head["shape"][0])
        return unpack(self.batch_layout, raw, head["shape"][0], 64)

    def ask(self, kind, request, payload=b""):
        self.send(kind, request, payload)
        _, number, payload = self.until(REPLY)
        assert number == request
        return json.loads(payload)

    def bye(self):
        self.send(BYE)
        self.until(BYE)
        assert self.sock.recv(1) == b""
        self.sock.close()

    def until(self, *kinds):
        """The next frame of one of these kinds; an ACK on the way is noted."""
        while True:
            header = self._exactly(40)
            magic, kind, _, _, number, _, _, length, crc = HEADER.unpack_from(header)
            payload = self._exactly(length)
            assert header[36:] == struct.pack("<I", crc32c(header[:36])) and magic == b"cFrm"
            assert crc32c(payload) == crc
            if kind == REFUSE:
                self.sock.close()
                raise PermissionError(json.loads(payload))
            if kind == ACK:
                self.acked = number
            if kind in kinds:
                return kind, number, payload
            assert kind == ACK, f"a frame of type {kind} while waiting for {kinds}"

    def _exactly(self, size):
        got = b""
        while len(got) < size:
            more = self.sock.recv(size - len(got))
            if not more:
                raise ConnectionError(f"closed after {len(got)} of {size} bytes")
            got += more
        return got
