"""add_step: whose a row is, and which rows are stored. Against a naive model of the envs."""

from __future__ import annotations

import multiprocessing as mp
import pickle
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import contig
from contig import LayoutError, LazyTensorStorage, ReplayBuffer, SharedStorage
from contig.tape.disk import DiskStorage
from tests.client.serving import serving

ENVS = 6


class Envs:
    """Envs whose rows say whose they are: env, episode, step."""

    def __init__(self) -> None:
        self.episode = [0] * (ENVS + 1)  # the last one's are rows of no env
        self.t = [0] * (ENVS + 1)

    def step(self, envs: list[int], done: list[bool], ids: bool) -> dict[str, Any]:
        """The next row of some envs, in that order; nothing moves yet."""
        who = np.array([(e, self.episode[e], self.t[e]) for e in envs], np.int64).reshape(-1, 3)
        rows = {"who": who, "next": {"done": np.array(done, bool)}}
        if ids:
            rows["episode"] = who[:, 1]  # of different envs they are equal
        return rows

    def go_on(self, envs: list[int], done: list[bool]) -> list[tuple[int, int, int]]:
        """Moves these envs; their rows."""
        rows = []
        for env, over in zip(envs, done):
            rows.append((env, self.episode[env], self.t[env]))
            self.t[env] += 1
            if over:
                self.episode[env], self.t[env] = self.episode[env] + 1, 0
        return rows


class Machine(RuleBasedStateMachine):
    """Any mixture of whole steps, masked ones and steps of some envs."""

    @initialize(
        ids=st.booleans(),
        disk=st.integers(0, 5),
        total=st.integers(1, ENVS),
        form=st.integers(0, 2),
    )
    def start(self, ids: bool, disk: int, total: int, form: int) -> None:
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm") if disk == 0 else None
        self.storage: Any = LazyTensorStorage(100_000)
        if self.folder is not None:
            self.storage = DiskStorage(Path(self.folder.name) / "a", 100_000)
        self.buffer = ReplayBuffer(self.storage, transform=(lambda b: b) if form == 1 else None)
        self.ids, self.total, self.form = ids, total, form
        self.envs = Envs()
        self.known = False
        self.rows: list[tuple[int, int, int]] = []

    def write(self, envs: list[int], done: list[bool], keep: list[bool], **how: Any) -> None:
        step = self.envs.step(envs, done, self.ids)
        if self.form == 2:  # bogus rows may hold anything
            step["next"]["done"] = step["next"]["done"].astype(float)
            step["next"]["done"][~np.array(keep, bool)] = np.nan
        seqs = self.buffer.add_step(step, **how)
        kept = [i for i, k in enumerate(keep) if k]
        new = self.envs.go_on([envs[i] for i in kept], [done[i] for i in kept])
        self.check_seqs(seqs, len(new))
        self.rows += new

    def check_seqs(self, seqs: Any, new: int) -> None:
        assert seqs.tolist() == list(range(len(self.rows), len(self.rows) + new))

    @rule(data=st.data())
    def whole(self, data: Any) -> None:
        done = data.draw(st.lists(st.booleans(), min_size=self.total, max_size=self.total))
        self.write(list(range(self.total)), done, [True] * self.total)
        self.known = True

    @rule(data=st.data())
    def masked(self, data: Any) -> None:
        flags = st.lists(st.booleans(), min_size=self.total, max_size=self.total)
        done, keep = data.draw(flags), data.draw(flags)
        mask = np.array(keep)
        mask = data.draw(st.sampled_from([mask, mask.astype(int), mask[:, None], mask.tolist()]))
        self.write(list(range(self.total)), done, keep, mask=mask)
        self.known = True

    @rule(data=st.data(), some=st.permutations(range(ENVS)), n=st.integers(0, ENVS))
    def of_some(self, data: Any, some: list[int], n: int) -> None:
        flags = st.lists(st.booleans(), min_size=n, max_size=n)
        done, keep = data.draw(flags), data.draw(flags)
        how: dict[str, Any] = {
            "env_ids": data.draw(st.sampled_from([some[:n], np.array(some[:n])]))
        }
        if data.draw(st.booleans()):
            how["mask"] = np.array(keep, bool)
        else:
            keep = [True] * n
        self.write(some[:n], done, keep, **how)

    @precondition(lambda self: not self.ids)  # with them, ids decide
    @rule(data=st.data(), n=st.integers(1, 3), over=st.booleans())
    def rows_of_no_env(self, data: Any, n: int, over: bool) -> None:
        """`add` and `extend` between the steps."""
        parts = []
        for i in range(n):
            done = [over and i == n - 1]
            parts.append(self.envs.step([ENVS], done, False))
            self.rows += self.envs.go_on([ENVS], done)
        if n == 1 and data.draw(st.booleans()):
            one = {"who": parts[0]["who"][0], "next": {"done": parts[0]["next"]["done"][0]}}
            self.buffer.add(one)
        else:
            done_ = np.concatenate([p["next"]["done"] for p in parts])
            who = np.concatenate([p["who"] for p in parts])
            self.buffer.extend({"who": who, "next": {"done": done_}})

    @precondition(lambda self: self.known)
    @rule(n=st.integers(1, ENVS), masked=st.booleans())
    def another_number(self, n: int, masked: bool) -> None:
        if n == self.total:
            return
        step = self.envs.step(list(range(n)), [True] * n, self.ids)
        mask = np.arange(n) % 2 == 0 if masked else None
        with pytest.raises(LayoutError, match=f"of {self.total} envs.*env_ids="):
            self.buffer.add_step(step, mask=mask)

    @rule(n=st.integers(2, ENVS))
    def refused(self, n: int) -> None:
        step = self.envs.step(list(range(n)), [True] * n, self.ids)
        same = [0] * n
        for how, text in (
            ({"env_ids": same}, "0 is there more than once"),
            ({"env_ids": same, "mask": np.arange(n) == 0}, "more than once"),
            ({"env_ids": [0.0] * n}, "whole numbers"),
            ({"env_ids": [True] * n}, "whole numbers"),
            ({"env_ids": [-1, *range(n - 1)]}, r"env_ids\[0\] = -1"),
            ({"env_ids": [1 << 40, *range(n - 1)]}, "number yours"),
            ({"env_ids": list(range(n + 1))}, f"{n} whole numbers"),
            ({"mask": [True] * (n + 1)}, f"{n} booleans"),
            ({"mask": [0.5] * n}, f"{n} booleans"),
            ({"mask": [2] * n}, f"{n} booleans"),
        ):
            with pytest.raises(ValueError, match=text):
                self.buffer.add_step(step, **how)

    @invariant()
    def trajectories(self) -> None:
        if not hasattr(self, "rows"):
            return
        assert len(self.buffer) == len(self.rows)
        expected: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for row in self.rows:
            expected.setdefault(row[:2], []).append(row)
        if not expected:
            return
        table = self.storage.episodes()
        found = [self.storage.read_episode(int(i))["who"] for i in table["id"]]
        assert [[tuple(r) for r in rows.tolist()] for rows in found] == list(expected.values())
        for (env, number), over in zip(expected, table["terminated"].tolist()):
            assert over == (self.envs.episode[env] > number)

    def teardown(self) -> None:
        if hasattr(self, "storage"):
            self.storage.close()
            if self.folder is not None:
                self.folder.cleanup()


Machine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=15, deadline=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
test_any_steps = pytest.mark.filterwarnings("ignore")(Machine.TestCase)


def step(rows: list[tuple[int, int]], done: Any = False) -> dict[str, Any]:
    """Rows (env, t)."""
    who = np.array(rows, np.int64)
    return {"who": who, "next": {"done": np.broadcast_to(done, len(rows)).copy()}}


def episodes(storage: Any) -> list[list[tuple[int, ...]]]:
    found = [storage.read_episode(int(i))["who"] for i in storage.episodes()["id"]]
    return [[tuple(r) for r in rows.tolist()] for rows in found]


def test_strangers_are_not_joined() -> None:
    """Three envs, then only rows of the first and the last."""
    storage = LazyTensorStorage(100)
    writer = storage.writer()
    writer.add_step(step([(0, 0), (1, 0), (2, 0)]))
    with pytest.raises(LayoutError, match="3 envs"):
        writer.add_step(step([(0, 1), (2, 1)]))
    writer.add_step(step([(0, 1), (2, 1)]), env_ids=[0, 2])
    writer.add_step(step([(0, 2), (1, 1), (2, 2)]))
    assert episodes(storage) == [
        [(0, 0), (0, 1), (0, 2)],
        [(1, 0), (1, 1)],
        [(2, 0), (2, 1), (2, 2)],
    ]
    other = storage.writer()  # other envs
    other.add_step(step([(0, 0), (1, 0)]))


def roads(folder: Path) -> Iterator[tuple[Any, Any, Any]]:
    """A storage, what writes to it, and what waits until it is written: each kind of store."""
    for storage in (LazyTensorStorage(1000), DiskStorage(folder / "a", 1000)):
        yield storage, ReplayBuffer(storage), storage.flush
        storage.close()
    example = {"who": np.zeros(2, np.int64), "next": {"done": False}}
    for kind in ("near", "far"):
        store: Any = SharedStorage(1000, example=example)
        with serving(ReplayBuffer(store, batch_size=4)) as server:
            if kind == "near":
                writer: Any = contig.SharedClient(server.name)
                yield store, writer, lambda: None
            else:
                writer = contig.RemoteReplayBuffer("127.0.0.1", server.port)
                yield store, writer, lambda far=writer: far.flush(30)
            writer.close()


@pytest.mark.parametrize(
    "some", [{}, {"mask": True}, {"env_ids": True}], ids=["all", "mask", "ids"]
)
@pytest.mark.parametrize("envs", [1, 3])
def test_rows_of_other_calls_are_no_envs(envs: int, some: dict[str, Any], tmp_path: Path) -> None:
    """Neither env 0's trajectory goes on in `add` and `extend`, nor theirs in env 0's."""
    how = {k: np.arange(envs) if k == "env_ids" else np.ones(envs, bool) for k in some}
    for storage, writer, flush in roads(tmp_path):
        add = getattr(writer, "add", None) or writer.send
        one = {"who": np.array([7, 2]), "next": {"done": np.array(False)}}
        for t in range(4):
            writer.add_step(step([(e, t) for e in range(envs)], t == 3), **how)
            if t == 0:
                writer.extend(step([(7, 0), (7, 1)]))
            if t == 1:
                add(one)
            if t == 2:
                writer.extend(step([(7, 3), (7, 4)], [False, True]))
        writer.add_step(step([(e, 4) for e in range(envs)]), **how)
        writer.extend(step([(7, 5), (7, 6)]))
        flush()
        expected = [[(e, t) for t in range(4)] for e in range(envs)]
        expected += [[(7, t) for t in range(5)]] + [[(e, 4)] for e in range(envs)]
        assert sorted(episodes(storage)) == sorted([*expected, [(7, 5), (7, 6)]]), storage
        assert storage.episodes()["trimmed"].sum() == 0


@pytest.mark.parametrize("before", [False, True], ids=["first", "behind rows"])
def test_a_step_of_which_nothing_is_stored_says_how_many_envs(before: bool, tmp_path: Path) -> None:
    for storage, writer, flush in roads(tmp_path):
        if before:
            writer.extend(step([(7, 0)], True))
        writer.add_step(step([(0, 0), (1, 0), (2, 0)]), mask=np.zeros(3, bool))
        for how in ({}, {"mask": [True, False]}, {"mask": [False, False]}, {"mask": [True, True]}):
            with pytest.raises(LayoutError, match="2 rows.*of 3 envs"):
                writer.add_step(step([(0, 0), (1, 0)]), **how)
        writer.add_step(step([(2, 0)]), env_ids=[2])
        writer.add_step(step([(0, 0), (1, 0), (2, 1)]))
        flush()
        assert episodes(storage)[before:] == [[(2, 0), (2, 1)], [(0, 0)], [(1, 0)]]


def test_a_pickled_writer_knows_which_envs_were_open() -> None:
    """And that a lane of that number was not: what begins there is whole."""
    storage = SharedStorage(1000)
    writer = storage.writer()
    writer.add_step(step([(0, 0), (1, 0)], [False, True]))
    copy = pickle.loads(pickle.dumps(writer))
    copy.extend(step([(7, 0), (7, 1)], [False, True]))
    copy.add_step(step([(0, 1), (1, 1)], True))
    found = {rows[0]: c for rows, c in zip(episodes(storage), storage.episodes()["complete"])}
    assert found == {(0, 0): False, (1, 0): True, (7, 0): True, (0, 1): False, (1, 1): True}
    storage.close()


def test_the_slow_way_looks_too() -> None:
    """Rows that have to be cast do not take the native way."""
    storage = LazyTensorStorage(100, example={"x": np.float32(0), "done": False})
    writer = storage.writer()
    writer.add_step({"x": np.arange(3), "done": np.zeros(3, int)})
    for x in (np.arange(2), np.arange(2, dtype=np.float32)):
        with pytest.raises(LayoutError, match="3 envs"):
            writer.add_step({"x": x, "done": np.zeros(2, int)})
    assert len(storage) == 3
    writer.add_step({"x": np.arange(3, dtype=np.float32), "done": np.zeros(3, bool)})
    assert storage.episodes()["steps"].tolist() == [2, 2, 2]


def test_a_refused_step_says_nothing_of_the_envs() -> None:
    storage = LazyTensorStorage(100, example={"x": 0.0, "done": False})
    writer = storage.writer()
    with pytest.raises(ValueError):
        writer.add_step({"x": np.arange(3.0), "done": np.array([7, 0, 0])})
    writer.add_step({"x": np.arange(2.0), "done": np.zeros(2, bool)})


def _child(storage: SharedStorage, writer: Any, pipe: Any) -> None:
    writer.add_step(step([(0, 9)] * 4))
    pipe.send(len(storage.episodes()))


def test_another_thread_or_process_has_other_envs() -> None:
    with SharedStorage(100) as storage:
        writer = storage.writer()
        writer.add_step(step([(0, 0), (1, 0)]))
        thread = threading.Thread(target=lambda: writer.add_step(step([(0, 5)] * 3)))
        thread.start()
        thread.join()
        assert len(storage) == 5
        here, there = mp.Pipe()
        child = mp.get_context("spawn").Process(target=_child, args=(storage, writer, there))
        child.start()
        assert here.poll(60)
        assert here.recv() == 9
        child.join()


@pytest.fixture
def served() -> Iterator[tuple[Any, Any]]:
    example = {"who": np.zeros(2, np.int64), "next": {"done": False}}
    with SharedStorage(1000, example=example) as storage:
        buffer = ReplayBuffer(storage, batch_size=4)
        with serving(buffer) as server:
            yield buffer, server


def test_over_shared_memory(served: tuple[Any, Any]) -> None:
    buffer, server = served
    with contig.SharedClient(server.name) as near:
        near.add_step(step([(0, 0), (1, 0), (2, 0)]))
        near.add_step(step([(0, 1), (1, 99), (2, 1)]), mask=np.array([True, False, True]))
        near.add_step(step([(1, 1)]), env_ids=[1])
    assert episodes(buffer.storage) == [[(n, 0), (n, 1)] for n in range(3)]


def test_of_an_ensemble() -> None:
    members = [ReplayBuffer(LazyTensorStorage(10)) for _ in range(2)]
    both = contig.ReplayBufferEnsemble(*members)
    both.add_step(step([(0, 0), (1, 0)]), member=1)
    both.add_step(step([(0, 1), (1, 1)]), mask=[False, True], member=1)
    assert [len(m) for m in members] == [0, 3]
    assert episodes(members[1].storage) == [[(0, 0)], [(1, 0), (1, 1)]]


def test_batches_and_tensordicts() -> None:
    tensordict = pytest.importorskip("tensordict")
    torch = pytest.importorskip("torch")
    storage = LazyTensorStorage(100)
    writer = storage.writer()
    rows = step([(0, 0), (1, 0), (2, 0)])
    mask = np.array([True, False, True])
    for t in range(3):
        rows["who"][:, 1] = t
        data: Any = contig.Batch.from_tree(rows, 1)
        if t == 1:
            data = tensordict.TensorDict(
                {"who": torch.tensor(rows["who"]), "next": {"done": torch.zeros(3, dtype=bool)}},
                batch_size=[3],
            )
        elif t == 2:
            data = {"who": torch.tensor(rows["who"]), "next": {"done": np.zeros(3, int)}}
        writer.add_step(data, mask=torch.tensor(mask) if t else mask)
    assert episodes(storage) == [[(n, t) for t in range(3)] for n in (0, 2)]


def test_a_transform_that_leaves_rows_out_is_refused() -> None:
    """Whose the others are would be a guess."""

    class Half:
        def on_write(self, batch: Any) -> Any:
            return batch[batch["who"][:, 0] > 0]

    storage = LazyTensorStorage(10)
    buffer = ReplayBuffer(storage, transform=Half())
    for how in ({}, {"env_ids": [0, 1]}, {"mask": [True, True]}):
        with pytest.raises(LayoutError, match=r"transform made 1 rows of 2.*mask="):
            buffer.add_step(step([(0, 0), (1, 0)]), **how)
    assert len(storage) == 0
