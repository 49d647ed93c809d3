"""skrl's memory for off-policy agents, with its rows in a contig storage.

    memory = Memory(memory_size=100_000, num_envs=4, device="cuda")    in place of RandomMemory

A sample of skrl's own memory copies each tensor row by row, and orders the whole memory at random
to take a batch without replacement from it; here a row is one record, and a batch one gather of
them. Batches with replacement are those of skrl's own memory, bit by bit, from the same seeds.

    position in skrl's tensors    row = memory_index * num_envs + env
    seq in the storage            first + the last number n < rows written with n % capacity == row

skrl's agents do not say where episodes are cut by time, so rows are not in trajectories here. One
thread at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..lazy import requires_extra

with requires_extra("contig.adapters.skrl", "skrl"):
    import torch
    from skrl.memories.torch import Memory as SkrlMemory

from ..errors import EmptyBufferError
from ..replay import ReplayBuffer
from ..tape import LazyTensorStorage, Storage

__all__ = ["Memory"]

Tensor = torch.Tensor
Array = np.ndarray[Any, Any]


class Memory(SkrlMemory):  # type: ignore[misc]
    """Rows of several envs, sampled uniformly, for skrl's off-policy agents: DQN, DDQN, DDPG, TD3,
    SAC, recurrent ones too. On-policy ones (PPO, A2C, TRPO, RPO, AMP, IPPO, MAPPO) write returns
    and advantages into rows that they stored, and rows do not change here: they keep RandomMemory.

    Args:
        memory_size: rows of each env.
        num_envs, device: skrl's; batches are on that device.
        export, export_format, export_directory: skrl's: write all tensors to a file when full.
        replacement: a row may be in a batch more than once; else a batch larger than the memory is
            the whole of it.
        storage: where rows go, of ``memory_size * num_envs`` rows: on disk, say, or shared with
            other processes. Memory of this process if None.

    Attributes:
        tensors, tensors_view: skrl's, by name: they have shapes and dtypes, but no rows.
        buffer: the `contig.ReplayBuffer` with the rows; its `save` makes checkpoints, which `load`
            takes.

    Raises:
        ValueError: the storage has another capacity.
    """

    device: torch.device
    tensors: dict[str, Tensor]
    tensors_view: dict[str, Tensor]

    def __init__(
        self,
        *,
        memory_size: int,
        num_envs: int = 1,
        device: str | torch.device | None = None,
        export: bool = False,
        export_format: str = "pt",
        export_directory: str = "",
        replacement: bool = False,
        storage: Storage | None = None,
    ) -> None:
        super().__init__(
            memory_size=memory_size,
            num_envs=num_envs,
            device=device,
            export=export,
            export_format=export_format,
            export_directory=export_directory,
        )
        self._capacity = memory_size * num_envs
        storage = LazyTensorStorage(self._capacity) if storage is None else storage
        if storage.capacity != self._capacity:
            raise ValueError(
                f"storage: {storage.capacity} rows, expected memory_size * num_envs = "
                f"{self._capacity}"
            )
        self.buffer = ReplayBuffer(storage, output="numpy")
        # skrl seeds torch's random numbers: these follow from that seed, too.
        self._random = None if replacement else np.random.default_rng(int(torch.randint(2**62, ())))
        self._count_from(self.buffer.stats().rows_written)

    def _count_from(self, first: int) -> None:
        """Position 0 is the row with this seq."""
        self._first = first
        self._set_written(self.buffer.stats().rows_written - first)

    def _set_written(self, rows: int) -> None:
        self._written = rows
        self.filled = rows >= self._capacity
        self.memory_index, self.env_index = divmod(rows % self._capacity, self.num_envs)

    # -- writing ------------------------------------------------------------------------------

    def create_tensor(
        self,
        name: str,
        *,
        size: Any,
        dtype: torch.dtype | None = None,
        keep_dimensions: bool = False,
    ) -> bool:
        """Adds a tensor to what every row has. Returns False if it is there already.

        Raises:
            ValueError: rows are stored already, or it is there with another size or dtype.
        """
        if self._written and size is not None and name not in self.tensors:
            raise ValueError(
                f"{name}: rows without it are stored; create every tensor before add_samples"
            )
        # skrl's own checks, and a tensor that has the shape only.
        device, self.device = self.device, torch.device("meta")
        try:
            made: bool = super().create_tensor(
                name, size=size, dtype=dtype, keep_dimensions=keep_dimensions
            )
        finally:
            self.device = device
        return made

    def add_samples(self, **tensors: Any) -> None:
        """Stores one row of each env, or of the next envs; with one env, any number of rows.

        Tensors are ``[rows, size]``, or ``[size]`` for one row. Names that no tensor was created
        for are left out; what is not given is NaN, or 0 where there is none.

        Raises:
            ValueError: nothing given, or rows of more envs than there are.
        """
        if not tensors:
            raise ValueError("no samples: give tensors by their names, add_samples(rewards=...)")
        first = tensors.get("observations")
        first = next(iter(tensors.values())) if first is None else first
        rows = len(first) if first.ndim > 1 else 1
        if self.num_envs > 1 and rows > self.num_envs - self.env_index:
            raise ValueError(
                f"{rows} rows, expected at most {self.num_envs - self.env_index}: of "
                f"{self.num_envs} envs, {self.env_index} have this step already"
            )
        columns = {name: self._column(name, tensors.get(name), rows) for name in self.tensors}
        seqs = self.buffer.extend(columns, continues=False)
        laps = self._written // self._capacity
        self._set_written(int(seqs[-1]) + 1 - self._first)
        if self.export and self._written // self._capacity > laps:
            self.save(directory=self.export_directory, format=self.export_format)

    def _column(self, name: str, given: Any, rows: int) -> Tensor:
        """Rows of one tensor, on the host, with its shape and dtype."""
        like = self.tensors[name]
        shape = (rows, *like.shape[2:])
        if given is None:
            nothing = float("nan") if like.is_floating_point() else 0
            return torch.full(shape, nothing, dtype=like.dtype)
        return torch.as_tensor(given).detach().to("cpu", like.dtype).reshape(shape)

    def reset(self) -> None:
        """Forgets all rows."""
        self.buffer.empty()
        self._count_from(self.buffer.stats().rows_written)

    # -- reading ------------------------------------------------------------------------------

    def sample(
        self, names: Any, *, batch_size: int, mini_batches: int = 1, sequence_length: int = 1
    ) -> list[list[Tensor | None]]:
        """Rows at random, or sequences of rows of one env, one after another.

        Sequences never go over the newest row into the oldest ones; within an env they may go over
        the end of an episode, as skrl's recurrent agents expect.

        Raises:
            EmptyBufferError: there are no rows, or none with so many behind it.
        """
        behind = self.num_envs * (sequence_length - 1)
        size = len(self) - behind
        if size < 1:
            raise EmptyBufferError(
                f"{len(self)} rows of {self.num_envs} envs: no sequence of {sequence_length} to "
                "sample; add_samples comes first"
            )
        if self._random is None:
            chosen = torch.randint(0, size, (batch_size,)).numpy()
        else:
            # Only minibatches, which are parts of the batch, ask for a random order in it.
            mixed = mini_batches > 1
            chosen = self._random.choice(size, min(batch_size, size), replace=False, shuffle=mixed)
        if behind:
            oldest = self._written - len(self)
            steps = np.arange(0, behind + 1, self.num_envs)
            chosen = ((oldest + chosen[:, None] + steps) % self._capacity).reshape(-1)
        self.sampling_indexes = torch.from_numpy(chosen)
        return self._parts(names, chosen, mini_batches)

    def sample_by_index(
        self, names: Any, *, indexes: Any, mini_batches: int = 1
    ) -> list[list[Tensor | None]]:
        """Rows by position; None for names of which there is no tensor.

        Raises:
            IndexError: a position that no row is at.
        """
        if isinstance(indexes, torch.Tensor):
            indexes = indexes.cpu().numpy()
        where = np.asarray(indexes, np.int64)
        if len(where) and not 0 <= where.min() <= where.max() < len(self):
            raise IndexError(
                f"rows at positions {where.min()} to {where.max()}, of {len(self)} that are stored"
            )
        return self._parts(names, where, mini_batches)

    def _parts(self, names: Any, where: Array, parts: int) -> list[list[Tensor | None]]:
        if parts <= 1:
            return [self._rows(names, where)]
        return [self._rows(names, part) for part in np.array_split(where, parts)]

    def _rows(self, names: Any, where: Array) -> list[Tensor | None]:
        """Rows at positions that there are."""
        laps = (self._written - 1 - where) // self._capacity
        rows = self.buffer[where + laps * self._capacity + self._first]
        found = rows.torch(None if self.device.type == "cpu" else self.device)
        return [found.get(name) for name in names]

    def sample_all(
        self, names: Any, *, mini_batches: int = 1, sequence_length: int = 1
    ) -> list[list[Tensor | None]]:
        """All rows, step by step, or env by env if `sequence_length` is more than 1.

        Raises:
            IndexError: the memory is not full.
        """
        if sequence_length > 1:
            return self.sample_by_index(
                names, indexes=self.all_sequence_indexes, mini_batches=mini_batches
            )
        rows = self._capacity // mini_batches * mini_batches  # as skrl: batches of one size
        return self.sample_by_index(names, indexes=np.arange(rows), mini_batches=mini_batches)

    def get_tensor_by_name(self, name: str) -> Tensor:
        """A copy, ``[memory_size, num_envs, size]``; where no row is, NaN, or 0."""
        like = self.tensors[name]
        out = self._column(name, None, self._capacity).to(self.device)
        if self._written:
            (found,) = self._rows([name], np.arange(len(self)))
            assert found is not None
            out[: len(self)] = found
        return out.view(like.shape)

    def set_tensor_by_name(self, name: str, tensor: Tensor) -> None:
        """Refused: rows are written once.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            f"{name}: rows are written once; agents that write returns into their memory (PPO, "
            "A2C, TRPO, RPO) need skrl's RandomMemory"
        )

    # -- elsewhere ----------------------------------------------------------------------------

    def share_memory(self) -> None:
        """Nothing to do: give a `contig.SharedStorage` to share rows with other processes."""

    def save(self, directory: str = "", *, format: str = "pt") -> None:
        """Writes all tensors to a file, as skrl does; `buffer.save` makes a checkpoint."""
        with self._as_tensors():
            super().save(directory, format=format)

    @contextlib.contextmanager
    def _as_tensors(self) -> Iterator[None]:
        """While skrl's own methods look at tensors."""
        shapes, views = self.tensors, self.tensors_view
        shown = {name: self.get_tensor_by_name(name) for name in shapes}
        self.tensors = shown
        self.tensors_view = {name: tensor.flatten(0, 1) for name, tensor in shown.items()}
        try:
            yield
        finally:
            self.tensors, self.tensors_view = shapes, views

    def load(self, path: str) -> None:
        """Takes in a checkpoint of `buffer.save`, in place of all rows; the newest if not all fit.

        Raises:
            ValueError: a file of `save`, which does not say which of its rows were ever written.
        """
        if path.endswith((".pt", ".npz", ".csv")):
            raise ValueError(
                f"{path}: a file of tensors does not say which rows were written; save with "
                "memory.buffer.save(directory), and load that"
            )
        self.buffer.load(path)
        stats = self.buffer.stats()
        self._count_from(stats.rows_written - stats.rows)
