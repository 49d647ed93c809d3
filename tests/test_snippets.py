"""The Python blocks of README.md and docs/ run, page by page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.check_snippets import find_blocks, run

ROOT = Path(__file__).resolve().parents[1]

PAGES = {
    str(path.relative_to(ROOT)): [b for b in find_blocks(path.read_text()) if not b.skipped]
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}


@pytest.mark.parametrize("page", [name for name, blocks in PAGES.items() if blocks])
def test_snippets_run(page: str) -> None:
    blocks = PAGES[page]
    passed, problem = run(Path(page), blocks, timeout_s=110)
    assert not problem, problem
    assert passed == len(blocks)


def test_a_block_that_fails_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\n```\n\n```python\nassert x == 2, 'not two'\n```\n")
    passed, problem = run(page, find_blocks(page.read_text()), timeout_s=60)
    assert passed == 1
    assert "not two" in problem
    assert f'{page}", line 6' in problem


def test_other_blocks_are_not_run() -> None:
    text = "```py\n1 / 0\n```\n\n<!-- skip -->\n```python\n1 / 0\n```\n\n```text\nno\n```\n"
    assert [b.skipped for b in find_blocks(text)] == [True]


MOVING = {
    "stable-baselines3": "stable_baselines3",
    "cleanrl": "cleanrl_utils",
    "from-torchrl": "torchrl",
    "rsl_rl": "rsl_rl",
    "rlinf": "rlinf",
    "from-echo": "echo",
    "from-reverb": "reverb",
    "from-cpprb": "cpprb",
}


@pytest.mark.parametrize("guide", MOVING)
def test_guides_of_moving_have_code_side_by_side(guide: str) -> None:
    text = (ROOT / "docs" / "guides" / f"{guide}.md").read_text()
    pairs = re.findall(r'<div class="grid" markdown>\n(.*?)\n</div>', text, re.DOTALL)
    assert pairs
    for pair in pairs:
        before, after = re.findall(r"```(?:py|python)\n(.*?)```", pair, re.DOTALL)
        assert re.search(rf"^(?:from|import) {MOVING[guide]}\b", before, re.MULTILINE)
        assert re.search(r"^(?:from|import) contig\b", after, re.MULTILINE)
        assert "contig" not in before
