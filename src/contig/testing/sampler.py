"""What any sampler must do.

Subclass `SamplerSuite`, say how to make the sampler and what it guarantees, and let pytest collect
the subclass. Draws are judged by what was written (`contig.testing.world`).
"""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import EmptyBufferError, NothingEligibleError
from ..layout import Layout
from ..replay import ReplayBuffer
from ..sample import Index, Predicate, Request, Rng, Sampler, Window
from ..tape import LazyTensorStorage, Storage
from .any_size import EXAMPLE, check_any_size, with_any_size
from .steps import identity, raises
from .world import World, stream

__all__ = ["SamplerSuite"]


class SamplerSuite:
    """Tests that every sampler passes.

    Attributes:
        batch_size: rows to ask for.
        refused: batch sizes that do not fit the sampler.
        random: draws depend on the seed.
        runs_out: rows retire, so that a stream may end until more are written.
        has_priorities: `update_priority` works; without, it is a TypeError.
    """

    batch_size: int = 8
    refused: tuple[int, ...] = ()
    random: bool = True
    runs_out: bool = False
    has_priorities: bool = False

    def make_sampler(self) -> Sampler:
        """A new sampler."""
        raise NotImplementedError(f"{type(self).__name__} must define make_sampler")

    def make_storage(self, capacity: int) -> Storage:
        """Where the rows are; any storage will do."""
        return LazyTensorStorage(capacity)

    def longest_group(self, request: Request) -> int:
        """Rows that one group may have at most: burn-in and the like come on top."""
        return request.length

    # -- drawing ------------------------------------------------------------------------------

    def test_request(self) -> None:
        sampler = self.make_sampler()
        request = sampler.request(self.batch_size)
        assert request.groups >= 1 and request.length >= 1
        assert request.groups * request.length <= self.batch_size
        for size in self.refused:
            with raises(ValueError, match=str(size)):
                sampler.request(size)

    def test_draws_stored_rows_in_contiguous_groups(self) -> None:
        world, index, rng = self._world(1000, rounds=5)
        sampler = self.make_sampler()
        request = sampler.request(self.batch_size)
        drawn = 0
        for _ in range(30):
            index.refresh()
            draw = sampler.draw(index, rng, request)
            if draw is None:
                break
            world.check(draw, request, self.longest_group(request))
            drawn += draw.groups
        assert drawn > 0
        assert self.runs_out or drawn >= 30

    def test_keeps_to_stored_rows_while_the_ring_turns(self) -> None:
        # Draws between writes: every state of the seam, episodes cut by it, parts evicted.
        world, index, rng = self._world(61, rounds=1)
        sampler = self.make_sampler()
        request = sampler.request(self.batch_size)
        drawn = 0
        for _ in range(40):
            world.write()
            for _ in range(3):
                index.refresh()
                draw = sampler.draw(index, rng, request)
                if draw is not None:
                    drawn += 1
                    world.check(draw, request, self.longest_group(request))
        assert drawn >= 40

    def test_a_ring_of_a_few_rows(self) -> None:
        for capacity in (1, 2, 3, 5, 8):
            world, index, rng = self._world(capacity, rounds=0)
            sampler = self.make_sampler()
            request = sampler.request(self.batch_size)
            for n in range(20):
                world.extend(1 + n % 3, end=("terminated", None, "truncated")[n % 3])
                index.refresh()
                draw = sampler.draw(index, rng, request)
                if draw is not None:
                    world.check(draw, request, self.longest_group(request))

    def test_new_rows_become_eligible(self) -> None:
        world, index, rng = self._world(1000, rounds=2)
        sampler = self.make_sampler()
        request = sampler.request(self.batch_size)
        stream(sampler, index, rng, request, 3)
        old = set(world.step_at)
        world.write(2)
        seen: set[int] = set()
        for draw in stream(sampler, index, rng, request, 300):
            seen |= set(draw[0])
            if seen - old:
                break
        assert seen - old, "no row written after the first draw was ever drawn"

    def test_drawing_changes_nothing_in_the_storage(self) -> None:
        world, index, rng = self._world(61, rounds=4)
        sampler = self.make_sampler()
        before = (len(world.storage), world.storage.episodes().tobytes())
        stream(sampler, index, rng, sampler.request(self.batch_size), 10)
        assert (len(world.storage), world.storage.episodes().tobytes()) == before

    def test_nothing_to_draw(self) -> None:
        with self.make_storage(20) as storage:
            index, sampler, rng = Index(storage), self.make_sampler(), Rng(0)
            request = sampler.request(self.batch_size)
            index.refresh()
            assert sampler.draw(index, rng, request) is None
            world = World(storage)
            world.write(2)
            storage.empty()
            index.refresh()
            assert sampler.draw(index, rng, request) is None
            assert isinstance(sampler.missing(index), str)

    def test_priorities_or_a_type_error(self) -> None:
        world, index, rng = self._world(61, rounds=4)
        sampler = self.make_sampler()
        request = sampler.request(self.batch_size)
        (seqs, _, _), *_ = stream(sampler, index, rng, request, 1)
        if not self.has_priorities:
            with raises(TypeError, match="priorities"):
                sampler.update_priority(index, np.array(seqs), np.ones(len(seqs)))
            return
        sampler.update_priority(index, np.array(seqs), np.ones(len(seqs)))
        for bad in (-1.0, np.nan, np.inf):
            with raises(ValueError, match="priority"):
                sampler.update_priority(index, np.array(seqs), np.full(len(seqs), bad))
        index.refresh()
        draw = sampler.draw(index, rng, request)
        assert draw is not None
        world.check(draw, request, self.longest_group(request))

    # -- windows ------------------------------------------------------------------------------

    def test_window_by_seq(self) -> None:
        world, index, rng = self._world(150, rounds=9)
        low = max(world.step_at) - 70
        allowed = {s for s in world.stored() if s >= low}
        self._check_window(world, index, rng, Window(min_seq=low), allowed)

    def test_window_by_trajectory(self) -> None:
        world, index, rng = self._world(150, rounds=9)
        table = world.storage.episodes()
        ordinal = int(table["id"][len(table) // 2])
        newest = set(table["traj_id"][table["id"] >= ordinal].tolist())
        allowed = {s for s in world.stored() if world.step_at[s][0] in newest}
        assert len(allowed) < len(world.stored())
        self._check_window(world, index, rng, Window(min_ordinal=ordinal), allowed)

    def test_window_by_policy_version(self) -> None:
        world, index, rng = self._world(150, rounds=9)
        version = world.version - 3
        allowed = {s for s in world.stored() if world.version_at[s] >= version}
        assert len(allowed) < len(world.stored())
        self._check_window(world, index, rng, Window(min_version=version), allowed)

    def test_where(self) -> None:
        world, index, rng = self._world(150, rounds=9)
        long = {n: seqs for n, seqs in world.episodes().items() if len(seqs) >= 3}
        allowed = {s for seqs in long.values() for s in seqs}
        assert len(allowed) < len(world.stored())
        predicate = Predicate(("steps", ">=", 3))
        index.refresh()
        window = index.where(predicate).window
        assert window is not None
        self._check_window(world, index, rng, window, allowed)

    def test_where_follows_what_is_written(self) -> None:
        world, index, rng = self._world(61, rounds=1)
        sampler, predicate = self.make_sampler(), Predicate(("steps", ">=", 3))
        request = sampler.request(self.batch_size)
        drawn = 0
        for _ in range(30):
            world.write()
            index.refresh()
            draw = sampler.draw(index.where(predicate), rng, request)
            if draw is not None:
                drawn += 1
                world.check(draw, request, self.longest_group(request))
                stored = world.episodes()
                numbers = {world.step_at[s][0] for s in draw.seqs.tolist()}
                assert all(len(stored[n]) >= 3 for n in numbers)
        assert drawn >= 20

    def _check_window(
        self, world: World, index: Index, rng: Rng, window: Window, allowed: set[int]
    ) -> None:
        sampler = self.make_sampler()
        request = sampler.request(self.batch_size)
        seen: set[int] = set()
        for _ in range(40):
            index.refresh()
            draw = sampler.draw(index.narrowed(window), rng, request)
            if draw is None:
                break
            world.check(draw, request, self.longest_group(request))
            seen |= set(draw.seqs.tolist())
        assert seen, "nothing was drawn"
        outside = sorted(seen - allowed)
        assert not outside, f"{window} does not have rows {outside}, which were drawn"

    # -- reproducibility and state ------------------------------------------------------------

    def test_same_seed_same_draws(self) -> None:
        _, index, _ = self._world(150, rounds=9)
        streams = []
        for seed in (1, 1, 2):
            sampler = self.make_sampler()
            request = sampler.request(self.batch_size)
            streams.append(stream(sampler, index, Rng(seed), request, 8))
        assert streams[0] == streams[1]
        assert (streams[0] != streams[2]) == self.random

    def test_state_continues_the_stream(self) -> None:
        for drawn in (0, 1, 5):
            world, index, rng = self._world(150, rounds=9)
            sampler, other = self.make_sampler(), self.make_sampler()
            request = sampler.request(self.batch_size)
            stream(sampler, index, rng, request, drawn)
            state = through_files(sampler.state())
            words = rng.state()
            expected = stream(sampler, index, rng, request, 4)
            world.extend(9)
            expected += stream(sampler, index, rng, request, 4)

            world, index, rng = self._world(150, rounds=9)
            other.load(state)
            rng.load(words)
            got = stream(other, index, rng, request, 4)
            world.extend(9)
            got += stream(other, index, rng, request, 4)
            assert got == expected

    def test_state_is_not_changed_by_later_draws(self) -> None:
        _, index, rng = self._world(150, rounds=9)
        sampler, other = self.make_sampler(), self.make_sampler()
        request = sampler.request(self.batch_size)
        stream(sampler, index, rng, request, 2)
        state, words = sampler.state(), rng.state()
        expected = stream(sampler, index, rng, request, 4)
        rng.load(words)
        other.load(state)
        assert stream(other, index, rng, request, 4) == expected

    def test_state_into_a_used_sampler(self) -> None:
        _, index, rng = self._world(150, rounds=9)
        fresh, used = self.make_sampler(), self.make_sampler()
        request = fresh.request(self.batch_size)
        state, words = through_files(fresh.state()), rng.state()
        expected = stream(fresh, index, rng, request, 4)
        stream(used, index, Rng(9), request, 5)
        used.load(state)
        rng.load(words)
        assert stream(used, index, rng, request, 4) == expected

    def test_rewind_goes_back_to_a_mark(self) -> None:
        for drawn in (0, 1, 5):
            _, index, rng = self._world(150, rounds=9)
            sampler = self.make_sampler()
            request = sampler.request(self.batch_size)
            stream(sampler, index, rng, request, drawn)
            mark, words = sampler.mark(), rng.state()
            expected = stream(sampler, index, rng, request, 4)
            for _ in range(2):  # a mark serves more than once
                sampler.rewind(mark)
                rng.load(words)
                assert stream(sampler, index, rng, request, 4) == expected

    def test_rewind_over_writes(self) -> None:
        world, index, rng = self._world(61, rounds=4)
        sampler = self.make_sampler()
        request = sampler.request(self.batch_size)
        mark = sampler.mark()
        stream(sampler, index, rng, request, 2)
        world.write(4)
        stream(sampler, index, rng, request, 2)
        sampler.rewind(mark)
        for _ in range(5):
            index.refresh()
            draw = sampler.draw(index, rng, request)
            if draw is not None:
                world.check(draw, request, self.longest_group(request))

    def test_reset_after_empty(self) -> None:
        world, index, rng = self._world(150, rounds=9)
        sampler = self.make_sampler()
        request = sampler.request(self.batch_size)
        stream(sampler, index, rng, request, 3)
        world.storage.empty()
        sampler.reset()
        index.refresh()
        assert sampler.draw(index, rng, request) is None
        old = set(world.step_at)
        world.write(4)
        drawn = stream(sampler, index, rng, request, 5)
        assert drawn
        for seqs, _, _ in drawn:
            assert not set(seqs) & old

    # -- in a buffer --------------------------------------------------------------------------

    def test_batches_of_a_buffer(self) -> None:
        with self.make_storage(150) as storage:
            buffer = self._buffer(storage)
            with raises(EmptyBufferError):
                buffer.sample()
            world = World(storage)
            for _ in range(12):
                world.write()
                batch = buffer.sample()
                steps = [world.step_at[s] for s in batch["index"].tolist()]
                assert identity(batch) == steps
            storage.empty()
            with raises(EmptyBufferError, NothingEligibleError):
                buffer.sample()

    def test_bytes_of_a_buffers_rows(self) -> None:
        """Leaves of any size are those of the rows that were drawn."""
        with self.make_storage(150) as storage:
            buffer = self._buffer(storage)
            storage.publish(Layout(EXAMPLE))
            world = World(storage, with_any_size)
            for _ in range(12):
                world.write()
                batch = buffer.sample()
                steps = [world.step_at[s] for s in batch["index"].tolist()]
                assert check_any_size(batch) == steps

    def test_checkpoint_of_a_buffer_continues(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            with self.make_storage(150) as storage, self.make_storage(150) as other:
                World(storage).write(9)
                buffer, loaded = self._buffer(storage), self._buffer(other)
                for _ in range(3):
                    buffer.sample()
                buffer.save(Path(directory) / "checkpoint")
                loaded.load(Path(directory) / "checkpoint")
                for _ in range(4):
                    expected, got = buffer.sample(), loaded.sample()
                    for path in expected.keys():  # noqa: SIM118
                        assert got[path].tobytes() == expected[path].tobytes(), path

    # -- how ----------------------------------------------------------------------------------

    def _world(self, capacity: int, rounds: int) -> tuple[World, Index, Rng]:
        world = World(self.make_storage(capacity))
        world.write(rounds)
        return world, Index(world.storage), Rng(0)

    def _buffer(self, storage: Storage) -> ReplayBuffer:
        sampler, size = self.make_sampler(), self.batch_size
        return ReplayBuffer(storage, sampler, batch_size=size, seed=3, output="numpy")


def through_files(state: dict[str, Any]) -> Any:
    """A state as a checkpoint keeps it: JSON, and arrays without pickle."""
    arrays: list[bytes] = []

    def encode(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            file = io.BytesIO()
            np.save(file, value, allow_pickle=False)
            arrays.append(file.getvalue())
            return {"__array__": len(arrays) - 1}
        if isinstance(value, dict):
            return {k: encode(v) for k, v in value.items()}
        return [encode(v) for v in value] if isinstance(value, (list, tuple)) else value

    def decode(value: Any) -> Any:
        if isinstance(value, dict):
            if set(value) == {"__array__"}:
                return np.load(io.BytesIO(arrays[value["__array__"]]), allow_pickle=False)
            return {k: decode(v) for k, v in value.items()}
        return [decode(v) for v in value] if isinstance(value, list) else value

    return decode(json.loads(json.dumps(encode(state))))
