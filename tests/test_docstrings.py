"""Everything public says what it is, and constructors what their arguments are."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tools.public_names import arguments, class_doc, member_doc, members, names

PUBLIC = dict(names())
CLASSES = {name: found for name, found in PUBLIC.items() if isinstance(found, type)}


def listed(doc: str) -> set[str]:
    """The names that the lists of a docstring describe: ``name: ...``, ``one, other: ...``."""
    out: set[str] = set()
    for part in re.split(r"^ *(?:Args|Attributes):\n", doc, flags=re.MULTILINE)[1:]:
        indent = len(part) - len(part.lstrip(" "))
        block = re.match(rf"(?: {{{indent}}}.*\n|\s*\n)*", part + "\n")
        assert block is not None
        # Names may go on in the next line; what is told of them begins behind the colon.
        for found in re.findall(rf"^ {{{indent}}}(\w[\w*.,\s]*):", block[0], re.MULTILINE):
            out.update(name.lstrip("*") for name in re.split(r",\s*", found))
    return out


def undescribed(kind: type) -> list[str]:
    """Arguments that no list of a docstring has."""
    known = listed(class_doc(kind))
    return [a for a in arguments(kind) if a not in known]


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
            second,
                third: others.
        """

        def __init__(self, first: int, second: int, third: int) -> None: ...

    class Undocumented:
        """Has arguments, and says no more than that `first` is there.

        Args:
            second: the other, not `first`.
        """

        def __init__(self, first: int, second: int) -> None: ...

    Documented.__module__ = Undocumented.__module__ = "contig.replay"
    chosen = {"documented": Documented, "undocumented": Undocumented}[kind]
    assert undescribed(chosen) == ([] if kind == "documented" else ["first"])
