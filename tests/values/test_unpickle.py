"""The reader of pickles: arrays and plain containers come through, everything else is refused."""

from __future__ import annotations

import collections
import io
import os
import pickle
import pickletools
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from contig import unpickle
from contig.unpickle import check_torch, load_arrays


def load(data: bytes) -> Any:
    return load_arrays(io.BytesIO(data))


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.binary(max_size=5),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers()), inner, max_size=3),
    ),
    max_leaves=8,
)


@given(tree=TREES, protocol=st.integers(2, pickle.HIGHEST_PROTOCOL))
def test_plain_values(tree: Any, protocol: int) -> None:
    assert load(pickle.dumps(tree, protocol)) == tree


@given(
    array=arrays.arrays(
        st.one_of(
            arrays.integer_dtypes(), arrays.floating_dtypes(sizes=(16, 32, 64)),
            arrays.boolean_dtypes(),
        ),
        arrays.array_shapes(min_dims=0, max_dims=3, min_side=0),
    ),
    protocol=st.integers(2, pickle.HIGHEST_PROTOCOL),
    order=st.sampled_from("CF"),
)  # fmt: skip
def test_arrays(array: Any, protocol: int, order: Any) -> None:
    found = load(pickle.dumps({"x": np.array(array, order=order)}, protocol))["x"]
    assert found.dtype == array.dtype.newbyteorder("=") and found.shape == array.shape
    assert np.array_equal(found, array, equal_nan=array.dtype.kind == "f")


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
)
def test_tensors(protocol: int, dtype: torch.dtype) -> None:
    whole = torch.arange(24).reshape(2, 3, 4).to(dtype)
    for tensor in (whole, whole[1], whole[:, ::2, 1:3], whole.permute(2, 0, 1), whole[0, 0, 0]):
        found = load(pickle.dumps([tensor, tensor], protocol))
        assert np.array_equal(found[0].astype(np.float64), tensor.double().numpy())
        assert found[0].shape == tuple(tensor.shape)


def test_other_containers() -> None:
    found = load(pickle.dumps(collections.OrderedDict(a=np.float32(1.5), b=np.bool_(True))))
    assert found == {"a": 1.5, "b": True} and type(found) is dict


class Call:
    """Pickles to a call."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


class State:
    """Pickles to an object with a state."""

    def __init__(self, function: Any, state: Any) -> None:
        self.parts = (function, (), state)

    def __reduce__(self) -> Any:
        return self.parts


@pytest.mark.parametrize(
    "value",
    [
        Call(os.system, "true"),
        Call(eval, "1"),
        Call(exec, "1"),
        Call(getattr, "x", "join"),
        Call(__import__, "os"),
        Call(np.load, "x.npy"),
        Call(torch.load, "x.pt"),
        Call(torch.tensor, [1]),
        Call(bytearray, b"x"),
        Call(set, [1]),
        Path("x"),
        collections.Counter("aab"),
        collections.deque([1]),
        {1, 2},
        3 + 4j,
        np.dtype("f4"),
        np.ndarray,
        np.array(["text"]),
        np.array([object()], dtype=object),
        np.zeros(2, [("a", "f4")]),
        np.array("2020-01-01", "M8[D]"),
        torch.nn.Linear(1, 1),
        torch.nn.Parameter(torch.zeros(1)),
        torch.float32,
        {(1, 2): 3},
        {"deep": [({"x": Call(os.getpid)},)]},
    ],
    ids=lambda value: type(value).__name__,
)
def test_refused(value: Any) -> None:
    data = pickle.dumps(value)
    with pytest.raises(pickle.UnpicklingError):
        load(data)


def test_every_name_of_the_standard_tricks() -> None:
    tricks = [
        b"cos\nsystem\n(S'true'\ntR.",
        b"cposix\nsystem\n(S'true'\ntR.",
        b"c__builtin__\neval\n(S'1'\ntR.",
        b"cbuiltins\ngetattr\n(S'x'\nS'y'\ntR.",
        b"ctorch.storage\nTypedStorage\n(tR.",
        b"cnumpy.core.multiarray\n_reconstruct.__globals__\n(tR.",
        b"cnumpy\ndtype.newbyteorder\n(tR.",
        b"ccollections\nOrderedDict.__init__\n(tR.",
        b"Pbad\n.",  # a persistent id
        b"\x80\x02\x82\x01.",  # an extension code
        b"\x80\x05\x97.",  # an out-of-band buffer
    ]
    for data in tricks:
        with pytest.raises(pickle.UnpicklingError):
            load(data)


def test_names_cannot_be_changed() -> None:
    before = dict(unpickle._CALLS)
    for module, name in unpickle._CALLS:
        head = f"\x80\x02c{module}\n{name}\n".encode()
        # the name itself, with a state of attributes to set
        for state in (b"}U\x05_callK\x01sb.", b"N}U\x05_callK\x01s\x86b."):
            with pytest.raises(pickle.UnpicklingError):
                load(head + state)
    assert before == unpickle._CALLS
    assert load(pickle.dumps(np.arange(3))).tolist() == [0, 1, 2]


def test_tensors_that_reach_beyond_their_storage() -> None:
    data = pickle.dumps(torch.arange(6.0).reshape(2, 3))
    rebuild = pickle.loads(data).__reduce_ex__(2)
    storage = rebuild[1][0]
    for offset, size, stride in (
        (1, (2, 3), (3, 1)),
        (0, (3, 3), (3, 1)),
        (0, (10**12,), (0,)),
        (-1, (2,), (1,)),
        (0, (2,), (100,)),
        (0, (2,), (-1,)),
    ):
        call = Call(rebuild[0], storage, offset, size, stride, False, collections.OrderedDict())
        with pytest.raises(pickle.UnpicklingError):
            load(pickle.dumps(call))


def test_a_storage_that_is_a_pickle_itself(tmp_path: Path) -> None:
    """Torch keeps storages as files of its own, which may hold code again."""
    inner = io.BytesIO()
    torch.save(Call(os.system, f"touch {tmp_path / 'ran'}"), inner)
    from torch.storage import _load_from_bytes

    with pytest.raises(pickle.UnpicklingError):
        load(pickle.dumps(Call(_load_from_bytes, inner.getvalue())))
    assert not (tmp_path / "ran").exists()


def test_trees_without_end() -> None:
    endless: list[Any] = []
    endless.append(endless)
    deep: Any = 1
    for _ in range(80):
        deep = [deep]
    for value in (endless, deep):
        with pytest.raises(pickle.UnpicklingError, match="deeper"):
            load(pickle.dumps(value))


# 2^120 empty tuples: for whoever walks them, hashes them or prints them.
ENDLESS = b")" + b"2\x86" * 120
REDUCE_DTYPE = b"cnumpy\ndtype\n"


@pytest.mark.parametrize(
    "data",
    [
        ENDLESS + b".",
        b"]" + b"2\x86" * 60 + b".",  # lists
        b"}" + ENDLESS + b"Ns.",  # a key
        b"}(" + ENDLESS + b"Nu.",
        b"(" + ENDLESS + b"Nd.",
        b"(" + ENDLESS + b"\x91.",  # in a frozenset
        b"\x8f(" + ENDLESS + b"\x90.",  # in a set
        REDUCE_DTYPE + ENDLESS + b"\x85R.",  # a name
        b"c_codecs\nencode\n" + ENDLESS + b"U\x06latin1\x86R.",
        b"c_codecs\nencode\nU\x01a" + ENDLESS + b"\x86R.",
        b"ccollections\nOrderedDict\n]" + ENDLESS + b"N\x86a\x85R.",
        b"cnumpy.core.numeric\n_frombuffer\n(C\x04abcd" + REDUCE_DTYPE + b"U\x02f4\x85R"
        + ENDLESS + b"tR.",  # a shape
        ENDLESS + b"Q.",  # a persistent id
        ENDLESS + b"}b.",  # a state
        b"Nr\xff\xff\xff\x7f.",  # the last place of a memo of 16 GB
    ],
    ids=range(15),
)  # fmt: skip
def test_a_few_bytes_are_not_a_tree_without_end(data: bytes) -> None:
    data = b"\x80\x04" + data
    assert len(data) < 400
    try:
        found = load(data)
    except pickle.UnpicklingError as error:
        assert len(str(error)) < 400
    else:
        assert found is None


def test_the_same_data_again_and_again_is_counted() -> None:
    array = np.zeros(1 << 20, np.uint8)
    shared = load(pickle.dumps([array] * 10_000))  # the same array, made once
    assert len(shared) == 10_000 and len({id(x) for x in shared}) == 1
    again = b"\x80\x04B" + (1 << 20).to_bytes(4, "little") + bytes(1 << 20) + b"q\x00"
    once = b"cnumpy.core.numeric\n_frombuffer\n(h\x00" + REDUCE_DTYPE
    once += b"U\x02u1\x85RJ\x00\x00\x10\x00tR"
    with pytest.raises(pickle.UnpicklingError, match="more than 16 times as much"):
        load(again + b"](" + once * 1000 + b"e.")
    assert len(load(again + b"](" + once * 4 + b"e.")) == 4


@pytest.mark.parametrize("legacy", [False, True])
def test_torchs_own_files_are_bounded_too(tmp_path: Path, legacy: bool) -> None:
    """Torch runs nothing of them, and would walk and unpack for ever."""
    fine = io.BytesIO()
    tree = {"a": torch.arange(4.0), "b": {"c": torch.ones(2, dtype=torch.bfloat16)}}
    torch.save(tree, fine, _use_new_zipfile_serialization=not legacy)
    check_torch(fine)
    assert fine.tell() == 0
    if legacy:
        start = b"".join(pickle.dumps(x, 2) for x in (0x1950A86A20F9469CFC6C, 1001, {}))
        inside = (ENDLESS + b".", b"}" + ENDLESS + b"Ns.")
        bombs = [start + b"\x80\x02" + inner for inner in inside]
    else:
        bombs = []
        for inner in (ENDLESS + b".", b"}" + ENDLESS + b"Ns."):
            file = io.BytesIO()
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr("x/data.pkl", b"\x80\x02" + inner)
            bombs.append(file.getvalue())
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x/data/0", bytes(1 << 24))
        bombs.append(file.getvalue())
    for bomb in bombs:
        with pytest.raises(pickle.UnpicklingError):
            check_torch(io.BytesIO(bomb))


def test_damage_never_gets_past() -> None:
    tree = {"a": np.arange(4.0), "b": {"c": torch.ones(2, 2), "d": [1, "x"]}}
    data = pickle.dumps(tree)
    assert pickletools.optimize(data)
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(1500):
        bad = bytearray(data)
        for _ in range(int(rng.integers(1, 4))):
            bad[int(rng.integers(len(bad)))] = int(rng.integers(256))
        cut = bytes(bad[: int(rng.integers(len(bad) + 1))]) if rng.random() < 0.3 else bytes(bad)
        try:
            found = load(cut)
        except pickle.UnpicklingError:
            refused += 1
            continue
        _only_plain(found)
    assert 500 < refused < 1500, "most are refused, and some bytes do not matter"


def _only_plain(value: Any) -> None:
    if isinstance(value, dict):
        for child in value.values():
            _only_plain(child)
    elif isinstance(value, (list, tuple)):
        for child in value:
            _only_plain(child)
    else:
        assert isinstance(value, (np.ndarray, np.generic, str, bytes, int, float, type(None)))
