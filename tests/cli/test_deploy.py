"""What is in deploy/: it says the same as the guide, and asks for what there is."""

from __future__ import annotations

import argparse
import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from contig import Server, TcpTransport
from contig.cli.main import COMMANDS
from contig.cli.serve import add_arguments
from contig.cli.serve_config import read_config
from tests.server import items
from tests.server.test_metrics import scrape
from tests.waiting import WAIT_S
from tools.check_commands import find_steps

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CONTAINER = (DEPLOY / "Containerfile").read_text()
ROW = {"x": {"shape": [3], "dtype": "float32"}, "next": {"done": {"shape": [], "dtype": "bool"}}}
GUIDE = (ROOT / "docs" / "guides" / "deployment.md").read_text()


def test_the_guide_shows_the_files() -> None:
    for name in ("contig.service", "serve.toml", "Containerfile"):
        assert (ROOT / "deploy" / name).read_text().strip() in GUIDE


def test_the_guide_runs_what_the_unit_runs() -> None:
    """`tests/test_commands.py` runs the commands of the guide, with deploy/serve.toml in place."""
    steps = find_steps(GUIDE)
    assert unit()["ExecStart"] in [step.text for step in steps]
    files = {step.path: step.text for step in steps if step.kind == "file"}
    assert files["/etc/contig/serve.toml"] == (DEPLOY / "serve.toml").read_text()


def unit() -> dict[str, str]:
    """The unit's settings; none is there twice."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read(DEPLOY / "contig.service")
    return {key: value for part in parser.sections() for key, value in parser[part].items()}


def test_the_unit_and_its_file_belong_together(tmp_path: Path) -> None:
    """What it is to write lies where it may, and what it reads beside its file."""
    settings = unit()
    words = shlex.split(settings["ExecStart"])[1:]
    assert words[:3] == ["serve", "--config", "/etc/contig/serve.toml"]
    state = Path("/var/lib") / settings["StateDirectory"]
    assert settings["WorkingDirectory"] == str(state) and settings["ProtectSystem"] == "strict"
    (tmp_path / "row.json").write_text(json.dumps(ROW))
    (tmp_path / "serve.toml").write_bytes((DEPLOY / "serve.toml").read_bytes())
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    config = read_config(parser.parse_args([*words[1:2], str(tmp_path / "serve.toml"), words[3]]))
    for own in config.tables.values():
        disk = own.over(config.every).disk
        assert disk is not None and disk.is_relative_to(state)
    read = [Path(config["token_file"]), *map(Path, config["tls"])]
    assert {path.parent for path in read} == {tmp_path}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "contig.service").read_text()
    placed = tmp_path / "contig.service"
    placed.write_text(text.replace("/opt/contig/bin/contig", sys.executable))
    command = ["systemd-analyze", "verify", "--man=no", str(placed)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    about = [line for line in done.stderr.splitlines() if "contig.service" in line]
    assert (done.returncode, about) == (0, [])


def health_command(port: int) -> list[str]:
    """HEALTHCHECK of the container file, of another port, with this interpreter."""
    (line,) = re.findall(r"^HEALTHCHECK .*CMD (\[.*\])$", CONTAINER, re.MULTILINE)
    python, script, where = json.loads(line)
    assert (python, where) == ("python", "9100")
    assert f"COPY deploy/{Path(script).name} {script}" in CONTAINER
    return [sys.executable, str(DEPLOY / Path(script).name), str(port)]


@contextmanager
def served(place: Path, toml: str) -> Iterator[tuple[int, Any]]:
    """The container's command in a directory like its own: its metrics port, and the process."""
    (place / "serve.toml").write_text(toml)
    (place / "row.json").write_text(json.dumps(ROW))
    words = json.loads(re.findall(r"^CMD (\[.*\])$", CONTAINER, re.MULTILINE)[0])
    words = [word.replace("/data", str(place)) for word in words]
    process = subprocess.Popen(
        [sys.executable, "-m", "contig", *words], cwd=place, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        process.stdout.readline()
        metrics = process.stdout.readline()
        yield int(metrics.rpartition(":")[2].partition("/")[0]), process
    finally:
        process.terminate()
        process.communicate(timeout=WAIT_S)


def test_the_containers_server_is_found_healthy(tmp_path: Path) -> None:
    """For clients elsewhere, with TLS; its rows are kept in its own directory."""
    (tmp_path / "token").write_text("s3cret")
    issued = trustme.CA().issue_cert("data.example")
    issued.private_key_pem.write_to_path(tmp_path / "server.key")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
    toml = (DEPLOY / "serve.toml").read_text()
    for there, here in (("= 5000", "= 0"), ("= 9100", "= 0"), ("/var/lib/contig/", "")):
        assert there in toml
        toml = toml.replace(there, here)
    with served(tmp_path, toml) as (port, process):
        command = health_command(port)
        proxies = {**os.environ, "http_proxy": "http://127.0.0.1:1", "https_proxy": "127.0.0.1:1"}
        assert subprocess.run(command, env=proxies, check=False).returncode == 0
        assert (tmp_path / "tables" / "online").is_dir()
        process.terminate()
        process.wait(WAIT_S)
        assert subprocess.run(command, check=False).returncode == 1


def test_a_server_of_this_host_alone_is_found_healthy_too(tmp_path: Path) -> None:
    toml = 'metrics_port = 0\n[tables.online]\nexample = "row.json"\ncapacity = 10\n'
    with served(tmp_path, toml) as (port, _):
        assert subprocess.run(health_command(port), check=False).returncode == 0


def test_the_container_file_is_of_this_repository() -> None:
    build, runs = CONTAINER.split("\nFROM ")[1:]
    assert "COPY . /source" in build and "pip wheel" in build and "/source" in build
    assert "COPY --from=build /wheels /wheels" in runs and "/wheels/contig-*.whl" in runs
    assert "install -d -o contig -g contig /data" in runs
    assert runs.index("/data") < runs.index("USER contig") < runs.index("VOLUME /data")
    left_out = (ROOT / ".dockerignore").read_text().split()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [project["readme"], *project["license-files"], "src", "native", "CMakeLists.txt"]
    assert all((ROOT / name).exists() and name not in left_out for name in needed)
    extras = re.findall(r"\.whl\)\[([a-z,]+)\]", runs)[0].split(",")
    assert set(extras) <= set(project["optional-dependencies"])


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    with Server(items.example(), 4, TcpTransport(metrics_port=0)) as server:
        assert server.metrics_port is not None
        queue = {name for name, _ in scrape(server.metrics_port)}
    page = (ROOT / "src" / "contig" / "server" / "metrics.py").read_text()
    dashboard = json.loads((ROOT / "deploy" / "grafana.json").read_text())
    text = json.dumps(dashboard) + GUIDE
    asked = set(re.findall(r"contig_[a-z_]+", text)) - {"contig_"}
    assert len(asked) > 15
    for name in asked:
        of_tables = name.removeprefix("contig_table_")
        known = name in queue or f'"{of_tables}"' in page or f'"{name[7:]}"' in page
        assert known, name
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in dashboard["panels"]]
    assert len(set(places)) == len(places)
    assert len({p["id"] for p in dashboard["panels"]}) == len(places)


def test_commands_in_guides_are_commands() -> None:
    for name in ("command-line.md", "deployment.md"):
        text = (ROOT / "docs" / "guides" / name).read_text()
        for block in re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            for line in block.splitlines():
                words = shlex.split(line, comments=True) if line.startswith("contig ") else []
                if len(words) > 1 and words[1] not in ("--version", "COMMAND"):
                    assert words[1] in COMMANDS, line
