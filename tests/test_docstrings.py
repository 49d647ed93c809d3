"""Everything public says what it is, and constructors what their arguments are."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tools.public_names import arguments, class_doc, member_doc, members, names

PUBLIC = dict(names())
CLASSES = {name: found for name, found in PUBLIC.items() if isinstance(found, type)}


def undescribed(kind: type) -> list[str]:
    """Arguments that no docstring names."""
    doc = class_doc(kind)
    return [a for a in arguments(kind) if not re.search(rf"\b{re.escape(a)}\b", doc)]


def test_every_name_has_a_docstring() -> None:
    def own(found: Any) -> Any:
        return vars(found).get("__doc__") if isinstance(found, type) else found.__doc__

    assert [name for name, found in PUBLIC.items() if not own(found)] == []


def test_every_member_has_a_docstring() -> None:
    missing = [
        f"{name}.{member}"
        for name, kind in CLASSES.items()
        for member, _ in members(kind)
        if not member_doc(kind, member)
    ]
    assert missing == []


def test_constructors_describe_their_arguments() -> None:
    missing = {name: undescribed(kind) for name, kind in CLASSES.items() if undescribed(kind)}
    assert missing == {}


def test_the_surface_is_the_one_people_know() -> None:
    assert {"contig.ReplayBuffer", "contig.learn.gae", "contig.testing.StorageSuite"} <= set(PUBLIC)


@pytest.mark.parametrize("kind", ["undocumented", "documented"])
def test_an_undescribed_argument_is_found(kind: str) -> None:
    class Documented:
        """Has arguments.

        Args:
            first: one.
        """

        def __init__(self, first: int, second: int) -> None:
            """`second` is the other."""

    class Undocumented:
        """Has arguments."""

        def __init__(self, first: int) -> None: ...

    Documented.__module__ = Undocumented.__module__ = "contig.replay"
    chosen = {"documented": Documented, "undocumented": Undocumented}[kind]
    assert undescribed(chosen) == ([] if kind == "documented" else ["first"])
