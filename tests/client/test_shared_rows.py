"""Clients of tables that store observations once: what they send is less, and comes out the same.

The same calls go to a table that stores rows whole; then the rows of both are compared, bit by bit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from contig import LayoutError, LazyTensorStorage, RateLimiter, ReplayBuffer, TcpClient
from contig.wire import handshake, versions
from tests.client.serving import HOST, client, free_port, serving
from tests.tape.observations import Env, Form, batch_bytes, stacked
from tests.waiting import WAIT_S, Threads, until

FORMS = [
    Form(),
    Form(state=True),
    Form(frames=4, axis=-1, image=True),
    Form(frames=3, state=True),
    Form(frames=2, state=True, below_next=False),
]


def rnd(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def buffer_for(form: Form, shares: bool = True, **options: Any) -> ReplayBuffer:
    row = Env(form, 0, rnd(0)).row()
    share = False if not shares else True if form.below_next else None
    stack = form.stack if shares else None
    storage = LazyTensorStorage(4000, 2, row, share_next=share, stack=stack)
    return ReplayBuffer(storage, **options)


def stored(buffer: ReplayBuffer) -> dict[Any, bytes]:
    storage: Any = buffer.storage
    head, tail, *_ = storage.tape.snapshot()
    batch, lost = storage.gather(np.arange(tail, head, dtype=np.int64))
    assert not lost
    return batch_bytes(batch)


def trajectories(buffer: ReplayBuffer) -> list[Any]:
    """Their rows, and how they end, in an order that does not depend on when they came."""
    storage: Any = buffer.storage
    out = []
    for entry in storage.episodes():
        rows = batch_bytes(storage.read_episode(int(entry["id"])))
        said = [bool(entry[k]) for k in ("complete", "terminated", "truncated")]
        out.append((rows[("action",)], said, sorted((str(k), v) for k, v in rows.items())))
    return sorted(out)


class Calls:
    """The same calls for every client: rows of some envs, in all the ways there are."""

    def __init__(self, form: Form, seed: int, first: int = 0) -> None:
        self.rnd = rnd(seed)
        self.envs = [Env(form, first + n, self.rnd) for n in range(4)]
        self.made = [self._one() for _ in range(60)]

    def _rows(self, env: Env, end: bool = True) -> Any:
        n = int(self.rnd.integers(1, 8))
        return stacked([env.row(end and i == n - 1) for i in range(n)])

    def _one(self) -> tuple[str, Any]:
        how = str(self.rnd.choice(["send", "extend", "lanes", "whole", "stream", "step", "wait"]))
        if how == "send":
            return how, self.envs[0].row(bool(self.rnd.random() < 0.2))
        if how in ("extend", "whole"):
            return how, self._rows(self.envs[0 if how == "extend" else 1])
        if how == "lanes":
            lanes = [stacked([e.row() for _ in range(3)]) for e in self.envs[:2]]
            return how, stacked(lanes)
        if how == "stream":
            return how, [self.envs[2].row() for _ in range(int(self.rnd.integers(1, 6)))]
        if how == "step":
            return how, stacked([e.row(bool(self.rnd.random() < 0.2)) for e in self.envs])
        return how, None

    def to(self, far: TcpClient) -> None:
        for how, data in self.made:
            if how == "send":
                far.send(data)
            elif how == "extend" or how == "lanes":
                far.extend(data)
            elif how == "whole":
                far.send_trajectory(data, terminated=True)
            elif how == "step":
                far.add_step(data)
            elif how == "stream":
                with far.writer() as writer:
                    for row in data:
                        writer.append({k: v for k, v in row.items()})
                    writer.end_episode(truncated=True)
            else:
                far.wait(WAIT_S)
        far.wait(WAIT_S)


@pytest.mark.parametrize("form", FORMS)
def test_every_way_in(form: Form) -> None:
    for seed in range(3):
        both = {name: buffer_for(form, name == "once") for name in ("once", "whole")}
        calls = Calls(form, seed)
        with serving(both, max_frame=64 << 10) as server:
            for name, buffer in both.items():
                with client(server, table=name) as far:
                    assert far._thread.compact == (name == "once")
                    calls.to(far)
                assert len(buffer) > 100
        assert stored(both["once"]) == stored(both["whole"])
        assert trajectories(both["once"]) == trajectories(both["whole"])


def test_slots_that_are_encoded() -> None:
    """A codec is the table's affair."""
    row = Env(FORMS[0], 0, rnd(0)).row()
    storage = LazyTensorStorage(4000, 2, row, codecs={"obs": "lz4"}, share_next=True)
    assert storage.schema is not None and storage.schema.sharing is not None
    both = {"once": ReplayBuffer(storage), "whole": buffer_for(FORMS[0], False)}
    calls = Calls(FORMS[0], 5)
    with serving(both) as server:
        for name in both:
            with client(server, table=name) as far:
                assert far._thread.compact == (name == "once")
                calls.to(far)
    assert stored(both["once"]) == stored(both["whole"])


@pytest.mark.parametrize("form", [FORMS[0], FORMS[3]])
def test_steps_of_some_envs(form: Form) -> None:
    """Whose boundaries the client finds out."""
    both = {name: buffer_for(form, name == "once") for name in ("once", "whole")}
    random = rnd(0)
    envs = [Env(form, n, random) for n in range(5)]
    steps = []
    for _ in range(60):
        who = np.flatnonzero(random.random(5) < 0.6)
        if len(who):
            rows = stacked([envs[i].row(bool(random.random() < 0.2)) for i in who])
            steps.append((rows, who))
    with serving(both) as server:
        for name in both:
            with client(server, table=name) as far:
                for rows, who in steps:
                    far.add_step(rows, env_ids=who)
    assert stored(both["once"]) == stored(both["whole"])
    assert trajectories(both["once"]) == trajectories(both["whole"])


def test_several_clients() -> None:
    form = FORMS[2]
    both = {name: buffer_for(form, name == "once") for name in ("once", "whole")}
    calls = [Calls(form, n, 10 * n) for n in range(4)]
    with serving(both, process=True) as server:

        def send(name: str, number: int) -> None:
            with client(server, table=name) as far:
                calls[number].to(far)

        Threads(*(lambda t=t, n=n: send(t, n) for t in both for n in range(4))).join(WAIT_S)
        assert len(both["once"]) == len(both["whole"]) > 400
        assert trajectories(both["once"]) == trajectories(both["whole"])


@pytest.mark.parametrize("frames", [1, 4])
@pytest.mark.parametrize("how", ["trajectories", "steps", "step by step"])
def test_bytes_sent(frames: int, how: str) -> None:
    """About half of what whole rows are; of stacks of four, about an eighth."""
    came = {}
    for shares in (True, False):
        frame = rnd(0).integers(0, 256, (4, 64 + frames, 64, 64)).astype(np.uint8)
        obs = np.stack([frame[:, i : i + 65] for i in range(frames)], 2)
        step = np.zeros((4, 64), bool)
        rows = {
            "obs": obs[:, :-1],
            "action": np.zeros((4, 64), np.int64),
            "next": {"obs": obs[:, 1:], "reward": np.zeros((4, 64), np.float32), "done": step},
        }
        row = _at(rows, (0, 0))
        stack = {"obs": frames} if shares and frames > 1 else None
        share = None if shares else False
        buffer = ReplayBuffer(LazyTensorStorage(5000, example=row, share_next=share, stack=stack))
        with serving(buffer) as server, client(server) as far:
            before = server.stats().bytes_in
            # Together: how many of them a frame has would depend on when it is taken.
            far._session.inflight.builder.take(True)
            with far._lock if how == "step by step" else contextlib.nullcontext():
                for i in range(64 if how != "trajectories" else 8):
                    if how == "steps":
                        far.add_step(_at(rows, (slice(None), i)))
                    elif how == "trajectories":
                        far.send_trajectory(_at(rows, i % 4))
                    else:  # as calls do while the thread sends
                        far._tape._writer.add(_at(rows, (0, i)))
            far.wait(WAIT_S)
            until(lambda s=server, n=far.acked: s.stats().items_in >= n)
            came[shares] = server.stats().bytes_in - before
    ratio = came[True] / came[False]
    least = (1 / 2 if frames == 1 else 1 / 8) * 0.98
    # Frames of steps are sent as they come, so they have few steps each.
    most = {"trajectories": 1.12, "step by step": 1.3, "steps": 1.5}[how] * least
    assert least <= ratio <= most, ratio


def _at(tree: Any, index: Any) -> Any:
    if isinstance(tree, dict):
        return {k: _at(v, index) for k, v in tree.items()}
    return tree[index]


# -- servers that come back another way ------------------------------------------------------------


@contextlib.contextmanager
def held_up(form: Form, port: int) -> Iterator[tuple[ReplayBuffer, TcpClient, Calls, Threads]]:
    """A client that sent a lot, of which a server took a part, and died."""
    limiter = RateLimiter(1.0, min_size=1, error_buffer=30)
    first = buffer_for(form, batch_size=4, limiter=limiter)
    calls = Calls(form, 7)
    with serving(first, port=port) as server:
        far = TcpClient(HOST, server.port, max_inflight_msgs=1000)
        sent = Threads(lambda: calls.to(far))
        until(lambda: len(first) >= 30 and far.pending > 5, "what it takes")
        server.close(final=False)
    try:
        yield first, far, calls, sent
    finally:
        with contextlib.suppress(Exception):
            far.close(1.0)


@pytest.mark.parametrize("then", ["same", "whole", "other stack", "version 2"])
def test_a_server_that_comes_back(then: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its table is new, and stores observations in another way: what waits is made anew for it."""
    form, port = Form(frames=4, state=True), free_port()
    with held_up(form, port) as (first, far, calls, sent):
        if then == "version 2":
            monkeypatch.setattr(handshake, "VERSION", 2)
            monkeypatch.setattr(versions, "VERSION", 2)
        second = buffer_for(form, then != "whole")
        if then == "other stack":
            row = Env(form, 0, rnd(0)).row()
            storage = LazyTensorStorage(4000, 2, row, share_next=True, stack={})
            second = ReplayBuffer(storage)
        with serving(second, port=port):
            sent.join(WAIT_S)
            assert far._thread.compact == (then in ("same", "other stack"))
            rows = _joined(stored(first), stored(second))
            with serving(buffer := buffer_for(form, False)) as whole, client(whole) as other:
                calls.to(other)
                # The first server's part is a prefix of all, the second's what follows it.
                assert rows == stored(buffer)


def _joined(a: dict[Any, bytes], b: dict[Any, bytes]) -> dict[Any, bytes]:
    return {k: a[k] + b[k] for k in a}


def test_a_peer_of_version_2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends whole rows to a table that stores observations once, and they are."""
    monkeypatch.setattr(handshake, "VERSION", 2)
    form = FORMS[0]
    both = {name: buffer_for(form, name == "once") for name in ("once", "whole")}
    calls = Calls(form, 0)
    with serving(both) as server:
        for name in both:
            with client(server, table=name) as far:
                assert not far._thread.compact
                calls.to(far)
    assert stored(both["once"]) == stored(both["whole"])
    storage: Any = both["once"].storage
    assert storage.tape.slots_given < 1.7 * len(both["once"])


def test_rows_larger_than_a_frame() -> None:
    """What is too large whole may fit as it is sent; what does not is refused here."""
    seen = rnd(0).integers(0, 256, (400, 1000)).astype(np.uint8)

    def rows(n: int) -> Any:
        done = {"done": np.zeros(n, bool)}
        return {"obs": seen[:n], "next": {"obs": seen[1 : n + 1], **done}}

    storage = LazyTensorStorage(5000, example=_at(rows(1), 0))
    with serving(buffer := ReplayBuffer(storage), max_frame=100_000) as server:
        with client(server) as far:
            far.send_trajectory(rows(90))  # 180 kB
            with pytest.raises(LayoutError, match="120 rows .* largest frame"):
                far.send_trajectory(rows(120))
            far.send_trajectory(rows(90))
        assert len(buffer) == 180
        np.testing.assert_array_equal(buffer[0:90]["obs"], seen[:90])


def test_an_answer_that_makes_no_sense() -> None:
    """A server may say of shared leaves whatever it likes: a client does not believe it."""
    layout = {"layout": None, "keys": {"traj_key": None, "end_key": None}}
    form = FORMS[2]
    schema = buffer_for(form).storage.schema
    assert schema is not None and schema.sharing is not None
    layout["layout"] = schema.layout.to_json()
    good = {"kind": "tape", "schema": layout, "ndim": 1, "seen": 0, "max_inflight": 1 << 20}
    handshake.Accepted.parse(good)
    for shared in (
        5,
        {},
        {"leaves": 5, "paired": True},
        {"leaves": [[["nothing"], 1, True]], "paired": True},
        {"leaves": [[["obs"], 0, True]], "paired": True},
        {"leaves": [[["obs"], 5, True]], "paired": True},
        {"leaves": [[["obs"], 1000, False]], "paired": True},
        {"leaves": [[["obs"], -1, True]], "paired": True},
        {"leaves": [[["action"], 1, True]], "paired": True},
        {"leaves": [], "paired": True},
        {"leaves": [[["obs"], 1, True], [["obs"], 1, True]], "paired": True},
    ):
        with pytest.raises(ValueError, match="makes no sense"):
            handshake.Accepted.parse({**good, "schema": {**layout, "shared": shared}})


def test_old_clients_are_told_nothing() -> None:
    """What a peer of an older version is told of a table is what it always was."""
    told = {"layout": 1, "keys": 2, "shared": 3}
    assert (
        versions.told_schema(1, told) == versions.told_schema(2, told) == {"layout": 1, "keys": 2}
    )
    assert versions.told_schema(3, told) == told
    assert versions.told_schema(3, None) is None
