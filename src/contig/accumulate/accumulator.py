"""The TrajectoryAccumulator: several timescales in one record. Not thread-safe."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _native
from ..layout import Layout
from .timescale import Timescale

__all__ = ["Built", "TrajectoryAccumulator"]

Array = np.ndarray[Any, Any]


class Built(dict[Any, Any]):
    """One record as a tree: nested containers of views into it, each of its leaf's full shape.

    It aliases the record: leaves may be changed in place, but an array that is put in a leaf's
    place is no part of the record and is not sent. ``copy.copy(built)`` has a record of its own.
    Only the outermost dict is of this class: ``dict(built)`` is a pytree to any library.

    Not thread-safe to modify, safe to read.

    Args:
        layout: of the record; its tree is a dict.
        record: uint8 ``[record_size]``; kept, not copied.

    Attributes:
        layout: as given.
        record: as given. Equal to ``layout.pack`` of the tree, without packing it.
    """

    __slots__ = ("layout", "record")

    layout: Layout
    record: Array

    def __init__(self, layout: Layout, record: Array) -> None:
        super().__init__(layout.unpack(record))
        self.layout = layout
        self.record = record

    def __reduce__(self) -> Any:
        # Rebuilt from the record, so that copies alias theirs as the original does.
        return Built, (self.layout, self.record.copy())


class TrajectoryAccumulator:
    """Gathers items of several timescales and hands them over as one record.

    A timescale whose leaves are ``[N, ...]`` takes N items, one row of each leaf per `add`. One
    with a 0-d leaf, or with only ``[1, ...]`` leaves, takes one item, which is the whole of each
    leaf. An item's leaves are unbatched, ``[...]``, or ``[1, ...]``; nothing else is broadcast.
    Casts keep values: float64 to float32 and int or bool to float; float to int only integral
    values in range; numbers to bool only 0 and 1.

        acc = TrajectoryAccumulator({
            "step": {"obs": np.zeros((64, 4), np.float32), "reward": np.zeros(64, np.float32)},
            "episode": {"return": np.zeros((), np.float32)},
        })
        for obs, reward in rollout:
            acc.add("step", {"obs": obs, "reward": reward})
        acc.add("episode", {"return": total})
        client.send(acc.build())

    Ownership and lifetime: `add` copies. The tree that `build` returns is the accumulator's own
    memory, the same each time: it is valid until the next `add`, which writes into it.

    Not thread-safe: one thread at a time, which includes reading what `build` returned.

    Args:
        example: a dict from timescale names to pytrees of arrays, numbers or specs. Only their
            shapes and dtypes are used.

    Raises:
        TypeError: the example is no dict.
        ValueError: no leaves, or unequal leading dims in a timescale without 0-d leaves.
    """

    __slots__ = ("_built", "_scales")

    def __init__(self, example: dict[Any, Any]) -> None:
        if not isinstance(example, dict):
            raise TypeError(
                f"example: expected a dict with timescale names as keys, got a "
                f"{type(example).__name__}; wrap it: {{'step': example}}"
            )
        layout = Layout(example).need_fixed("accumulators")
        block: Any = _native.Block(layout.record_size)
        record = np.ndarray(layout.record_size, np.uint8, block)  # keeps the block alive
        record.fill(0)
        structures = dict(zip(layout.structure.keys, layout.structure.children))
        self._scales = {
            name: Timescale(
                name, structures[name], [x for x in layout.leaves if x.path[0] == name], record
            )
            for name in example
        }
        self._built = Built(layout, record)

    @property
    def layout(self) -> Layout:
        """The record's layout: that of the example."""
        return self._built.layout

    def add(self, name: Any, data: Any) -> None:
        """Copy one item into the next slot of a timescale. If it raises, nothing has changed.

        Args:
            name: the timescale.
            data: the structure of the example, each leaf without its leading dim or with one of 1;
                numpy, torch and jax arrays, and numbers.

        Raises:
            KeyError: no such timescale.
            IndexError: the timescale is full.
            ValueError: structure, shape or value that does not fit, with the path.
        """
        scale = self._scales.get(name)
        if scale is None:
            raise self._unknown(name)
        scale.add(data)

    def build(self, partial: bool = False) -> Built:
        """The filled record as a tree, and a new start: all counts are 0 afterwards.

        The same object, in the same memory, each time; nothing is allocated or copied. It is valid
        until the next `add`.

        Args:
            partial: zeros in the slots that nothing was added to, instead of an error.

        Raises:
            ValueError: timescales that are not full; nothing has changed then.
        """
        for scale in self._scales.values():
            if scale.count != scale.capacity:
                if not partial:
                    raise self._not_full()
                scale.zero_rest()
        self.reset()
        return self._built

    def reset(self) -> None:
        """Forget what was added, to abort a rollout."""
        for scale in self._scales.values():
            scale.count = 0

    def counts(self) -> dict[Any, int]:
        """Items added since the last `build` or `reset`, by timescale."""
        return {name: scale.count for name, scale in self._scales.items()}

    def capacity(self, name: Any) -> int:
        """How many items a timescale takes.

        Raises:
            KeyError: no such timescale.
        """
        return self._scale(name).capacity

    def is_full(self, name: Any = None) -> bool:
        """Whether a timescale takes no more items; without a name: none of them does.

        Raises:
            KeyError: no such timescale.
        """
        scales = self._scales.values() if name is None else (self._scale(name),)
        return all(scale.count == scale.capacity for scale in scales)

    def __repr__(self) -> str:
        return f"TrajectoryAccumulator({self._filled(self._scales.values())})"

    def _scale(self, name: Any) -> Timescale:
        if name not in self._scales:
            raise self._unknown(name)
        return self._scales[name]

    def _unknown(self, name: Any) -> KeyError:
        return KeyError(
            f"no timescale {name!r}; the example has {', '.join(map(repr, self._scales))}"
        )

    def _not_full(self) -> ValueError:
        lacking = [x for x in self._scales.values() if x.count != x.capacity]
        return ValueError(
            f"build: not all slots are filled: {self._filled(lacking)}; add the rest, "
            "build(partial=True) for zeros in its place, or reset() to abort"
        )

    @staticmethod
    def _filled(scales: Any) -> str:
        return ", ".join(f"{x.name!r} {x.count} of {x.capacity}" for x in scales)
