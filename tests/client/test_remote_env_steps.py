"""add_step over the network: whose a row is, as in process, whatever becomes of the connection."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant

from contig import LayoutError, LazyTensorStorage, RemoteReplayBuffer, ReplayBuffer
from contig.sample import SliceSampler
from contig.tape.disk import DiskStorage
from contig.tape.entry import ENTRY
from tests.client.serving import HOST, client, serving
from tests.server.proxy import Proxy
from tests.tape.test_env_steps import ENVS, Envs, Machine, episodes, step

ROW = {"who": np.zeros(2, np.int64), "next": {"done": False}}


@contextlib.contextmanager
def far_buffer(
    example: Any = ROW, storage: Any = None, **keys: Any
) -> Iterator[tuple[Any, RemoteReplayBuffer]]:
    """A storage here, and a far buffer that writes to it."""
    storage = storage or LazyTensorStorage(100_000)
    sampler = SliceSampler(num_slices=1, **keys) if keys else None
    buffer = ReplayBuffer(storage, sampler=sampler, batch_size=4)
    with (
        serving(buffer) as server,
        RemoteReplayBuffer(HOST, server.port, data_sample=example) as far,
    ):
        yield storage, far
    storage.close()


class RemoteMachine(Machine):
    """Any mixture of whole steps, masked ones and steps of some envs, sent by one client."""

    @initialize(
        ids=st.booleans(),
        disk=st.integers(0, 5),
        total=st.integers(1, ENVS),
        form=st.sampled_from([0, 2]),
    )
    def start(self, ids: bool, disk: int, total: int, form: int) -> None:
        self.stack = contextlib.ExitStack()
        storage = None
        if disk == 0:
            folder = self.stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
            storage = DiskStorage(Path(folder) / "a", 100_000)
        example: dict[str, Any] = {"who": np.zeros(3, np.int64), "next": {"done": False}}
        if ids:
            example["episode"] = np.int64(0)
        self.storage, self.buffer = self.stack.enter_context(far_buffer(example, storage))
        self.ids, self.total, self.form = ids, total, form
        self.envs = Envs()
        self.known = False
        self.rows = []
        # Nothing is stored: it says that steps of some envs are to come.
        self.buffer.add_step(self.envs.step([0], [False], ids), env_ids=[0], mask=[False])

    def check_seqs(self, seqs: Any, new: int) -> None:
        assert seqs is None

    @invariant()
    def trajectories(self) -> None:
        if hasattr(self, "rows"):
            self.buffer.flush(30)
            super().trajectories()

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.stack.close()


RemoteMachine.TestCase.settings = settings(
    max_examples=30, stateful_step_count=15, deadline=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
test_any_steps = pytest.mark.filterwarnings("ignore")(RemoteMachine.TestCase)

MARKS = {"episode": np.int64(0), "is_init": False, "collector": {"policy_version": np.int64(0)}}
KEYS: list[dict[str, Any]] = [{}, {"traj_key": "episode"}, {"end_key": ("next", "terminated")}]


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    data=st.data(),
    marks=st.sets(st.sampled_from(sorted(MARKS))),
    keys=st.sampled_from(KEYS),
    flags=st.sampled_from(["done", "terminated", "both", "none"]),
)
def test_marks_say_the_same_as_in_process(data: Any, marks: Any, keys: Any, flags: str) -> None:
    """Rows with any marks, also those that make little sense."""
    if "traj_key" in keys:
        marks = marks | {"episode"}
    if "end_key" in keys:
        flags = "both"
    names = {"done": ["done"], "terminated": ["terminated"], "none": []}.get(
        flags, ["terminated", "truncated"]
    )
    number = 0

    def rows(n: int) -> dict[str, Any]:
        nonlocal number
        number += n
        draw = st.lists(st.integers(0, 1), min_size=n, max_size=n)
        out: dict[str, Any] = {"x": np.arange(number - n, number)}
        reward = np.arange(number - n, number) * 0.5
        out["next"] = {"reward": reward} | {f: np.array(data.draw(draw), bool) for f in names}
        if "episode" in marks:
            out["episode"] = np.array(data.draw(draw))
        if "is_init" in marks:
            out["is_init"] = np.array(data.draw(draw), bool)
        if "collector" in marks:
            out["collector"] = {"policy_version": np.array(data.draw(draw))}
        return out

    example: dict[str, Any] = {"x": 0, "next": {"reward": 0.0} | dict.fromkeys(names, False)}
    example |= {name: MARKS[name] for name in marks}
    near = LazyTensorStorage(1000)
    writer = near.writer()
    near.bind_keys(keys.get("traj_key"), keys.get("end_key"))
    with far_buffer(example, **keys) as (storage, far):
        for some in data.draw(
            st.lists(st.sets(st.integers(0, 2), min_size=1), min_size=1, max_size=12)
        ):
            envs = data.draw(st.permutations(sorted(some)))
            given = rows(len(envs))
            writer.add_step(given, env_ids=envs)
            far.add_step(given, env_ids=envs)
        far.flush(30)
        ours, theirs = storage.episodes(), near.episodes()
        for field in ("id", "first", "steps", "return", "terminated", "truncated", "trimmed",
                      "complete", "policy_version"):  # fmt: skip
            assert ours[field].tolist() == theirs[field].tolist(), field
        for i in theirs["id"].tolist():
            assert storage.read_episode(i)["x"].tolist() == near.read_episode(i)["x"].tolist()
    near.close()


def test_a_step_is_one_frame_and_one_append() -> None:
    with far_buffer() as (storage, far):
        for t in range(3):
            far.add_step(step([(e, t) for e in range(64)]), mask=np.arange(64) != 5)
        far.flush(30)
        assert len(storage) == 3 * 63
        assert storage.episodes()["steps"].tolist() == [3] * 63
        # Rows of one append have one time.
        times = storage.tape.entries(0, 3 * 63).view(ENTRY)["time_ns"].reshape(3, 63)
        assert (times == times[:, :1]).all()


def test_a_step_of_more_than_a_frame() -> None:
    storage = LazyTensorStorage(10_000)
    example = {"who": np.zeros(2, np.int64), "x": np.zeros(500), "next": {"done": False}}
    with serving(ReplayBuffer(storage, batch_size=4), max_frame=64 << 10) as server:
        with client(server, example) as far:
            for t in range(4):
                rows = step([(e, t) for e in range(100)])
                rows["x"] = np.zeros((100, 500))
                how = {"mask": np.ones(100, bool)} if t % 2 else {"env_ids": np.arange(100)}
                far.add_step(rows, **how)
            far.wait(30)
        with client(server, example) as far, pytest.raises(LayoutError, match="max_frame"):
            far.extend({"who": np.zeros((100, 2), int), "x": np.zeros((100, 500)),
                        "next": {"done": np.zeros(100, bool)}})  # fmt: skip
    assert len(storage) == 400
    assert storage.episodes()["steps"].tolist() == [4] * 100


def test_a_traj_key_decides_alone() -> None:
    """A done row ends nothing then, here or at the server."""
    example = {"x": 0, "episode": np.int64(0), "next": {"done": False}}
    with far_buffer(example, traj_key="episode") as (storage, far):
        for t in range(4):
            rows = {"x": np.array([t, 10 + t]), "next": {"done": np.array([t == 1, False])}}
            far.add_step(rows | {"episode": np.zeros(2, int)}, env_ids=[3, 1])
        far.flush(30)
        found = [storage.read_episode(i)["x"].tolist() for i in range(2)]
        assert found == [[0, 1, 2, 3], [10, 11, 12, 13]]


def test_nothing_is_half_sent() -> None:
    with far_buffer() as (storage, far):
        rows = step([(0, 0), (1, 0)])
        rows["next"]["done"] = np.array([False, True]).astype(float) * 7
        with pytest.raises(ValueError, match="done"):
            far.add_step(rows, env_ids=[0, 1])
        far.add_step(step([(0, 0), (1, 0), (2, 0)]))  # nothing was said of the envs before
        for bad in (step([(0, 1), (1, 1)]), {"who": np.zeros((3, 3), int), "next": rows["next"]}):
            with pytest.raises(ValueError):
                far.add_step(bad)
        far.add_step(step([(2, 1)]), env_ids=[2])
        far.flush(30)
        assert episodes(storage) == [[(0, 0)], [(1, 0)], [(2, 0), (2, 1)]]


def test_threads_of_a_client_have_the_same_envs() -> None:
    with far_buffer() as (storage, far):
        for t in range(6):
            thread = threading.Thread(
                target=far.add_step, args=(step([(1, t), (3, t)]),), kwargs={"env_ids": [1, 3]}
            )
            thread.start()
            thread.join()
        far.flush(30)
        assert episodes(storage) == [[(e, t) for t in range(6)] for e in (1, 3)]


def test_rows_of_other_calls() -> None:
    """They go on in the server's lanes, which have nothing to do with envs, whoever has those."""
    with far_buffer() as (storage, far):
        far.add_step(step([(0, 0), (1, 0)], [True, False]), env_ids=[0, 1])
        far.add({"who": np.array([9, 0]), "next": {"done": False}})
        far.extend_trajectory(step([(8, 0), (8, 1)]), terminated=True)
        far.add_step(step([(1, 1)], True), env_ids=[1])
        far.extend(step([(9, 1), (9, 2)]))
        far.add_step(step([(0, 5), (1, 5)]))
        far.add_step(step([(1, 6)]), env_ids=[1])
        far.add_step(step([(0, 6), (1, 7)]), mask=[True, True])
        far.extend(step([(9, 3)], True))
        far.flush(30)
        assert episodes(storage) == [
            [(0, 0)],
            [(1, 0), (1, 1)],
            [(9, t) for t in range(4)],
            [(8, 0), (8, 1)],
            [(0, 5), (0, 6)],
            [(1, 5), (1, 6), (1, 7)],
        ]


def test_whole_steps_are_the_servers() -> None:
    """Unless some came with env_ids or a mask before; those cannot come later."""
    example = {"who": np.zeros(2, np.int64), "episode": np.int64(0), "next": {"done": False}}
    with far_buffer(example) as (storage, far):
        for t in range(3):
            far.add_step(step([(0, t), (1, t)]) | {"episode": np.array([40, 50])})
        with pytest.raises(LayoutError, match="from its first step on"):
            far.add_step(step([(1, 3)]) | {"episode": np.array([50])}, env_ids=[1])
        far.add_step(step([(0, 3), (1, 3)]) | {"episode": np.array([40, 50])})
        far.flush(30)
        assert episodes(storage) == [[(e, t) for t in range(4)] for e in range(2)]
        assert storage.episodes()["traj_id"].tolist() == [40, 50]


def test_cut_connections_lose_no_env() -> None:
    """Every row once, every env's episodes whole, through a connection that breaks again and
    again."""
    rng = np.random.default_rng(0)
    envs = Envs()
    storage = LazyTensorStorage(1_000_000)
    example = {"who": np.zeros(3, np.int64), "pad": np.zeros(50), "next": {"done": False}}
    expected: dict[tuple[int, int], list[list[int]]] = {}
    with (
        serving(ReplayBuffer(storage, batch_size=4)) as server,
        Proxy(server.port, 3) as proxy,
        RemoteReplayBuffer(
            HOST, proxy.port, data_sample=example, reconnect_s=60, max_inflight_msgs=4
        ) as far,
    ):
        proxy.rage()
        for number in range(3000):
            some = rng.permutation(ENVS)[: rng.integers(1, ENVS + 1)].tolist()
            if number % 3 == 1:
                some = list(range(ENVS))
            done = (rng.random(len(some)) < 0.05).tolist()
            rows = envs.step(some, done, False)
            rows["pad"] = np.zeros((len(some), 50))
            far.add_step(rows, env_ids=None if number % 3 == 1 else some)
            for row in envs.go_on(some, done):
                expected.setdefault(row[:2], []).append(list(row))
            if number % 500 == 499:
                proxy.cut_all()
        proxy.calm()
        far.flush(60)
        assert proxy.counts["connections"] > 5, proxy.counts
        assert far._client.resends > 0
        assert server.stats().lost_items == 0
    table = storage.episodes()
    found = [storage.read_episode(int(i))["who"].tolist() for i in table["id"]]
    assert found == list(expected.values())
    over = [envs.episode[env] > episode for env, episode in expected]
    assert table["terminated"].tolist() == over
    assert table["complete"].tolist() == over
