"""What samplers have in common: the index they read, the draw they return, their state.

A sampler is index arithmetic. It reads the index, returns seqs, and never touches data:

    Request (how many groups, how long)  ->  sampler.draw(index, rng, request)  ->  Draw (seqs ...)

The buffer gathers the rows of a Draw; groups whose rows were evicted meanwhile are drawn again.
Samplers compose by holding one another.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from ..arguments import check_kind, whole
from .at_once import UniformRows, UniformSlices
from .draw import Draw
from .index import Array, Index, Window
from .shown import shown
from .spanning import Spanning
from .undo import Change

__all__ = [
    "Array",
    "Draw",
    "Index",
    "Mass",
    "OuterSampler",
    "Request",
    "Rng",
    "Sampler",
    "Window",
    "request_of",
]


class Request(NamedTuple):
    """What a buffer asks for.

    Attributes:
        groups: how many: rows, or slices.
        length: rows of a slice.
    """

    groups: int
    length: int = 1


request_of = functools.lru_cache(1024)(Request)  # making one costs more than a look-up


class Mass(NamedTuple):
    """Between how much a sampler chooses on one tape, at one moment.

    Attributes:
        weight: rows, trajectories, starts, sums of priorities: whatever each draw is one of.
        least: the smallest positive weight of a row, for samplers that correct for weights.
    """

    weight: float
    least: float = float("inf")


class Rng:
    """A sampler's own stream of random numbers: four words, so that it can be saved.

    Args:
        seed: None: fresh numbers.
        rank: which of several learners with one seed; None: there is one.
    """

    def __init__(self, seed: int | None, rank: int | None = None) -> None:
        if seed is not None:
            seed = whole("seed", seed, 0, "None or a whole number")
        # Streams of several learners with one seed have nothing in common.
        key = () if rank is None else (rank,)
        seeds = np.random.SeedSequence(seed, spawn_key=key)
        self.words: Array = seeds.generate_state(4, np.uint64)

    def state(self) -> list[int]:
        """The stream's place, for `load`."""
        return [int(w) for w in self.words]

    def load(self, state: list[int]) -> None:
        """Takes in what `state` returned."""
        if len(state) != 4:
            raise ValueError(f"random state: expected 4 words, got {len(state)}")
        self.words[:] = np.array(state, np.uint64)

    def key(self) -> int:
        """A fresh 63-bit number."""
        return int(_native.uniform_below(self.words, 0, 2**63, 1)[0])


class Sampler(ABC):
    """Base of all samplers.

    Attributes:
        traj_key, end_key: boundary keys the storage should use, if the user named any.
        batch_size: what a buffer asks for that was given no batch size, if the sampler knows.
    """

    traj_key: Any = None
    end_key: Any = None
    batch_size: int | None = None

    @property
    def name(self) -> str:
        """What kind of sampler this is, for messages and checkpoints."""
        return type(self).__name__

    def __repr__(self) -> str:
        return shown(self, self._shown())

    def _shown(self) -> dict[str, Any]:
        """Arguments that are no attributes of the same name, for `repr`."""
        where = getattr(self, "_where", None)
        return {} if where is None else {"where": where}

    def request(self, batch_size: int) -> Request:
        """Checks a batch size and says what to draw for it.

        Raises:
            ValueError: the batch size does not fit the sampler.
        """
        return request_of(batch_size)

    @abstractmethod
    def draw(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        """Draws, or returns None if nothing is eligible."""

    def at_once(self) -> UniformRows | UniformSlices | None:
        """What `draw` does, if it is no more than that; None: it has to be asked."""
        return None

    def missing(self, index: Index) -> str:
        """Why nothing is eligible, for the error message."""
        return "no row is eligible"

    def update_priority(self, index: Index, seqs: Array, priority: Array) -> None:
        """Sets priorities of rows by seq; TypeError if this sampler has none."""
        raise TypeError(
            f"{type(self).__name__} has no priorities; use PrioritizedSampler or "
            "PrioritizedSliceSampler"
        )

    def note_priority(self, priority: Array) -> None:
        """Hears of priorities that copies of this sampler are going to be given.

        Raises:
            TypeError, ValueError: it has none, or they are no priorities.
        """
        self.update_priority(None, np.empty(0, np.int64), priority)  # type: ignore[arg-type]

    @property
    def stale_priority_updates(self) -> int:
        """Priorities that were set on rows already evicted, and so ignored."""
        return 0

    # -- over several tapes (see sample/shards.py): a copy of the sampler draws from each ----------

    # None: with replacement. Else: each item once per epoch, and whether a last batch that cannot
    # be filled is left out.
    drops_last: bool | None = None

    def mass(self, index: Index, request: Request) -> Mass:
        """Between how much `take` would choose now: draws are split over tapes in proportion. The
        default is right for samplers that draw rows uniformly.

        Raises:
            TypeError: this sampler's draws cannot be split.
        """
        return Mass(int(index.view.weigh_rows(index.window)))

    def take(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        """A tape's share of a batch. In an epoch: the next places of it, as many as asked for, of
        which some may have been evicted; no other epoch is begun."""
        return self.draw(index, rng, request)

    def begin_epoch(self, index: Index, rng: Rng) -> None:  # noqa: B027 (most have none)
        """Begins an epoch of what is there now."""

    @property
    def surveys(self) -> bool:
        """Whether masses depend on what other tapes hold: then `survey` comes first."""
        return False

    def survey(self, index: Index) -> Any:
        """What the others need to know of this tape."""
        return None

    def agree(self, surveys: list[Any]) -> list[Any] | None:
        """What the copies are to `adopt`, one after another; None: nothing. Asked of the sampler
        that the user holds, so that what is changed there (`beta`) reaches them.

        Args:
            surveys: of each tape; Nones if this sampler does none.
        """
        return None

    def adopt(self, told: Any) -> None:  # noqa: B027 (most need none)
        """Takes over what was agreed upon."""

    @property
    def spanning(self) -> Spanning | None:
        """Who draws what may lie on several tapes at once, groups of trajectories; None: every tape
        draws its share. `take` then takes what was wanted of a tape."""
        return None

    def correct(self, draw: Draw, least: float) -> Draw:
        """Puts weights that depend on the smallest one right, for the smallest of all tapes."""
        return draw

    def carried(
        self, states: list[dict[str, Any]], rows: list[tuple[int, Array]]
    ) -> dict[str, Any] | None:
        """A state for a tape whose rows come from others; None: it begins anew.

        Args:
            states: of the tapes they come from.
            rows: where the tape's rows, from its seq 0 on, come from: which of the states, and the
                seqs there.
        """
        return None

    def moved(self, state: dict[str, Any], numbers: dict[int, int]) -> dict[str, Any]:
        """The state of a whole whose shards have other numbers now.

        Args:
            state: as it was saved.
            numbers: what the numbers of then are now; empty: rows were dealt out anew.
        """
        return state

    def divide(self, rank: int, world_size: int) -> None:  # noqa: B027 (most need none)
        """From now on draws for one of several learners. Their random numbers differ anyway; of an
        epoch each gets its own part."""

    def mark(self) -> Any:
        """What a draw changes, to be put back by `rewind`. Cheap: taken before each prefetch."""
        return None

    def rewind(self, mark: Any) -> None:  # noqa: B027 (most need none)
        """Back to a mark."""

    def taken(self, mark: Any) -> list[Change]:
        """What draws since a mark took that will not come again, for `give_back`; empty if what
        they took may come again anyway. Cheap: asked after each draw for a client."""
        return []

    def give_back(self, taken: list[Change]) -> None:  # noqa: B027 (most need none)
        """Nobody got it: it may be drawn again, whatever others have drawn since. What was evicted
        is ignored, and so is what was given back or rewound already, or is from before a reset."""

    def progress(self, mark: Any) -> Any:
        """Returns what `take` took since a mark, as plain values.

        `advance` of a copy that is where this one was then takes it. It is small, for it goes
        along with each share of a batch over shards. The default is the whole state.
        """
        return self.state()

    def advance(self, index: Index, progress: Any) -> None:
        """Takes `progress` in: does not take again what another copy took."""
        self.load(progress)

    def reset(self) -> None:  # noqa: B027 (most need none)
        """Forgets what it knows of the rows: the buffer was emptied."""

    def missed(self, seqs: Array) -> None:  # noqa: B027 (most draw other rows then)
        """Of the last draw, rows of groups that were evicted before they were gathered: nobody got
        them. Said before the next draw."""

    def state(self) -> dict[str, Any]:
        """Everything needed to go on after a restart: JSON values and arrays."""
        return {}

    def load(self, state: dict[str, Any]) -> None:  # noqa: B027 (most need none)
        """Takes a state in."""


class OuterSampler(Sampler):
    """Has another sampler draw. What it does not change, it passes on.

    Args:
        sampler: what draws.
    """

    def __init__(self, sampler: Sampler) -> None:
        check_kind("sampler", sampler, Sampler)
        self.sampler = sampler
        self.traj_key, self.end_key = sampler.traj_key, sampler.end_key
        self.batch_size = sampler.batch_size

    @property
    def name(self) -> str:
        return f"{type(self).__name__}({self.sampler.name})"

    def request(self, batch_size: int) -> Request:
        return self.sampler.request(batch_size)

    def missing(self, index: Index) -> str:
        return self.sampler.missing(index)

    def update_priority(self, index: Index, seqs: Array, priority: Array) -> None:
        self.sampler.update_priority(index, seqs, priority)

    def note_priority(self, priority: Array) -> None:
        self.sampler.note_priority(priority)

    @property
    def stale_priority_updates(self) -> int:
        return self.sampler.stale_priority_updates

    @property
    def drops_last(self) -> bool | None:  # type: ignore[override]
        """Whether an epoch ends before a batch it cannot fill; None: there are no epochs."""
        return self.sampler.drops_last

    def mass(self, index: Index, request: Request) -> Mass:
        return self.sampler.mass(index, request)

    def take(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        return self.sampler.take(index, rng, request)

    def begin_epoch(self, index: Index, rng: Rng) -> None:
        self.sampler.begin_epoch(index, rng)

    @property
    def surveys(self) -> bool:
        return self.sampler.surveys

    def survey(self, index: Index) -> Any:
        return self.sampler.survey(index)

    def agree(self, surveys: list[Any]) -> list[Any] | None:
        return self.sampler.agree(surveys)

    def adopt(self, told: Any) -> None:
        self.sampler.adopt(told)

    @property
    def spanning(self) -> Spanning | None:
        return self.sampler.spanning

    def correct(self, draw: Draw, least: float) -> Draw:
        return self.sampler.correct(draw, least)

    def carried(
        self, states: list[dict[str, Any]], rows: list[tuple[int, Array]]
    ) -> dict[str, Any] | None:
        inner = self.sampler.carried([s["inner"] for s in states], rows)
        return None if inner is None else {"inner": inner}

    def moved(self, state: dict[str, Any], numbers: dict[int, int]) -> dict[str, Any]:
        return {"inner": self.sampler.moved(state["inner"], numbers)}

    def divide(self, rank: int, world_size: int) -> None:
        self.sampler.divide(rank, world_size)

    def mark(self) -> Any:
        return self.sampler.mark()

    def rewind(self, mark: Any) -> None:
        self.sampler.rewind(mark)

    def taken(self, mark: Any) -> list[Change]:
        return self.sampler.taken(mark)

    def give_back(self, taken: list[Change]) -> None:
        self.sampler.give_back(taken)

    def progress(self, mark: Any) -> Any:
        return self.sampler.progress(mark)

    def advance(self, index: Index, progress: Any) -> None:
        self.sampler.advance(index, progress)

    def missed(self, seqs: Array) -> None:
        self.sampler.missed(seqs)

    def reset(self) -> None:
        self.sampler.reset()

    def state(self) -> dict[str, Any]:
        return {"inner": self.sampler.state()}

    def load(self, state: dict[str, Any]) -> None:
        self.sampler.load(state["inner"])
