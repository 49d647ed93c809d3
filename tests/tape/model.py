"""A tape as lists of lists, without rings, indexes, runs or links: the model of all state machines.

A `Row` carries its identity. `ModelTape.append` decides, row by row, which trajectory it belongs
to; everything else is filtering lists. `build` makes the arrays that are given to contig, and the
arrays that are expected back.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

FLAGS = ("done", "terminated", "truncated")
NEW, IF_OPEN, TOLD = "new", "if open", "told"


@dataclass(frozen=True)
class Form:
    """What the rows look like: which marks there are, and where."""

    ids: str | None = None  # "collector", "episode", or "chunk": an explicit traj_key
    flags: str | None = "next"  # "next", "root" or None
    init: bool = False
    version: bool = False
    reward: str | None = "next"  # "next", "root" or None
    trailing: bool = False  # per-row scalars as [N, 1]

    @property
    def traj_key(self) -> str | None:
        return "chunk" if self.ids == "chunk" else None

    @property
    def bare(self) -> bool:
        return self.ids is None and self.flags is None and not self.init

    def flag(self, name: str) -> tuple[str, ...]:
        return ("next", name) if self.flags == "next" else (name,)


@dataclass(frozen=True)
class Row:
    uid: int
    writer: int = 0
    terminated: bool = False
    truncated: bool = False
    init: bool = False
    id: int = -1
    version: int = -1
    reward: float = math.nan  # one of seven values, unless it is given

    def __post_init__(self) -> None:
        if math.isnan(self.reward):
            object.__setattr__(self, "reward", float(self.uid % 7 - 3))

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


def resolve(given: frozenset[str], terminated: bool, truncated: bool) -> tuple[bool, bool]:
    """What (terminated, truncated) become when only some of the three flags are given."""
    done = terminated or truncated
    if given == {"done"}:
        return done, False
    if given == {"terminated"}:
        return terminated, False
    if given == {"truncated"}:
        return False, truncated
    if given == {"done", "truncated"}:
        return done and not truncated, truncated
    if given == {"done", "terminated"}:
        return terminated, done and not terminated
    return terminated, truncated


def build(
    form: Form,
    rows: list[Row],
    shape: tuple[int, ...] | None = None,
    given: frozenset[str] = frozenset(FLAGS),
) -> dict[str, Any]:
    """The rows as a tree of arrays ``[*shape, ...]``."""
    shape = (len(rows),) if shape is None else shape
    tail = (1,) if form.trailing else ()

    def scalar(values: list[Any], dtype: Any) -> np.ndarray:
        return np.array(values, dtype).reshape(*shape, *tail)

    uids = np.array([r.uid for r in rows], np.int64).reshape(shape)
    writers = np.array([r.writer for r in rows], np.int64).reshape(shape)
    tree: dict[str, Any] = {
        "uid": uids,
        "obs": np.stack([uids, writers, -uids], -1).astype(np.float32),
        "next": {"uid": uids.copy(), "obs": (uids + 0.5).astype(np.float64)},
    }
    if form.flags is not None:
        where = tree["next"] if form.flags == "next" else tree
        for flag in sorted(given):
            where[flag] = scalar([getattr(r, flag) for r in rows], np.bool_)
    if form.reward is not None:
        where = tree["next"] if form.reward == "next" else tree
        where["reward"] = scalar([r.reward for r in rows], np.float32)
    if form.init:
        tree["is_init"] = scalar([r.init for r in rows], np.bool_)
    if form.ids == "collector":
        tree.setdefault("collector", {})["traj_ids"] = scalar([r.id for r in rows], np.int64)
    elif form.ids is not None:
        tree[form.ids] = scalar([r.id for r in rows], np.int64)
    if form.version:
        tree.setdefault("collector", {})["policy_version"] = scalar(
            [r.version for r in rows], np.int64
        )
    return tree


def one(tree: Any) -> Any:
    """The first row of a tree of arrays, without the batch dim."""
    return {k: one(v) if isinstance(v, dict) else v[0] for k, v in tree.items()}


def leaves(tree: Any, prefix: tuple[str, ...] = ()) -> dict[tuple[str, ...], np.ndarray]:
    out: dict[tuple[str, ...], np.ndarray] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            out |= leaves(value, (*prefix, key))
        else:
            out[(*prefix, key)] = value
    return out


@dataclass(eq=False)
class Trajectory:
    """Stored rows of one trajectory; `before` of its steps were lost before the first of them."""

    ordinal: int
    writer: int
    traj_id: int
    before: int
    begins: bool
    rows: list[tuple[int, Row]] = field(default_factory=list)  # (seq, row), by step
    ret: float = 0.0
    terminated: bool = False
    truncated: bool = False
    version: int = -1

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


@dataclass
class Track:
    """A trajectory as its writer knows it."""

    known: bool = False
    ended: bool = False
    steps: int = 0
    ret: float = 0.0
    begins: bool = False
    cut: bool = False  # it was open when its rows were replaced: what comes next is no beginning
    trajectory: Trajectory | None = None

    @property
    def open(self) -> bool:
        return self.known and not self.ended


@dataclass
class ModelWriter:
    number: int
    tracks: dict[Any, Track] = field(default_factory=dict)

    def track(self, key: Any) -> Track:
        return self.tracks.setdefault(key, Track())

    def cut(self) -> None:
        """Its rows were replaced under it."""
        self.tracks = {
            key: Track(cut=track.cut or track.open) for key, track in self.tracks.items()
        }


@dataclass(frozen=True)
class Whole:
    """What `extend_trajectory` was told."""

    terminated: bool
    truncated: bool
    traj_id: int
    version: int


@dataclass(frozen=True)
class Piece:
    """Usable rows of a trajectory within a window: steps [start, start + len)."""

    of: Trajectory
    start: int
    seqs: list[int]
    rows: list[Row]
    complete: bool

    def __len__(self) -> int:
        return len(self.rows)


class ModelTape:
    """Rows from `tail` on are there. Those between `kept_tail` and `tail` are hidden by a capacity
    that is smaller than the one they were written with: another one may show them again."""

    def __init__(
        self,
        capacity: int,
        form: Form,
        max_rows: int | None = None,
        max_trajectories: int | None = None,
    ) -> None:
        self.capacity, self.form = capacity, form
        self.max_rows, self.max_trajectories = max_rows, max_trajectories
        self.head = self.tail = self.kept_tail = 0
        self.trajectories: list[Trajectory] = []
        self.ordinals = 0
        self.max_version = -1
        self.by_seq: dict[int, tuple[Trajectory, int]] = {}  # seq -> trajectory, step
        self._kept: dict[int, tuple[Trajectory, int]] = {}  # the same, from `kept_tail` on

    # -- writing ------------------------------------------------------------------------------

    def append(
        self,
        writer: ModelWriter,
        lanes: list[list[Row]],
        rule: str,
        whole: Whole | None = None,
        envs: Sequence[int] | None = None,
    ) -> list[int]:
        """Rows by lane, or by env; returns the seqs of those that were kept."""
        numbers: Sequence[int] = range(len(lanes))
        if not self.form.ids:  # then envs, a single lane and several are apart
            first_lane = 1 if len(lanes) > 1 else 0
            numbers = (
                [first_lane + n for n in numbers] if envs is None else [1000 + e for e in envs]
            )
        total = sum(len(lane) for lane in lanes)
        skip = max(0, total - self.capacity)
        seq = self.head - skip
        self.tail = max(self.tail, self.head + total - skip - self.capacity)
        own = Track(known=True, begins=True)
        for number, lane in zip(numbers, lanes):
            for t, row in enumerate(lane):
                last = row is lane[-1]
                track = own if whole else self._place(writer, number, t == 0, row, rule)
                track.steps += 1
                track.ret += row.reward if self.form.reward else math.nan
                track.ended = row.done if whole is None else last
                if seq >= self.head:
                    self._store(track, seq, row, writer.number, whole if last else None, whole)
                else:
                    track.trajectory = None
                seq += 1
        first, self.head = self.head, self.head + total - skip
        if whole:  # what the writer appends next begins anew
            for track in writer.tracks.values():
                track.cut = False
        self.retain()
        return list(range(first, self.head))

    def _place(self, writer: ModelWriter, lane: int, first: bool, row: Row, rule: str) -> Track:
        """The track a row belongs to; restarted if a trajectory starts here."""
        form = self.form
        track = writer.track((lane, row.id) if form.ids else lane)
        if form.ids == "chunk":  # an explicit traj_key decides alone
            starts = not track.known
            begins = starts and (not form.init or row.init)
        else:
            starts = not track.open or row.init
            if first and form.ids is None and rule == NEW:
                starts = True
            begins = not form.init or row.init or track.ended
            if first and form.ids is None and rule == TOLD and not track.known and not row.init:
                begins = False
            begins = begins and not track.cut
        if starts:
            track.known, track.ended, track.trajectory, track.cut = True, False, None, False
            track.steps, track.ret, track.begins = 0, 0.0, begins
        return track

    def _store(
        self, track: Track, seq: int, row: Row, writer: int, end: Whole | None, whole: Whole | None
    ) -> None:
        now = track.trajectory
        if now is None or now.rows[-1][0] < self.tail:  # nothing of it is left
            id_given = self.form.ids is not None
            traj_id = whole.traj_id if whole else (row.id if id_given else -1)
            now = Trajectory(self.ordinals, writer, traj_id, track.steps - 1, track.begins)
            self.ordinals += 1
            self.trajectories.append(now)
            track.trajectory = now
        now.rows.append((seq, row))
        now.ret = track.ret
        now.version = whole.version if whole else row.version
        self.max_version = max(self.max_version, now.version)
        if whole is None:
            now.terminated, now.truncated = row.terminated, row.truncated
        elif end is not None:
            now.terminated, now.truncated = end.terminated, end.truncated
        self._kept[seq] = (now, now.before + len(now.rows) - 1)

    def empty(self) -> None:
        self._keep_from(self.head)

    def retain(self) -> None:
        """What is out of bounds goes, and nothing brings it back."""
        keep_from = self.tail
        if self.max_rows is not None:
            keep_from = max(keep_from, self.head - self.max_rows)
        if self.max_trajectories is not None:
            oldest = self.newest(self.max_trajectories)
            young = [s for s, (t, _) in self._kept.items() if t.ordinal >= oldest]
            keep_from = max(keep_from, min((s for s in young if s >= self.tail), default=self.head))
        self._keep_from(keep_from)

    def commit(self) -> None:
        """What the capacity has no room for goes with whatever is written, rows or not."""
        self._keep_from(self.tail)

    def _keep_from(self, seq: int) -> None:
        self.tail = self.kept_tail = seq
        self._kept = {s: place for s, place in self._kept.items() if s >= seq}
        self.trajectories = [t for t in self.trajectories if t.rows[-1][0] >= seq]
        self.by_seq = dict(self._kept)

    def fit(self, capacity: int) -> None:
        """Opened with another capacity, which changes nothing of what is stored."""
        self.capacity = capacity
        self.tail = max(self.kept_tail, self.head - capacity)
        self.by_seq = {s: place for s, place in self._kept.items() if s >= self.tail}

    def load(self, then: ModelTape) -> None:
        """The rows of another one, as many as there is room for. Its writers are to be `cut`."""
        then = copy.deepcopy(then)
        self.head, self.ordinals, self.max_version = then.head, then.ordinals, then.max_version
        self.trajectories, self._kept = then.trajectories, then._kept
        self._keep_from(max(then.tail, self.head - self.capacity))

    # -- reading ------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.head - self.tail

    def row(self, seq: int) -> Row:
        trajectory, step = self.by_seq[seq]
        return trajectory.rows[step - trajectory.before][1]

    def piece(
        self, t: Trajectory, min_seq: int = 0, min_version: int | None = None
    ) -> Piece | None:
        """What a window leaves of a trajectory: its rows from some step on."""
        low = max(self.tail, min_seq)
        at = len(t.rows)
        while at > 0:
            seq, row = t.rows[at - 1]
            if seq < low or (min_version is not None and row.version < min_version):
                break
            at -= 1
        kept = t.rows[at:]
        if not kept:
            return None
        start = t.before + at
        complete = t.begins and start == 0 and t.ended
        return Piece(t, start, [s for s, _ in kept], [r for _, r in kept], complete)

    def pieces(
        self, min_seq: int = 0, min_ordinal: int = 0, min_version: int | None = None
    ) -> dict[int, Piece]:
        """Living trajectories by ordinal, in the order in which they began."""
        found = (
            self.piece(t, min_seq, min_version)
            for t in sorted(self.trajectories, key=lambda t: t.ordinal)
            if t.ordinal >= min_ordinal
        )
        return {p.of.ordinal: p for p in found if p is not None}

    def newest(self, k: int) -> int:
        """The ordinal of the k-th newest living trajectory, or of the oldest."""
        alive = list(self.pieces())
        return alive[max(len(alive) - k, 0)] if alive else 0
