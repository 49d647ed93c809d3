"""Items and rows that say who sent them, in which order, and what their other values must be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tests.waiting import WAIT_S

WIDTH = 6


def example(width: int = WIDTH) -> dict[str, Any]:
    return {"who": np.int64(0), "n": np.int64(0), "data": np.zeros(width, np.float32)}


def item(who: int, n: int, width: int = WIDTH) -> dict[str, Any]:
    return {"who": who, "n": n, "data": payload(np.array([who]), np.array([n]), width)[0]}


def many(who: int, numbers: range, width: int = WIDTH) -> dict[str, Any]:
    """Items ``[n, ...]`` for `send_many`."""
    n = np.array(numbers)
    senders = np.full(len(n), who)
    return {"who": senders, "n": n, "data": payload(senders, n, width)}


def payload(who: Any, n: Any, width: int) -> np.ndarray[Any, Any]:
    """What the data of these items must be, ``[items, width]``; exact in float32."""
    first = (np.asarray(who) * 7919 + np.asarray(n) * 31) % 65521
    return (first[:, None] + np.arange(width)).astype(np.float32)


def read(batch: Any) -> list[tuple[int, int]]:
    """The items of a batch as (who, n); fails if one is torn or mixed."""
    who, n, data = (np.asarray(batch[k]) for k in ("who", "n", "data"))
    np.testing.assert_array_equal(data, payload(who, n, data.shape[1]))
    return list(zip(who.tolist(), n.tolist()))


def check_all(seen: Iterable[tuple[int, int]], sent: dict[int, int]) -> None:
    """Every client's items 0 to sent[who] - 1, each once, in the client's order."""
    got: dict[int, list[int]] = {who: [] for who in sent}
    for who, n in seen:
        got[who].append(n)
    for who, count in sent.items():
        mine = got[who]
        assert len(set(mine)) == len(mine), f"client {who}: duplicates {_twice(mine)}"
        missing = sorted(set(range(count)) - set(mine))
        assert not missing, f"client {who}: {len(missing)} missing, the first {missing[:10]}"
        assert mine == list(range(count)), f"client {who}: out of order or too many"


def _twice(numbers: list[int]) -> list[int]:
    return sorted(n for n in set(numbers) if numbers.count(n) > 1)[:10]


# -- trajectories: rows that know their client, episode, step, and whether they are the last -------


def row_example(width: int = WIDTH) -> dict[str, Any]:
    return {
        "who": np.int64(0),
        "episode": np.int64(0),
        "step": np.int64(0),
        "data": np.zeros(width, np.float32),
        "next": {"reward": np.float32(0), "done": False, "terminated": False, "truncated": False},
    }


def length(who: int, episode: int, longest: int = 40) -> int:
    return 1 + (who * 31 + episode * 17 + episode // 7) % longest


def rows(who: int, episode: int, steps: int, width: int = WIDTH) -> dict[str, Any]:
    """A whole trajectory ``[steps, ...]``, without flags of its end."""
    step = np.arange(steps)
    mix = np.full(steps, who * 1009 + episode)
    return {
        "who": np.full(steps, who),
        "episode": np.full(steps, episode),
        "step": step,
        "data": payload(mix, step, width),
        "next": {"reward": np.ones(steps, np.float32)},
    }


def row(who: int, episode: int, step: int, width: int = WIDTH) -> dict[str, Any]:
    data = payload(np.array([who * 1009 + episode]), np.array([step]), width)[0]
    tree = {"who": who, "episode": episode, "step": step, "data": data}
    return {**tree, "next": {"reward": np.float32(1)}}


def scan(storage: Any) -> list[tuple[int, int, int]]:
    """Everything on a tape that nothing was evicted from, in tape order, untorn."""
    head, tail, _, _ = storage.tape.snapshot()
    assert tail == 0, "the test's capacity is too small"
    if head == 0:
        return []
    batch, lost = storage.gather(np.arange(head, dtype=np.int64))
    assert lost == 0
    return _fields(batch)


def _fields(batch: Any) -> list[tuple[int, int, int]]:
    who, episode, step = (np.asarray(batch[k]) for k in ("who", "episode", "step"))
    data = np.asarray(batch["data"])
    np.testing.assert_array_equal(data, payload(who * 1009 + episode, step, data.shape[1]))
    return list(zip(who.tolist(), episode.tolist(), step.tolist()))


def check_tape(storage: Any, sent: dict[int, int], longest: int = 40) -> int:
    """Every row of every client's episodes once and in order; returns the complete episodes.

    A trajectory of the index never mixes episodes; one that is complete has all its rows.
    """
    per_client: dict[int, list[tuple[int, int]]] = {who: [] for who in sent}
    for who, episode, step in scan(storage):
        per_client[who].append((episode, step))
    for who, count in sent.items():
        wanted = [(e, s) for e in range(count) for s in range(length(who, e, longest))]
        got = per_client[who]
        known = set(got)
        assert len(known) == len(got), f"client {who}: duplicated rows"
        missing = [x for x in wanted if x not in known]
        assert not missing, f"client {who}: {len(missing)} rows missing, the first {missing[:5]}"
        assert got == wanted, f"client {who}: rows out of order"
    return check_episodes(storage, longest)


def check_episodes(storage: Any, longest: int = 40) -> int:
    """Reads trajectories, of many only some; returns how many of all are complete."""
    table = storage.episodes()
    for entry in table[:: max(len(table) // 1000, 1)]:
        batch = storage.read_episode(int(entry["id"]))
        fields = _fields(batch)
        assert len(fields) == entry["steps"]
        who, episode, first = fields[0]
        expected = [(who, episode, first + i) for i in range(len(fields))]
        assert fields == expected, f"a trajectory of mixed or misordered rows: {fields}"
        done = np.asarray(batch["next"]["done"])
        last = first + len(fields) - 1
        ended = bool(entry["terminated"] or entry["truncated"])
        assert done.tolist() == [False] * (len(fields) - 1) + [ended]
        if ended:
            assert last == length(who, episode, longest) - 1, f"ended at {last}: {entry}"
        if entry["complete"]:
            assert first == 0 and ended, f"complete, but not whole: {fields[0]}, {entry}"
    return int(table["complete"].sum())


def drain(server: Any, count: int) -> list[tuple[int, int]]:
    """Samples until there are so many items."""
    got: list[tuple[int, int]] = []
    while len(got) < count:
        sample = server.sample(timeout=WAIT_S)
        assert sample is not None
        got += read(sample.batch)
    return got
