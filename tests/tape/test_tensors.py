"""Rows of torch tensors and TensorDicts: what is stored is what numpy rows would store, and it does
not go the slow way round."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contig import LazyTensorStorage
from contig.batch import Batch
from contig.convert import plain_tree
from contig.layout import Layout
from contig.tree import flatten

torch = pytest.importorskip("torch")
TensorDict = pytest.importorskip("tensordict").TensorDict

DTYPES = (np.float32, np.float64, np.float16, np.int64, np.int32, np.int8, np.uint8, np.bool_)
DTYPES += (np.complex64,)  # type: ignore[assignment]


def step(i: int, batch: tuple[int, ...] = ()) -> dict[str, Any]:
    """Step `i`: every value says which one it is."""
    rows = int(np.prod(batch, dtype=int))
    number = (i * 100 + np.arange(rows)).reshape(batch)
    wide = number[..., None].astype(np.float32) + np.arange(4, dtype=np.float32) / 8
    return {
        "observation": wide,
        "action": number[..., None].astype(np.int64),
        "next": {
            "observation": wide + 1,
            "reward": number.astype(np.float32)[..., None],
            "done": (number % 7 == 6)[..., None],
        },
    }


def tensors(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {k: tensors(v) for k, v in tree.items()}
    return torch.from_numpy(np.array(tree))


def tensordict(tree: Any, batch: tuple[int, ...] = ()) -> Any:
    return TensorDict(tensors(tree), batch_size=list(batch))


def stored(storage: LazyTensorStorage) -> list[bytes]:
    head, tail, _, _ = storage.tape.snapshot()
    batch, lost = storage.gather(np.arange(tail, head))
    assert not lost
    return [np.ascontiguousarray(a).tobytes() for a in flatten(batch.tree())[1]]


def understood(layout: Layout, tree: Any) -> bool:
    return bool(layout.plan.pack(tree, np.zeros(layout.record_size, np.uint8)))


def test_the_native_packer_reads_tensors_and_tensordicts() -> None:
    layout = Layout(step(3))
    want = np.zeros(layout.record_size, np.uint8)
    assert layout.plan.pack(step(3), want)
    for tree in (tensors(step(3)), tensordict(step(3))):
        record = np.zeros(layout.record_size, np.uint8)
        assert layout.plan.pack(tree, record)
        assert record.tobytes() == want.tobytes()


@pytest.mark.parametrize("form", [tensors, tensordict])
def test_every_way_in_stores_the_same(form: Any) -> None:
    plain, other = LazyTensorStorage(1000), LazyTensorStorage(1000)
    for i in range(20):
        batched = form(step(i, (3,)), (3,)) if form is tensordict else form(step(i, (3,)))
        assert plain.default_writer.add(step(i)) == other.default_writer.add(form(step(i)))
        for name in ("add_step", "extend"):
            a = getattr(plain.default_writer, name)(step(i, (3,)))
            b = getattr(other.default_writer, name)(batched)
            assert np.array_equal(a, b)
    assert stored(plain) == stored(other)
    plain_episodes, other_episodes = plain.episodes(), other.episodes()
    for field in ("first", "steps", "return", "terminated"):
        assert np.array_equal(plain_episodes[field], other_episodes[field])


@settings(deadline=None)
@given(
    st.sampled_from(DTYPES),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=2),
    st.integers(-3, 300),
)
def test_any_dtype_into_any_layout_as_numpy_would(
    given_dtype: Any, kept_dtype: Any, shape: list[int], value: int
) -> None:
    with np.errstate(all="ignore"):
        array = np.full(shape, value).astype(given_dtype)
    layout_row = {"x": np.zeros(shape, kept_dtype), "y": np.float32(1)}
    results = []
    for x in (array, torch.from_numpy(np.array(array)).reshape(shape)):
        storage = LazyTensorStorage(10, example=layout_row)
        try:
            storage.default_writer.add({"x": x, "y": np.float32(1)})
            results.append(stored(storage))
        except ValueError as error:
            results.append([str(error).encode()])
    assert results[0] == results[1]


def test_tensors_that_are_not_their_memory() -> None:
    base = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    example = {"x": np.zeros(4, np.float32)}
    kept = LazyTensorStorage(100, example=example)
    writer = kept.default_writer
    want = []
    for x in (
        base[1],
        base[:, 1:2].expand(3, 4)[2],  # strides of 0
        torch.cat([base, base])[:, 1].repeat(2)[::3],
        base[2].clone().requires_grad_(),
        torch.nn.Parameter(base[0]),
        base[1:2].squeeze(0).to(torch.float64),
    ):
        writer.add({"x": x})
        want.append(x.detach().numpy().astype(np.float32))
    assert stored(kept) == [np.stack(want).tobytes()]
    # Lazily negated and conjugated views: what is in their memory is not what they are.
    negated = torch.complex(base[0], base[1]).conj().imag
    assert negated.is_neg()
    assert not understood(Layout(example), {"x": negated})
    turned = torch.complex(base[0], base[1]).conj()
    assert not understood(Layout({"x": np.zeros(4, np.complex64)}), {"x": turned})
    assert not understood(Layout(example), {"x": torch.zeros(4, device="meta")})
    assert not understood(Layout(example), {"x": base[0].to_sparse()})


def test_a_tensor_that_does_not_fit_is_refused_by_path() -> None:
    storage = LazyTensorStorage(10, example=step(0))
    rows = step(1)
    rows["next"]["reward"] = torch.zeros(2)
    with pytest.raises(ValueError, match="next.*reward"):
        storage.default_writer.add(rows)
    wide = step(1)
    wide["observation"] = torch.full((4,), 1e300, dtype=torch.float64)
    with pytest.raises(ValueError, match="observation"):
        storage.default_writer.add(wide)
    assert len(storage) == 0


def test_rows_are_not_taken_for_a_row() -> None:
    example = {"x": np.zeros((1, 4), np.float32)}
    storage = LazyTensorStorage(10, example=example)
    rows = TensorDict({"x": torch.zeros(1, 4)}, batch_size=[1])  # a row would look the same
    with pytest.raises(ValueError, match=r"batch shape \[1\]"):
        storage.default_writer.add(rows)
    assert len(storage) == 0
    storage.default_writer.add(TensorDict({"x": torch.zeros(1, 4)}, batch_size=[]))
    assert len(storage) == 1


def test_lazy_stacks_and_nested_batch_sizes() -> None:
    rows = [tensordict(step(i)) for i in range(4)]
    lazy = pytest.importorskip("tensordict").LazyStackedTensorDict(*rows)
    inner = TensorDict(tensors(step(2, (2,))["next"]), batch_size=[])  # fewer dims than the root
    odd = TensorDict({**tensors(step(2, (2,))), "next": inner.clone()}, batch_size=[])
    odd.batch_size = [2]
    kept, want = LazyTensorStorage(100), LazyTensorStorage(100)
    kept.default_writer.extend(lazy)
    kept.default_writer.extend(odd)
    want.default_writer.extend({**_stack([step(i) for i in range(4)])})
    want.default_writer.extend(step(2, (2,)))
    assert stored(kept) == stored(want)


@pytest.mark.parametrize("how", ["add", "extend", "send", "from_tree"])
def test_a_lazy_stack_with_a_key_that_only_some_have_is_refused(how: str) -> None:
    """TensorDict itself shows the keys that all have, so the others would be lost."""
    lazy_stack = pytest.importorskip("tensordict").LazyStackedTensorDict
    full = [tensordict(step(i)) for i in range(4)]
    odd = full[2].clone()
    odd["next", "more"] = torch.ones(())
    stacked = lazy_stack(*full[:2], odd, full[3])
    inside = TensorDict({"x": torch.zeros(4), "deep": stacked.clone(False)}, batch_size=[4])
    less = lazy_stack(*[t.clone() for t in full])
    del less.tensordicts[1]["next"]
    for bad, name in (
        (stacked, r'\("next", "more"\): only some of the 4'),
        (inside, r'\("deep", "next", "more"\)'),
        (less, r'"next": only some .*number 1 does not'),
        (lazy_stack(stacked, stacked, stack_dim=0), r'\("next", "more"\)'),
    ):
        storage = LazyTensorStorage(100)
        ways: dict[str, Any] = {
            "add": lambda bad=bad: storage.default_writer.add_step(bad),  # noqa: B023
            "extend": lambda bad=bad: storage.default_writer.extend(bad),  # noqa: B023
            "send": lambda bad=bad: Layout({"x": 0}).pack_one(plain_tree(bad)[0]),
            "from_tree": lambda bad=bad: Batch.from_tree(bad),
        }
        with pytest.raises(ValueError, match=name):
            ways[how]()
        assert len(storage) == 0
    # Rows in a layout that is known, which the native packer might take as they are.
    storage = LazyTensorStorage(100)
    storage.default_writer.extend(lazy_stack(*full))
    with pytest.raises(ValueError, match="only some"):
        storage.default_writer.extend(stacked)
    with pytest.raises(ValueError, match="only some"):
        storage.default_writer.extend([stacked[0:2], stacked[2:4]])
    assert len(storage) == 4


def _stack(trees: list[Any]) -> Any:
    return {
        k: _stack([t[k] for t in trees]) if isinstance(v, dict) else np.stack([t[k] for t in trees])
        for k, v in trees[0].items()
    }


def test_bfloat16_stays_bfloat16() -> None:
    pytest.importorskip("ml_dtypes")
    storage = LazyTensorStorage(10)
    values = torch.tensor([1.0, -2.5, 3.25], dtype=torch.bfloat16)
    for i in range(3):
        storage.default_writer.add({"x": values + i, "y": torch.tensor(float(i))})
    batch, _ = storage.gather(np.arange(3))
    assert torch.equal(batch.torch()["x"], torch.stack([values + i for i in range(3)]))


def test_old_torch_gives_capsules() -> None:
    """Torch before 2.10 has no C interface of DLPack: a process that hides it."""
    import subprocess
    import sys

    code = (
        "import torch\n"
        "torch.Tensor.__dlpack_c_exchange_api__ = None\n"
        "import numpy as np, contig\n"
        "from contig.layout import Layout\n"
        "row = {'x': torch.arange(4.0), 'y': torch.tensor(True), 'z': torch.zeros(0)}\n"
        "layout = Layout(row)\n"
        "assert layout.plan.pack(row, np.zeros(layout.record_size, np.uint8))\n"
        "storage = contig.LazyTensorStorage(100)\n"
        "for i in range(10):\n"
        "    storage.default_writer.add({k: v + i if k == 'x' else v for k, v in row.items()})\n"
        "storage.default_writer.extend({k: v[None] for k, v in row.items()})\n"
        "batch, _ = storage.gather(np.arange(11))\n"
        "want = [i % 10 for i in range(11)]\n"
        "assert batch['x'][:, 0].tolist() == want and batch['y'].all()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
