"""Whether a storage in memory will fit there when it is full; said when its rows are first known,
not when the machine has none left.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .asked import Asked, encoded_bytes
from .schema import Schema
from .sharing import Sharing, pairs
from .stacks import possible_stacks

__all__ = ["Machine", "Need", "available_bytes", "bytes_per_step", "warn_if_too_large"]

_SMALL = 64 << 20  # not worth a look at the machine
_ANY_SIZE = 1 << 10  # bytes of a row's leaves of any size
_MUCH = 1 << 10  # bytes of a leaf that a codec is worth a thought for


class Machine(NamedTuple):
    """Where the system says what memory there is."""

    proc: Path = Path("/proc")
    cgroups: Path = Path("/sys/fs/cgroup")
    shared: Path = Path("/dev/shm")


MACHINE = Machine()


class Need(NamedTuple):
    """Bytes that a storage has when it is full.

    Attributes:
        rows: how many it keeps.
        step: bytes of a row, and of one observation where those are stored once.
        plain: bytes of a row with all that belongs to it.
        others: bytes besides rows: of leaves of any size, if it was said how many.
        guessed: else what a row may have of them: an eighth of leaves with codecs, 1 KiB of others.
    """

    rows: int
    step: int
    plain: int
    others: int = 0
    guessed: int = 0

    @property
    def bytes(self) -> int:
        return self.rows * (self.step + self.guessed) + self.others

    def fitting(self, available: int) -> int:
        """Rows that so many bytes are enough for."""
        return max(available - self.others, 0) // max(self.step + self.guessed, 1)

    @staticmethod
    def of(schema: Schema, capacity: int, asked: Asked) -> Need:
        layout = schema.layout
        sizes = (capacity, bytes_per_step(schema), layout.record_size)
        if not layout.variable or asked.blob_bytes is not None:
            return Need(*sizes, asked.blob_bytes or 0 if layout.variable else 0)
        any_size = _ANY_SIZE if any(x.ragged for x in layout.leaves) else 0
        return Need(*sizes, guessed=any_size + encoded_bytes(layout))


def bytes_per_step(schema: Schema) -> int:
    """Of rows that share what they can: one new observation, or frame, a step, an eighth of it if
    it is encoded; without what leaves of any size have. `layout.record_size` is the plain form's.
    """
    sharing = schema.sharing
    return schema.layout.record_size if sharing is None else sharing.step_bytes(schema.layout)


def available_bytes(named: bool = False, machine: Machine = MACHINE) -> int | None:
    """Memory that there is for a storage: what the system, the control group and, for a named one,
    the file system of shared memory have left; None if nobody says."""
    found = [*_of_system(machine), *_of_groups(machine)]
    if named and machine.shared.is_dir():
        room = os.statvfs(machine.shared)
        found.append(room.f_bavail * room.f_frsize)
    return min(found, default=None)


def warn_if_too_large(
    kind: str, schema: Schema, capacity: int, asked: Asked, available: int | None = None
) -> None:
    """A RuntimeWarning, if what a storage will have when it is full is more than there is.

    Args:
        kind: the storage's class.
        schema: of its rows.
        capacity: rows it keeps.
        asked: what its user asked for.
        available: bytes; None: what the machine has.
    """
    need = Need.of(schema, capacity, asked)
    if available is None:
        if need.bytes <= _SMALL:
            return
        available = available_bytes(kind == "SharedStorage")
    if available is not None and need.bytes > available:
        warnings.warn(_sentence(kind, need, available, schema, asked), RuntimeWarning, stacklevel=2)


def _sentence(kind: str, need: Need, available: int, schema: Schema, asked: Asked) -> str:
    plain = "" if need.plain <= need.step else f"; {need.plain:,} in the plain form"
    if need.guessed:
        plain += f"; about {need.guessed:,} more of leaves of any size or with codecs"
    fitting = need.fitting(available)
    advice = [f"a smaller capacity (up to {fitting:,} fit now)", *_savings(need, schema, asked)]
    return (
        f"{kind}: {need.rows:,} rows need {_size(need.bytes)} when it is full ({need.step:,} bytes "
        f"a step{plain}), and {_size(available)} of memory are available. What helps: "
        f"{', '.join(advice)}, or DiskStorage"
    )


def _savings(need: Need, schema: Schema, asked: Asked) -> Iterator[str]:
    """What would make rows of this layout smaller, and is not done yet."""
    layout, sharing = schema.layout, schema.sharing
    if asked.share_next is False:
        shared = Sharing.of(layout, None, None)
        if shared is not None:
            form = shared.native(layout)
            yield f"share_next=None ({form.row_bytes + form.slot_bytes:,} bytes a step)"
    once = {x.path for x in sharing.leaves if x.frames > 1} if sharing is not None else set()
    root = [x for x in layout.leaves if x.path[0] != "next" and not x.variable]
    if any(possible_stacks(x.shape) and x.path not in once for x in root):
        yield "stack= where observations are stacks of frames"
    if any(x.nbytes >= _MUCH for x in root) and not asked.codecs:
        yield "codecs="
    if _may_be_encoded_once(schema, asked):
        yield 'share_next=True with the codec "lz4" for all that is below next'
    if need.others:
        yield "a smaller blob_bytes"
    elif need.guessed:
        yield "blob_bytes= for at most so many bytes of leaves of any size or with codecs"


def _may_be_encoded_once(schema: Schema, asked: Asked) -> bool:
    """Whether observations are encoded row by row, twice, that could be encoded and stored once."""
    coded = {x.path for x in schema.layout.leaves if x.codec is not None}
    return any(x in coded for x in pairs(schema.layout.decoded)) and asked.share_next is not False


def _size(nbytes: int) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes / 1e6:.1f} MB"


# -- what the system says --------------------------------------------------------------------------


def _of_system(machine: Machine) -> Iterator[int]:
    try:
        lines = (machine.proc / "meminfo").read_text().splitlines()
    except OSError:
        return  # not Linux
    for line in lines:
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) << 10


def _of_groups(machine: Machine) -> Iterator[int]:
    """What is left in each control group that this process is in."""
    groups = machine.cgroups
    yield from _left(groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes")  # first
    try:
        own = (machine.proc / "self" / "cgroup").read_text()
    except OSError:
        own = ""
    path = next((x[3:] for x in own.splitlines() if x.startswith("0::")), "/").strip("/")
    folder = groups / path if path else groups
    while True:  # a group is bounded by those above it, too
        yield from _left(folder, "memory.max", "memory.current")
        if folder == groups or groups not in folder.parents:
            return
        folder = folder.parent


def _left(folder: Path, limit: str, usage: str) -> Iterator[int]:
    most, used = _number(folder / limit), _number(folder / usage)
    if most is None or used is None:
        return
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        lines = []
    # Files that the system keeps in memory for speed count as used, and make room when asked.
    kept = sum(int(x.split()[1]) for x in lines if x.split()[0] in ("inactive_file", "active_file"))
    yield max(most - max(used - kept, 0), 0)


def _number(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # "max": no limit
