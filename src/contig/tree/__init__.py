"""Pytrees: leaves with paths, and a structure that survives JSON.

A path is a tuple of keys: mapping keys, field names, positions in tuples, lists and deques. optree
flattens: dicts, tuples, lists, namedtuples, OrderedDicts, deques, struct sequences, and every type
registered with it, globally or in its namespace "contig" (dataclasses of `optree.dataclasses`, for
example). The leaves of a mapping are in the order of its sorted keys, whatever order it was built
in. This is the only package that imports optree.
"""

from .flatten import first_leaf, flatten
from .paths import Nested, Path, as_path, nested, show_path
from .structure import Structure, tree_builder, unflatten

__all__ = [
    "Nested",
    "Path",
    "Structure",
    "as_path",
    "first_leaf",
    "flatten",
    "nested",
    "show_path",
    "tree_builder",
    "unflatten",
]
