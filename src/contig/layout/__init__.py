"""What one record is, byte by byte."""

from .columns import round_column
from .fit_encoded import Encoded, encoded_rows, fit_encoded
from .fit_ragged import is_column, pair_of
from .layout import Layout
from .leaf import Leaf, LeafSpec, ShapeDtype, as_bytes, plan_leaf, spec_of, spec_of_column
from .mistakes import check_leaves
from .ragged_block import RaggedBlock, block_of, columns_of_records

__all__ = [
    "Encoded",
    "Layout",
    "Leaf",
    "LeafSpec",
    "RaggedBlock",
    "ShapeDtype",
    "as_bytes",
    "block_of",
    "check_leaves",
    "columns_of_records",
    "encoded_rows",
    "fit_encoded",
    "is_column",
    "pair_of",
    "plan_leaf",
    "round_column",
    "spec_of",
    "spec_of_column",
]
