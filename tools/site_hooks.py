"""The API reference of the documentation, made from docstrings when mkdocs builds it.

mkdocs calls `on_files` (see `hooks:` in mkdocs.yml). Each page of `PAGES` lists public names of
`tools/public_names.py`: signature, docstring, members. Every name is on exactly one page, or the
build fails.
"""

from __future__ import annotations

import html
import inspect
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.public_names import class_doc, member_doc, members, names, ours

#: File, title, and the modules (or prefixes of them) whose names it has.
PAGES = (
    ("values", "Records and batches", ("batch", "layout", "ragged", "codecs", "errors", "_native")),
    ("storages", "Storages and writers", ("tape",)),
    ("samplers", "Samplers", ("sample",)),
    ("buffers", "Replay buffers", ("replay",)),
    ("trajectories", "Trajectory buffer and accumulator", ("trajectory", "accumulate")),
    ("collect", "Environments and collectors", ("collect",)),
    ("learn", "Learning", ("learn",)),
    ("rollout", "Rollout storages", ("rollout",)),
    ("dataset", "Datasets", ("dataset",)),
    ("server", "Servers, clients, weights", ("server", "client", "weights")),
    ("cluster", "On a Ray cluster", ("cluster",)),
    ("adapters", "Adapters", ("adapters",)),
    ("testing", "Conformance suites", ("testing",)),
)

_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns):$")
_ITEM = re.compile(r"^- ([\w*`.]+(?:, [\w*`.]+)*): (.*)$")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of the reference."""
    for name, text in pages().items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def pages() -> dict[str, str]:
    """Every page of the reference as Markdown, by name."""
    entries: dict[str, list[tuple[str, Any]]] = {name: [] for name, _, _ in PAGES}
    for full, found in names():
        entries[_page_of(found)].append((full, found))
    return {
        name: "\n\n".join([f"# {title}", *(_entry(*e) for e in _ordered(entries[name]))]) + "\n"
        for name, title, _ in PAGES
    }


def _page_of(found: Any) -> str:
    top = found.__module__.split(".")[1]
    for name, _, modules in PAGES:
        if top in modules:
            return name
    raise LookupError(f"{found.__module__}.{found.__qualname__} is on no page of the reference")


def _ordered(entries: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Names of `contig` itself first, then by package, each in its own order."""
    return sorted(entries, key=lambda e: e[0].count(".") > 1)


def _entry(full: str, found: Any) -> str:
    parts = [f"## {full}", _call(full, found)]
    if not inspect.isclass(found):
        return "\n\n".join([*parts, markdown(inspect.getdoc(found) or "")])
    bases = [b for b in found.__bases__ if ours(b) and not b.__name__.startswith("_")]
    if bases:
        parts.append("Bases: " + ", ".join(f"`{b.__name__}`" for b in bases))
    parts.append(markdown(inspect.cleandoc(vars(found).get("__doc__") or class_doc(found))))
    inherited = {name for base in bases for name, _ in members(base)}
    for name, value in members(found):
        if name in inherited and name not in vars(found):
            continue  # it is where the base is
        parts += [f"### {name} {{ #{full}.{name} }}", _member(name, value)]
        parts.append(markdown(member_doc(found, name)))
    return "\n\n".join(parts)


class _Bare(str):
    """An annotation that shows without the quotes that it is written in when it is a string."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _bare(annotation: Any) -> Any:
    return _Bare(annotation) if isinstance(annotation, str) else annotation


def _signature(name: str, signature: inspect.Signature, drop: int = 0) -> str:
    """A call as a block of code; on one line if it fits."""
    given = [
        p.replace(annotation=_bare(p.annotation))
        for p in list(signature.parameters.values())[drop:]
    ]
    short = signature.replace(
        parameters=given, return_annotation=_bare(signature.return_annotation)
    )
    text = re.sub(r"<(?:object|function|class) [^>]*>", "...", str(short))
    if len(name) + len(text) > 88:
        inside, _, tail = text[1:].rpartition(")")
        text = "(\n    " + ",\n    ".join(_split(inside)) + f",\n){tail}"
    return f"```text\n{name}{text}\n```"


def _call(full: str, found: Any) -> str:
    name = full.rsplit(".", 1)[-1]
    if inspect.isclass(found) and issubclass(found, BaseException):
        return f"```text\n{name}(message)\n```"
    signature = inspect.signature(found)
    if inspect.isclass(found):
        signature = signature.replace(return_annotation=inspect.Signature.empty)
    return _signature(name, signature)


def _member(name: str, value: Any) -> str:
    if isinstance(value, property) or hasattr(value, "func"):
        getter = getattr(value, "fget", None) or value.func
        kind = inspect.signature(getter).return_annotation
        text = name if kind is inspect.Signature.empty else f"{name}: {_bare(kind)}"
        return f"```text\n{text}\n```"
    function = getattr(value, "__func__", value)
    return _signature(name, inspect.signature(function), not isinstance(value, staticmethod))


def _split(text: str) -> list[str]:
    """Arguments, cut at commas outside brackets and strings."""
    parts, depth, start, quote = [], 0, 0, ""
    for i, c in enumerate(text):
        if quote:
            quote = "" if c == quote else quote
        elif c in "'\"":
            quote = c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == "," and not depth:
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()]


def markdown(doc: str) -> str:
    """A docstring as Markdown: sections become lists, ``code`` becomes `code`."""
    lines: list[str] = []
    section = False
    for line in doc.replace("``", "`").splitlines():
        deep = len(line) - len(line.lstrip())
        if heading := _SECTION.match(line):
            section = True
            lines += ["", f"**{heading[1]}**", ""]
        elif section and line and deep == 0:
            section = False
            lines += ["", line]
        elif section and deep == 4:
            lines.append(f"- {line.strip()}")
        elif section and deep > 4:
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    return _escaped("\n".join(_named(line) for line in lines))


def _named(line: str) -> str:
    """An item of a section with its names as code."""
    item = _ITEM.match(line)
    if item is None:
        return line
    named = ", ".join(n if n == "..." else f"`{n.strip(' `*')}`" for n in item[1].split(", "))
    return f"- {named}: {item[2]}"


def _escaped(text: str) -> str:
    """Angle brackets outside code, which would be taken for HTML."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(p if p.startswith("`") else html.escape(p, quote=False) for p in parts)
