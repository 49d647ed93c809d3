"""Where trajectories begin and end: which leaves of the record say so.

Resolved once, when the layout is fixed, and from then on a fact of the storage that every process
shares. Samplers never look at flags to find trajectories; the writer did, when it wrote them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import LayoutError
from ..keys import DONE, FLAGS, INIT, NEXT, REWARD, TRAJ_IDS, VERSION
from ..layout import Layout, Leaf
from ..tree import Path, as_path, show_path

__all__ = ["Boundaries", "complete_flags", "fill_flags", "merged_keys"]

_IDS: tuple[Path, ...] = (TRAJ_IDS, ("episode",))
_REWARDS: tuple[Path, ...] = (REWARD, REWARD[1:])


def _mark_kind(leaf: Leaf) -> str | None:
    """The kind of its numbers as the native writer knows them, or None: it cannot read those."""
    if leaf.dtype.name == "bfloat16":  # numpy has no kind for it
        return "V"
    return leaf.dtype.kind if leaf.dtype.kind in "biuf" and leaf.dtype.itemsize <= 8 else None


def _one_per_row(leaf: Leaf | None) -> bool:
    return leaf is not None and leaf.shape in ((), (1,)) and _mark_kind(leaf) is not None


def _usable(layout: Layout, path: Path) -> bool:
    """Whether a flag is a mark of rows, or will be one when it is completed."""
    leaf = layout.by_path.get(path)
    return leaf is None or _one_per_row(leaf)


def flags_parent(layout: Layout) -> Path | None:
    """Where the done flags live: below ``next`` if any is there, else at the root, else nowhere."""
    for parent in (NEXT, ()):
        if any(_one_per_row(layout.by_path.get((*parent, f))) for f in FLAGS):
            return parent
    return None


@dataclass(frozen=True)
class Boundaries:
    """Which leaves mark trajectories in records of one layout.

    `traj_key` and `end_key` are what the user asked for; the paths are what that came to.
    """

    traj_key: Path | None
    end_key: Path | None
    id: Path | None
    done: Path | None
    flags: Path | None
    init: Path | None
    version: Path | None
    reward: Path | None

    @staticmethod
    def resolve(layout: Layout, traj_key: Any = None, end_key: Any = None) -> Boundaries:
        """Finds the marks in a layout.

        Raises:
            LayoutError: a key was named that the data does not have, or not once per row.
        """

        def scalar(path: Path) -> bool:
            return _one_per_row(layout.by_path.get(path))

        parent = flags_parent(layout)
        traj = None if traj_key is None else as_path(traj_key)
        end = None if end_key is None else as_path(end_key)
        for what, path in (("traj_key", traj), ("end_key", end)):
            if path is not None and not scalar(path):
                known = ", ".join(show_path(p) for p in layout.by_path)
                raise LayoutError(
                    f"{what} {show_path(path)} is not a leaf with one value per row; "
                    f"the data has {known}"
                )
        ids = traj
        if traj is None and end is None:
            ids = next((p for p in _IDS if scalar(p)), None)
        done = end
        if end is None and parent is not None and _usable(layout, (*parent, "done")):
            done = (*parent, "done")
        return Boundaries(
            traj_key=traj,
            end_key=end,
            id=ids,
            done=done,
            flags=parent,
            init=INIT if scalar(INIT) else None,
            version=VERSION if scalar(VERSION) else None,
            reward=next((p for p in _REWARDS if p in layout.by_path), None),
        )

    @property
    def looked_for(self) -> str:
        """The keys that were tried, for messages."""
        tried = [*_IDS, DONE, DONE[1:], INIT]
        return ", ".join(show_path(p) for p in tried)

    @property
    def any(self) -> bool:
        return self.id is not None or self.done is not None or self.init is not None

    def marks(self, layout: Layout) -> dict[str, tuple[str, int, int, int]]:
        """The marks as the native writer takes them: kind, itemsize, offset, count."""
        paths: dict[str, Path | None] = {
            "id": self.id,
            "done": self.done,
            "init": self.init,
            "version": self.version,
            "reward": self.reward,
        }
        if self.flags is not None:
            paths["terminated"] = (*self.flags, "terminated")
            paths["truncated"] = (*self.flags, "truncated")
        out: dict[str, tuple[str, int, int, int]] = {}
        for role, path in paths.items():
            leaf = layout.by_path.get(path) if path is not None else None
            if leaf is not None and leaf.variable:
                raise LayoutError(
                    f"{show_path(leaf.path)}: {leaf.describe()}, but it says where trajectories "
                    "begin and end, or what they return: "
                    + ("leave it without a codec" if leaf.codec else "give it a fixed shape")
                )
            kind = None if leaf is None else _mark_kind(leaf)
            if leaf is None or kind is None or leaf.nbytes == 0:
                continue
            if role != "reward" and not _one_per_row(leaf):
                continue
            count = leaf.nbytes // leaf.dtype.itemsize
            out[role] = (kind, leaf.dtype.itemsize, leaf.offset, count)
        return out

    def to_json(self) -> dict[str, Any]:
        return {"traj_key": self.traj_key, "end_key": self.end_key}

    def conflict(self, traj_key: Any, end_key: Any) -> str | None:
        """Why a sampler that asks for these keys cannot read such rows, or None."""
        for name, wanted, used in (
            ("traj_key", traj_key, self.id if self._ids_alone else None),
            ("end_key", end_key, self.done if self.id is None or self.end_key else None),
        ):
            if wanted is not None and as_path(wanted) != used:
                given = getattr(self, name)
                was = f"without {name}" if given is None else f"with {name} {show_path(given)}"
                return (
                    f"the sampler asks for {name} {show_path(as_path(wanted))}, but the storage "
                    f"has its layout already, {was}: its trajectories {self._rule}. Give the "
                    "storage this sampler before its first row, and no example, or leave "
                    f"{name} out"
                )
        return None

    @property
    def _ids_alone(self) -> bool:
        """Returns whether nothing but an id says where trajectories begin and end."""
        return self.traj_key is not None or (
            self.done is None and self.flags is None and self.init is None
        )

    @property
    def _rule(self) -> str:
        """Describes where trajectories begin, in words."""
        places = [] if self.id is None else [f"where {show_path(self.id)} changes"]
        if self.id is None or not self._ids_alone:
            if self.done is not None:
                places.append(f"after rows with {show_path(self.done)}")
            elif self.flags is not None:
                places.append("after terminated and truncated rows")
            if self.init is not None:
                places.append(f"at rows with {show_path(self.init)}")
        return f"begin {', '.join(places)}" if places else "are whole appends"


def complete_flags(layout: Layout) -> Layout:
    """The stored layout: the given one plus those of done, terminated, truncated it lacks."""
    parent = flags_parent(layout)
    if parent is None or layout.structure.kind != "dict":
        return layout
    leaves = [layout.by_path.get((*parent, f)) for f in FLAGS]
    given = next(x for x in leaves if x is not None and _one_per_row(x))
    missing = [(*parent, f) for f, x in zip(FLAGS, leaves) if x is None]
    if not missing:
        return layout
    return layout.with_leaves([(p, given.shape, given.dtype) for p in missing])[0]


def _flag_rules(present: frozenset[str]) -> list[tuple[str, str, str, str]]:
    """How missing flags follow from present ones: (op, to, a, b), in order."""
    done, term, trunc = FLAGS
    rules: dict[frozenset[str], list[tuple[str, str, str, str]]] = {
        frozenset(FLAGS): [("check", done, term, trunc)],
        frozenset({term, trunc}): [("either", done, term, trunc)],
        frozenset({done, trunc}): [("and_not", term, done, trunc)],
        frozenset({done, term}): [("and_not", trunc, done, term)],
        frozenset({done}): [("copy", term, done, done), ("zero", trunc, done, done)],
        frozenset({term}): [("copy", done, term, term), ("zero", trunc, term, term)],
        frozenset({trunc}): [("copy", done, trunc, trunc), ("zero", term, trunc, trunc)],
    }
    return rules.get(present, [])


def _marks_of_rows(layout: Layout, parent: Path) -> dict[str, Leaf]:
    """The flags below parent that are one per row: those of agents are ordinary leaves."""
    found = {f: layout.by_path.get((*parent, f)) for f in FLAGS}
    return {f: x for f, x in found.items() if x is not None and _one_per_row(x)}


def optional_flags(layout: Layout, parent: Path | None) -> frozenset[Path]:
    """Flags that data may lack, because they follow from the others."""
    if parent is None:
        return frozenset()
    return frozenset(x.path for x in _marks_of_rows(layout, parent).values())


def check_given(optional: frozenset[Path], missing: frozenset[Path]) -> None:
    """Raises LayoutError if all flags are missing of which data may lack some."""
    if missing and missing >= optional:
        names = ", ".join(show_path(p) for p in sorted(missing, key=str))
        raise LayoutError(f"none of {names} is given: at least one is needed to know the others")


def dual_ops(layout: Layout, parent: Path | None, missing: frozenset[Path]) -> list[Any]:
    """How the native packer fills the missing flags, in order: (op, to, a, b, "true" of to),
    where to, a and b are (offset, bytes)."""
    if parent is None:
        return []
    marks = _marks_of_rows(layout, parent)
    present = frozenset(f for f in marks if (*parent, f) not in missing)
    place = {f: (x.offset, x.nbytes) for f, x in marks.items()}
    return [
        (op, place[to], place[a], place[b], np.ones(marks[to].shape, marks[to].dtype).tobytes())
        for op, to, a, b in _flag_rules(present)
        if to in marks
    ]


def fill_flags(layout: Layout, parent: Path | None, columns: list[Any]) -> None:
    """The same for columns, in place of the Nones; raises where given flags disagree."""
    if parent is None:
        return
    numbers = {f: layout.number[x.path] for f, x in _marks_of_rows(layout, parent).items()}
    given = {f: columns[n] != 0 for f, n in numbers.items() if columns[n] is not None}
    for op, to, a, b in _flag_rules(frozenset(given)):
        if to not in numbers:
            continue
        if op == "check":
            wrong = np.flatnonzero((given[to] != (given[a] | given[b])).reshape(-1))
            if wrong.size:
                raise LayoutError(
                    f"{show_path((*parent, to))}: row {wrong[0]} is not terminated | truncated; "
                    "leave one of the three out and it is completed, or make them agree"
                )
            continue
        value = {
            "zero": lambda a, b: np.zeros_like(a),
            "copy": lambda a, b: a,
            "either": lambda a, b: a | b,
            "and_not": lambda a, b: a & ~b,
        }[op](given[a], given[b])
        columns[numbers[to]] = np.ascontiguousarray(value.astype(layout.leaves[numbers[to]].dtype))


def merged_keys(bound: tuple[Any, Any], wanted: tuple[Any, Any]) -> tuple[Any, Any]:
    """`traj_key` and `end_key` of a storage, when a sampler asks for some, too.

    Raises:
        ValueError: others were bound before.
    """
    for name, new, old in zip(("traj_key", "end_key"), wanted, bound):
        if new is not None and old is not None and as_path(new) != as_path(old):
            raise ValueError(
                f"{name} {show_path(as_path(new))} differs from {show_path(as_path(old))}, which "
                "another sampler of this storage asked for"
            )
    return (wanted[0] or bound[0], wanted[1] or bound[1])
