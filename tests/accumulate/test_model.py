"""The accumulator against a naive model of it: a list of items for each timescale."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contig import Layout
from contig.accumulate import TrajectoryAccumulator
from tests.reference import trees

Spec = trees.Spec


class Model:
    """One timescale: the spec of an item, and the items."""

    def __init__(self, item: Any, slots: int | None) -> None:
        self.item, self.slots = item, slots  # slots None: a single item, not batched
        self.capacity = 1 if slots is None else slots
        self.items: list[Any] = []

    @property
    def example(self) -> Any:
        if self.slots is None:
            return self.item
        return trees.rebuild(self.item, lambda _, s: Spec((self.slots, *s.shape), s.dtype))

    def built(self) -> Any:
        """The tree of all slots, zeros in those without an item."""
        flat = [dict(trees.walk(item)) for item in self.items]

        def leaf(path: Any, spec: Spec) -> Any:
            if self.slots is None:
                return flat[0][path] if flat else np.zeros(spec.shape, spec.dtype)
            out = np.zeros((self.slots, *spec.shape), spec.dtype)
            for i, item in enumerate(flat):
                out[i] = item[path]
            return out

        return trees.rebuild(self.item, leaf)


# A 0-d leaf beside any others makes a timescale a single item.
scalars = st.builds(Spec, st.just(()), st.sampled_from(trees.DTYPES))
singles = st.one_of(
    scalars, st.tuples(scalars, trees.trees), st.builds(trees.Pair, trees.trees, scalars)
)
timescales = st.one_of(
    st.builds(Model, trees.trees, st.integers(0, 4)), st.builds(Model, singles, st.none())
)
models = st.dictionaries(
    st.sampled_from(["step", "chunk", "episode", 7]), timescales, min_size=1, max_size=3
)


def in_some_form(array: np.ndarray[Any, Any], form: int) -> Any:
    """The same values as somebody else might hold them."""
    if form == 1:
        return array[None]
    if form == 2 and array.dtype.kind in "iufc":
        wide = {"i": "i8", "u": "u8", "f": "f8", "c": "c16"}[array.dtype.kind]
        return array.astype(wide)
    if form == 3:
        return np.repeat(array[..., None], 2, -1)[..., 0]  # strided
    if form == 4 and not array.shape:
        return array.item()
    return array


def spoil(draw: Any, item: Any) -> Any:
    """An item with one leaf that does not fit, or in another container."""
    paths = [path for path, _ in trees.walk(item)]
    where = draw(st.sampled_from([None, *paths]))
    if where is None:
        return {"surplus": item}
    bad = draw(st.sampled_from(["shape", "dtype", "container", "none"]))

    def leaf(path: Any, array: np.ndarray[Any, Any]) -> Any:
        if path != where:
            return array
        if bad == "shape":
            return array[None, None]
        if bad == "dtype":
            return np.full(array.shape, "text")
        return [array] if bad == "container" else None

    return trees.rebuild(item, leaf)


@given(models, st.data())
def test_it_does_what_a_list_of_items_does(models: dict[Any, Model], data: Any) -> None:
    draw = data.draw
    example = {name: model.example for name, model in models.items()}
    layout = Layout(example)
    acc = TrajectoryAccumulator(example)
    assert acc.layout.fingerprint == layout.fingerprint
    record = acc.build(partial=True).record
    for number in range(draw(st.integers(1, 14))):
        name = draw(st.sampled_from(sorted(models, key=str)))
        model = models[name]
        count = iter(range(100 * number, 100 * number + 100))
        item = trees.rebuild(model.item, lambda _, s, n=count: trees.values(s, next(n)))
        before = record.tobytes()
        verb = draw(st.sampled_from(["add"] * 6 + ["spoilt", "build", "partial", "reset"]))
        if verb == "add" and len(model.items) < model.capacity:
            form = draw(st.integers(0, 5))
            same = form < 5  # for all leaves, else one for each
            acc.add(
                name,
                trees.rebuild(
                    item,
                    lambda _, a, f=form, s=same: in_some_form(
                        a, f if s else draw(st.integers(0, 4))
                    ),
                ),
            )
            model.items.append(item)
        elif verb == "add":
            with pytest.raises(IndexError):
                acc.add(name, item)
            assert record.tobytes() == before
        elif verb == "spoilt":
            with pytest.raises((ValueError, IndexError)) as error:
                acc.add(name, spoil(draw, item))
            assert str(name) in str(error.value)
            assert record.tobytes() == before
        elif verb == "reset":
            acc.reset()
            for m in models.values():
                m.items.clear()
        elif verb == "build" and any(len(m.items) < m.capacity for m in models.values()):
            with pytest.raises(ValueError, match="not all slots are filled"):
                acc.build()
            assert record.tobytes() == before
        else:
            built = acc.build(partial=verb == "partial")
            want = {n: m.built() for n, m in models.items()}
            assert trees.same(built, want)
            assert built.record is record
            assert record.tobytes() == layout.pack(want).tobytes()
            for m in models.values():
                m.items.clear()
        assert acc.counts() == {n: len(m.items) for n, m in models.items()}
        full = {n: len(m.items) == m.capacity for n, m in models.items()}
        assert {n: acc.is_full(n) for n in models} == full
        assert acc.is_full() == all(full.values())
    want = {n: m.built() for n, m in models.items()}
    assert trees.same(acc.build(partial=True), want)
    assert record.tobytes() == layout.pack(want).tobytes()
