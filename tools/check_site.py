"""Look through a rendered site for anything a browser would fetch from another host.

    python tools/check_site.py [DIRECTORY]     default: build/docs/site

Links that a reader may follow are fine; scripts, styles, fonts, images and frames are not, nor are
addresses in style sheets. Also checks that the search index knows every page.
"""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

_LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data"}
_FOREIGN = re.compile(r"^(?:[a-z]+:)?//", re.IGNORECASE)
_IN_CSS = re.compile(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')]+)")
_RELATIONS = {"stylesheet", "preconnect", "preload", "dns-prefetch", "icon", "modulepreload"}


class _Loads(HTMLParser):
    """What a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag in _LOADS:
            self.found.append(given.get(_LOADS[tag], ""))
        if tag == "link" and _RELATIONS & set(given.get("rel", "").split()):
            self.found.append(given.get("href", ""))


def foreign(path: Path) -> list[str]:
    """Addresses of other hosts that a page or style sheet loads."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".css":
        return _IN_CSS.findall(text)
    parser = _Loads()
    parser.feed(text)
    return [url for url in parser.found if _FOREIGN.match(url)]


def unsearchable(site: Path) -> list[str]:
    """Pages that the search index does not know."""
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    known = {entry["location"].split("#")[0] for entry in index["docs"]}
    pages = {str(p.relative_to(site)) for p in site.rglob("*.html")} - {"404.html"}
    return sorted(pages - known)


def main() -> int:
    site = Path(sys.argv[1] if len(sys.argv) > 1 else "build/docs/site")
    files = [*site.rglob("*.html"), *site.rglob("*.css")]
    problems = [f"{path}: loads {url}" for path in files for url in foreign(path)]
    problems += [f"{site / page}: not in the search index" for page in unsearchable(site)]
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(files)} files, {len(problems)} problems")
    return 1 if problems or not files else 0


if __name__ == "__main__":
    sys.exit(main())
