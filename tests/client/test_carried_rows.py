"""Steps that are sent one by one to tables that store observations once: what came before does not
come again, and what comes out is the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import DiskStorage, LazyTensorStorage, ReplayBuffer, TcpClient
from contig.server import item_shape
from contig.wire import handshake, versions
from tests.client.serving import client, free_port, serving
from tests.client.test_shared_rows import FORMS, Calls, buffer_for, rnd, stored, trajectories
from tests.server.proxy import Proxy
from tests.tape.observations import Env, Form, stacked
from tests.waiting import WAIT_S, until
from tests.wire.carried import CARRIED, KEPT, fields_of
from tests.wire.sniffer import Sniffer
from tests.wire.test_security import Certificates


@pytest.fixture(autouse=True)
def carries_small_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Observations of tests have few bytes."""
    monkeypatch.setattr(item_shape, "_WORTH_BYTES", 1)


def one_by_one(far: TcpClient, form: Form, seed: int) -> None:
    """Steps of three envs and two streams, each acked before the next one, or not."""
    random = rnd(seed)
    envs = [Env(form, n, random) for n in range(5)]
    writers = [far.writer() for _ in range(2)]
    for _ in range(150):
        kind = random.choice(["send", "envs", "stream"])
        end = bool(random.random() < 0.15)
        if kind == "send":
            far.send(envs[0].row(end))
        elif kind == "envs":
            who = np.flatnonzero(random.random(2) < 0.7) + 1
            if len(who):
                rows = stacked([envs[i].row(bool(random.random() < 0.15)) for i in who])
                far.add_step(rows, env_ids=who)
        else:
            number = int(random.integers(2))
            writers[number].append(envs[3 + number].row(end))
            if end:
                writers[number].end_episode(terminated=True)
        if random.random() < 0.8:
            far.wait(WAIT_S)
    for writer in writers:
        writer.close()
    far.wait(WAIT_S)


def carried(sniffer: Sniffer) -> list[int]:
    """Flags of the ITEMS frames that went to the server, of the last connection."""
    data, flags = bytes(sniffer.sent[-1])[48:], []
    while data:
        fields = fields_of(data)
        if fields.type == 4:
            flags.append(fields.flags)
        data = data[40 + fields.length :]
    return flags


@pytest.mark.parametrize("form", [*FORMS, Form(frames=4)])
def test_what_comes_out(form: Form) -> None:
    for seed in range(2):
        both = {name: buffer_for(form, name == "once") for name in ("once", "whole")}
        with serving(both) as server, Sniffer(server.port) as sniffer:
            for name in both:
                with TcpClient("127.0.0.1", sniffer.port, table=name) as far:
                    one_by_one(far, form, seed)
                flags = carried(sniffer)
                assert (sum(bool(f & CARRIED) for f in flags) > 20) == (name == "once")
                assert any(f & KEPT for f in flags) == (name == "once")
        assert stored(both["once"]) == stored(both["whole"])
        assert trajectories(both["once"]) == trajectories(both["whole"])


@pytest.mark.parametrize("form", [FORMS[0], FORMS[3]])
def test_connections_that_are_cut(form: Form) -> None:
    """In the middle of frames, again and again: each goes on with a frame that has all it needs."""
    both = {name: buffer_for(form, name == "once") for name in ("once", "whole")}
    with serving(both) as server, Proxy(server.port, 5) as proxy:
        for name in both:
            proxy.calm()
            port = proxy.port if name == "once" else server.port
            with TcpClient("127.0.0.1", port, table=name, reconnect_s=WAIT_S) as far:
                if name == "once":
                    proxy.rage()
                one_by_one(far, form, 3)
        assert proxy.counts["cut"] > 0
    assert stored(both["once"]) == stored(both["whole"])
    assert trajectories(both["once"]) == trajectories(both["whole"])


@pytest.mark.parametrize("spoken", [1, 2, 3])
@pytest.mark.parametrize("who", ["client", "server"])
def test_older_peers(who: str, spoken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Are told nothing of it, and send what they always did."""
    form = FORMS[2]
    both = {name: buffer_for(form, name == "once") for name in ("once", "whole")}
    with serving(both) as server, Sniffer(server.port) as sniffer:
        for name in both:
            with monkeypatch.context() as patch:
                if who == "client":
                    patch.setattr(handshake, "VERSION", spoken)
                else:
                    patch.setattr(handshake.ServerHandshake, "greet", _greeting(spoken))
                    patch.setattr(versions, "spoken_version", lambda *_: spoken)
                far = TcpClient("127.0.0.1", sniffer.port, table=name)
            with far:
                one_by_one(far, form, 1)
            most = 1 if spoken == 3 and name == "once" else 0
            assert max(carried(sniffer)) == most
    assert stored(both["once"]) == stored(both["whole"])


def _greeting(spoken: int) -> Callable[[Any, bytes], bytes | None]:
    """A server that knows no newer version."""
    real = handshake.ServerHandshake.greet

    def greet(self: Any, data: bytes) -> bytes | None:
        if len(data) >= 48:
            newest = min(int.from_bytes(data[12:16], "little"), spoken)
            data = data[:12] + newest.to_bytes(4, "little") + data[16:]
        return real(self, data)

    return greet


@pytest.mark.parametrize("where", ["process", "disk", "tls"])
def test_everywhere(where: str, tmp_path: Path) -> None:
    form = Form(frames=4, image=True, axis=-1)
    both = {name: buffer_for(form, name == "once") for name in ("once", "whole")}
    options: dict[str, Any] = {"process": where == "process"}
    connecting: dict[str, Any] = {}
    if where == "disk":
        row = Env(form, 0, rnd(0)).row()
        storage = DiskStorage(
            tmp_path / "rows", 4000, example=row, share_next=True, stack=form.stack
        )
        both["once"] = ReplayBuffer(storage)
    if where == "tls":
        certificates = Certificates(tmp_path)
        options["tls"], connecting["tls"] = certificates.own, certificates.authority
    with serving(both, **options) as server:
        for name in both:
            with client(server, table=name, **connecting) as far:
                assert versions.carry_of(far._thread.first.accepted.schema) == (1 << 20) * (
                    name == "once"
                )
                one_by_one(far, form, 2)
        until(lambda: len(both["once"]) == len(both["whole"]))
        assert trajectories(both["once"]) == trajectories(both["whole"])
    for buffer in both.values():
        buffer.storage.close()


@pytest.mark.parametrize("frames", [1, 4])
@pytest.mark.parametrize("envs", [1, 8])
def test_bytes_of_single_steps(frames: int, envs: int) -> None:
    """Each acked before the next one: about half of whole rows; of stacks of four, an eighth."""
    came = {}
    seen = rnd(0).integers(0, 256, (envs, 40 + frames, 84, 84)).astype(np.uint8)
    obs = np.stack([seen[:, i : i + 41] for i in range(frames)], 2)
    for shares in (True, False):

        def rows(t: int, who: Any) -> Any:
            n = obs[who, t].shape[: np.ndim(who)]
            said = {"reward": np.zeros(n, np.float32), "done": np.zeros(n, bool)}
            return {"obs": obs[who, t], "next": {"obs": obs[who, t + 1], **said}}

        stack = {"obs": frames} if shares and frames > 1 else None
        share = None if shares else False
        storage = LazyTensorStorage(5000, example=rows(0, 0), share_next=share, stack=stack)
        with serving(ReplayBuffer(storage)) as server, client(server) as far:
            before = server.stats().bytes_in
            for t in range(40):
                far.send(rows(t, 0)) if envs == 1 else far.add_step(rows(t, np.arange(envs)))
                far.wait(WAIT_S)
            until(lambda s=server, n=far.acked: s.stats().items_in >= n)
            came[shares] = server.stats().bytes_in - before
    ratio = came[True] / came[False]
    assert ratio < (0.54 if frames == 1 else 0.15), ratio


def test_memory_that_is_set_aside() -> None:
    """Many connections keep less, and then nothing; what one had is there for others then."""
    form = FORMS[0]
    with serving(buffer_for(form), max_bytes=16 << 20, max_frame=1 << 20) as server:
        clients: list[TcpClient] = []

        def next_carry() -> int:
            clients.append(client(server))
            return versions.carry_of(clients[-1]._thread.first.accepted.schema)

        said = [next_carry() for _ in range(40)]
        assert said[0] == 1 << 20 and said[1:10] == [64 << 10] * 9 and said[-1] == 0
        for far in clients:
            far.send(Env(form, 0, rnd(0)).row())
            far.close()
        until(lambda: server.stats().clients == [])
        assert next_carry() == 1 << 20
        clients[-1].close()


def test_a_server_that_comes_back_keeps_another_amount() -> None:
    """Or nothing: what waits is sent as it fits."""
    form, port = FORMS[0], free_port()
    calls = Calls(form, 7)
    whole = buffer_for(form, False)
    with serving(whole) as server, client(server) as other:
        calls.to(other)
    first, second = buffer_for(form), buffer_for(form)
    with serving(first, port=port) as server:
        far = client(server)
        far.send(Env(form, 0, rnd(0)).row())
        far.wait(WAIT_S)
        server.close(final=False)
    with serving(second, port=port, max_bytes=1 << 20, max_frame=128 << 10), far:
        calls.to(far)
        assert far._thread.compact
    assert stored(second) == stored(whole)
