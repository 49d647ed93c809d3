"""The page's HTTP interface, served by uvicorn on loopback, of a directory of episodes."""

from __future__ import annotations

import csv
import http.client
import io
import json
import socket
import ssl
import threading
import urllib.request
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import numpy as np
import pytest
import trustme
from PIL import Image

import contig.dashboard
from contig import Blob, DiskStorage, LazyTensorStorage
from contig.dashboard import PageOptions, PageServer, StorageSource
from contig.dashboard.guard import POLICY
from contig.dashboard.serving import listen, url_of
from tests.dashboard.pages import ask, served
from tests.dashboard.scene import FIELDS, ROW, SIDE, episode

PAGE = Path(contig.dashboard.__file__).parent / "page"
STEPS = [5, 12, 30, 7, 1, 25]


def fill(storage):
    writer = storage.writer()
    for number, steps in enumerate(STEPS):
        rows, fields = episode(number, steps, version=number)
        cut = number % 3 == 2
        ends = {"terminated": not cut, "truncated": cut}
        told = {"traj_id": 100 + number, "policy_version": number}
        writer.extend_trajectory(rows, **ends, **told, fields=fields)
    storage.flush()


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    path = tmp_path_factory.mktemp("disk") / "runs"
    with DiskStorage(path, 10_000, example=ROW, fields=FIELDS) as storage:
        fill(storage)
        source = StorageSource("directory", "runs", {"runs": DiskStorage(path, read_only=True)})
        with served(source) as url:
            yield url


def test_numbers(url):
    told = ask(url, "/api/numbers").json
    table = told["tables"]["runs"]
    assert (table["rows"], table["rows_in"]) == (sum(STEPS), sum(STEPS))
    assert table["episodes"] == len(STEPS)
    for name in ("rows_out", "capacity"):  # not known here, and the page says so
        assert table[name] is None and name in told["notes"]
    assert told["clients"] is None and "clients" in told["notes"]
    assert told["source"] == {"kind": "directory", "label": "runs"}


def test_live(url):
    ask(url, "/api/numbers")
    told = ask(url, "/api/tables/runs/live").json
    assert told["history"][-1]["rows"] == sum(STEPS)
    assert told["ages"]["rows"]["count"] > 0
    assert 0 < told["ages"]["rows"]["mean"] <= sum(STEPS)
    assert "this page's own" in told["ages"]["of"]  # nobody takes it for the learner's draws
    since = told["history"][-1]["time"]
    assert all(
        look["time"] > since
        for look in ask(url, f"/api/tables/runs/live?since={since}").json["history"]
    )


def test_returns_over_time(url):
    told = ask(url, "/api/tables/runs/returns").json
    expected = [float(episode(n, s)[0]["next"]["reward"].sum()) for n, s in enumerate(STEPS)]
    assert told["steps"]["mean"] == STEPS
    assert told["return"]["mean"] == pytest.approx(expected, abs=1e-4)
    assert (told["ended"], told["open"]) == (len(STEPS), 0)


def listed(url, query, **more):
    return ask(url, f"/api/tables/runs/episodes?{urlencode({'query': query, **more})}").json


def test_search(url):
    assert [e["id"] for e in listed(url, "")["episodes"]] == [5, 4, 3, 2, 1, 0]
    assert [e["id"] for e in listed(url, "length>6 length<26")["episodes"]] == [5, 3, 1]
    assert [e["id"] for e in listed(url, "truncated")["episodes"]] == [5, 2]
    assert [e["id"] for e in listed(url, "version=1..3", sort="steps")["episodes"]] == [3, 1, 2]
    assert [e["id"] for e in listed(url, "103")["episodes"]] == [3]
    found = listed(url, "task=1", sort="id")
    assert ([e["id"] for e in found["episodes"]], found["fields"]) == ([1, 5], ["success", "task"])
    page = listed(url, "", offset=2, limit=2)
    assert ([e["id"] for e in page["episodes"]], page["found"], page["total"]) == ([3, 2], 6, 6)
    assert listed(url, "")["episodes"][0]["traj_id"] == "105"  # text: it may have 64 bits


def test_one_episode(url):
    told = ask(url, "/api/tables/runs/episodes/2").json
    rows, _ = episode(2, 30)
    assert told["rows"] == 30 and told["episode"]["truncated"]
    assert told["marks"]["is_init"] == [0] and told["marks"]["truncated"] == [29]
    assert told["marks"]["terminated"] == []
    reward = rows["next"]["reward"]
    assert told["reward"]["mean"][0] == pytest.approx(reward.tolist())
    assert told["total"]["mean"][0] == pytest.approx(np.cumsum(reward).tolist(), abs=1e-4)
    kinds = {leaf["name"]: leaf["kind"] for leaf in told["leaves"]}
    assert kinds["observation.pixels"] == "image" and kinds["observation.state"] == "lines"


def leaf_number(url, name, episode=2):
    leaves = ask(url, f"/api/tables/runs/episodes/{episode}").json["leaves"]
    return next(leaf["number"] for leaf in leaves if leaf["name"] == name)


def test_lines_of_a_leaf(url):
    number = leaf_number(url, "observation.state")
    told = ask(url, f"/api/tables/runs/episodes/2/lines?leaf={number}&first=1").json
    assert told["steps"] == list(range(30)) == told["mean"][0]  # component 1 is the step
    assert (told["of"], len(told["mean"])) == (6, 5)


def test_frames(url):
    number = leaf_number(url, "observation.pixels")
    path = f"/api/tables/runs/episodes/2/frames?leaf={number}"
    answer = ask(url, f"{path}&from=4&count=5&every=3")
    sheet = np.asarray(Image.open(io.BytesIO(answer.body))).reshape(-1, SIDE, SIDE, 3)
    rows, _ = episode(2, 30)
    assert np.array_equal(sheet, rows["observation"]["pixels"][[4, 7, 10, 13, 16]])
    assert answer.headers["content-type"] == "image/png"
    small = ask(url, f"{path}&from=28&count=9&side=24")  # only two are left
    assert Image.open(io.BytesIO(small.body)).size == (24, 2 * 24)


def test_exports(url):
    table = ask(url, "/api/tables/runs/export?as=csv&query=truncated")
    lines = list(csv.DictReader(io.StringIO(table.body.decode())))
    assert [(x["id"], x["steps"], x["task"]) for x in lines] == [("5", "25", "1"), ("2", "30", "2")]
    assert "attachment" in table.headers["content-disposition"]
    told = json.loads(ask(url, "/api/tables/runs/export?as=json&ids=1").body)
    assert [(e["id"], e["steps"]) for e in told] == [(1, 12)]
    answer = ask(url, "/api/tables/runs/export?as=npz&ids=1,3")
    assert 'filename="episodes.npz"' in answer.headers["content-disposition"]
    rows = np.load(io.BytesIO(answer.body))
    assert rows["_offsets"].tolist() == [0, 12, 19]
    assert rows["_episodes"]["id"].tolist() == [1, 3]
    for number, (begin, end) in enumerate(pairwise(rows["_offsets"])):
        expected, _ = episode(*((1, 12, 1), (3, 7, 3))[number])
        for path in (("observation", "pixels"), ("next", "reward")):
            got = rows[".".join(path)][begin:end]
            assert np.array_equal(got, expected[path[0]][path[1]]), path
    assert not np.load(io.BytesIO(ask(url, "/api/tables/runs/export?as=npz&query=id>99").body))[
        "_episodes"
    ].size


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/api/tables/none/episodes", 404, "no table 'none'; there are runs"),
        ("/api/tables/none/live", 404, "no table 'none'"),
        ("/api/tables/runs/episodes/99", 404, "no episode 99"),
        ("/api/tables/runs/episodes/99/lines?leaf=0", 404, "no episode 99"),
        ("/api/tables/runs/episodes/x", 404, "Not Found"),
        ("/api/tables/runs/episodes/99999999999999999999999", 404, "no episode"),
        ("/api/tables/runs/episodes/99999999999999999999999/lines?leaf=0", 404, "no episode"),
        ("/api/tables/runs/episodes/18446744073709551616/lines?leaf=1", 404, "no episode"),
        ("/api/tables/runs/episodes?query=retrun%3E3", 400, "no column 'retrun'"),
        ("/api/tables/runs/episodes?sort=colour", 400, "sort=colour"),
        ("/api/tables/runs/episodes?offset=-1", 400, "offset=-1: expected a whole number"),
        ("/api/tables/runs/episodes?limit=many", 400, "limit=many"),
        ("/api/tables/runs/episodes/2/lines", 400, "leaf=: expected a whole number"),
        ("/api/tables/runs/episodes/2/lines?leaf=77", 400, "leaf 77: there are"),
        ("/api/tables/runs/episodes/2/lines?leaf=0&first=50", 400, "first=50"),
        ("/api/tables/runs/episodes/2/frames?leaf=0", 400, "leaf 0 is no image"),
        ("/api/tables/runs/export?as=exe", 400, "as=exe: expected one of csv, json, npz"),
        ("/api/tables/runs/export?ids=1,99", 404, "no episode 99"),
        ("/api/tables/runs/export?ids=1;drop", 400, "expected numbers with commas"),
        ("/api/tables/runs/live?since=never", 400, "since=never"),
        ("/nothing.js", 404, "no page nothing.js"),
        ("/../app.py", 404, ""),
        ("/..%2fapp.py", 404, ""),
        ("/app.py", 404, "no page app.py"),
        ("/" + "a" * 5000 + ".js", 404, "no page aaa"),
        ("/%00.js", 404, "no page"),
    ],
)
def test_what_cannot_be_answered(url, path, status, said):
    answer = ask(url, path)
    assert (answer.status, said in answer.json["error"]) == (status, True), answer


def test_a_frame_behind_the_last_one(url):
    number = leaf_number(url, "observation.pixels")
    for wrong in ("from=30", "count=0", "count=9999", "every=0"):
        answer = ask(url, f"/api/tables/runs/episodes/2/frames?leaf={number}&{wrong}")
        assert answer.status == 400 and "steps are 0 to 29" in answer.json["error"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed(url, method):
    assert ask(url, "/api/numbers", method).status == 405
    assert ask(url, "/api/tables/runs/episodes/2", method).status == 405


@pytest.mark.parametrize("path", ["/", "/main.js", "/style.css", "/api/numbers", "/api/nothing"])
def test_every_answer_has_the_policy(url, path):
    headers = ask(url, path).headers
    assert headers["content-security-policy"] == POLICY
    assert "default-src 'none'" in POLICY and "unsafe" not in POLICY and "http" not in POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


def test_the_page_names_nothing_from_elsewhere(url):
    names = [path.name for path in PAGE.iterdir()]
    assert {"index.html", "main.js", "style.css"} <= set(names)
    for name in ("/", *(f"/{name}" for name in names)):
        answer = ask(url, name)
        text = answer.body.decode().replace("http://www.w3.org/2000/svg", "")
        assert answer.status == 200
        assert "http://" not in text and "https://" not in text and "url(" not in text


@pytest.mark.parametrize(
    "name", ["127.evil.example", "127.0.0.1.evil.example", "localhost.evil.example"]
)
def test_names_that_look_like_this_host_get_nothing(url, name):
    assert ask(url, "/api/numbers", host=f"{name}:80").status == 403


def test_another_host_name_gets_nothing(url):
    # What a page of another site can reach under its own name, after its name was pointed here.
    answer = ask(url, "/api/numbers", host="evil.example:80")
    assert answer.status == 403
    assert ask(url, "/api/numbers", host="localhost:1").status == 200


def small():
    storage = LazyTensorStorage(100, example={"obs": 0.0, "next": {"reward": 0.0, "done": False}})
    storage.writer().extend_trajectory(
        {"obs": np.arange(3), "next": {"reward": np.ones(3)}}, terminated=True
    )
    return StorageSource("buffer", "small", {"t": storage})


def test_elsewhere_than_on_this_host_a_token_is_needed():
    with pytest.raises(
        ValueError, match="can be reached from elsewhere: give the dashboard a token"
    ):
        with served(small(), host="0.0.0.0"):
            pass
    with served(small(), host="0.0.0.0", token="s3cret") as url:
        for path in ("/", "/main.js", "/api/numbers", "/api/tables/t/episodes/0"):
            assert ask(url, path).status == 401
        assert ask(url, "/api/numbers", authorization="Bearer wrong").status == 401
        assert ask(url, "/?token=wrong").status == 401
        assert ask(url, "/api/numbers?token=s3cret").status == 401  # not in every link
        assert ask(url, "/api/numbers", authorization="Bearer s3cret").status == 200
        opened = ask(url, "/?token=s3cret")
        assert (opened.status, opened.headers["location"]) == (303, "/")
        cookie = opened.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
        assert ask(url, "/api/numbers", cookie=cookie.partition(";")[0]).status == 200
        wrong = cookie.partition("=")[0] + "=wrong"
        assert ask(url, "/api/numbers", cookie=wrong).status == 401


@pytest.mark.parametrize("token", ["a+b&c=d", '50% of?#;,"', "日本 é"])
def test_a_link_has_any_token(token):
    options = PageOptions(token=token)
    listening = listen(options)
    link = urlsplit(url_of(options, listening))
    page = PageServer(small(), options, listening)
    try:
        url = f"http://{link.netloc}"
        opened = ask(url, f"/?{link.query}")
        assert opened.status == 303
        cookie = opened.headers["set-cookie"].partition(";")[0]
        assert ask(url, "/api/numbers", cookie=cookie).status == 200
        bearer = b"Bearer " + token.encode()
        assert ask(url, "/api/numbers", authorization=bearer).status == 200
    finally:
        page.close()


def test_a_page_with_tls(tmp_path):
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with served(
        small(), tls=(str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")), token="s"
    ) as url:
        secure = url.replace("http:", "https:")
        with urllib.request.urlopen(
            urllib.request.Request(f"{secure}/api/numbers", headers={"Authorization": "Bearer s"}),
            context=context,
        ) as answer:
            assert json.loads(answer.read())["tables"]["t"]["rows"] == 3
        opened = http.client.HTTPSConnection("127.0.0.1", urlsplit(url).port, context=context)
        opened.request("GET", "/?token=s")
        assert "Secure" in opened.getresponse().getheader("set-cookie")
        opened.close()


def test_a_token_may_be_asked_for_on_this_host_too():
    with served(small(), token="s3cret") as url:
        assert ask(url, "/api/numbers").status == 401
        assert ask(url, "/api/numbers", authorization="Bearer s3cret").status == 200


def test_numbers_that_are_not_finite_and_rows_of_any_size():
    row = {"x": np.float32(0), "text": Blob(text=True), "reward": 0.0, "done": False}
    storage = LazyTensorStorage(100, example=row)
    writer = storage.writer()
    for t in range(4):
        value = [1.0, np.nan, np.inf, 2.0][t]
        writer.add({"x": value, "text": "a" * t, "reward": value, "done": t == 3})
    with served(StorageSource("buffer", "b", {"t": storage})) as url:
        told = ask(url, "/api/tables/t/episodes/0").json
        leaves = {leaf["name"]: leaf for leaf in told["leaves"]}
        assert leaves["text"]["kind"] == "lengths"
        lines = [
            ask(url, f"/api/tables/t/episodes/0/lines?leaf={leaves[n]['number']}").json["mean"][0]
            for n in ("x", "text")
        ]
        assert lines == [[1.0, None, None, 2.0], [0, 1, 2, 3]]
        columns = np.load(io.BytesIO(ask(url, "/api/tables/t/export?as=npz").body))
        assert columns["text.offsets"].tolist() == [0, 0, 1, 3, 6]


def test_a_long_episode_is_binned_and_keeps_its_extremes():
    storage = LazyTensorStorage(
        10_000, example={"obs": 0.0, "next": {"reward": 0.0, "done": False}}
    )
    reward = np.zeros(5000)
    reward[3217], reward[1234] = 50.0, -9.0
    storage.writer().extend_trajectory(
        {"obs": np.arange(5000), "next": {"reward": reward}}, terminated=True
    )
    with served(StorageSource("buffer", "b", {"t": storage})) as url:
        told = ask(url, "/api/tables/t/episodes/0").json
        assert len(told["reward"]["steps"]) <= 600
        assert max(told["reward"]["high"][0]) == 50 and min(told["reward"]["low"][0]) == -9
        assert told["total"]["mean"][0][-1] == pytest.approx(41)
        assert told["marks"]["terminated"] == [4999]


def test_a_table_with_slashes_in_its_name():
    storage = LazyTensorStorage(100, example=ROW, fields=FIELDS)
    fill(storage)
    with served(StorageSource("buffer", "runs", {"ant/v4": storage})) as url:
        for name in ("ant/v4", "ant%2Fv4"):
            assert ask(url, f"/api/tables/{name}/live").status == 200
            assert ask(url, f"/api/tables/{name}/episodes?query=id=3").json["found"] == 1
            assert ask(url, f"/api/tables/{name}/episodes/3").json["episode"]["steps"] == 7
            assert len(ask(url, f"/api/tables/{name}/episodes/3/lines?leaf=0").json["steps"]) == 7


def test_bytes_that_are_no_request_write_no_log(caplog):
    storage = LazyTensorStorage(100, example=ROW)
    with served(StorageSource("buffer", "runs", {"runs": storage})) as url:
        where = urlsplit(url)
        with socket.create_connection((where.hostname, where.port), timeout=30) as line:
            line.sendall(b"garbage\r\n\r\n")
            assert line.recv(12) == b"HTTP/1.1 400"
        assert ask(url, "/api/numbers").status == 200
    assert not caplog.records


def test_a_page_that_ends_during_a_request_writes_no_log(caplog, monkeypatch):
    asked, go_on = threading.Event(), threading.Event()
    source = StorageSource("buffer", "runs", {"runs": LazyTensorStorage(100, example=ROW)})

    def ages(table):
        asked.set()
        assert go_on.wait(60)
        raise KeyError(table)

    monkeypatch.setattr(source, "ages", ages)
    with served(source) as url:
        where = urlsplit(url)
        line = socket.create_connection((where.hostname, where.port), timeout=30)
        line.sendall(b"GET /api/tables/runs/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert asked.wait(60)
    go_on.set()
    line.close()
    assert not caplog.records


def test_more_than_may_be_exported():
    row = {"obs": np.zeros((400, 400, 3), np.uint8), "next": {"reward": 0.0, "done": False}}
    storage = LazyTensorStorage(700, example=row)
    data = {"obs": np.zeros((600, 400, 400, 3), np.uint8), "next": {"reward": np.ones(600)}}
    storage.writer().extend_trajectory(data, terminated=True)
    with served(StorageSource("buffer", "b", {"t": storage})) as url:
        answer = ask(url, "/api/tables/t/export?as=npz")
        assert answer.status == 413 and "select fewer" in answer.json["error"]
        assert ask(url, "/api/tables/t/export?as=csv").status == 200
