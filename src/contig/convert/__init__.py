"""The adapter to array libraries: what comes in becomes numpy, what goes out becomes torch or jax.

    arrays        leaves that come in
    tensors       leaves that go out
    jax_arrays    the same for jax, and batches as nodes of its trees
    tensordicts   trees, both ways
    transfers     streams, events and page-locked memory of a device
    device_memory rows on a device

Only these modules import torch, jax and tensordict, and only inside the functions that need them.
"""

from .arrays import as_array, cast, is_number, is_reward, leaf_spec, numpy_dtype
from .device_memory import (
    DeviceMemory,
    Place,
    Places,
    Reading,
    fits_unseen,
    is_tensor,
    joined,
    put_rows,
    stacked,
    torch_dtype,
)
from .jax_arrays import BlockSplitter, register_nodes, to_jax
from .tensordicts import (
    non_tensors,
    plain_tree,
    tensordict_shape,
    text_of,
    to_tensordict,
)
from .tensors import jagged_parts, jagged_tensor, to_torch, to_torch_all
from .transfers import Arriving, Fetched, Transfers, device_of, moved, pinned_copy

__all__ = [
    "Arriving",
    "BlockSplitter",
    "DeviceMemory",
    "Fetched",
    "Place",
    "Places",
    "Reading",
    "Transfers",
    "as_array",
    "cast",
    "device_of",
    "fits_unseen",
    "is_number",
    "is_reward",
    "is_tensor",
    "jagged_parts",
    "jagged_tensor",
    "joined",
    "leaf_spec",
    "moved",
    "non_tensors",
    "numpy_dtype",
    "pinned_copy",
    "plain_tree",
    "put_rows",
    "register_nodes",
    "stacked",
    "tensordict_shape",
    "text_of",
    "to_jax",
    "to_tensordict",
    "to_torch",
    "to_torch_all",
    "torch_dtype",
]
