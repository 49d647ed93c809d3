"""The documentation's own tools: the API reference, and the look for what comes from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("mkdocs")

from tools.check_site import foreign
from tools.public_names import names
from tools.site_hooks import markdown, pages

DOC = """Draws rows.

Args:
    first, second: two
        lines of text.
    rest: `x`, ``[n, ...]`` and a < b.

Raises:
    ValueError: nothing there.

More text.
"""


def test_every_public_name_is_in_the_reference_once() -> None:
    headings = [line for page in pages().values() for line in page.splitlines()]
    found = sorted(line[3:] for line in headings if line.startswith("## "))
    assert found == sorted(name for name, _ in names())


def test_docstrings_become_lists() -> None:
    assert markdown(DOC).splitlines() == [
        "Draws rows.",
        "",
        "",
        "**Args**",
        "",
        "- `first`, `second`: two lines of text.",
        "- `rest`: `x`, `[n, ...]` and a &lt; b.",
        "",
        "",
        "**Raises**",
        "",
        "- `ValueError`: nothing there.",
        "",
        "",
        "More text.",
    ]


def test_signatures_show_defaults_as_they_are_written() -> None:
    page = pages()["cluster"]
    assert "    placement: Any = 'spread',\n" in page
    assert "    sampler: Sampler | None = None,\n" in page


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('<script src="https://cdn.example/x.js"></script>', ["https://cdn.example/x.js"]),
        ('<link rel="stylesheet" href="//fonts.example/a.css">', ["//fonts.example/a.css"]),
        ('<a href="https://example.org">read</a><img src="local.png">', []),
    ],
    ids=["script", "style", "link"],
)
def test_what_a_page_loads(tmp_path: Path, text: str, found: list[str]) -> None:
    page = tmp_path / "page.html"
    page.write_text(text)
    assert foreign(page) == found


def test_what_a_style_sheet_loads(tmp_path: Path) -> None:
    sheet = tmp_path / "style.css"
    sheet.write_text("a{background:url(x.png)} @import 'https://fonts.example/a.css';")
    assert foreign(sheet) == ["https://fonts.example/a.css"]


def test_links_of_the_readme_lead_somewhere() -> None:
    root = Path(__file__).resolve().parents[1]
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (root / "README.md").read_text())
    assert len(links) > 10
    assert [link for link in links if "://" not in link and not (root / link).exists()] == []
