"""`contig serve`: options of the command line and of a file, and the server that they make."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from contig import DiskStorage, LazyTensorStorage
from contig.cli.serve import add_arguments
from contig.cli.serve_config import read_config
from contig.sample import PrioritizedSampler, RandomSampler, SliceSampler

ROW = {"x": {"shape": [3], "dtype": "float32"}, "next": {"done": {"shape": [], "dtype": "bool"}}}

FAR = (("camera", "far"), ("next", "camera", "far"))  # a codec of an observation is its next one's


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "row.json").write_text(json.dumps(ROW))
    return tmp_path


def config(place: Path, toml: str | None, *words: Any) -> Any:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    given = [*map(str, words)]
    if toml is not None:
        (place / "serve.toml").write_text(toml)
        given += ["--config", str(place / "serve.toml")]
    return read_config(parser.parse_args(given))


TABLES = """
port = 0
capacity = 500
example = "row.json"
log_json = true

[tables.online]
sampler = "slices"
slice_len = 8
batch_size = 32
samples_per_insert = 4
min_size = 100

[tables.demo]
capacity = 50
disk = "runs"
durable = true
sampler = "prioritized"

[tables.images.example.image]
shape = [8, 8, 3]
dtype = "uint8"

[tables.images.example.next.done]
shape = []
dtype = "bool"
"""


def test_each_table_has_its_own(place: Path) -> None:
    made = config(place, TABLES)
    assert made.names == ["online", "demo", "images"] and made["log_json"] is True
    server = made.make_server()
    try:
        online, demo, images = (server.buffers[n] for n in made.names)
        assert isinstance(online.sampler, SliceSampler) and online.sampler.slice_len == 8
        assert online.batch_size == 32 and online.limiter is not None
        assert online.limiter.samples_per_insert == 4
        assert isinstance(demo.sampler, PrioritizedSampler) and demo.batch_size == 256
        assert isinstance(demo.storage, DiskStorage) and demo.storage.capacity == 50
        assert demo.storage.path == place / "runs" / "demo" and demo.limiter is None
        assert isinstance(images.storage, LazyTensorStorage) and images.storage.capacity == 500
        assert isinstance(images.sampler, RandomSampler)
        layout = images.storage.layout
        assert layout is not None and layout.leaves[0].shape == (8, 8, 3)
    finally:
        server.close()
        for buffer in server.buffers.values():
            buffer.storage.close()


def test_the_command_line_comes_first(place: Path) -> None:
    made = config(place, TABLES, "--port", 5001, "--capacity", 70, "--host", "127.0.0.2")
    assert (made["port"], made["host"]) == (5001, "127.0.0.2")
    assert made.every.capacity == 70 and made.every.example is not None
    assert made.tables["demo"].over(made.every).capacity == 50  # its own, before both
    made = config(place, 'example = "row.json"\n', "--table", "a", "--table", "b")
    assert made.names == ["a", "b"]


def test_a_queue(place: Path) -> None:
    made = config(place, 'queue = 16\nexample = "row.json"\n')
    with made.make_server() as server:
        assert server.info().store_size == 0 and not server.buffers
        assert server.transport is not None and server.transport.takes_weights


def test_names_of_files_are_beside_the_file(place: Path) -> None:
    toml = 'token_file = "token"\ntls = ["a.pem", "b.pem"]\nexample = "row.json"\n'
    made = config(place, toml)
    assert made["token_file"] == str(place / "token")
    assert made["tls"] == [str(place / "a.pem"), str(place / "b.pem")]


@pytest.mark.parametrize(
    ("toml", "reason"),
    [
        ("x = ", "not TOML"),
        ("colour = 1", "unknown option 'colour'; there are queue, host"),
        ('port = "5"', "port: expected a whole number, got '5'"),
        ("port = 65536", "serve.toml: port: expected a port, 0 to 65535, got 65536"),
        ("metrics_port = 99999", "metrics_port: expected a port, 0 to 65535, got 99999"),
        ("dashboard = -5", "dashboard: expected a port, 0 to 65535, got -5"),
        ("port = true", "port: expected a whole number, got True"),
        ("tls = [1]", "tls: expected [certificate, key]"),
        ('log_level = "loud"', "log_level 'loud': expected one of debug"),
        ("tables = 3", "tables: expected a table of leaves"),
        ("[tables]\na = 3", "tables.a: expected a table of leaves"),
        ("[tables.a]\nport = 3", "tables.a: unknown option 'port'; there are example"),
        ('[tables.a]\nsampler = "best"', "sampler 'best': expected one of uniform"),
        ('[tables.a]\nexample = "no.json"', "no.json"),
        ("[tables.a.example.x]\nshape = 3", "tables.a: example: x: shape"),
        ("[tables.a]\n[tables.a]", "not TOML"),  # a table given twice
        ('example = "row.json"\n[tables.a]\ndurable = true', "'a': durable needs disk"),
        ('example = "row.json"\n[tables.a]\nslice_len = 3', "slice_len needs sampler slices"),
        ("[tables.a]\ncapacity = 3", "table 'a': nothing says what a row is: give example"),
        ('queue = 3\nexample = "row.json"\n[tables.a]', "give queue or tables (table), not both"),
        ('queue = 3\nsampler = "slices"\nexample = "row.json"', "sampler has no effect with queue"),
        ('example = "row.json"\ndisk = "d"\nmax_restarts = 3', "max_restarts has no effect with"),
    ],
)
def test_errors(place: Path, toml: str, reason: str) -> None:
    with pytest.raises((ValueError, OSError)) as raised:
        config(place, toml).make_server()
    assert reason in str(raised.value)
    assert not (place / "d").exists()


def test_tables_in_the_file_and_on_the_command_line(place: Path) -> None:
    with pytest.raises(ValueError, match="--table other: the tables are in"):
        config(place, TABLES, "--table", "other")


def test_nothing_stays_open_when_one_table_is_wrong(place: Path) -> None:
    toml = 'example = "row.json"\n[tables.a]\ndisk = "runs"\n[tables.b]\nslice_len = 3\n'
    with pytest.raises(ValueError, match="'b': slice_len"):
        config(place, toml).make_server()
    DiskStorage(place / "runs" / "a").close()  # nobody else writes there


# -- what is stored once, and encoded --------------------------------------------------------------

SEEN = {
    **{
        "pixels": {"shape": [4, 8, 8], "dtype": "uint8"},
        "state": {"shape": [9], "dtype": "float32"},
    },
    **{"camera": {"far": {"shape": [6, 6, 6], "dtype": "uint8"}}},
}
FLAG = {"done": {"shape": [], "dtype": "bool"}}


@pytest.fixture
def seen(place: Path) -> Path:
    (place / "seen.json").write_text(json.dumps({**SEEN, "next": {**SEEN, **FLAG}}))
    return place


def made(config: Any) -> dict[str, Any]:
    """What each table of a server stores once, and encodes."""
    server = config.make_server()
    found = {}
    try:
        for name, buffer in server.buffers.items():
            sharing = buffer.storage.schema.sharing
            frames = {} if sharing is None else {x.path: x[1:] for x in sharing.leaves}
            codecs = {path: codec.name for path, codec in buffer.storage.codecs.items()}
            found[name] = (frames, codecs)
    finally:
        server.close()
        for buffer in server.buffers.values():
            buffer.storage.close()
    return found


def test_stored_once_by_options(seen: Path) -> None:
    words = ("--example", seen / "seen.json", "--stack", "pixels=4", "--stack", "camera.far=2:-1")
    frames, codecs = made(config(seen, None, *words))["default"]
    assert frames == {
        ("pixels",): (4, True),
        ("camera", "far"): (2, False),
        ("state",): (1, True),
    }
    assert not codecs
    words = ("--example", seen / "seen.json", "--no-share-next", "--codecs", "camera.far=lz4")
    assert made(config(seen, None, *words))["default"] == ({}, dict.fromkeys(FAR, "lz4"))


def test_stored_once_by_a_file(seen: Path) -> None:
    toml = """
example = "seen.json"
capacity = 50

[tables.plain]
share_next = false

[tables.stacks]
stack = {pixels = 4, camera = {far = [2, -1]}}

[tables.disk]
disk = "runs"
stack = {pixels = 4}

[tables.coded.codecs.camera]
far = "lz4"
"""
    for _ in range(2):  # and once more, with what is there already
        found = made(config(seen, toml))
        assert found["plain"] == ({}, {})
        assert found["stacks"][0][("camera", "far")] == (2, False)
        assert found["disk"][0][("pixels",)] == (4, True)
        assert found["coded"][1] == dict.fromkeys(FAR, "lz4")
    for changed, said in (("share_next = false", "share_next"), ("stack = {state = 3}", "stack")):
        other = toml.replace('disk = "runs"\nstack = {pixels = 4}', f'disk = "runs"\n{changed}')
        with pytest.raises(ValueError, match=f"table 'disk': {said} has no effect"):
            config(seen, other).make_server()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--stack", "pixels=5"), "no axis of 5 frames"),
        (("--stack", "elsewhere=4"), "no leaf"),
        (("--stack", "pixels=4", "--no-share-next"), "share_next=False"),
        (("--codecs", "state=nothing"), "nothing"),
        (("--codecs", "elsewhere=lz4"), "elsewhere"),
    ],
)
def test_stored_once_wrongly(seen: Path, words: tuple[str, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        config(seen, None, "--example", seen / "seen.json", *words).make_server()


def test_stored_once_without_effect(place: Path) -> None:
    """Rows that have nothing below next, and queues."""
    row = ("--example", place / "row.json")
    with pytest.raises(ValueError, match="--share-next has no effect"):
        config(place, None, *row, "--share-next").make_server()
    options = ("--stack", "x=3"), ("--share-next",), ("--codecs", "x=lz4")
    for words in options:
        with pytest.raises(ValueError, match=f"{words[0]} has no effect with --queue"):
            config(place, None, *row, "--queue", 4, *words).make_server()
    for words in (("--stack", "x"), ("--stack", "=3"), ("--stack", "x=a"), ("--codecs", "x=")):
        with pytest.raises(SystemExit):
            config(place, None, *row, *words)
    for toml in ("stack = 4", "share_next = 1", 'codecs = "lz4"'):
        with pytest.raises(ValueError, match="expected"):
            config(place, f'example = "row.json"\n{toml}')
