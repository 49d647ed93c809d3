"""One priority for each row, of what a TensorDict has."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...convert import as_array

__all__ = ["priorities_of"]

_REDUCE: dict[str, Any] = {"max": np.max, "mean": np.mean, "median": np.median, "min": np.min}


def priorities_of(given: Any, rows: int, reduction: str) -> np.ndarray[Any, Any]:
    """Priorities ``[rows]``, of values ``[rows, ...]``; their signs do not count.

    Raises:
        ValueError: there are not as many for every row.
    """
    values = np.abs(as_array(given))
    if values.size % rows:
        raise ValueError(
            f"priorities: shape {list(values.shape)} for {rows} rows; expected [{rows}, ...]"
        )
    return np.asarray(_REDUCE[reduction](values.reshape(rows, -1), axis=1))
