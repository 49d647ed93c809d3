"""What is asked of a storage before the first row has fixed what rows are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..arguments import whole
from ..errors import LayoutError
from ..layout import Layout, is_column
from ..tree import Path, flatten, show_path
from .boundaries import complete_flags, fill_flags, merged_keys
from .encoded_once import encoded_once
from .encoding import Codecs, codecs_of, codecs_to_json, coded_row, with_next
from .ending import Whole
from .recognition import recognised, with_axes
from .schema import Schema, row_layout
from .sharing import Sharing, paying, settled
from .stacks import Stack, Stacks

__all__ = ["Asked", "check_bytes", "encoded_bytes"]

_LEAST_RING = 256 << 20


@dataclass(frozen=True)
class Asked:
    """What samplers and the storage's user ask for. Immutable; picklable, for other processes.

    Attributes:
        keys: `traj_key` and `end_key`.
        fields: of trajectories.
        blob_bytes: to keep of leaves of any size.
        codecs: by the paths of their leaves.
        share_next: whether next observations are stored once; None: where that saves memory.
        stack: stacks of frames, by the paths of their leaves; None: to be recognised.
        in_files: where what is stored once is not encoded.
    """

    keys: tuple[Any, Any] = (None, None)
    fields: Layout | None = None
    blob_bytes: int | None = None
    codecs: Codecs = field(default_factory=dict)
    share_next: bool | None = None
    stack: Stacks | None = None
    in_files: bool = False

    def __post_init__(self) -> None:
        if self.blob_bytes is not None:
            nbytes = whole("blob_bytes", self.blob_bytes, 1, "a number of bytes")
            object.__setattr__(self, "blob_bytes", nbytes)  # 1e6 is one, too

    def with_keys(self, traj_key: Any, end_key: Any) -> Asked:
        """Raises ValueError if others were asked for."""
        return replace(self, keys=merged_keys(self.keys, (traj_key, end_key)))

    def schema(self, layout: Layout, fields: Layout | None = None) -> Schema:
        """Of a storage that gets rows of a layout, and perhaps other fields."""
        once = self._encoded_once(layout)
        completed = complete_flags(self._coded(layout))
        codec = next((self.codecs[x].name for x in once), None)
        sharing = Sharing.of(completed, self.share_next, self._stacks(layout), codec)
        return Schema(completed, *self.keys, fields or self.fields, sharing)

    def row_of(self, tree: Any, batch_ndim: int) -> tuple[Layout, int]:
        """The layout of a row of data with up to so many batch dims, encoded where it is asked for;
        and how many dims it has.

        Raises:
            LayoutError: some leaf has none, and there should be one.
        """
        row, ndim = row_layout(tree, batch_ndim)
        return coded_row(row, self._row_codecs(row), tree, ndim), ndim

    def row(
        self, tree: Any, batch_ndim: int, capacity: int, whole: Whole | None = None
    ) -> tuple[Layout, Asked]:
        """The layout of the rows that the first data is of, and what else is to be asked of them:
        the stacks that are recognised.

        Args:
            tree, batch_ndim: the data, and how many leading dims it has.
            capacity: of the storage.
            whole: what is said of a whole trajectory.

        Raises:
            LayoutError, ValueError: data that would be refused: it must not fix the layout.
        """
        row, ndim = self.row_of(tree, batch_ndim)
        schema = Schema(complete_flags(row), *self.keys)
        columns, batch = schema.layout.columns(tree, ndim, schema.flag_paths)
        check_bytes(schema.layout, columns, self.ring(capacity, schema.layout))
        if whole is not None and batch[0]:
            whole.settle(schema, list(columns), batch[0])
        fill_flags(schema.layout, schema.boundaries.flags, columns)
        return row, self.looked_at(schema.layout, columns)

    def looked_at(self, layout: Layout, columns: Sequence[Any]) -> Asked:
        """With the stacks that are recognised in some rows, if nobody said which there are; else
        with the axes of those of which only the frames were said.

        Args:
            columns: of the layout's leaves, ``[..., *shape]`` each; None where there is none.
        """
        if self.share_next is False:
            return self
        if self.stack is None:
            coded = self._coded(layout)
            return replace(self, stack=paying(coded, recognised(coded, columns)))
        return replace(self, stack=with_axes(layout, columns, self.stack))

    def as_stored(self, layout: Layout, sharing: Sharing) -> Asked:
        """With what was stored once elsewhere, as far as nobody said what is here."""
        if self.share_next is False:
            return self
        share = self.share_next or (sharing.paired and not self.codecs) or None
        stacks: Stacks = {x.path: Stack(*x[1:]) for x in sharing.leaves if x.frames > 1}
        return replace(self.with_stacks(layout, stacks), share_next=share)

    def with_stacks(self, layout: Layout, stacks: Stacks) -> Asked:
        """With stacks that somebody else has recognised, of leaves that are not encoded row by row,
        if nobody said which there are."""
        if self.stack is not None or self.share_next is False:
            return self
        coded = self._coded(layout).by_path
        fixed = {p: x for p, x in stacks.items() if p not in coded or not coded[p].variable}
        return replace(self, stack=fixed) if fixed else self

    def shown(self, layout: Layout, example: Any) -> Asked:
        """As `looked_at`, in an example of a row: a real step shows its stacks, zeros do not."""
        paths, values, _ = flatten(example, is_column)
        arrays = {p: x for p, x in zip(paths, values) if isinstance(x, np.ndarray)}
        columns = [None if x.variable else arrays.get(x.path) for x in layout.leaves]
        return self.looked_at(layout, columns)

    def _encoded_once(self, layout: Layout) -> set[Path]:
        of = (self.codecs, self.share_next, self._stacks(layout))
        return encoded_once(layout, *of, in_files=self.in_files)

    def _stacks(self, layout: Layout) -> Stacks | None:
        if self.stack is None:
            return None
        return settled(layout, self.share_next, self.stack, self.codecs)

    def _row_codecs(self, layout: Layout) -> Codecs:
        """Of leaves that are encoded row by row, not where they are stored once."""
        once = self._encoded_once(layout)
        return with_next(layout, {p: x for p, x in self.codecs.items() if p not in once})

    def _coded(self, layout: Layout) -> Layout:
        return layout.with_codecs(self._row_codecs(layout))

    def ring(self, capacity: int, layout: Layout | None) -> int:
        """Bytes to keep of leaves of any size; if nobody says, 1 KiB per row, or an eighth of what
        leaves with codecs have when they are decoded, at least 256 MiB. They have memory only as
        far as they are used."""
        if self.blob_bytes is not None:
            return self.blob_bytes
        coded = 0 if layout is None else encoded_bytes(layout)
        return max(_LEAST_RING, capacity << 10, capacity * coded)

    def to_json(self) -> dict[str, Any]:
        """For another process of the same storage."""
        return {
            "keys": [list(k) if isinstance(k, tuple) else k for k in self.keys],
            "fields": None if self.fields is None else self.fields.to_json(),
            "blob_bytes": self.blob_bytes,
            "codecs": codecs_to_json(self.codecs),
            "share_next": self.share_next,
            "stack": None if self.stack is None else [[list(p), x] for p, x in self.stack.items()],
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> Asked:
        """What `to_json` said.

        Raises:
            LayoutError: it is none.
        """
        try:
            traj_key, end_key = (tuple(k) if isinstance(k, list) else k for k in data["keys"])
            return Asked(
                (traj_key, end_key),
                None if data["fields"] is None else Layout.from_json(data["fields"]),
                data["blob_bytes"],
                codecs_of({tuple(path): name for path, name in data["codecs"]}),
                data.get("share_next"),
                _stacks_from(data.get("stack")),
            )
        except (KeyError, TypeError) as error:
            raise LayoutError(f"not what a storage is asked for: {error!r}") from None


def encoded_bytes(layout: Layout) -> int:
    """What leaves with codecs may have in a row: an eighth of what they have when decoded."""
    return sum(x.element_bytes for x in layout.leaves if x.codec is not None) // 8


def _stacks_from(data: Any) -> Stacks | None:
    if data is None:
        return None
    return {tuple(p): Stack(*x) if isinstance(x, (list, tuple)) else int(x) for p, x in data}


def check_bytes(layout: Layout, columns: Sequence[Any], ring: int) -> None:
    """Raises ValueError if a row has more bytes in leaves of any size than a ring has room for, as
    an append would."""
    sizes = {
        show_path(leaf.path): np.diff(column.offsets) * leaf.stored_element_bytes
        for leaf, column in zip(layout.leaves, columns)
        if leaf.variable and column is not None
    }
    if not sizes:
        return
    total = np.sum(list(sizes.values()), axis=0)
    if len(total) and total.max() > ring:
        row = int(np.argmax(total > ring))
        name = max(sizes, key=lambda path: int(sizes[path][row]))
        raise ValueError(
            f"{name}: row {row} has {sizes[name][row]} bytes in it, {total[row]} in all leaves of "
            f"any size, and the storage's ring has room for {ring}; nothing was written. Raise "
            "blob_bytes=, or store smaller rows"
        )
