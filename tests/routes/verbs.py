"""Which public members of a class are driven by the routes' suite."""

from __future__ import annotations

from collections.abc import Mapping

from contig.testing import VerbKind, public_members

__all__ = ["check_members"]


def check_members(kind: type, driven: Mapping[str, VerbKind], others: set[str]) -> None:
    """Asserts that a class has these verbs, these other members, and nothing else."""
    verbs = {verb.partition("(")[0] for verb in driven}
    members = set(public_members(kind))
    new = members - verbs - others
    assert not new, (
        f"{kind.__name__} has new public members {sorted(new)}: if one writes rows, let a route in "
        "tests/routes drive it; if not, name it beside the others"
    )
    gone = (verbs | others) - members
    assert not gone, f"{kind.__name__} has no {sorted(gone)} any more"
