"""A client written from docs/design/wire.md alone, with nothing of contig: it proves the page.

Values travel as flat lists of numbers in C order, one per leaf; nothing here knows numpy.
"""

import hashlib
import hmac
import json
import os
import socket
import struct

HEADER = struct.Struct("<4sBBHQIIQI")  # and the header's own crc32c behind it
OPEN, ACCEPT, REFUSE, ITEMS, ACK, BYE, GET, WEIGHTS, SAMPLE, BATCH, PRIORITY, STATS, REPLY = range(
    1, 14
)
# How struct spells the elements, and how many of them make one.
CODES = {"bool": "?", "float16": "e", "float32": "f", "float64": "d"}
CODES |= {"int8": "b", "int16": "h", "int32": "i", "int64": "q"}
CODES |= {"uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q"}


def _crc_table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


CRC_TABLE = _crc_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC_TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def make_frame(kind, number=0, payload=b"", runs=0, rows=0):
    number &= (1 << 64) - 1
    head = HEADER.pack(b"cFrm", kind, 0, 0, number, runs, rows, len(payload), crc32c(payload))
    return head + struct.pack("<I", crc32c(head)) + payload


def leaf_format(leaf, rows=1):
    count = rows
    for size in leaf["shape"]:
        count *= size
    return f"<{count}{CODES[leaf['dtype']]}"


def up(offset, step):
    return -(-offset // step) * step


def pack_record(layout, values):
    """One record: a flat list per leaf, in the layout's order."""
    record, largest = b"", 1
    for leaf, value in zip(layout["leaves"], values):
        align = struct.calcsize("<" + CODES[leaf["dtype"]])
        largest = max(largest, align)
        record = record.ljust(up(len(record), align), b"\0")
        record += struct.pack(leaf_format(leaf), *value)
    return record.ljust(up(len(record), largest), b"\0")


def unpack(layout, raw, rows=1, column_align=None):
    """{path: flat list} of one record, or of a block whose columns start at `column_align`."""
    found, offset = {}, 0
    for leaf in layout["leaves"]:
        spelled = leaf_format(leaf, rows)
        offset = up(offset, column_align or struct.calcsize("<" + CODES[leaf["dtype"]]))
        found[tuple(leaf["path"])] = list(struct.unpack_from(spelled, raw, offset))
        offset += struct.calcsize(spelled)
    return found


class Client:
    def __init__(self, host, port, *, table="default", layout=None, token=None, **opening):
        self.acked, self.batch_layout = 0, None
        self.sock = socket.create_connection((host, port), timeout=30)
        nonce = os.urandom(32)
        self.sock.sendall(struct.pack("<8sII32s", b"contig/1", 1, 0, nonce))
        greeting = struct.unpack("<8sII32sQQ", self._exactly(64))
        magic, version, flags, theirs, self.max_frame, _ = greeting
        assert (magic, version) == (b"contig/1", 1), greeting
        assert not flags & 1 or token is not None, "this server needs a token"
        key = token.encode() if token is not None else b""

        def proof(who, first, second):
            if token is None:
                return ""
            return hmac.new(key, who + first + second, hashlib.sha256).hexdigest()

        producer = 1 + int.from_bytes(os.urandom(7), "little")
        said = {"table": table, "producer": producer, "next": 0, "ack": "committed"} | opening
        said |= {"layout": layout, "proof": proof(b"contig client", theirs, nonce)}
        self.send(OPEN, payload=json.dumps(said).encode())
        self.accept = json.loads(self._until(ACCEPT)[2])
        assert hmac.compare_digest(self.accept["proof"], proof(b"contig server", nonce, theirs))
        self.next = self.accept["seen"]

    def send(self, kind, number=0, payload=b"", **counts):
        self.sock.sendall(make_frame(kind, number, payload, **counts))

    def send_records(self, records):
        """Into a queue: each record is an item."""
        self.send(ITEMS, self.next, b"".join(records), rows=len(records))
        self.next += len(records)

    def send_runs(self, runs):
        """Into a tape: each run, (records, flags, trajectory, policy version, lanes), is an item."""
        table = [struct.pack("<IIqqII", len(r), f, i, v, lanes, 0) for r, f, i, v, lanes in runs]
        records = [record for run in runs for record in run[0]]
        payload = b"".join(table + records)
        self.send(ITEMS, self.next, payload, runs=len(runs), rows=len(records))
        self.next += len(runs)

    def wait(self):
        while self.acked < self.next:
            self._until(ACK)

    def get(self, newer_than=-1, seconds=0.0):
        """(version, {path: flat list}), or None if there was nothing newer in time."""
        self.send(GET, newer_than, struct.pack("<d", seconds))
        _, number, payload = self._until(WEIGHTS)
        if not payload:
            return None
        described, raw = self._described(payload)
        return struct.unpack("<q", struct.pack("<Q", number))[0], unpack(described["layout"], raw)

    def sample(self, request, rows=0):
        self.send(SAMPLE, request, struct.pack("<Q", rows))
        kind, number, payload = self._until(BATCH, REPLY)
        assert number == request
        if kind == REPLY:
            raise RuntimeError(json.loads(payload))
        described, raw = self._described(payload)
        self.batch_layout = described["layout"] or self.batch_layout
        return unpack(self.batch_layout, raw, described["shape"][0], column_align=64)

    def ask(self, kind, request, payload=b""):
        self.send(kind, request, payload)
        _, number, payload = self._until(REPLY)
        assert number == request
        return json.loads(payload)

    def bye(self):
        self.send(BYE)
        self._until(BYE)
        assert self.sock.recv(1) == b""
        self.sock.close()

    def _described(self, payload):
        size = struct.unpack_from("<Q", payload)[0]
        return json.loads(payload[8 : 8 + size]), payload[8 + size :]

    def _until(self, *kinds):
        """The next frame of one of these kinds; an ACK on the way is noted."""
        while True:
            header = self._exactly(40)
            magic, kind, _, _, number, _, _, length, crc = HEADER.unpack_from(header)
            assert magic == b"cFrm" and struct.unpack_from("<I", header, 36)[0] == crc32c(
                header[:36]
            )
            payload = self._exactly(length)
            assert crc32c(payload) == crc
            if kind == ACK:
                self.acked = number
            if kind in kinds:
                return kind, number, payload
            if kind == REFUSE:
                raise PermissionError(json.loads(payload))
            assert kind == ACK, f"frame type {kind} while waiting for {kinds}"

    def _exactly(self, size):
        got = b""
        while len(got) < size:
            more = self.sock.recv(size - len(got))
            if not more:
                raise ConnectionError(f"closed after {len(got)} of {size} bytes")
            got += more
        return got
