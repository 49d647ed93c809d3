"""Trajectories that are open when their server goes: their rest goes on with them, or is never
complete; by every verb."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import Batch
from tests.server.restarts import ENDS, ID_ROW, ROW, Sent, sent_in_two

CALLS, BEFORE = 10, 6


def rows(numbers: Any, ends: list[int], episodes: Any = None) -> dict[str, Any]:
    numbers = np.asarray(numbers)
    done = np.isin(numbers % 100, ends)
    tree = {"number": numbers, "next": {"reward": np.ones(numbers.shape, np.float32), "done": done}}
    if episodes is not None:
        tree["episode"] = np.broadcast_to(np.asarray(episodes), numbers.shape).copy()
    return tree


def cut(base: int, ends: list[int]) -> list[list[int]]:
    """The numbers of episodes that end at these steps."""
    starts = [0, *(end + 1 for end in ends[:-1])]
    return [[base + t for t in range(start, end + 1)] for start, end in zip(starts, ends)]


def plain_verbs(ends: list[int]) -> list[Sent]:
    """Every verb, with trajectories that end at these steps."""

    def send(client: Any, t: int) -> None:
        client.send(rows(0 + t, ends))

    def extend(client: Any, t: int) -> None:
        client.extend(rows([1000 + t], ends))

    def whole_step(client: Any, t: int) -> None:
        client.add_step(rows([2000 + t, 2100 + t], ends))

    def some_envs(client: Any, t: int) -> None:
        client.add_step(rows([3000 + t, 3100 + t], ends), env_ids=[7, 5])

    def lanes(client: Any, t: int) -> None:
        tree = rows([[4000 + t], [4100 + t], [4200 + t]], ends)
        client.extend(Batch.from_tree(tree, 2), continues=t > 0)

    made = []
    verbs = [(send, [0]), (extend, [1000]), (whole_step, [2000, 2100]), (some_envs, [3000, 3100])]
    for verb, bases in [*verbs, (lanes, [4000, 4100, 4200])]:
        calls = [lambda client, verb=verb, t=t: verb(client, t) for t in range(CALLS)]
        made.append(Sent(calls, [e for base in bases for e in cut(base, ends)]))
    return [*made, written(5000)]


def written(base: int) -> Sent:
    """Steps of a client's writer."""
    made: dict[int, Any] = {}

    def append(client: Any, t: int) -> None:
        writer = made.setdefault(id(client), None) or client.writer()
        made[id(client)] = writer
        writer.append(rows(base + t, []))
        if t + 1 == CALLS:
            writer.end_episode(terminated=True)

    calls = [lambda client, t=t: append(client, t) for t in range(CALLS)]
    return Sent(calls, cut(base, [CALLS - 1]))


def verbs_with_ids() -> list[Sent]:
    """Rows that say which trajectory they belong to, those of several in turn."""

    def in_turn(client: Any, t: int) -> None:
        for episode in (1, 2):
            client.send(rows(100 * episode + t, [CALLS - 1], episode))

    def across(client: Any, t: int) -> None:
        """Each call has the rest of one, a whole one, and the beginning of the next."""
        first = np.arange(1000 + 6 * t, 1000 + 6 * t + 6)
        episodes = (first - 1000 + 3) // 4
        tree = rows(first, [], episodes)
        tree["next"]["done"] = ((first - 1000) % 4 == 0) | (first == 1000 + 6 * CALLS - 1)
        client.extend(tree)

    def same_id(client: Any, t: int) -> None:
        """Two lanes whose episodes have the same number."""
        tree = rows([[2000 + t], [2100 + t]], [4, CALLS - 1], 0 if t < 5 else 1)
        client.extend(Batch.from_tree(tree, 2))

    parts = [[1000 + n for n in range(6 * CALLS) if (n + 3) // 4 == e] for e in range(16)]
    verbs = [
        (in_turn, cut(100, [CALLS - 1]) + cut(200, [CALLS - 1])),
        (across, parts),
        (same_id, cut(2000, [4, CALLS - 1]) + cut(2100, [4, CALLS - 1])),
    ]
    made = []
    for verb, episodes in verbs:
        calls = [lambda client, verb=verb, t=t: verb(client, t) for t in range(CALLS)]
        made.append(Sent(calls, episodes))
    return made


@pytest.mark.parametrize("end", ENDS)
def test_the_rest_of_an_open_trajectory(end: str, tmp_path: Path) -> None:
    sent_in_two(end, tmp_path, plain_verbs([2, CALLS - 1]), BEFORE, ROW)


@pytest.mark.parametrize("end", ENDS)
def test_a_restart_between_two_trajectories(end: str, tmp_path: Path) -> None:
    """What begins behind it is whole."""
    sent_in_two(end, tmp_path, plain_verbs([BEFORE - 1, CALLS - 1]), BEFORE, ROW)


@pytest.mark.parametrize("end", ENDS)
def test_rows_with_ids(end: str, tmp_path: Path) -> None:
    sent_in_two(end, tmp_path, verbs_with_ids(), BEFORE, ID_ROW)
