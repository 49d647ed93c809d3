"""What goes over a wire, or through shared memory, into a tape is what a local buffer would hold.

A script of calls, drawn by hypothesis, is applied to a local ReplayBuffer and, through clients, to
tables of a real server; then all hold the same episodes, row for row. Two things differ on purpose:

- The parts of a streamed trajectory (`client.writer()`) need an id on the wire that no other
  trajectory of the client has, so `episodes()` shows that one, whatever the rows say.
- Frames are coalesced, and one frame is one append: of an append larger than the whole storage
  the leading rows get no seq. Numbers of rows (`first`) may differ then, rows never do.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contig import (
    Batch,
    LayoutError,
    LazyTensorStorage,
    ReplayBuffer,
    Server,
    SharedClient,
    SharedStorage,
    SliceSampler,
    TcpClient,
    TcpTransport,
)
from contig.testing import steps
from tests.client.serving import HOST, ROW, client, serving, shared
from tests.waiting import until

FLAGS = ("done", "terminated", "truncated")
GIVEN = (FLAGS, ("done",), ("terminated", "truncated"), ("terminated",), ("done", "truncated"))
FORMS = ("flags", "ids", "episode", "init", "column", "bare")
COMPARED = ("steps", "return", "terminated", "truncated", "trimmed", "complete")
SAID = ("traj_id", "policy_version")


# -- rows and scripts -----------------------------------------------------------------------------


def make_rows(form: str, uids: list[int], letters: str, ids: list[int], draw: Any) -> Any:
    """Rows ``[N, ...]`` of one of the forms; `draw` chooses among equal ways to give them."""
    n = np.asarray(uids, np.int64)
    ends = np.array(list(letters))
    tree: dict[str, Any] = {
        "uid": n,
        "obs": np.stack([n, n + 0.5], -1).astype(draw.choice([np.float32, np.float64])),
        "next": {"reward": n.astype(draw.choice([np.float32, np.int64]))},
    }
    if form != "bare":
        terminated, truncated = np.isin(ends, ["t", "b"]), np.isin(ends, ["u", "b"])
        flags = {
            "done": terminated | truncated,
            "terminated": terminated,
            "truncated": truncated,
        }
        names = draw.choice(GIVEN)
        if names == ("done",) or names == ("terminated",):  # they cannot say "truncated"
            names = names if not truncated.any() else FLAGS
        if names == ("done", "truncated") and (terminated & truncated).any():
            names = FLAGS
        for name in names:
            value = flags[name].astype(draw.choice([bool, np.uint8]))
            tree["next"][name] = value[:, None] if form == "column" else value
    if form == "ids":
        tree["collector"] = {
            "traj_ids": np.asarray(ids, np.int64),
            "policy_version": n // 7,
        }
    if form == "episode":
        tree["episode"] = np.asarray(ids, np.int32)
    if form == "init":
        tree["is_init"] = ends == "i"
    return tree


def example(form: str) -> Any:
    row = make_rows(form, [0], ".", [0], random.Random(0))
    row["obs"] = row["obs"].astype(np.float32)
    row["next"]["reward"] = row["next"]["reward"].astype(np.float32)
    if form != "bare":
        row["next"] |= {f: np.zeros((1, 1) if form == "column" else 1, bool) for f in FLAGS}
    return first_of(row)


def first_of(tree: Any) -> Any:
    return {k: first_of(v) for k, v in tree.items()} if isinstance(tree, dict) else tree[0]


LETTERS = {"init": "..i.tu", "bare": "."}


@st.composite
def scripts(draw: Any, streams: bool = True) -> tuple[str, list[tuple[Any, ...]]]:
    form = draw(st.sampled_from(FORMS))
    kinds = ["send", "send", "extend", "extend", "whole", "lanes", "bad"]
    kinds += ["step", "step", "step", "end"] if streams else []
    ops: list[tuple[Any, ...]] = []
    uid = 0
    for _ in range(draw(st.integers(1, 14))):
        kind = draw(st.sampled_from(kinds))
        n = 1 if kind in ("send", "step") else draw(st.integers(1, 7))
        if kind == "lanes":
            n = 4
        alphabet = LETTERS.get(form, "....tub" if form != "column" else "...tu")
        letters = "".join(draw(st.sampled_from(alphabet)) for _ in range(n))
        ids = [draw(st.integers(0, 2))] * n
        if kind == "extend" and draw(st.booleans()):
            ids = [draw(st.integers(0, 2)) for _ in range(n)]
        uids, uid = list(range(uid, uid + n)), uid + n
        seed = draw(st.integers(0, 9))
        more: Any = None
        if kind == "extend":
            more = draw(st.sampled_from([None, None, True, False]))
        elif kind == "whole":
            more = draw(
                st.fixed_dictionaries(
                    {},
                    optional={
                        "terminated": st.booleans(),
                        "truncated": st.booleans(),
                        "traj_id": st.integers(0, 2),
                        "policy_version": st.integers(0, 3),
                        "lacking": st.just(True),
                    },
                )
            )
        elif kind == "step":
            more = draw(st.integers(0, 1))
        elif kind == "end":
            more = (draw(st.integers(0, 1)), draw(st.booleans()), draw(st.booleans()))
        ops.append((kind, uids, letters, ids, seed, more))
    return form, ops


# -- applying them --------------------------------------------------------------------------------


class Local:
    """A ReplayBuffer of this process; streamed steps go through writers of their own, or, if rows
    have no flags that could say it, as whole trajectories when they end."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self.buffer = buffer
        self.add, self.extend = buffer.add, buffer.extend
        self.whole = buffer.extend_trajectory
        self._writers = [buffer.storage.writer(), buffer.storage.writer()]
        self._steps: dict[int, list[Any]] = {0: [], 1: []}
        layout = buffer.storage.layout
        assert layout is not None
        self._flag = layout.by_path.get(("next", "done"))

    def step(self, writer: int, tree: Any) -> None:
        if self._flag is not None:
            self._flush(writer, False, False)
        self._steps[writer].append(tree)

    def _flush(self, writer: int, terminated: bool, truncated: bool) -> None:
        assert self._flag is not None
        shape = self._flag.shape
        for row in self._steps[writer]:
            done = (terminated or truncated, terminated, truncated)
            flags = {name: np.full(shape, value) for name, value in zip(FLAGS, done)}
            self._writers[writer].add({**row, "next": {**row["next"], **flags}})
        self._steps[writer] = []

    def end(self, writer: int, terminated: bool, truncated: bool) -> None:
        end = (terminated, truncated or not terminated)
        if self._flag is not None:
            self._flush(writer, *end)
        elif self._steps[writer]:
            told = dict(zip(("terminated", "truncated"), end))
            self.buffer.extend_trajectory(stack(self._steps[writer]), **told)
        self._steps[writer] = []

    def settle(self) -> None:
        pass

    def finish(self) -> None:
        for writer, rows in self._steps.items():
            if self._flag is not None:
                self._flush(writer, False, False)
            elif rows:
                self.buffer.extend_trajectory(stack(rows), terminated=False, truncated=False)


class Far:
    """The same through a client; `settles` waits for every call's ack."""

    def __init__(self, client: Any, settles: bool) -> None:
        self._client, self._settles = client, settles
        self.add, self.extend = client.send, client.extend
        self.whole = client.send_trajectory
        self._writers = [client.writer(), client.writer()]
        self._open = [False, False]

    def step(self, writer: int, tree: Any) -> None:
        self._writers[writer].append(tree)
        self._open[writer] = True

    def end(self, writer: int, terminated: bool, truncated: bool) -> None:
        if self._open[writer]:
            self._writers[writer].end_episode(terminated=terminated, truncated=truncated)
        self._open[writer] = False

    def settle(self) -> None:
        if self._settles:
            self._client.wait(20)

    def finish(self) -> None:
        for writer in self._writers:
            writer.close()
        self._client.close()


def stack(rows: list[Any]) -> Any:
    if isinstance(rows[0], dict):
        return {k: stack([r[k] for r in rows]) for k in rows[0]}
    return np.stack(rows)


def apply(target: Any, form: str, ops: list[tuple[Any, ...]]) -> list[str]:
    """Runs a script; the errors it met."""
    errors = []
    for kind, uids, letters, ids, seed, more in ops:
        try:
            one(target, form, kind, uids, letters, ids, random.Random(seed), more)
        except ValueError as error:
            errors.append(f"{kind} {uids[0]}: {type(error).__name__} {error}")
        target.settle()
    target.finish()
    return errors


def one(
    target: Any,
    form: str,
    kind: str,
    uids: list[int],
    letters: str,
    ids: list[int],
    how: Any,
    more: Any,
) -> None:
    if kind == "end":
        target.end(*more)
        return
    if kind == "step":  # `end` says how it ends; the rows' own flags say nothing
        letters = "." * len(letters)
    data = make_rows(form, uids, letters, ids, how)
    if kind == "send":
        target.add(first_of(data))
    elif kind == "extend":
        target.extend(data, continues=more)
    elif kind == "whole":
        end = {k: v for k, v in more.items() if k != "lacking"}
        if "lacking" in more and form != "bare":
            data["next"] = {"reward": data["next"]["reward"]}
        target.whole(data, **end)
    elif kind == "lanes":  # [2, 2]: two envs, two steps; a Batch has its own batch shape
        target.extend(Batch.from_tree(data, 1).reshape(2, 2))
    elif kind == "step":
        row = first_of(data)
        if form != "bare":
            row["next"] = {"reward": row["next"]["reward"]}
        target.step(more, row)
    else:
        spoil = how.choice(("shape", "dtype", "missing", "surplus"))
        if spoil == "shape":
            data["obs"] = data["obs"][:, :1]
        elif spoil == "dtype":
            data["uid"] = data["uid"] + 0.5
        elif spoil == "missing":
            del data["obs"]
        else:
            data["more"] = data["uid"]
        target.extend(data)


def contents(storage: Any, streamed: set[int]) -> dict[int, Any]:
    """Every episode by its first row: what `episodes()` says, and all bytes of its rows."""
    out = {}
    for episode in storage.episodes():
        batch = storage.read_episode(int(episode["id"]))
        uids, leaves = batch["uid"].tolist(), batch.keys()
        np.testing.assert_array_equal(batch["obs"][:, 0], batch["uid"].astype(np.float32))
        said = {} if uids[0] in streamed else {k: episode[k].item() for k in SAID}
        values = {k: batch[k].tobytes() for k in leaves}
        out[uids[0]] = ({k: episode[k].item() for k in COMPARED}, said, uids, values)
    assert sum(len(e[2]) for e in out.values()) == len(storage)
    return out


def check(script: tuple[str, list[tuple[Any, ...]]], capacity: int, process: bool = False) -> None:
    form, ops = script
    row = example(form)
    names = ("settled", "coalesced", "shared", "lazy")
    storages: dict[str, Any] = {n: SharedStorage(capacity, example=row) for n in names[:3]}
    storages["lazy"] = LazyTensorStorage(capacity, example=row)
    streamed = {op[1][0] for op in ops if op[0] == "step"}
    local = ReplayBuffer(LazyTensorStorage(capacity, example=row))
    errors = apply(Local(local), form, ops)
    expected = contents(local.storage, streamed)
    tables = {n: ReplayBuffer(s) for n, s in storages.items()}
    with Server(tables=tables, transport=TcpTransport(in_process=not process)) as server:
        for name in names:
            if name == "shared":
                far: Any = SharedClient(server.name, row, table=name)
            else:
                far = TcpClient(HOST, server.port, row, table=name)
            assert apply(Far(far, name != "coalesced"), form, ops) == errors, name
            assert contents(storages[name], streamed) == expected, name
    for storage in storages.values():
        storage.close()


@given(scripts())
@settings(max_examples=40)
def test_any_script_gives_what_a_local_buffer_gives(script: Any) -> None:
    check(script, 1000)


@given(scripts(streams=False))
@settings(max_examples=20)
def test_rows_that_are_evicted_are_the_same_ones(script: Any) -> None:
    check(script, 16)


@given(scripts())
@settings(max_examples=2)
def test_the_same_through_an_ingest_process(script: Any) -> None:
    check(script, 1000, process=True)


# -- one by one -----------------------------------------------------------------------------------


def test_an_example_without_optional_flags_is_completed() -> None:
    row = {"obs": 0.0, "next": {"reward": 0.0, "done": False}}
    buffer = shared(example=None)
    with serving(buffer) as server:
        with client(server, row) as far:
            far.send({"obs": 1.0, "next": {"reward": 1.0, "terminated": False}})
            two, one = np.ones(2, int), np.ones(1)
            far.extend({"obs": 2 * two, "next": {"reward": two, "done": np.array([0, 1])}})
            far.send_trajectory({"obs": one, "next": {"reward": one}}, truncated=True)
    episodes = buffer.storage.episodes()
    assert episodes["steps"].tolist() == [3, 1]
    assert episodes["terminated"].tolist() == [True, False]
    assert episodes["truncated"].tolist() == [False, True]
    assert buffer[:]["next", "truncated"].tolist() == [False, False, False, True]


WRONG = {
    "shape": ({"obs": np.zeros(3)}, '"obs"'),
    "fraction": ({"uid": 0.5}, '"uid"'),
    "text": ({"obs": "no"}, '"obs"'),
    "flag": ({"next": {"reward": 0.0, "done": 2}}, '("next", "done")'),
    "missing": ({"uid": None}, "uid"),
    "surplus": ({"more": 1.0}, "more"),
}


@pytest.mark.parametrize("kind", ["tcp", "shared"])
@pytest.mark.parametrize("what", list(WRONG))
def test_what_does_not_fit_is_refused_and_nothing_is_sent(what: str, kind: str) -> None:
    row = {"uid": 1, "obs": np.zeros(2, np.float32), "next": {"reward": 0.0, "done": False}}
    wrong, path = WRONG[what]
    bad = {**row, **wrong}
    if what == "missing":
        del bad["uid"]
    buffer = shared(example=row)
    with serving(buffer) as server:
        far: Any = client(server, row) if kind == "tcp" else SharedClient(server.name, row)
        with far:
            writer = far.writer()
            for call in (far.send, writer.append):
                with pytest.raises(ValueError) as raised:
                    call(bad)
                assert path.strip('"') in str(raised.value)
            with pytest.raises(ValueError, match="expected|unexpected|fit|dims|no leading|rows"):
                far.extend(bad)
            writer.close()
            far.wait(20)
            assert len(buffer) == 0
            assert getattr(far, "pending", 0) == 0
            far.send(row)  # and it goes on
            far.wait(20)
            assert buffer[:]["uid"].tolist() == [1]


@pytest.mark.parametrize("kind", ["local", "tcp", "shared"])
def test_rows_without_any_of_the_flags_are_refused_every_time(kind: str) -> None:
    row = {"obs": 0.0, "next": {"reward": 0.0, "done": False}}
    lacking = {"obs": 0.0, "next": {"reward": 0.0}}
    buffer = shared(example=row)
    with serving(buffer) as server:
        far: Any = SharedClient(server.name) if kind == "shared" else client(server)
        with far:
            for _ in range(3):
                with pytest.raises(LayoutError, match="done"):
                    (buffer.add if kind == "local" else far.send)(lacking)
    assert len(buffer) == 0


def test_an_empty_extend_or_trajectory_sends_nothing() -> None:
    empty = steps.episode(0, 0)
    buffer = shared()
    with serving(buffer) as server, client(server) as far:
        far.extend(empty)
        far.send_trajectory(empty)
        far.wait(20)
        assert len(buffer) == 0 and len(buffer.storage.episodes()) == 0


def test_a_streamed_trajectory_is_linked_over_other_writers_rows() -> None:
    buffer = shared()
    with serving(buffer) as server, client(server) as a, client(server) as b:
        writers = [a.writer(), a.writer(), b.writer()]
        for t in range(6):
            for number, writer in enumerate(writers):
                writer.append(steps.row(number, t), policy_version=t)
            b.send(steps.row(9, t))
            for far in (a, b):
                far.wait(20)
        for number, writer in enumerate(writers):
            writer.end_episode(terminated=number == 0)
    storage = buffer.storage
    found = {}
    for episode in storage.episodes():
        rows = steps.identity(storage.read_episode(int(episode["id"])))
        found[rows[0][0]] = (rows, episode)
    assert sorted(found) == [0, 1, 2, 9]
    for number, (rows, episode) in found.items():
        assert rows == [(number, t) for t in range(6)]
        assert episode["return"] == sum(1000 * number + t + 1 for t in range(6))
        assert episode["terminated"] == (number == 0)
        assert episode["truncated"] == (number in (1, 2))
    assert found[0][1]["policy_version"] == 5
    last = storage.read_episode(int(found[0][1]["id"]))
    assert last["next", "terminated"].tolist() == [False] * 5 + [True]
    assert last["next", "done"].tolist() == [False] * 5 + [True]


@pytest.mark.parametrize("kind", ["tcp", "shared"])
def test_a_streamed_trajectory_has_the_version_of_its_rows(kind: str) -> None:
    buffer = shared()
    with serving(buffer) as server:
        far: Any = client(server) if kind == "tcp" else SharedClient(server.name)
        with far:
            writer = far.writer()
            for t in range(3):
                writer.append(steps.row(7, t, version=5))
            writer.end_episode(terminated=True)
            far.send_trajectory(steps.episode(8, 3, version=5))
    assert buffer.storage.episodes()["policy_version"].tolist() == [5, 5]


def test_end_episode_without_arguments_is_what_the_last_row_says() -> None:
    buffer = shared()
    with serving(buffer) as server, client(server) as far:
        writer = far.writer()
        for t in range(3):
            writer.append(steps.row(7, t, end="terminated" if t == 2 else None))
        writer.end_episode()
        far.send_trajectory(steps.episode(8, 3, end="terminated"))  # the same, in one piece
        far.wait(20)
        one, whole = buffer.storage.episodes()[["terminated", "truncated"]].tolist()
        assert whole == (True, False)
        assert one == whole
        assert buffer[:]["next", "truncated"].tolist() == [False] * 6


@pytest.mark.parametrize("end", [{"truncated": True}, {"terminated": False}])
def test_end_episode_that_contradicts_the_last_row_is_refused(end: dict[str, bool]) -> None:
    buffer = shared()
    with serving(buffer) as server, client(server) as far:
        with pytest.raises(LayoutError, match="terminated|truncated"):
            far.send_trajectory(steps.episode(8, 1, end="terminated"), **end)
        writer = far.writer()
        writer.append(steps.row(7, 0, end="terminated"))
        with pytest.raises(LayoutError, match="terminated|truncated"):
            writer.end_episode(**end)
        writer.end_episode()  # it is still there to be ended
    assert buffer.storage.episodes()[["terminated", "truncated"]].tolist() == [(True, False)]
    assert buffer[:]["next", "truncated"].tolist() == [False]


def test_end_episode_before_any_step_is_refused() -> None:
    buffer = shared()
    with serving(buffer) as server, client(server) as far:
        writer = far.writer()
        with pytest.raises(ValueError, match="before any step"):
            writer.end_episode()
        writer.append(steps.row(0, 0))
        writer.end_episode()
        with pytest.raises(ValueError, match="before any step"):
            writer.end_episode(terminated=True)


def test_a_writers_newest_step_is_sent_by_close_and_the_trajectory_stays_open() -> None:
    buffer = shared()
    with serving(buffer) as server, client(server) as far:
        with far.writer() as writer:
            writer.append(steps.row(0, 0))
            writer.append(steps.row(0, 1))
            far.wait(20)
            assert len(buffer) == 1
        far.wait(20)
        (episode,) = buffer.storage.episodes()
        assert (episode["steps"], episode["complete"]) == (2, False)
        writer.append(steps.row(0, 2))  # it goes on
        writer.end_episode(terminated=True)
        far.wait(20)
        (episode,) = buffer.storage.episodes()
        assert (episode["steps"], episode["complete"]) == (3, True)


@pytest.mark.parametrize("kind", ["tcp", "shared"])
def test_a_samplers_keys_travel_to_the_writers(kind: str) -> None:
    row = {"obs": 0.0, "episode": 0, "game": 0, "over": False}
    sampler = SliceSampler(slice_len=2, traj_key="game")
    buffer = ReplayBuffer(SharedStorage(100), sampler, batch_size=2)
    with serving(buffer) as server:
        far: Any = client(server, row) if kind == "tcp" else SharedClient(server.name, row)
        with far:
            for t in range(6):
                far.send({"obs": float(t), "episode": t, "game": t // 3, "over": t == 1})
    assert buffer.storage.episodes()["steps"].tolist() == [3, 3]
    assert buffer.storage.episodes()["traj_id"].tolist() == [0, 1]


def test_nested_end_keys_travel_through_the_ingest_process() -> None:
    row = {"obs": 0.0, "info": {"over": False}}
    sampler = SliceSampler(slice_len=2, end_key=("info", "over"))
    buffer = ReplayBuffer(LazyTensorStorage(100), sampler, batch_size=2)
    with serving(buffer, process=True) as server, client(server, row) as far:
        for t in range(6):
            far.send({"obs": float(t), "info": {"over": t % 3 == 2}})
        far.wait(20)
        assert buffer.storage.episodes()["steps"].tolist() == [3, 3]
        assert buffer.sample()["obs"].shape == (2,)


@pytest.mark.parametrize("kind", ["tcp", "shared"])
def test_lanes_of_plain_trees_as_the_storage_takes_them(kind: str) -> None:
    row = {"obs": np.zeros(2, np.float32), "next": {"reward": 0.0, "done": False}}
    data = {
        "obs": np.zeros((2, 3, 2)),
        "next": {"reward": np.arange(6.0).reshape(2, 3), "done": np.zeros((2, 3), bool)},
    }
    buffer = ReplayBuffer(SharedStorage(100, ndim=2, example=row))
    with serving(buffer) as server:
        far: Any = client(server) if kind == "tcp" else SharedClient(server.name)
        with far:
            far.extend(data)
    assert buffer.storage.episodes()["steps"].tolist() == [3, 3]


def test_a_tensordict_brings_its_own_batch_shape() -> None:
    tensordict = pytest.importorskip("tensordict")
    torch = pytest.importorskip("torch")
    data = tensordict.TensorDict(
        {"obs": torch.arange(6.0).reshape(2, 3), "next": {"done": torch.zeros(2, 3).bool()}},
        [2, 3],
    )
    row = {"obs": 0.0, "next": {"done": False}}
    buffer = shared(example=row)
    with serving(buffer) as server:
        with client(server) as far, SharedClient(server.name) as near:
            far.extend(data)
            far.wait(20)
            near.extend(data)
    assert buffer.storage.episodes()["steps"].tolist() == [3, 3, 3, 3]
    assert buffer[:]["obs"].tolist() == [0, 1, 2, 3, 4, 5] * 2


def test_more_rows_than_a_frame_holds_are_refused_with_a_hint() -> None:
    buffer = shared()
    with serving(buffer, max_frame=64 << 10) as server, client(server) as far:
        with pytest.raises(LayoutError, match="max_frame"):
            far.send_trajectory(steps.episode(0, 2000))
        far.send_trajectory(steps.episode(0, 20))
        far.wait(20)
        assert buffer.storage.episodes()["steps"].tolist() == [20]


def test_a_table_is_no_queue_and_a_queue_no_table() -> None:
    with Server(ROW, 2, TcpTransport(in_process=True)) as server:
        with client(server) as far:
            for call in (far.extend, far.send_trajectory):
                with pytest.raises(TypeError, match="queue"):
                    call(steps.episode(0, 2))
            with pytest.raises(TypeError, match="queue"):
                far.writer()
    with serving(shared()) as server:
        with pytest.raises(TypeError, match="buffers"):
            server.sample()
        with pytest.raises(TypeError, match="buffers"):
            server.submit(ROW)


@pytest.mark.parametrize("kind", ["tcp", "shared"])
def test_send_many_rows_goes_on_like_extend(kind: str) -> None:
    buffer = shared()
    with serving(buffer) as server:
        far: Any = client(server) if kind == "tcp" else SharedClient(server.name)
        with far:
            far.send_many(steps.episode(0, 3, end=None))
            far.send_many(steps.episode(0, 2, start=3))
        episodes = until(lambda: len(buffer) == 5) and buffer.storage.episodes()
    assert episodes["steps"].tolist() == [5] and episodes["terminated"].tolist() == [True]
