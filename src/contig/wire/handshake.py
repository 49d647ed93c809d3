"""The handshake, without sockets: bytes in, bytes and what they say out (docs/design/wire.md).

    ClientHandshake                          ServerHandshake
    hello()                          ->      greet(bytes) or None, until they are enough
    open(bytes)                      <-      its greeting
    OPEN, which that gives           ->      read_open(payload) -> Opening
    read_answer(type, payload)       <-      accept(Accepted), or refusal(Refused)
      -> Accepted

A client that cannot go on raises what its callers see; a server raises Refused. Sockets are in
`client/connecting.py` and `server/connection.py`.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Collection, Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ..errors import ConnectionClosedError, LayoutError
from ..layout import Layout
from ..tape.fields import fields_layout
from ..tape.sharing import shared_form
from ..tape.stacks import Stacks, stacks_from_json
from . import versions
from .frames import Refused, Type, json_frame, parse_json, shown
from .pulse import LEAST_HEARTBEAT_S, MOST_HEARTBEAT_S
from .versions import OLDEST_VERSION, RICH_VERSION, VERSION, newer_parts, spoken_version

__all__ = [
    "GREETING_BYTES",
    "HANDSHAKE_BYTES",
    "HANDSHAKE_S",
    "HELLO_BYTES",
    "MAGIC",
    "Accepted",
    "ClientHandshake",
    "Greeting",
    "Hello",
    "Opening",
    "ServerHandshake",
    "find_table",
    "proof",
    "raise_refusal",
    "refusal",
    "table_in",
]

MAGIC = b"contig/1"
HELLO_BYTES, GREETING_BYTES = 48, 64
HANDSHAKE_BYTES = 256 << 10  # the largest OPEN: a layout of some thousand leaves
HANDSHAKE_S = 5.0
_ABILITIES = ("takes_weights", "watched", "receipts")  # of a server; said if it has them

# A server that says so will be there again: what came of a bad moment, not of the client.
_PASSING = ("busy", "deadline", "stalled", "internal")
_HAS = "; this server has: "

_TLS_RECORDS = (b"\x15", b"\x16")  # an alert, a handshake


class Hello(NamedTuple):
    """A client's first bytes: the oldest and the newest version it speaks (0: no other one)."""

    version: int
    nonce: bytes
    newest: int = 0

    @staticmethod
    def new() -> Hello:
        return Hello(OLDEST_VERSION, os.urandom(32), VERSION)

    def pack(self) -> bytes:
        return MAGIC + struct.pack("<II", self.version, self.newest) + self.nonce

    @staticmethod
    def parse(data: bytes) -> Hello | None:
        """None: more of it has to come. Wrong ones are refused before, for it may never do so."""
        if not MAGIC.startswith(data[:8]):
            raise Refused("magic", "these are not the first bytes of a contig client (magic)")
        if len(data) < HELLO_BYTES:
            return None
        version, newest = struct.unpack_from("<II", data, 8)
        return Hello(version, data[16:48], newest)


class Greeting(NamedTuple):
    """A server's answer to a hello."""

    version: int
    needs_token: bool
    nonce: bytes
    max_frame: int

    def pack(self) -> bytes:
        head = struct.pack("<II", self.version, int(self.needs_token))
        return MAGIC + head + self.nonce + struct.pack("<QQ", self.max_frame, 0)

    @staticmethod
    def parse(data: bytes) -> Greeting:
        if data[:8] != MAGIC:
            hint = "it speaks TLS: give tls=" if data[:1] in _TLS_RECORDS else "check its address"
            raise ValueError(
                f"the peer is no contig server: its magic is {data[:8]!r}, not {MAGIC!r}; {hint}"
            )
        version, flags = struct.unpack_from("<II", data, 8)
        if not OLDEST_VERSION <= version <= VERSION:
            raise ValueError(
                f"the server speaks protocol {version}, this client {OLDEST_VERSION} to {VERSION}: "
                "update the older one"
            )
        (max_frame,) = struct.unpack_from("<Q", data, 48)
        if max_frame < 256:
            raise ValueError(
                f"the server takes frames of {max_frame} bytes only: no room for items"
            )
        return Greeting(version, bool(flags & 1), data[16:48], max_frame)


class HasAckLevels(Protocol):
    """A table, as far as an OPEN is about it."""

    ack_levels: tuple[str, ...]


TableT = TypeVar("TableT", bound=HasAckLevels)


class Opening(NamedTuple, Generic[TableT]):
    """What a client asks for: an OPEN that is right.

    Attributes:
        table, name: what it wants to write to or read from.
        producer: who sends.
        following: the first of its items that it has not seen acked.
        ack: what an ACK is to mean.
        layout: of the records to come; None: there are none.
        fields: of trajectories; None: it does not say.
        stacks: of frames, which it has recognised in a row.
        version: of the protocol that is spoken with it.
        heartbeat: whether it says something from time to time, and expects that of the server.
    """

    table: TableT
    name: str
    producer: int
    following: int
    ack: str
    layout: Layout | None
    fields: Layout | None
    stacks: Stacks
    version: int
    heartbeat: bool


class Accepted(NamedTuple):
    """What a server's ACCEPT says.

    Attributes:
        kind: "queue" or "tape".
        schema: the table's layout and keys, or None.
        ndim: batch dims of plain trees, the last of them time.
        seen: the next item to send.
        max_inflight: bytes of items that may be unacked.
        heartbeat_s: how long neither side is silent; 0: this connection has no heartbeat.
        max_row: bytes that one row may have in leaves of any size; 0: as many as a frame.
        takes_weights: whether PUBLISH is answered.
        watched: whether WATCH is.
        receipts: whether SAMPLE may say what was not taken.
        table: the table's name, which a client need not know.
    """

    kind: str
    schema: dict[str, Any] | None
    ndim: int
    seen: int
    max_inflight: int
    heartbeat_s: float
    max_row: int = 0
    takes_weights: bool = False
    watched: bool = False
    receipts: bool = False
    table: str = "default"

    @staticmethod
    def parse(answer: dict[str, Any]) -> Accepted:
        kind, schema = answer.get("kind"), answer.get("schema")
        seen, ndim = answer.get("seen"), answer.get("ndim", 1)
        most, beat = answer.get("max_inflight"), answer.get("heartbeat_s", 0)
        fits = kind in ("queue", "tape") and _is_count(seen)
        fits = fits and type(ndim) is int and 1 <= ndim <= 32
        fits = fits and _is_count(most) and most != 0
        row = answer.get("max_row", 0)
        fits = fits and _is_count(row)
        fits = fits and type(beat) in (int, float)
        fits = fits and (beat == 0 or LEAST_HEARTBEAT_S <= beat <= MOST_HEARTBEAT_S)
        fits = fits and isinstance(answer.get("table", "default"), str)
        fits = fits and (isinstance(schema, dict) or (schema is None and kind == "tape"))
        if fits and schema is not None:
            try:
                Layout.from_json(schema.get("layout"))
                if schema.get("fields") is not None:
                    Layout.from_json(schema["fields"])
                shared_form(schema)
                versions.carry_of(schema)
            except (LayoutError, ValueError):
                fits = False
            fits = fits and (kind == "queue" or isinstance(schema.get("keys"), dict))
        if not fits:
            raise ValueError(f"the server's ACCEPT makes no sense: {shown(answer)}")
        numbers = (int(ndim), int(seen or 0), int(most or 1), float(beat), int(row))
        weights, watched, receipts = (answer.get(name) is True for name in _ABILITIES)
        table = str(answer.get("table", "default"))
        return Accepted(str(kind), schema, *numbers, weights, watched, receipts, table)


class ClientHandshake:
    """The client's side.

    Args:
        table: the name of the table to open; None: the server's only one.
        token: what the server wants to be proven; None: nothing.
        opening: what OPEN says besides.
    """

    def __init__(self, table: str | None, token: str | None, opening: dict[str, Any]) -> None:
        self._table, self._token, self._opening = table, token, opening
        self._hello = Hello.new()
        self.max_frame = 0  # the largest that the server takes, once it has greeted
        self.version = VERSION  # that is spoken, from then on

    def hello(self) -> bytes:
        return self._hello.pack()

    def open(self, greeting: bytes) -> bytes:
        """OPEN, for the server that greeted."""
        greeted = Greeting.parse(greeting)
        self._greeting, self.max_frame, self.version = greeted, greeted.max_frame, greeted.version
        self._check_carried()
        if greeted.needs_token and self._token is None:
            raise ValueError("the server needs a token: give token= to the client")
        if self._token is not None and not greeted.needs_token:
            raise ValueError(
                "the server does not ask for the token, so it cannot prove that it knows it: is it "
                "the right one? Leave token= out if it has none"
            )
        asked = {
            "heartbeat": True,  # unless the opening says otherwise
            **self._opening,
            "table": self._table,
            "proof": proof(self._token, "client", greeted.nonce, self._hello.nonce),
        }
        frame = json_frame(Type.OPEN, asked)
        if len(frame) > HANDSHAKE_BYTES:
            raise LayoutError(
                f"the layout takes {len(frame)} bytes to describe, more than a server reads "
                f"({HANDSHAKE_BYTES}): use fewer leaves"
            )
        return frame

    def _check_carried(self) -> None:
        """Whether the server can be told what comes."""
        if self.version >= RICH_VERSION:
            return
        layout, fields = self._opening.get("layout"), self._opening.get("fields")
        parts = newer_parts(None if layout is None else Layout.from_json(layout), fields)
        if parts:
            raise ValueError(
                f"the server speaks protocol {self.version}, and {parts} need {RICH_VERSION}: "
                "update contig where it runs, or leave them out"
            )

    def read_answer(self, kind: int, payload: bytes) -> Accepted:
        """What the first frame of the server says."""
        try:
            answer = parse_json(payload)
        except Refused as error:
            raise ValueError(f"the server's answer makes no sense: {error}") from None
        if kind == Type.REFUSE:
            raise_refusal(answer)
        if kind != Type.ACCEPT:
            raise ValueError(f"expected ACCEPT, got a frame of type {kind}")
        expected = proof(self._token, "server", self._hello.nonce, self._greeting.nonce)
        if not _same_proof(answer.get("proof"), expected):
            raise ValueError("the server could not prove that it knows the token")
        if isinstance(answer.get("schema"), dict):
            answer["schema"] = versions.told_schema(self.version, answer["schema"])
        return Accepted.parse(answer)


class ServerHandshake:
    """The server's side.

    Args:
        token: what clients have to prove that they know; None: nothing.
        max_frame: the largest that will be taken.
    """

    def __init__(self, token: str | None, max_frame: int) -> None:
        self._token, self._max_frame = token, max_frame
        self._nonce = os.urandom(32)
        self._hello: Hello | None = None
        self._version = VERSION
        self.greeted = False  # whether the client's hello has come

    def greeting(self) -> bytes:
        needs_token = self._token is not None
        return Greeting(self._version, needs_token, self._nonce, self._max_frame).pack()

    def greet(self, data: bytes) -> bytes | None:
        """The greeting for a hello, or None while that is not whole."""
        hello = self._hello = Hello.parse(data)
        self.greeted = hello is not None
        if hello is None:
            return None
        # One that is spoken here, if there is none: the refusal comes behind the greeting.
        newest = max(hello.version, hello.newest)
        self._version = min(max(newest, OLDEST_VERSION), VERSION)
        return self.greeting()

    def check_version(self) -> None:
        """After the greeting, which says what is spoken here."""
        assert self._hello is not None
        spoken_version(self._hello.version, self._hello.newest)

    def read_open(self, payload: bytes, tables: Mapping[str, TableT]) -> Opening[TableT]:
        """What a client asks for with its OPEN, checked in the order of the wire format."""
        asked = parse_json(payload)
        assert self._hello is not None
        expected = proof(self._token, "client", self._nonce, self._hello.nonce)
        if not _same_proof(asked.get("proof"), expected):
            hint = "" if expected else "; this server has none, leave it out"
            raise Refused("token", f"the token is missing or wrong{hint}")
        name = _table_name(asked.get("table"), tables)
        table = tables[name]
        producer, following = asked.get("producer"), asked.get("next")
        if not _is_count(producer) or not producer or not _is_count(following):
            raise Refused("producer", "producer: a number of 1 to 2^63 - 1; next: 0 or more")
        ack, layout = asked.get("ack"), None
        if ack not in table.ack_levels:
            known = ", ".join(table.ack_levels)
            raise Refused("frame", f"ack {shown(repr(ack), 200)}: this table has {known}")
        if asked.get("layout") is not None:
            layout = self._layout(asked["layout"])
        fields = None if asked.get("fields") is None else self._fields(asked["fields"])
        beats, following = asked.get("heartbeat") is True, int(following or 0)
        said = (layout, fields, self._stacks(asked.get("stack")), self._version, beats)
        return Opening(table, name, producer, following, str(ack), *said)

    @staticmethod
    def _stacks(content: Any) -> Stacks:
        try:
            return {} if content is None else stacks_from_json(content)
        except LayoutError as error:
            raise Refused("layout", str(error)) from None

    @staticmethod
    def _fields(content: Any) -> Layout:
        try:
            return fields_layout(Layout.from_json(content))
        except LayoutError as error:
            raise Refused("layout", str(error)) from None

    def _layout(self, content: Any) -> Layout:
        try:
            layout = Layout.from_json(content)
        except LayoutError as error:
            raise Refused("layout", str(error)) from None
        if list(layout.structure.paths()) != [x.path for x in layout.leaves]:
            raise Refused("layout", "its leaves are not those of its structure")
        if layout.record_size + 128 > self._max_frame:
            raise Refused("layout", "a record is larger than a frame may be")
        return layout

    def accept(self, accepted: Accepted) -> bytes:
        """ACCEPT."""
        assert self._hello is not None
        proven = proof(self._token, "server", self._hello.nonce, self._nonce)
        answer = {**accepted._asdict(), "proof": proven}
        if not accepted.heartbeat_s:  # a client that did not ask for one need not know the word
            del answer["heartbeat_s"]
        if not accepted.max_row:
            del answer["max_row"]
        for name in _ABILITIES:
            if not answer[name]:
                del answer[name]
        return json_frame(Type.ACCEPT, answer)


def refusal(refused: Refused) -> bytes:
    """REFUSE."""
    return json_frame(Type.REFUSE, {"reason": refused.reason, "message": str(refused)})


def find_table(name: str | None, tables: Collection[str]) -> str | None:
    """Returns the table that a client means, or None if there is none.

    A client that names no table means the table `default`, or the only one there is.
    """
    if name is None and "default" not in tables and len(tables) == 1:
        return next(iter(tables))
    name = "default" if name is None else name
    return name if name in tables else None


def _table_name(name: Any, tables: Collection[str]) -> str:
    """Returns the name of the table that OPEN asks for. Raises Refused, with those there are."""
    found = find_table(name, tables) if name is None or isinstance(name, str) else None
    if found is None:
        asked = "of no name: give table=" if name is None else shown(repr(name), 200)
        raise Refused("table", f"no table {asked}{_HAS}{', '.join(sorted(tables))}")
    return found


def table_in(refusal: str) -> str | None:
    """The first table that a server has, of its refusal of one that it has not."""
    _, said, tables = refusal.partition(_HAS)
    return tables.partition(", ")[0] if said else None


def raise_refusal(answer: dict[str, Any]) -> None:
    """Raises what a REFUSE says, as the error it is for a client."""
    reason, message = shown(answer.get("reason", "?")), shown(answer.get("message", ""))
    if reason == "layout":
        raise LayoutError(message)
    if reason in _PASSING:
        raise ConnectionClosedError(f"the server refused the connection ({reason}): {message}")
    raise ValueError(f"the server refused the connection ({reason}): {message}")


def proof(token: str | None, who: str, first: bytes, second: bytes) -> str:
    """What shows that a side knows the token, without sending it."""
    if token is None:
        return ""
    text = f"contig {who}".encode() + first + second
    return hmac.new(token.encode(), text, hashlib.sha256).hexdigest()


def _same_proof(given: Any, expected: str) -> bool:
    """Compared in constant time."""
    if not isinstance(given, str):
        return False
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
