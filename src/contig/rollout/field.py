"""A field of a rollout: one tensor ``[rows, ...]``, or nested dicts or tuples of such tensors.

Values only: no locks, one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from ..convert import plain_tree, to_tensordict
from ..errors import LayoutError
from ..tree import Path, Structure, flatten, show_path, unflatten
from .repeat import Kept

__all__ = ["Field", "FieldView", "example_of"]

Tensor = torch.Tensor


class FieldView(NamedTuple):
    """Some tensors of a field, and how they are put together again.

    Attributes:
        tensors: all with the same leading dims.
        build: makes the field's own tree of such tensors, given the number of leading dims.
    """

    tensors: list[Tensor]
    build: Callable[[list[Tensor], int], Any]

    def map(self, function: Callable[[Tensor], Tensor], batch_dims: int) -> Any:
        """The field's tree, each tensor changed; it then has that many leading dims."""
        return self.build([function(t) for t in self.tensors], batch_dims)


def example_of(shape: Any, num_envs: int, name: str) -> tuple[Any, bool]:
    """One step of a field from its description, and whether that says the dtype.

    Args:
        shape: a row's shape, or nested dicts of shapes: float32 until the first row says otherwise;
            or a tensor, nested dicts or a TensorDict of tensors ``[num_envs, ...]``.
    """
    tree, batch = plain_tree(shape, text=False)
    if batch is not None or isinstance(tree, torch.Tensor):
        return shape, True
    known: list[bool] = []
    out = _example(tree, num_envs, (name,), known)
    return out, all(known)


def _example(node: Any, num_envs: int, path: Path, known: list[bool]) -> Any:
    if isinstance(node, Mapping):
        return {k: _example(v, num_envs, (*path, k), known) for k, v in node.items()}
    if isinstance(node, torch.Tensor):
        known.append(True)
        return node
    known.append(False)
    dims = (node,) if isinstance(node, int) else node
    if not isinstance(dims, (tuple, list)) or not all(isinstance(n, int) and n >= 0 for n in dims):
        raise LayoutError(
            f"{show_path(path)}: expected a shape such as (48,), an example tensor [num_envs, ...],"
            f" or a dict of those, got {node!r}"
        )
    return torch.empty((num_envs, *dims), device="meta")


class Field:
    """Rows of one field.

    Args:
        name: for errors.
        example: one step: a tensor ``[N, ...]``, nested dicts or tuples of such, a TensorDict.
        rows: steps to hold.
        device: where.
        open_dtype: the first step decides on the dtype.
    """

    def __init__(
        self, name: str, example: Any, rows: int, device: Any, *, open_dtype: bool = False
    ) -> None:
        self.name = name
        tree, batch = plain_tree(example, text=False)
        self._tensordict = batch is not None
        self.paths, leaves, self._structure = _flat(tree, name)
        with torch.inference_mode(False):  # such tensors would not count what is written to them
            self.tensors = [
                torch.zeros(rows, *x.shape, dtype=x.dtype, device=device) for x in leaves
            ]
        self._open = open_dtype

    @property
    def rows(self) -> int:
        return int(self.tensors[0].shape[0])

    @property
    def kept(self) -> Kept:
        """Its tensors, as those who remember them need to know; the list is never changed, only
        replaced."""
        return Kept(vars(self), "tensors", self.tensors, self.tensors)

    def write(self, row: int, leaves: list[Tensor]) -> None:
        """Writes one step that `check` let through."""
        self._settle(leaves)
        for mine, new in zip(self.tensors, leaves):
            mine[row].copy_(new)

    def assign(self, value: Any, rows: int) -> None:
        """Writes the first `rows` rows, ``[rows, N, ...]``.

        Raises:
            LayoutError: as `check`; nothing is written.
        """
        leaves = self.check(value, rows)
        self._settle(leaves)
        for mine, new in zip(self.tensors, leaves):
            mine[:rows].copy_(new.detach())

    def _settle(self, leaves: list[Tensor]) -> None:
        """The first values decide on the dtype, if it is open."""
        if self._open:
            self._open = False
            self.tensors = [mine.to(new.dtype) for mine, new in zip(self.tensors, leaves)]

    @staticmethod
    def first_row(name: str, value: Any, num_envs: int) -> Any:
        """One step of ``[rows, N, ...]``, as an example.

        Raises:
            LayoutError: no tensors, or without these dims.
        """
        _, leaves, structure = _flat(plain_tree(value, text=False)[0], name)
        for leaf in leaves:
            if leaf.ndim < 2 or not len(leaf) or leaf.shape[1] != num_envs:
                raise LayoutError(
                    f"{name}: shape {list(leaf.shape)}, expected [T, {num_envs}, ...]"
                )
        return unflatten(structure, iter([leaf[0] for leaf in leaves]))

    def check(self, value: Any, rows: int | None = None) -> list[Tensor]:
        """The leaves of one step, or of so many.

        Raises:
            LayoutError: another structure, shape or dtype, with the path.
        """
        lead = [] if rows is None else [rows]
        if isinstance(value, torch.Tensor) and self._structure.kind == "leaf":
            leaves = [value]
        else:
            paths, leaves, _ = _flat(plain_tree(value, text=False)[0], self.name)
            if paths != self.paths:
                want, got = ([show_path(p) for p in ps] for ps in (self.paths, paths))
                raise LayoutError(
                    f"{self.name}: expected the tensors {', '.join(want)}, got {', '.join(got)}"
                )
        for i, (mine, new) in enumerate(zip(self.tensors, leaves)):
            expected = [*lead, *mine.shape[1:]]
            if list(new.shape) != expected:
                raise LayoutError(f"{self._where(i)}: shape {list(new.shape)}, expected {expected}")
            if not (self._open or torch.can_cast(new.dtype, mine.dtype)):
                raise LayoutError(
                    f"{self._where(i)}: {new.dtype}, but {mine.dtype} is stored; convert it first"
                )
        return leaves

    def _where(self, number: int) -> str:
        path = self.paths[number]
        return f"{self.name}{''.join(f'[{k!r}]' for k in path)}"

    def value(self, first: int = 0, last: int | None = None) -> Any:
        """Rows [first, last) in the field's own form; views."""
        return self.build([t[first:last] for t in self.tensors], 2)

    def view(self, rows: int) -> FieldView:
        """The first `rows` rows."""
        return FieldView([t[:rows] for t in self.tensors], self.build)

    def build(self, leaves: list[Tensor], batch_dims: int) -> Any:
        """The field's form from its leaves."""
        if self._structure.kind == "leaf":
            return leaves[0]
        if self._tensordict:
            flat = {tuple(map(str, path)): leaf for path, leaf in zip(self.paths, leaves)}
            shape = tuple(leaves[0].shape[:batch_dims])
            return to_tensordict(flat, shape, leaves[0].device)
        return unflatten(self._structure, iter(leaves))

    def grow(self, rows: int) -> None:
        """Makes room for more rows; those there stay."""
        grown = []
        for old in self.tensors:
            new = torch.zeros(rows, *old.shape[1:], dtype=old.dtype, device=old.device)
            new[: old.shape[0]] = old
            grown.append(new)
        self.tensors = grown

    def become(self, dtype: torch.dtype) -> None:
        """Changes the dtype of all tensors."""
        self.tensors = [t.to(dtype) for t in self.tensors]

    def roll(self, first: int, rows: int) -> None:
        """Puts row `first` at 0, and the others of the first `rows` behind it, in a circle."""
        for tensor in self.tensors:
            tensor[:rows] = torch.roll(tensor[:rows], -first, 0)

    def first_not_finite(self, leaves: list[Tensor]) -> tuple[str, int] | None:
        """Which leaf of a step has a NaN or an infinity, and in which env."""
        for i, new in enumerate(leaves):
            if not new.is_floating_point():
                continue
            bad = ~torch.isfinite(new.reshape(new.shape[0], -1)).all(1)
            if bool(bad.any()):
                return self._where(i), int(bad.nonzero()[0, 0])
        return None


def _flat(tree: Any, name: str) -> tuple[list[Path], list[Tensor], Structure]:
    paths, leaves, structure = flatten(tree)
    for path, leaf in zip(paths, leaves):
        if not isinstance(leaf, torch.Tensor):
            raise LayoutError(
                f"{name} at {show_path(path)}: expected a tensor, got {type(leaf).__name__}"
            )
    if not leaves:
        raise LayoutError(f"{name}: expected a tensor or a dict of tensors, got {tree!r}")
    return paths, leaves, structure
