"""What one record is, byte by byte."""

from .layout import Layout
from .leaf import Leaf, ShapeDtype, as_bytes, plan_leaf

__all__ = ["Layout", "Leaf", "ShapeDtype", "as_bytes", "plan_leaf"]
