"""The tables of ``contig serve``: their options, from the command line and from one TOML file.

    [tables.online]                 one table; what it does not say is as for all
    example = "row.json"            a file beside this one; or [tables.online.example] with leaves
    sampler = "slices"
    slice_len = 64

Options on the command line and at the top of the file are for all tables. The command line comes
before the file, and a table's own before both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..layout import Layout, ShapeDtype
from ..replay import ReplayBuffer
from ..sample import (
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    RateLimiter,
    Sampler,
    SliceSampler,
)
from ..tape import LazyTensorStorage, Storage
from ..tape.disk import DiskStorage
from .leaf_options import ByLeaf, by_leaf, check_stored
from .values import MOST_ROWS

__all__ = [
    "DEFAULTS",
    "SAMPLERS",
    "TABLE_OPTIONS",
    "TableOptions",
    "checked",
    "make_table",
    "read_example",
    "table_options",
]

SAMPLERS = ("uniform", "prioritized", "slices", "prioritized-slices")


class TableOptions(NamedTuple):
    """What is said of a table; None: nothing was.

    Attributes:
        example: a row, as `read_example` gives it.
        capacity: rows.
        disk: the directory that the table's own is in; None: it is in memory.
        durable: on disk, whether committed rows survive power loss.
        sampler: one of `SAMPLERS`.
        slice_len: rows of a slice.
        batch_size: rows of a sample.
        samples_per_insert: rows sampled for each row written, kept by a limiter.
        min_size: rows before the first sample, with such a limiter.
        share_next: whether next observations are stored once.
        stack: frames, or frames and axis, by the path of a leaf.
        codecs: names by the path of a leaf.
    """

    example: Any = None
    capacity: int | None = None
    disk: Path | None = None
    durable: bool | None = None
    sampler: str | None = None
    slice_len: int | None = None
    batch_size: int | None = None
    samples_per_insert: float | None = None
    min_size: int | None = None
    share_next: bool | None = None
    stack: ByLeaf | None = None
    codecs: ByLeaf | None = None

    def over(self, other: TableOptions) -> TableOptions:
        """These, and the other's where nothing is said."""
        return TableOptions(*(b if a is None else a for a, b in zip(self, other)))

    def check(self, spell: Callable[[str], str]) -> None:
        """Raises ValueError for what would have no effect; `spell`: an option as it is given."""
        if self.durable and self.disk is None:
            needs = f"{spell('durable')} needs {spell('disk')}"
            raise ValueError(f"{needs}: what is in memory survives no power loss")
        if self.slice_len is not None and "slices" not in (self.sampler or ""):
            needs = f"{spell('slice_len')} needs {spell('sampler')}"
            raise ValueError(f"{needs} slices or prioritized-slices")
        if self.min_size is not None and self.samples_per_insert is None:
            needs = f"{spell('min_size')} needs {spell('samples_per_insert')}"
            raise ValueError(f"{needs}: it is that limiter which waits for the rows")
        for name in ("capacity", "slice_len", "batch_size", "min_size"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MOST_ROWS:
                raise ValueError(f"{spell(name)} {value}: expected 1 to {MOST_ROWS} rows")
        for name in ("slice_len", "min_size"):
            value, rows = getattr(self, name), self.capacity or DEFAULTS.capacity or 0
            if value is not None and value > rows:
                more = f"{spell(name)} {value} is more than {spell('capacity')} {rows}"
                raise ValueError(f"{more}: nothing would ever be sampled")


TABLE_OPTIONS = TableOptions._fields
DEFAULTS = TableOptions(capacity=1_000_000, durable=False, sampler="uniform", batch_size=256)
_SLICE_LEN, _MIN_SIZE = 32, 1


def table_options(given: Mapping[str, Any], where: str, beside: Path) -> TableOptions:
    """The options of a TOML table.

    Args:
        given: as it was read.
        where: for errors.
        beside: the directory that names of files are relative to.
    """
    kinds: dict[str, tuple[type, ...]] = {
        "example": (str, dict), "capacity": (int,), "disk": (str,), "durable": (bool,),
        "sampler": (str,), "slice_len": (int,), "batch_size": (int,),
        "samples_per_insert": (int, float), "min_size": (int,),
        "share_next": (bool,), "stack": (dict,), "codecs": (dict,),
    }  # fmt: skip
    out: dict[str, Any] = {}
    for key, value in given.items():
        if key not in kinds:
            raise ValueError(f"{where}: unknown option {key!r}; there are {', '.join(kinds)}")
        out[key] = checked(value, kinds[key], f"{where}: {key}")
    if isinstance(out.get("example"), str):
        out["example"] = read_example(beside / out["example"])
    elif "example" in out:
        out["example"] = leaf_specs(out["example"], f"{where}: example")
    for name in ("stack", "codecs"):
        if name in out:
            out[name] = by_leaf(out[name])
    if "disk" in out:
        out["disk"] = beside / out["disk"]
    if out.get("sampler", SAMPLERS[0]) not in SAMPLERS:
        known = ", ".join(SAMPLERS)
        raise ValueError(f"{where}: sampler {out['sampler']!r}: expected one of {known}")
    return TableOptions(**out)


def checked(value: Any, kinds: tuple[type, ...], where: str) -> Any:
    """A value of a TOML file if it is of a kind that is expected."""
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        expected = " or ".join(_KINDS[kind] for kind in kinds)
        raise ValueError(f"{where}: expected {expected}, got {value!r}")
    return value


_KINDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false",
          dict: "a table of leaves", list: "a list"}  # fmt: skip


def make_table(name: str, options: TableOptions, spell: Callable[[str], str]) -> ReplayBuffer:
    """A table's buffer. Raises ValueError if it cannot be as it was said."""
    try:
        if not name.strip():
            raise ValueError("expected a name that is not empty")
        options.check(spell)
        told = options.over(DEFAULTS)
        if told.example is None:
            raise ValueError(f"nothing says what a row is: give {spell('example')}")
        limiter = None
        if told.samples_per_insert is not None:
            assert told.batch_size is not None
            ratio, least = told.samples_per_insert, told.min_size or _MIN_SIZE
            room = max(ratio * max(told.batch_size, least), 1.0, ratio, told.batch_size)
            limiter = RateLimiter(ratio, least, room)
        storage = _storage(name, told)
        try:
            check_stored(storage, told.share_next, told.stack, spell)
        except BaseException:
            storage.close()
            raise
        return ReplayBuffer(storage, _sampler(told), batch_size=told.batch_size, limiter=limiter)
    except (TypeError, ValueError) as error:
        raise ValueError(f"table {name!r}: {error}") from None


def _storage(name: str, told: TableOptions) -> Storage:
    assert told.capacity is not None
    once: dict[str, Any] = {x: getattr(told, x) for x in ("share_next", "stack", "codecs")}
    if told.disk is None:
        return LazyTensorStorage(told.capacity, example=told.example, **once)
    if Path(name).name != name or name in (".", ".."):
        raise ValueError("with disk, expected a name that can be a directory's")
    durability = "durable" if told.durable else "committed"
    place = told.disk / name
    return DiskStorage(place, told.capacity, durability=durability, example=told.example, **once)


def _sampler(told: TableOptions) -> Sampler:
    length = told.slice_len or _SLICE_LEN
    if told.sampler == "uniform":
        return RandomSampler()
    if told.sampler == "prioritized":
        return PrioritizedSampler()
    if told.sampler == "slices":
        return SliceSampler(slice_len=length)
    return PrioritizedSliceSampler(slice_len=length)


def read_example(path: Path) -> Any:
    """A row or item described in a JSON file.

    Raises:
        ValueError: it is no JSON, or has a leaf that is no shape and dtype; it names the path.
    """
    try:
        content = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if isinstance(content, dict) and {"structure", "leaves"} <= content.keys():
        layout = Layout.from_json(content)
        return layout.build_tree([ShapeDtype(x.shape, x.dtype) for x in layout.leaves])
    return leaf_specs(content, str(path))


def leaf_specs(node: Any, where: str) -> Any:
    """A tree of shapes and dtypes; `where` is for errors."""
    if isinstance(node, dict) and set(node) == {"shape", "dtype"}:
        try:
            return ShapeDtype(tuple(int(n) for n in node["shape"]), str(node["dtype"]))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: shape and dtype: {error}") from None
    if isinstance(node, dict) and node:
        return {key: leaf_specs(value, f"{where}: {key}") for key, value in node.items()}
    raise ValueError(
        f'{where}: expected an object of leaves, each {{"shape": [...], "dtype": "float32"}}, got '
        f"{json.dumps(node, default=str)[:80]}"
    )
