"""What is given by mistake gets an error that says what to do; what is obviously meant works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contig
from contig import (
    LayoutError,
    LazyTensorStorage,
    NStepSampler,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    QueueRolloutStorage,
    RandomSampler,
    RateLimiter,
    ReplayBuffer,
    ReplayBufferEnsemble,
    RolloutStorage,
    SliceSampler,
    StateReplayBuffer,
    WindowSampler,
)
from contig.testing import episode, identity

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ReplayBuffer(10_000), r"storage: .*got 10000.*LazyTensorStorage\(10_000\)"),
        (lambda: ReplayBuffer("a"), "storage: .*'a'"),
        (lambda: ReplayBuffer(LazyTensorStorage), r"LazyTensorStorage\(\.\.\.\)"),
        (lambda: ReplayBuffer(sampler=RandomSampler), r"class RandomSampler: write Rand.*\(\.\.\."),
        (lambda: ReplayBuffer(sampler="random"), "sampler: .*'random'.*such as"),
        (lambda: ReplayBuffer(RandomSampler()), "storage: expected a Storage, got RandomSampler"),
        (lambda: ReplayBuffer(limiter=RateLimiter), r"class RateLimiter: write"),
        (lambda: ReplayBuffer(limiter=2.0), r"limiter: .*RateLimiter\(samples_per_insert\)"),
        (lambda: WindowSampler(RandomSampler, last_rows=3), "class RandomSampler: write"),
        (lambda: NStepSampler(3, 0.9, PrioritizedSampler), "class PrioritizedSampler: write"),
        (lambda: ReplayBufferEnsemble([ReplayBuffer()]), r"buffers\[0\]: .*\*buffers"),
        (lambda: ReplayBufferEnsemble(LazyTensorStorage(3)), r"got LazyTensorStorage"),
    ],
)
def test_another_kind_of_object(make: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        make()


@pytest.mark.parametrize("value", [0, -1, 2.5, NAN, INF, True, "32", None, [3]])
def test_numbers_of_rows(value: Any, tmp_path: Path) -> None:
    buffer = ReplayBuffer(LazyTensorStorage(10))
    buffer.extend(episode(0, 5))
    for make in (LazyTensorStorage, contig.SharedStorage, lambda v: LazyTensorStorage(3, ndim=v)):
        with pytest.raises(ValueError, match=r"(capacity|ndim): expected a number"):
            make(value)
    if value is None:
        return
    with pytest.raises(ValueError, match="capacity: expected a number of rows"):
        contig.DiskStorage(tmp_path / "a", value)
    assert not (tmp_path / "a").exists()
    for call in (
        lambda: buffer.sample(value),
        lambda: ReplayBuffer(batch_size=value),
        lambda: ReplayBufferEnsemble(buffer, batch_size=value),
        lambda: ReplayBufferEnsemble(buffer).sample(value),
    ):
        with pytest.raises(ValueError, match="batch_size: expected rows, at least 1"):
            call()
    if value != 0:
        with pytest.raises(ValueError, match="prefetch: expected a number of batches"):
            ReplayBuffer(prefetch=value)


@pytest.mark.parametrize("value", [0, -1, 2.5, NAN, INF, True, "3", [3]])
def test_numbers_of_samplers(value: Any) -> None:
    makes: dict[str, Any] = {
        "max_times_sampled": RandomSampler,
        "slice_len": SliceSampler,
        "num_slices": SliceSampler,
        "last_rows": WindowSampler,
        "last_trajectories": WindowSampler,
        "n": lambda n: NStepSampler(n, 0.9),
        "chunk": contig.ChunkSampler,
        "min_size": lambda min_size: RateLimiter(1.0, min_size),
    }
    for name, make in makes.items():
        with pytest.raises(ValueError, match=f"{name}: expected"):
            make(**{name: value})
    for kind in (contig.FifoSampler, contig.LifoSampler):
        with pytest.raises(ValueError, match="max_times_sampled: expected"):
            kind(max_times_sampled=value)
    if value != 0:
        with pytest.raises(ValueError, match="burn_in: expected"):
            SliceSampler(slice_len=2, burn_in=value)
        with pytest.raises(ValueError, match="max_staleness: expected"):
            WindowSampler(max_staleness=value)


def test_whole_floats_are_meant() -> None:
    assert LazyTensorStorage(1e6).capacity == 1_000_000
    assert type(LazyTensorStorage(np.float64(20)).capacity) is int
    with contig.SharedStorage(1e3) as storage, contig.SharedStorage(1e3, storage.name) as other:
        assert other.capacity == 1000
    buffer = ReplayBuffer(LazyTensorStorage(np.int32(10)), batch_size=np.int64(4))
    buffer.extend(episode(0, 5))
    assert len(buffer.sample()) == len(buffer.sample(4.0)) == 4


@pytest.mark.parametrize("sampler", [PrioritizedSampler, PrioritizedSliceSampler])
@pytest.mark.parametrize("name", ["alpha", "beta", "eps"])
@pytest.mark.parametrize("value", [NAN, INF, -INF, -0.1, "0.5", None, 1e300])
def test_exponents(sampler: Any, name: str, value: Any) -> None:
    options = {"slice_len": 2} if sampler is PrioritizedSliceSampler else {}
    if not (name == "beta" and value == 1e300):
        with pytest.raises(ValueError, match=f"{name}: expected a number"):
            sampler(**{name: value}, **options)
    made = sampler(**options)
    if name == "beta" and value != 1e300:
        with pytest.raises(ValueError, match="beta: expected a number"):
            made.priorities.beta = value
        if sampler is PrioritizedSampler:
            with pytest.raises(ValueError, match="beta: expected a number"):
                made.beta = value
        assert made.priorities.beta == 0.4


@pytest.mark.parametrize("alpha", [0.6, 1.0, 5.0])
def test_priorities(alpha: float) -> None:
    buffer = ReplayBuffer(LazyTensorStorage(10), PrioritizedSampler(alpha=alpha), batch_size=8)
    buffer.extend(episode(0, 10))
    buffer.update_priority([0, 1], [2.0, 3.0])
    before = repr(buffer.state())
    for bad in (1e200, 1e31, INF, -INF, NAN, -1.0, -1e-300):
        with pytest.raises(ValueError, match=r"priority\[1\].*0 to 1e\+30"):
            buffer.update_priority([2, 3], [1.0, bad])
        with pytest.raises(ValueError, match=r"priority\[0\]"):
            ReplayBufferEnsemble(buffer).update_priority([0], [bad], [0])
    assert repr(buffer.state()) == before
    # The extremes that are allowed keep everything finite.
    buffer.update_priority(np.arange(10), np.full(10, 1e30))
    buffer.extend(episode(1, 3))
    batch = buffer.sample(1000)
    assert np.isfinite(batch["priority_weight"]).all() and len(set(batch["index"].tolist())) == 10
    buffer.update_priority(np.arange(3, 13), np.full(10, 1e-300))
    batch = buffer.sample(1000)
    assert np.isfinite(batch["priority_weight"]).all() and len(set(batch["index"].tolist())) == 10


def test_tiny_priorities_without_eps() -> None:
    """A priority above 0 is drawn, however small."""
    buffer = ReplayBuffer(LazyTensorStorage(4), PrioritizedSampler(alpha=2, eps=0), batch_size=50)
    buffer.extend(episode(0, 4))
    buffer.update_priority(np.arange(4), [1e-200, 1e-200, 0.0, 0.0])
    assert set(buffer.sample()["index"].tolist()) == {0, 1}


def test_indices_that_are_no_whole_numbers() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(10), PrioritizedSampler(), batch_size=4)
    buffer.extend(episode(0, 10))
    ensemble = ReplayBufferEnsemble(buffer)
    before = repr(buffer.state())
    for bad in ([0.5, 1.0], [1.0, 2.0], [True, False], ["0", "1"], [2**63, 1]):
        for call in (
            lambda b=bad: buffer.update_priority(b, [1.0, 2.0]),
            lambda b=bad: ensemble.update_priority(b, [1.0, 2.0], [0, 0]),
            lambda b=bad: ensemble.update_priority([0, 1], [1.0, 2.0], b),
            lambda b=bad: buffer[np.array(b)],
        ):
            with pytest.raises(TypeError, match="expected whole numbers"):
                call()
    with pytest.raises(TypeError, match="expected whole numbers"):
        buffer[1.5]
    assert repr(buffer.state()) == before
    buffer.update_priority([], [])
    assert len(buffer[[]]) == 0 and identity(buffer[3]) == [(0, 3)]


def test_lists_of_tensordicts() -> None:
    torch = pytest.importorskip("torch")
    tensordict = pytest.importorskip("tensordict")

    def row(number: int, t: int, n: int | None = None) -> Any:
        data = episode(number, n or 1, start=t, end=None)
        batch = contig.Batch.from_tree(data, 1)
        return batch.to_tensordict() if n else batch.to_tensordict()[0]

    for transform in (None, lambda b: b):
        buffer = contig.TensorDictReplayBuffer(
            LazyTensorStorage(100), batch_size=4, transform=transform
        )
        assert len(buffer.extend([row(0, 0), row(0, 1), row(0, 2)])) == 3
        assert identity(buffer[:]) == [(0, 0), (0, 1), (0, 2)]
    lanes = LazyTensorStorage(100)
    ReplayBuffer(lanes).extend([row(0, 0, 3), row(1, 0, 3)])
    assert lanes.episodes()["steps"].tolist() == [3, 3]
    with pytest.raises(LayoutError, match="row 1 of the list differs"):
        buffer.extend([row(0, 0), tensordict.TensorDict({"x": torch.zeros(())}, [])])
    with pytest.raises(LayoutError, match="row 1 of the list"):
        buffer.extend([row(0, 0), row(0, 0, 2)])


def test_lists_of_dicts() -> None:
    rows = [{"x": np.full(2, t), "done": False} for t in range(3)]
    unknown = ReplayBuffer(LazyTensorStorage(10))
    with pytest.raises(LayoutError, match="give one dict of stacked arrays"):
        unknown.extend(rows)
    buffer = ReplayBuffer(LazyTensorStorage(10, example=rows[0]))
    buffer.extend(rows)
    assert buffer[:]["x"].tolist() == [[0, 0], [1, 1], [2, 2]]
    with pytest.raises(LayoutError, match=r'"x": shape \[3\] in row 1 of the list, \[2\] in row 0'):
        buffer.extend([rows[0], {**rows[0], "x": np.zeros(3)}])
    # Where lists of dicts are rows themselves, they stay what they are.
    tree = [{"x": 0.0}, {"x": 0.0}]
    storage = LazyTensorStorage(10, example=tree)
    ReplayBuffer(storage).extend([{"x": np.arange(4.0)}, {"x": np.arange(4.0)}])
    assert len(storage) == 4


@pytest.mark.parametrize("depth", [30, 33, 100, 200, 256])
def test_deep_trees(depth: int) -> None:
    tree: Any = np.arange(6)
    for level in range(depth):
        tree = {f"level-{level}": tree} if level % 50 != 7 else {"a": tree, "b": np.arange(6)}
    buffer = ReplayBuffer(LazyTensorStorage(10), batch_size=4, seed=0)
    buffer.extend(tree)
    batch = buffer.sample()
    path = next(p for p in batch.keys() if len(p) == depth)  # noqa: SIM118
    assert (batch[path] == batch["index"]).all()
    node = batch.tree()
    for key in path:
        node = node[key]
    assert (node == batch["index"]).all()
    assert len(buffer[[0, 1]].reshape(2, 1)) == 2


def test_trees_that_are_too_deep() -> None:
    tree: Any = np.arange(6)
    for _ in range(400):
        tree = {"x": tree}
    buffer = ReplayBuffer(LazyTensorStorage(10))
    with pytest.raises(ValueError, match="more than 256 levels deep"):
        buffer.extend(tree)
    buffer.extend({"x": np.arange(3)})


@pytest.mark.parametrize("value", [-1, 1.5, NAN, "7", True])
def test_seeds(value: Any) -> None:
    for make in (ReplayBuffer, contig.TrajectoryReplayBuffer):
        with pytest.raises(ValueError, match="seed: expected None or a whole number"):
            make(seed=value)
    for name in ("sample_window_size", "prefetch", "max_staleness"):
        with pytest.raises(ValueError, match=f"{name}: expected"):
            contig.TrajectoryReplayBuffer(**{name: value})


def test_a_leaf_of_a_buffer() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(10))
    buffer.extend({"x": np.arange(4)})
    with pytest.raises(TypeError, match=r"buffer\[:\]"):
        buffer["x"]
    assert buffer[:]["x"].tolist() == [0, 1, 2, 3]


def test_slices_of_a_class() -> None:
    with pytest.raises(TypeError, match="SliceSampler"):
        ReplayBuffer(sampler=SliceSampler)


def test_probabilities_of_members() -> None:
    members = [ReplayBuffer(LazyTensorStorage(10)) for _ in range(2)]
    for number, member in enumerate(members):
        member.extend(episode(number, 10))
    for bad in ([NAN, 1], [INF, 1], [-1, 1], [0, 0], ["a", 1], [1], [1, 2, 3], 0.5, "ab", [[1, 1]]):
        with pytest.raises(ValueError, match="p: expected"):
            ReplayBufferEnsemble(*members, p=bad, batch_size=4)
    for even in ([1e308, 1e308], [1e-320, 1e-320], np.ones(2), (3, 3)):
        ensemble = ReplayBufferEnsemble(*members, p=even, batch_size=64, seed=0)
        drawn = [e for e, _ in identity(ensemble.sample())]
        assert 10 < drawn.count(0) < 54


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: NStepSampler(3, "x"), "gamma: expected a number from 0 to 1, got 'x'"),
        (lambda: NStepSampler(3, NAN), "gamma: .*nan"),
        (lambda: NStepSampler(3, None), "gamma: .*None"),
        *(
            (lambda span=span: SliceSampler(slice_len=3, span=span), r"span: expected .* rows")
            for span in ("x", -1, 1.5, NAN, None, (1, 2, 3), (1,), (1, "x"), (True, -1), [0, 0.5])
        ),
        (lambda: RolloutStorage(2.5, 2, (1,)), "num_envs: .*2.5"),
        (lambda: RolloutStorage("a", 2, (1,)), "num_envs: .*'a'"),
        (lambda: RolloutStorage(2, 2.5, (1,)), "num_transitions_per_env: .*2.5"),
        (lambda: RolloutStorage(2, 2, (1,), num_rewards=None), "num_rewards: .*None"),
        (lambda: RolloutStorage(2, 2, (1,), seed="x"), "seed: .*'x'"),
        (lambda: QueueRolloutStorage(2, 2, (1,), buffer_dilation_ratio="x"), "ratio: .*'x'"),
        (lambda: QueueRolloutStorage(2, 2, (1,), buffer_dilation_ratio=0.5), "ratio: .*0.5"),
        (lambda: QueueRolloutStorage(2, 2, (1,), buffer_dilation_ratio=INF), "ratio: .*inf"),
        (lambda: StateReplayBuffer(2.5, 3), "obs_dim: .*2.5"),
        (lambda: StateReplayBuffer(2, "x"), "buffer_size: .*'x'"),
        *(
            (lambda more=more: contig.Collector(None, None, frames_per_batch=1, **more), text)
            for more, text in (
                ({"max_restarts": -1}, "max_restarts: .*-1"),
                ({"max_restarts": "x"}, "max_restarts: .*'x'"),
                ({"trajs_per_batch": 0}, "trajs_per_batch: .*0"),
                ({"max_frames_per_traj": 1.5}, "max_frames_per_traj: .*1.5"),
                ({"init_random_frames": None}, "init_random_frames: .*None"),
            )
        ),
    ],
)  # fmt: skip
def test_numbers_are_looked_at_when_they_are_given(make: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


def test_a_file_in_place_of_a_checkpoint(tmp_path: Path) -> None:
    buffer = ReplayBuffer(LazyTensorStorage(10))
    buffer.extend(episode(0, 5))
    (tmp_path / "model.pt").write_bytes(b"x")
    with pytest.raises(NotADirectoryError, match=r"model\.pt: a file.* directory .*save"):
        buffer.load(tmp_path / "model.pt")
    (tmp_path / "checkpoint.json").mkdir()
    with pytest.raises(LayoutError, match="damaged"):
        buffer.load(tmp_path)
    assert len(buffer) == 5


@pytest.mark.filterwarnings("ignore")  # torch's own, about nested and sparse tensors
def test_tensors_without_plain_memory() -> None:
    torch = pytest.importorskip("torch")
    eye, short = torch.eye(3), [torch.zeros(2), torch.zeros(3)]
    nested = torch.nested.nested_tensor
    for odd, text in (
        (eye.to_sparse(), r'"x": a sparse tensor.*\.to_dense\(\)'),
        (eye.to_sparse_csr(), r'"x": a sparse tensor.*to_dense'),
        (torch.zeros(3, device="meta"), r'"x": .*meta.*no values'),
        (nested(short), r'"x": a nested tensor.*pad'),
        (nested(short, layout=torch.jagged), r'"x": a nested tensor.*pad'),
    ):
        # A nested one that comes first makes a Ragged leaf.
        for known in (True,) if odd.is_nested else (False, True):
            example = {"x": np.zeros(odd.shape[1:] if odd.layout == torch.strided and
                                     not odd.is_nested else 3, np.float32)}  # fmt: skip
            storage = LazyTensorStorage(10, example=example if known else None)
            buffer = ReplayBuffer(storage)
            for write in (buffer.extend, buffer.add, buffer.add_step):
                with pytest.raises(ValueError, match=text):
                    write({"x": odd})
            with pytest.raises(ValueError, match=text):
                buffer.add_step({"x": odd}, mask=[True, False, True])
            with pytest.raises(ValueError, match=text):
                contig.Layout({"x": np.zeros(3, np.float32)}).pack({"x": odd})
            assert len(buffer) == 0
