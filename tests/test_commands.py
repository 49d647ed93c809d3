"""The commands and files of README.md and docs/ work, page by page."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tools.check_commands import NOT_RUN, check, find_steps

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    str(path.relative_to(ROOT))
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if any(step.kind == "command" for step in find_steps(path.read_text()))
]


def run(page: Path) -> str:
    if sys.platform != "linux":
        pytest.skip("namespaces are Linux's")
    text = page.read_text()
    for program in ("openssl",):
        if f"$ {program} " in text and shutil.which(program) is None:
            pytest.skip(f"there is no {program} here")
    status, said = check(page)
    if status == NOT_RUN:
        pytest.skip(said.strip())
    assert status == 0, said
    return said


@pytest.mark.parametrize("page", PAGES)
def test_commands_run(page: str) -> None:
    run(ROOT / page)


def test_pages_with_commands_are_found() -> None:
    assert {"docs/guides/command-line.md", "docs/guides/deployment.md"} <= set(PAGES)


def test_a_command_that_fails_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("text\n\n```console\n$ true  # fine\n$ ls no-such-file\n```\n")
    status, said = check(page)
    if status == NOT_RUN:
        pytest.skip(said.strip())
    assert status == 1 and f"{page}:5: ls no-such-file" in said


def test_a_configuration_that_does_not_start_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '```toml title="serve.toml"\nport = 5000\nnonsense = 1\n```\n\n'
        "```console\n$ contig serve --config serve.toml\n```\n"
    )
    status, said = check(page)
    if status == NOT_RUN:
        pytest.skip(said.strip())
    assert status == 1 and "unknown option 'nonsense'" in said
