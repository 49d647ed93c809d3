"""Who may bind, who is let in, what travels, and what is said to those who are not let in."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import ConnectionClosedError, LazyTensorStorage, ReplayBuffer
from contig.client import RemoteReplayBuffer, TcpClient
from contig.server import Server, TcpTransport
from tests.client.serving import free_port
from tests.waiting import WAIT_S, Threads, raises, until
from tests.wire.independent_client import ACCEPT, Client, make_frame
from tests.wire.naive import Fields, frame, seal
from tests.wire.sniffer import Listener, Sniffer

trustme = pytest.importorskip("trustme")

TOKEN = "my voice is my passport"
ITEM = {"x": np.zeros(3, np.float32)}


def send_some(client: TcpClient, server: Server) -> None:
    """Two items go in and come out."""
    for n in range(2):
        client.send({"x": np.full(3, n, np.float32)})
    client.wait(WAIT_S)
    sample = server.sample(timeout=WAIT_S)
    assert sample is not None and sample.batch["x"][:, 0].tolist() == [0, 1]


# -- binding --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "", "10.1.2.3", "example.org", socket.gethostname(), "::ffff:0.0.0.0"]
)
def test_other_machines_need_a_token(host: str) -> None:
    with pytest.raises(ValueError, match="token"):
        Server(ITEM, 2, TcpTransport(host=host))
    Server(ITEM, 2, TcpTransport(host=host, token=TOKEN)).close()


def test_an_empty_token_is_none() -> None:
    with pytest.raises(ValueError, match="token"):
        Server(ITEM, 2, TcpTransport(token=""))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.9"])
def test_loopback_needs_none(host: str) -> None:
    with Server(ITEM, 2, TcpTransport(host=host, in_process=True)) as server:
        address = server._run.listening.getsockname()[0]  # type: ignore[union-attr]
        assert address.startswith("127.")
        with TcpClient(address, server.port, ITEM) as client:
            send_some(client, server)


def test_any_address_with_a_token() -> None:
    with Server(ITEM, 2, TcpTransport(host="0.0.0.0", token=TOKEN, in_process=True)) as server:
        with TcpClient("127.0.0.1", server.port, ITEM, token=TOKEN) as client:
            send_some(client, server)


# -- the token ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def locked() -> Iterator[Server]:
    with Server(ITEM, 2, TcpTransport(token=TOKEN)) as server:
        yield server


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + " ", TOKEN.upper(), "ü"])
def test_wrong_tokens(locked: Server, token: str | None) -> None:
    before = locked.stats().rejected.get("token", 0)
    with pytest.raises(ValueError, match="token"):
        TcpClient("127.0.0.1", locked.port, ITEM, token=token)
    # Without one the client does not even ask.
    assert locked.stats().rejected.get("token", 0) == before + (token is not None)


def test_the_right_token(locked: Server) -> None:
    with TcpClient("127.0.0.1", locked.port, ITEM, token=TOKEN) as client:
        send_some(client, locked)


def test_a_token_that_nobody_asks_for() -> None:
    """A server that does not want the token cannot show that it knows it: it may be anybody."""
    with Server(ITEM, 2, TcpTransport(in_process=True)) as server:
        with pytest.raises(ValueError, match="token"):
            TcpClient("127.0.0.1", server.port, ITEM, token=TOKEN)


def test_the_token_does_not_travel(locked: Server) -> None:
    with Sniffer(locked.port) as proxy:
        with TcpClient("127.0.0.1", proxy.port, ITEM, token=TOKEN) as client:
            send_some(client, locked)
        seen = bytes(b"".join(proxy.sent + proxy.answered))
    assert b"contig/1" in seen and b'"proof"' in seen
    for spelled in (TOKEN.encode(), TOKEN.encode().hex().encode(), TOKEN.encode("utf-16-le")):
        assert spelled not in seen


def test_replayed_handshakes_are_refused(locked: Server) -> None:
    with Sniffer(locked.port) as proxy:
        with TcpClient("127.0.0.1", proxy.port, ITEM, token=TOKEN) as client:
            send_some(client, locked)
        recorded = bytes(proxy.sent[0])
    before = locked.stats()
    with socket.create_connection(("127.0.0.1", locked.port), timeout=WAIT_S) as sock:
        # As a client would, and not all at once, so that nothing overtakes the answer.
        sock.sendall(recorded[: recorded.index(b"cFrm", 60)])
        got = b""
        while more := sock.recv(1 << 16):
            got += more
    assert b"cFrm\x03" in got and b'"token"' in got and b"cFrm\x02" not in got
    after = locked.stats()
    assert after.rejected["token"] == before.rejected.get("token", 0) + 1
    assert after.items_in == before.items_in


def test_proofs_of_other_connections_are_refused(locked: Server) -> None:
    """Each handshake has nonces of its own, and each side words its proof differently."""
    clients = [Client("127.0.0.1", locked.port, token=TOKEN) for _ in range(3)]
    proofs = {client.accept["proof"] for client in clients}
    assert len(proofs) == 3
    for client in clients:
        client.bye()
    for proof in (*proofs, "", "0" * 64, None, 7, ["x"], "\ud800"):
        with pytest.raises(PermissionError, match="token"):
            Client("127.0.0.1", locked.port, token=TOKEN, proof=proof)


# -- servers that are none ------------------------------------------------------------------------


def exactly(sock: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        more = sock.recv(size - len(got))
        if not more:
            raise ConnectionError
        got += more
    return got


def impostor(
    flags: int, proof: Callable[[dict[str, Any]], Any], max_frame: int = 1 << 20
) -> Listener:
    """A server that knows the protocol, but no token."""
    import json

    def handle(sock: socket.socket) -> None:
        exactly(sock, 48)
        sock.sendall(struct.pack("<8sII32sQQ", b"contig/1", 1, flags, bytes(32), max_frame, 0))
        header = exactly(sock, 40)
        asked = json.loads(exactly(sock, struct.unpack_from("<Q", header, 24)[0]))
        layout = {"layout": asked["layout"], "keys": None}
        answer = {"kind": "queue", "schema": layout, "seen": 0, "max_inflight": 1 << 20}
        answer["proof"] = proof(asked)
        sock.sendall(make_frame(ACCEPT, 0, json.dumps(answer).encode()))
        sock.recv(1)

    return Listener(handle)


@pytest.mark.parametrize(
    "flags, proof",
    [
        (1, lambda asked: asked["proof"]),
        (1, lambda asked: "0" * 64),
        (1, lambda asked: ""),
        (1, lambda asked: None),
        (0, lambda asked: ""),
        (0, lambda asked: asked["proof"]),
        (2, lambda asked: ""),
    ],
)
def test_servers_that_do_not_know_the_token(flags: int, proof: Any) -> None:
    with impostor(flags, proof) as fake:
        with pytest.raises(ValueError, match="token"):
            TcpClient("127.0.0.1", fake.port, ITEM, token=TOKEN)


def test_servers_that_take_no_frame() -> None:
    with impostor(0, lambda asked: "", 0) as fake:
        with pytest.raises(ValueError, match="frames of 0 bytes only: no room for items"):
            TcpClient("127.0.0.1", fake.port, ITEM, reconnect_s=0.1)


def test_servers_that_take_any_frame() -> None:
    with impostor(0, lambda asked: "", 2**64 - 1) as fake:
        TcpClient("127.0.0.1", fake.port, ITEM, reconnect_s=0.1).close(5.0)


ANSWERS = {
    "no JSON": frame(2, 0, b"no JSON"),
    "a number": frame(2, 0, b"5"),
    "a text": frame(2, 0, b'"text"'),
    "a list": frame(2, 0, b"[]"),
    "proof alone": frame(2, 0, b'{"proof": ""}'),
    "numbers": frame(2, 0, b'{"proof": "", "kind": "queue", "schema": 5, "seen": "x"}'),
    "no schema": frame(2, 0, b'{"proof": "", "kind": "queue", "schema": null, "seen": 0}'),
    "no queue": frame(2, 0, b'{"proof": "", "kind": "queue", "schema": {"layout": 7}, "seen": 0}'),
    "no tape": frame(2, 0, b'{"proof": "", "kind": "tape", "schema": {"layout": 7}, "seen": 0}'),
    "no kind": frame(2, 0, b'{"proof": "", "kind": "heap", "schema": null, "seen": 0}'),
    "refused by number": frame(3, 0, b"5"),
    "refused by list": frame(3, 0, b"[]"),
    "refused without text": frame(3, 0, b'{"reason": {}, "message": []}'),
    "items": frame(4, 0, b"{}"),
    "32 GB": seal(Fields(2, length=1 << 35), b""),
    "2^62": seal(Fields(2, length=1 << 62), b""),
    "no type": seal(Fields(99), b""),
    "no checksum": b"cFrm" + bytes(60),
    "zeros": bytes(64),
}


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("sample", [ITEM, None], ids=["item", "none"])
def test_servers_whose_answer_is_none(answer: str, sample: Any) -> None:
    """Whatever comes in place of ACCEPT: an error of ours, no surprise, and nothing left open."""

    def handle(sock: socket.socket) -> None:
        exactly(sock, 48)
        sock.sendall(struct.pack("<8sII32sQQ", b"contig/1", 1, 0, bytes(32), 1 << 20, 0))
        header = exactly(sock, 40)
        exactly(sock, struct.unpack_from("<Q", header, 24)[0])
        sock.sendall(ANSWERS[answer])
        sock.recv(1)

    with Listener(handle) as fake:
        with pytest.raises((ValueError, ConnectionError)):
            TcpClient("127.0.0.1", fake.port, sample, reconnect_s=0.1)


def echo(sock: socket.socket) -> None:
    while data := sock.recv(4096):
        sock.sendall(data)


def http(sock: socket.socket) -> None:
    sock.recv(4096)
    sock.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


def banner(sock: socket.socket) -> None:
    sock.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
    sock.recv(4096)
    time.sleep(0.1)


def short(sock: socket.socket) -> None:
    sock.recv(4096)
    sock.sendall(b"no")


@pytest.mark.parametrize("peer", [http, banner, short])
def test_other_servers(peer: Callable[[socket.socket], None]) -> None:
    with Listener(peer) as other:
        with pytest.raises(ValueError, match="magic"):
            TcpClient("127.0.0.1", other.port, ITEM)


def test_an_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    # It says the magic, because we do; then nothing fits.
    monkeypatch.setattr("contig.client.connecting._ATTEMPT_S", 0.5)
    with Listener(echo) as other:
        with pytest.raises((ValueError, TimeoutError, ConnectionError)):
            TcpClient("127.0.0.1", other.port, ITEM, reconnect_s=1.0)


def test_a_server_that_closes() -> None:
    with Listener(lambda sock: None) as other:
        with pytest.raises(ConnectionError, match="closed|reset|no contig server"):
            TcpClient("127.0.0.1", other.port, ITEM, reconnect_s=0.2)


def test_a_silent_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contig.client.connecting._ATTEMPT_S", 0.5)
    done = threading.Event()
    with Listener(lambda sock: done.wait(WAIT_S) and None) as other:
        with pytest.raises((TimeoutError, ConnectionError), match="in time|timed out"):
            TcpClient("127.0.0.1", other.port, ITEM, reconnect_s=1.0)
        done.set()


def test_no_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    with pytest.raises(ConnectionError, match=f"127.0.0.1:{port}"):
        TcpClient("127.0.0.1", port, ITEM, reconnect_s=0.1)


# -- frames ---------------------------------------------------------------------------------------


def test_large_frames_are_refused_before_memory_is_taken() -> None:
    limit = 1 << 20
    with Server(ITEM, 2, TcpTransport(max_frame=limit, max_bytes=4 * limit)) as server:
        for length in (limit - 39, limit, 2 * limit, 2**31, 2**40, 2**63, 2**64 - 1):
            client = Client("127.0.0.1", server.port)
            assert client.max_frame == limit
            client.sock.sendall(seal(Fields(4, rows=1, length=length), b""))
            with pytest.raises(PermissionError, match="size"):
                client.until(ACCEPT)
            assert server.stats().bytes_held < 64 << 10
        # The largest that is allowed is waited for.
        client = Client("127.0.0.1", server.port)
        client.sock.sendall(frame(6, 0, bytes(limit - 40)))
        client.sock.close()
        assert server.stats().rejected == {"size": 7}


# -- TLS ------------------------------------------------------------------------------------------


class Certificates:
    """An authority, and (chain, key) of this machine and of another one."""

    def __init__(self, folder: Path) -> None:
        made = trustme.CA()
        self.authority = str(folder / "ca.pem")
        made.cert_pem.write_to_path(self.authority)
        self.own, self.other = (
            self._issue(made, folder / name, *names)
            for name, names in (("own", ("localhost", "127.0.0.1")), ("other", ("example.org",)))
        )

    @staticmethod
    def _issue(made: Any, folder: Path, *names: str) -> tuple[str, str]:
        folder.mkdir()
        issued = made.issue_cert(*names)
        chain, key = str(folder / "chain.pem"), str(folder / "key.pem")
        for n, blob in enumerate(issued.cert_chain_pems):
            blob.write_to_path(chain, append=n > 0)
        issued.private_key_pem.write_to_path(key)
        return chain, key


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secret(certificates: Certificates) -> Iterator[Server]:
    with Server(ITEM, 2, TcpTransport(token=TOKEN, tls=certificates.own)) as server:
        yield server


def test_tls(secret: Server, certificates: Certificates) -> None:
    with Sniffer(secret.port) as proxy:
        for tls in (
            certificates.authority,
            ssl.create_default_context(cafile=certificates.authority),
        ):
            with TcpClient("127.0.0.1", proxy.port, ITEM, token=TOKEN, tls=tls) as client:
                send_some(client, secret)
        seen = bytes(b"".join(proxy.sent + proxy.answered))
    assert b"contig/1" not in seen and b"cFrm" not in seen


def test_tls_moves_much(secret: Server, certificates: Certificates) -> None:
    """More than fits one TLS record, in both directions."""
    weights = {"w": np.random.default_rng(0).random(300_000)}
    secret.publish(1, weights)
    tls = certificates.authority
    with TcpClient("127.0.0.1", secret.port, ITEM, token=TOKEN, tls=tls) as client:
        published = client.weights(timeout_s=WAIT_S)
        assert published is not None
        np.testing.assert_array_equal(published.tree["w"], weights["w"])
        got: list[Any] = []
        reader = threading.Thread(
            target=lambda: [got.append(secret.sample(WAIT_S)) for _ in range(1000)]
        )
        reader.start()
        for n in range(2):
            client.send_many({"x": np.full((1000, 3), n, np.float32)})
        client.wait(WAIT_S)
        reader.join(WAIT_S)
        assert [s.batch["x"][1, 2] for s in got] == [0.0] * 500 + [1.0] * 500


def test_tls_and_the_heartbeat(certificates: Certificates) -> None:
    """Who waits for room is not lost, for many heartbeats; a server that says nothing is."""
    beat, count = 0.8, 300
    transport = TcpTransport(tls=certificates.own, heartbeat_s=beat)
    with Server(ITEM, 4, transport, num_buffers=2) as server:
        options = {"tls": certificates.authority, "reconnect_s": 0.5}
        client = TcpClient("127.0.0.1", server.port, ITEM, **options)
        idle = TcpClient("127.0.0.1", server.port, ITEM, **options)
        threads = Threads(lambda: [client.send({"x": np.full(3, n)}) for n in range(count)])
        until(lambda: server.info().queue_depth_sum > 0, "back-pressure")
        time.sleep(3 * beat)
        assert server.stats().connections_total == 2 and not server.stats().rejected
        got: list[float] = []
        while len(got) < count:
            sample = server.sample(timeout=20)
            assert sample is not None
            got += sample.batch["x"][:, 0].tolist()
        assert got == list(range(count))
        threads.join(20)
        client.wait(20)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        try:
            client.send({"x": np.zeros(3)})
            Threads(lambda: raises(ConnectionClosedError, client.wait)).join(20)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        client.wait(20)
        for each in (client, idle):
            each.close()


def test_tls_of_a_buffer(certificates: Certificates) -> None:
    row = {"x": np.zeros(3, np.float32), "done": False}
    buffer = ReplayBuffer(LazyTensorStorage(100, example=row), batch_size=16)
    transport = TcpTransport(tls=certificates.own, in_process=True)
    with Server(buffer=buffer, transport=transport) as server:
        with RemoteReplayBuffer("127.0.0.1", server.port, tls=certificates.authority) as remote:
            remote.extend({"x": np.ones((9, 3), np.float32), "done": np.zeros(9, bool)})
            remote.flush(WAIT_S)
            assert remote.sample()["x"].shape == (16, 3)


def test_certificates_are_checked(secret: Server, certificates: Certificates) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        TcpClient("127.0.0.1", secret.port, ITEM, token=TOKEN, tls=True)
    # The right authority, but the certificate has another name.
    transport = TcpTransport(tls=certificates.other, in_process=True)
    with Server(ITEM, 2, transport) as server:
        with pytest.raises(ssl.SSLCertVerificationError):
            TcpClient("127.0.0.1", server.port, ITEM, tls=certificates.authority)


def test_plain_client_of_a_tls_server(secret: Server) -> None:
    with pytest.raises((ValueError, ConnectionError), match="TLS|tls"):
        TcpClient("127.0.0.1", secret.port, ITEM, token=TOKEN, reconnect_s=2)


def test_tls_client_of_a_plain_server(locked: Server, certificates: Certificates) -> None:
    before = locked.stats().rejected.get("magic", 0)
    with pytest.raises((ValueError, ConnectionError), match="TLS|tls"):
        TcpClient("127.0.0.1", locked.port, ITEM, token=TOKEN, tls=certificates.authority)
    assert locked.stats().rejected["magic"] == before + 1


def test_tls_server_survives_garbage(secret: Server, certificates: Certificates) -> None:
    pid = secret.pid
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", bytes(500), b""):
        with socket.create_connection(("127.0.0.1", secret.port), timeout=WAIT_S) as sock:
            sock.sendall(data)
    tls = certificates.authority
    with TcpClient("127.0.0.1", secret.port, ITEM, token=TOKEN, tls=tls) as client:
        send_some(client, secret)
    assert secret.pid == pid


def test_wrong_certificate_files(certificates: Certificates) -> None:
    """They are said when a server or client is made, by argument and path."""
    certificate, key = certificates.own
    for tls, kind, text in (
        (("/no/such.pem", key), FileNotFoundError, "^tls: there is no certificate at /no/such.pem"),
        ((certificate, "/no/key.pem"), FileNotFoundError, "^tls: there is no key at /no/key.pem"),
        ((key, certificate), ValueError, "^tls: .*belong together"),
        ((certificate, certificate), ValueError, "^tls: .*belong together"),
        (certificate, ValueError, "^tls: expected the paths"),
        ((certificate, 3), ValueError, "^tls: expected the paths"),
    ):
        with pytest.raises(kind, match=text):
            Server(ITEM, 2, TcpTransport(tls=tls))
    for authority, kind, text in (
        ("/no/such.pem", FileNotFoundError, "^tls: there is no authority at /no/such.pem"),
        (key, ValueError, "^tls: .*give a PEM file"),
        (3, ValueError, "^tls: expected True"),
    ):
        with pytest.raises(kind, match=text):
            TcpClient("127.0.0.1", 1, ITEM, tls=authority)


def test_certificate_files_may_be_relative_and_any_path(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    certificate, key = (Path(x) for x in certificates.own)
    monkeypatch.chdir(certificate.parent)
    relative = TcpTransport(tls=(Path(certificate.name), key))
    server = Server(ITEM, 2, relative)
    monkeypatch.chdir(tmp_path)
    trusted = Path(certificates.authority)
    with server, TcpClient("localhost", server.port, ITEM, tls=trusted) as client:
        send_some(client, server)


# -- who reads the metrics ------------------------------------------------------------------------


def test_metrics_for_other_machines_need_tls(certificates: Certificates) -> None:
    """The token would be sent in the clear."""
    open_to_all = TcpTransport(host="0.0.0.0", token=TOKEN, metrics_port=free_port())
    with pytest.raises(ValueError, match="metrics_port.*tls"):
        Server(ITEM, 2, open_to_all)
    Server(ITEM, 2, open_to_all._replace(metrics_port=None)).close()
    Server(ITEM, 2, open_to_all._replace(tls=certificates.own)).close()


def test_metrics_for_other_machines_need_the_token(certificates: Certificates) -> None:
    port = free_port()
    transport = TcpTransport(host="0.0.0.0", token=TOKEN, tls=certificates.own, metrics_port=port)
    context = ssl.create_default_context(cafile=certificates.authority)

    def get(**headers: str) -> tuple[int, str]:
        page = HTTPSConnection("127.0.0.1", port, timeout=20, context=context)
        page.request("GET", "/metrics", headers=headers)
        answer = page.getresponse()
        text = answer.read().decode()
        page.close()
        return answer.status, text

    with Server(ITEM, 2, transport._replace(in_process=True)):
        for wrong in ("", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN, "\xff"):
            status, text = get(Authorization=wrong)
            assert status == 401 and "contig_" not in text
        assert get()[0] == get(Token=TOKEN)[0] == 401
        for right in (f"Bearer {TOKEN}", f"bearer  {TOKEN} "):
            status, text = get(authorization=right)
            assert status == 200 and "contig_connections" in text


def test_metrics_of_this_machine_need_nothing(certificates: Certificates) -> None:
    port = free_port()
    transport = TcpTransport(token=TOKEN, tls=certificates.own, metrics_port=port, in_process=True)
    with Server(ITEM, 2, transport):
        page = HTTPConnection("127.0.0.1", port, timeout=20)
        page.request("GET", "/metrics")
        assert page.getresponse().status == 200
        page.close()
