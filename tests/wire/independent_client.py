"""A client written from docs/design/wire.md alone, with nothing of contig: it proves the page.

Values travel as flat lists of numbers in C order, one per leaf; nothing here knows numpy.
"""

import hashlib
import hmac
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


def make_frame(kind, number=0, payload=b"", runs=0, rows=0):
    number &= (1 << 64) - 1
    head = HEADER.pack(b"cFrm", kind, 0, 0, number, runs, rows, len(payload), crc32c(payload))
    return head + struct.pack("<I", crc32c(head)) + payload


def up(offset, step):
    return -(-offset // step) * step


def places(layout, rows=1, align=None):
    """(path, format, offset) of each leaf, and the size: of a record, or of a block's columns."""
    found, end, largest = [], 0, 1
    for leaf in layout["leaves"]:
        count, code = rows, CODES[leaf["dtype"]]
        for size in leaf["shape"]:
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


def described(payload):
    size = struct.unpack_from("<Q", payload)[0]
    return json.loads(payload[8 : 8 + size]), payload[8 + size :]


class Client:
    def __init__(self, host, port, *, table="default", layout=None, token=None, **opening):
        self.acked, self.batch_layout = 0, None
        self.sock = socket.create_connection((host, port), timeout=30)
        mine = os.urandom(32)
        self.sock.sendall(struct.pack("<8sII32s", b"contig/1", 1, 0, mine))
        magic, version, flags, theirs, self.max_frame, _ = struct.unpack(
            "<8sII32sQQ", self._exactly(64)
        )
        assert (magic, version) == (b"contig/1", 1) and flags & 1 == (token is not None)

        def proof(text):
            return hmac.new(token.encode(), text, hashlib.sha256).hexdigest() if token else ""

        self.producer = 1 + int.from_bytes(os.urandom(7), "little")
        said = {"table": table, "producer": self.producer, "next": 0, "ack": "committed"}
        said |= {"layout": layout, "proof": proof(b"contig client" + theirs + mine)}
        self.send(OPEN, 0, json.dumps(said | opening).encode())
        self.accept = json.loads(self.until(ACCEPT)[2])
        assert hmac.compare_digest(self.accept["proof"], proof(b"contig server" + mine + theirs))
        self.next = self.accept["seen"]

    def send(self, kind, number=0, payload=b"", runs=0, rows=0):
        self.sock.sendall(make_frame(kind, number, payload, runs, rows))

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
