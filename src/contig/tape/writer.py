"""Writers: the handles that append.

A writer belongs to one thread of one process, and continuity exists only within one writer. Used
from another thread, after a fork or after pickling it becomes a new one that continues nothing.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from .._native import Continue, Lanes
from ..batch import Batch
from ..convert import plain_tree, tensordict_shape
from ..errors import LayoutError
from ..layout import Layout
from ..tree import Path
from .boundaries import check_given, fill_flags
from .encoding import Encoder
from .ending import End, Whole
from .env_step import EnvStep, check_total
from .fields import Given, RowFields, first_fields, pack_fields
from .schema import Schema
from .stacking import batch_ndim_of, lanes_of, stack_rows

__all__ = ["Writer", "extend_grid"]

# Looked up once: that takes longer than handing one over.
_NEW, _IF_OPEN, _TOLD = Continue
_ONE_LANE, _LEADING_DIMS, _EACH_ROW = Lanes
_ENVS = 1 << 32  # native/tape/writer.cpp: where envs begin among lanes
_NOTHING: dict[str, Given] = {}  # of fields, as native writers take them


class Appendable(Protocol):
    """What a writer appends to: a storage, or one that is far away."""

    capacity: int
    ndim: int

    @property
    def schema(self) -> Schema | None: ...

    def check_open(self) -> None: ...

    def define(
        self, tree: Any, batch_ndim: int, fields: Layout | None = None, whole: Whole | None = None
    ) -> Schema: ...

    @property
    def fields(self) -> Layout | None: ...

    def native_writer(self, schema: Schema) -> Any: ...


class Writer:
    """Appends rows to a storage. Each method is one atomic append and returns seqs.

    Args:
        storage: where rows go; `storage.writer()` makes one.
        orphans: trajectories that the writer this one was made of had open.
    """

    def __init__(self, storage: Appendable, orphans: list[Any] | None = None) -> None:
        self._storage = storage
        self._orphans = orphans or []  # what another writer had open when this one was made of it
        self._native: Any = None
        self._envs = 0  # of its steps, while there is no native writer that could know
        self._missing: frozenset[Path] = frozenset()
        self._variable = False  # whether rows have leaves of any size
        self._plan: Any = None  # set while the storage is open and its layout known
        self._encoder: Encoder | None = None  # known with the plan

    def detach(self) -> None:
        """The storage was closed: the next call goes the slow way and says so."""
        self._plan = None

    @property
    def id(self) -> int:
        """The writer's number, unique across processes and machines; 0 before the first row."""
        return 0 if self._native is None else int(self._native.id)

    def add(self, step: Any, fields: Any = None) -> int:
        """One row, continuing this writer's trajectory until a done row.

        Args:
            step: the row.
            fields: some of the trajectory's, a mapping; others stay as they are.
        """
        if fields is None and self._encoder is None and (plan := self._plan) is not None:
            seq: int = self._native.add(plan, step)
            if seq >= 0:
                return seq
        tree, shape = _tree_of(step, self._storage.schema)
        if shape:
            raise LayoutError(f"add takes one row, got batch shape {list(shape)}; use extend")
        given = _NOTHING if fields is None else self._given(tree, 0, fields)
        schema = self._ready(tree, 0)
        if self._encoder is not None:
            tree = self._encoder.row(tree)
        seq = self._native.add(self._plan, tree, **given)
        if seq >= 0:
            return int(seq)
        return self._append(schema, tree, 0, _ONE_LANE, _IF_OPEN, None, given)[0]

    def add_step(
        self, step: Any, env_ids: Any = None, mask: Any = None, fields: Any = None
    ) -> np.ndarray[Any, Any]:
        """One step of B envs, ``[B, ...]``: row b continues env b until its done row.

        Args:
            step: a row of each env.
            env_ids: whose the rows are, whole numbers ``[B]``, each once; row b is env b's if None,
                and then every step must be of as many envs.
            mask: rows to store, bool ``[B]``. Others are not stored, and end nothing.
            fields: some of the trajectories', a mapping: a value for all of them, or ``[B, ...]``
                one for each; or a list of a mapping (or None) for each.

        Returns:
            seqs of the rows that are stored.
        """
        plain = fields is None and env_ids is None and mask is None and self._encoder is None
        if plain and (plan := self._plan) is not None and type(step) is dict:
            first: int = self._native.extend(plan, step, 1, _EACH_ROW, _IF_OPEN, None)
            if first >= 0:
                return self._seqs(first, self._native.last_rows)
        schema = self._storage.schema
        layout = None if schema is None else schema.layout
        return self.add_env_step(EnvStep.of(step, env_ids, mask, layout), fields)

    def add_env_step(self, step: EnvStep, fields: Any = None) -> np.ndarray[Any, Any]:
        """`add_step` of what is to be stored of a step; `fields` are of the whole step."""
        if step.total is not None:
            check_total(self._envs if self._native is None else self._native.envs, step.total)
        if step.envs is not None and len(step.envs) == 0:
            self._storage.check_open()
            if step.total is not None:
                self._told_envs(step.total)
            return np.empty(0, np.int64)
        tree, _ = _rows_of(step.data, self._storage.schema)
        given = _NOTHING if fields is None else self._given(tree, 1, fields, (step.rows, 0))
        if given and step.kept is not None and len(given["fields"][1]) > 1:
            given = {"fields": (given["fields"][0][step.kept], given["fields"][1][step.kept])}
        schema = self._ready(tree, 1)
        seqs = self._seqs(*self._write(schema, tree, 1, _EACH_ROW, _IF_OPEN, step.envs, given))
        if step.total is not None:
            self._told_envs(step.total)
        return seqs

    def _told_envs(self, envs: int) -> None:
        if self._native is None:
            self._envs = envs
        else:
            self._native.envs = envs

    def extend(
        self, data: Any, continues: bool | None = None, fields: Any = None
    ) -> np.ndarray[Any, Any]:
        """Rows ``[N, ...]``, or lanes of rows ``[B, T, ...]``, ``[W, B, T, ...]``.

        Args:
            data: a tree whose first `ndim` dims (the storage's) are batch dims, or a Batch or
                TensorDict with batch dims of its own, or a list of rows.
            continues: whether the rows go on where this writer's last ones stopped, when no mark
                in the data says so. None: yes, if there is one lane and its last row was not done.
            fields: some of the trajectories', a mapping: a value for all of them, or ``[B, ...]``
                one for all of each lane; or a list of a mapping (or None) for each lane; or
                `RowFields`, for each row.
        """
        plain = fields is None and continues is None and self._encoder is None
        if plain and (plan := self._plan) is not None and type(data) is dict:
            # A dict's rows have as many batch dims as the storage says; with one, it is one lane.
            if self._storage.ndim == 1:
                first: int = self._native.extend(plan, data, 1, _ONE_LANE, _IF_OPEN, None)
                if first >= 0:
                    return self._seqs(first, self._native.last_rows)
        known = self._storage.schema
        data = stack_rows(data, known)
        tree, shape = _rows_of(data, known)
        ndim = self._storage.ndim if shape is None else len(shape)
        if ndim == 0:
            raise LayoutError("extend takes rows with a leading dim; use add for a single one")
        given = _NOTHING if fields is None else self._given(tree, ndim, fields, shape)
        schema = self._ready(tree, ndim)
        if shape is None:
            ndim = batch_ndim_of(schema, tree, ndim)
        lanes = _ONE_LANE if ndim == 1 else _LEADING_DIMS
        rule = _TOLD if continues else _NEW
        if continues is None and ndim == 1:
            rule = _IF_OPEN
        return self._seqs(*self._write(schema, tree, ndim, lanes, rule, None, given))

    def extend_trajectory(
        self,
        data: Any,
        *,
        terminated: bool | None = None,
        truncated: bool | None = None,
        traj_id: int | None = None,
        policy_version: int | None = None,
        fields: Any = None,
    ) -> np.ndarray[Any, Any]:
        """Appends one whole trajectory ``[T, ...]``, and its fields, a mapping.

        How it ended is what the arguments say, else what its last row says; without arguments and
        without done flags in the data, it is truncated. Arguments may close what the last row
        leaves open, and must not contradict a done row. Without `policy_version` the rows' own
        count.

        Raises:
            LayoutError: a mark in the rows says that they are several trajectories: a done row
                before the last, an `is_init` behind the first, or another id, unless `traj_id` is
                given. `extend` takes those.
        """
        whole = Whole(End(terminated, truncated), traj_id)
        return self._extend_whole(data, whole, policy_version, fields)

    def _extend_whole(
        self, data: Any, whole: Whole, policy_version: int | None, fields: Any
    ) -> np.ndarray[Any, Any]:
        tree, shape = _tree_of(data, self._storage.schema)
        if shape is not None and len(shape) != 1:
            raise LayoutError(f"a trajectory is [T, ...], got batch shape {list(shape)}")
        given = _NOTHING if fields is None else self._given(tree, 1, fields, (0,), whole)
        schema = self._ready(tree, 1, whole)
        if policy_version is not None and self._takes_whole(schema, whole):
            flags = (whole.end if whole.end.is_said else End(False, True)).flags
            arguments = (self._plan, tree, flags, whole.traj_id, policy_version)
            first = self._native.extend_whole(*arguments, **given)
            if first >= 0:
                return self._seqs(first, self._native.last_rows)
        columns, batch = schema.layout.columns(tree, 1, schema.flag_paths)
        rows = batch[0]
        if rows == 0:
            return np.empty(0, np.int64)
        end = whole.settle(schema, columns, rows)
        arrays, offsets, blobs = schema.layout.apart(columns)
        first = self._native.append_whole(
            arrays,
            offsets,
            rows,
            end.flags,
            whole.id_of(schema, columns),
            -1 if policy_version is None else policy_version,
            *blobs,
            **given,
        )
        return self._seqs(first, rows)

    def _takes_whole(self, schema: Schema, whole: Whole) -> bool:
        """Returns whether nothing in the rows says where a trajectory begins or ends.

        Such rows need no look before they are stored.
        """
        marks = schema.boundaries
        no_marks = marks.flags is None and (whole.is_grid or not marks.any)
        return self._encoder is None and whole.traj_id is not None and no_marks

    def append_records(self, records: np.ndarray[Any, Any], lanes: int = 1) -> np.ndarray[Any, Any]:
        """Packed rows ``[N, record_size]``, as another contig part made them."""
        self._storage.check_open()
        schema = self._storage.schema
        if schema is None:
            raise LayoutError("records need a storage whose layout is known; give it an example")
        self._bind(schema)
        flat = np.ascontiguousarray(records).reshape(-1)
        first = self._native.append_records(flat, lanes, _IF_OPEN)
        return self._seqs(first, len(flat) // schema.layout.record_size)

    # -- how ----------------------------------------------------------------------------------

    def _ready(self, tree: Any, batch_ndim: int, whole: Whole | None = None) -> Schema:
        self._storage.check_open()
        schema = self._storage.schema
        if schema is None:
            schema = self._storage.define(plain_tree(tree)[0], batch_ndim, whole=whole)
        self._bind(schema)
        return schema

    def _given(
        self,
        tree: Any,
        batch_ndim: int,
        fields: Any,
        shape: tuple[int, ...] | None = None,
        whole: Whole | None = None,
    ) -> dict[str, Given]:
        """Fields as an argument of native writers. If they come with the first rows, the layout is
        fixed with them.

        Args:
            shape: batch dims of the tree, time the last of them; None: to be found out.
            whole: what is said of a whole trajectory.
        """
        self._storage.check_open()
        schema, plain = self._storage.schema, plain_tree(tree)[0]
        lanes = lanes_of(plain, schema, batch_ndim) if shape is None else shape[:-1]
        known = self._storage.fields if schema is None else schema.fields
        if known is None and schema is None and not isinstance(fields, RowFields):
            known = first_fields(fields, lanes)
        given = fields if isinstance(fields, RowFields) else pack_fields(known, fields, lanes)
        if schema is None:
            self._storage.define(plain, batch_ndim, known, whole)
        return _NOTHING if given is None else {"fields": given}

    def _bind(self, schema: Schema) -> None:
        if self._native is None:
            self._native = self._storage.native_writer(schema)
            self._native.orphan(self._orphans)
            if self._envs:
                self._native.envs = self._envs
        if self._plan is None:
            self._plan, self._encoder = schema.plan(self._missing), schema.encoder
            self._variable = bool(schema.layout.variable)

    def _write(
        self,
        schema: Schema,
        tree: Any,
        batch_ndim: int,
        lanes_are: Lanes,
        rule: Continue,
        envs: np.ndarray[Any, Any] | None,
        given: dict[str, Given],
    ) -> tuple[int, int]:
        if self._encoder is not None:
            tree = self._encoder.rows(tree, batch_ndim)
        if given:
            arguments = (self._plan, tree, batch_ndim, lanes_are, rule, envs)
            first = self._native.extend(*arguments, **given)
        else:
            first = self._native.extend(self._plan, tree, batch_ndim, lanes_are, rule, envs)
        if first >= 0:
            return first, self._native.last_rows
        tree = plain_tree(tree)[0]
        return self._append(schema, tree, batch_ndim, lanes_are, rule, envs, given)

    def _append(
        self,
        schema: Schema,
        tree: Any,
        batch_ndim: int,
        lanes_are: Lanes,
        rule: Continue,
        envs: np.ndarray[Any, Any] | None,
        given: dict[str, Given],
    ) -> tuple[int, int]:
        """The slower way: converts, casts, completes flags, or says what is wrong."""
        columns, batch = schema.layout.columns(tree, batch_ndim, schema.flag_paths)
        missing = frozenset(
            x.path for x, column in zip(schema.layout.leaves, columns) if column is None
        )
        check_given(schema.flag_paths, missing)
        fill_flags(schema.layout, schema.boundaries.flags, columns)
        if missing != self._missing:  # next time the native packer knows
            self._missing, self._plan = missing, schema.plan(missing)
        rows = int(np.prod(batch, dtype=np.int64))
        if rows == 0:
            return 0, 0
        by_place = lanes_are == _EACH_ROW and envs is None
        if by_place:
            check_total(self._native.envs, rows)
            envs = np.arange(rows, dtype=np.int64)
        elif envs is not None and len(envs) != rows:
            raise LayoutError(f"{rows} rows for {len(envs)} env_ids")
        lanes = {_ONE_LANE: 1, _EACH_ROW: rows}.get(lanes_are) or rows // batch[-1]
        arrays, offsets, blobs = schema.layout.apart(columns)
        first = self._native.append_columns(
            arrays, offsets, rows, lanes, rule, envs, *blobs, **given
        )
        if by_place:
            self._native.envs = rows
        return first, rows

    def _seqs(self, first: int, rows: int) -> np.ndarray[Any, Any]:
        kept = min(rows, self._storage.capacity)
        if self._variable and rows:
            kept = min(kept, self._native.last_kept)  # bytes may leave fewer
        return np.arange(first, first + kept, dtype=np.int64)

    def adopt(self, env: int, entry: int) -> bool:
        """Goes on, with steps of an env, with the trajectory that a run on the tape, by its number,
        is the last one of. False if it has ended, or is gone: then what comes next of it is no
        beginning."""
        self._storage.check_open()
        schema = self._storage.schema
        if schema is not None:
            self._bind(schema)
            if self._native.adopt(env, entry):
                return True
            self._native.orphan([(_ENVS + env, -1, False)])
        return False

    @property
    def open_trajectories(self) -> list[Any]:
        """Those that go on with the next rows, for a writer that is going to have their rest."""
        return self._orphans if self._native is None else self._native.open_trajectories()

    def __reduce__(self) -> Any:
        return _writer_of, (self._storage, self.open_trajectories)


def extend_grid(
    writer: Writer, data: Any, traj_id: int, policy_version: int, fields: Any
) -> np.ndarray[Any, Any]:
    """Appends the flattened rows of a grid of steps and envs as one trajectory, which is truncated.
    The episodes of the envs lie inside, so no mark in the rows counts."""
    whole = Whole(End(None, True), traj_id, is_grid=True)
    return writer._extend_whole(data, whole, policy_version, fields)


def _writer_of(storage: Any, orphans: list[Any]) -> Writer:
    writer: Writer = storage.writer(orphans)
    return writer


def _tree_of(data: Any, schema: Schema | None) -> tuple[Any, tuple[int, ...] | None]:
    if isinstance(data, Batch):
        return data.stored(() if schema is None else schema.layout.by_path), data.shape
    return plain_tree(data)


def _rows_of(data: Any, schema: Schema | None) -> tuple[Any, tuple[int, ...] | None]:
    """As `_tree_of`, but a TensorDict stays what it is: the native packer reads it as it stands."""
    return _tree_of(data, schema) if isinstance(data, Batch) else (data, tensordict_shape(data))
