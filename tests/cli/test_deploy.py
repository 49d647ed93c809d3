"""What is in deploy/: it says the same as the guide, and asks for what there is."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from contig import Server, TcpTransport
from contig.cli.main import COMMANDS
from tests.server import items
from tests.server.test_metrics import scrape

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "deployment.md").read_text()


def test_the_guide_shows_the_files() -> None:
    for name in ("contig.service", "Containerfile"):
        assert (ROOT / "deploy" / name).read_text().strip() in GUIDE


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
