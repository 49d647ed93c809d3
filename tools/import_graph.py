"""The contract that `lint-imports` checks between packages: who may import whom, as a graph.

    allowed = ["sample: tape", "replay: sample tape", ...]

Every package may import the modules of `values`, and among those each one the modules before it.
Imports for type checking count, and so do imports inside of functions. An edge that no import needs
is wrong, too.
"""

from __future__ import annotations

from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class GraphContract(Contract):
    """Each package imports only those that the graph gives it."""

    type_name = "graph"
    root = fields.StringField()
    values = fields.ListField(subfield=fields.StringField())
    allowed = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        root, values = str(self.root), list(self.values)  # type: ignore[call-overload]
        allowed = {name: set(values) for name in self._edges()}
        for name, others in self._edges().items():
            allowed[name] |= others
        for i, name in enumerate(values):
            allowed[name] = set(values[:i])
        wrong, used = set(), set()
        for importer in graph.modules:
            if importer == root or not importer.startswith(root + "."):
                continue
            ours = importer.split(".")[1]
            for imported in graph.find_modules_directly_imported_by(importer):
                if not imported.startswith(root + ".") or imported == f"{root}._native":
                    continue
                theirs = imported.split(".")[1]
                used.add((ours, theirs))
                if theirs != ours and theirs not in allowed.get(ours, ()):
                    wrong.add(f"{importer} imports {imported}: the graph has no such edge")
        for name, others in self._edges().items():
            for other in others:
                if (name, other) not in used:
                    wrong.add(f"{name}: {other}: the graph has an edge that no import needs")
        return ContractCheck(kept=not wrong, metadata={"wrong": sorted(wrong)})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["wrong"]:
            output.print_error(line)

    def _edges(self) -> dict[str, set[str]]:
        lines: Any = self.allowed
        pairs = (line.partition(":") for line in lines)
        return {name.strip(): set(others.split()) for name, _, others in pairs}
