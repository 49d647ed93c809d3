"""Trajectories with fields and leaves of any size, each byte of which says whose it is."""

from __future__ import annotations

from typing import Any

import numpy as np

from contig import Ragged

FIELDS = {"who": np.int64(0), "episode": np.int64(0), "note": np.zeros(19, np.uint8), "ok": False}
_KINDS = ("who", "episode", "step", "text", "data", "tokens")


def example() -> dict[str, Any]:
    """A row."""
    return {
        "who": np.int64(0),
        "episode": np.int64(0),
        "step": np.int64(0),
        "text": "",
        "data": b"",
        "tokens": Ragged(np.int32, (2,)),
        "next": {"done": False, "terminated": False, "truncated": False},
    }


def length(who: int, episode: int, longest: int = 12) -> int:
    return 1 + (who * 31 + episode * 17 + episode // 7) % longest


def mix(who: int, episode: int, step: int) -> int:
    return (who * 7919 + episode * 104_729 + step * 31 + 17) % 65_521


def size(who: int, episode: int, step: int) -> int:
    """Bytes of `data`: mostly few, now and then none or many."""
    n = mix(who, episode, step)
    return 0 if n % 7 == 0 else n % 40 if n % 11 else 100 * (n % 60)


def row(who: int, episode: int, step: int) -> dict[str, Any]:
    n = mix(who, episode, step)
    return {
        "who": who,
        "episode": episode,
        "step": step,
        "text": f"{who}/{episode}/{step}ß" * (n % 4),
        "data": bytes([n % 251]) * size(who, episode, step),
        "tokens": np.arange(n, n + 2 * (n % 9), dtype=np.int32).reshape(-1, 2),
    }


def rows(who: int, episode: int, steps: int) -> dict[str, Any]:
    """A whole trajectory, without flags of its end."""
    each = [row(who, episode, step) for step in range(steps)]
    columns = {key: [r[key] for r in each] for key in _KINDS}
    return {k: np.array(v) if k in _KINDS[:3] else v for k, v in columns.items()}


def fields(who: int, episode: int) -> dict[str, Any]:
    note = np.full(19, (who * 13 + episode) % 251, np.uint8)
    return {"who": who, "episode": episode, "note": note, "ok": True}


def send(client: Any, who: int, episode: int) -> None:
    """A trajectory: whole, or step by step, with its fields somewhere on the way."""
    steps = length(who, episode)
    if episode % 3 == 0:
        given = fields(who, episode)
        data = rows(who, episode, steps)
        client.send_trajectory(data, terminated=True, fields=given)
        return
    if episode % 3 == 1:
        given = fields(who, episode)
        for step in range(steps):
            some = {k: given[k] for k in (("who", "note"), ("episode", "ok"))[step % 2]}
            step_row = {**row(who, episode, step), "next": {"done": step == steps - 1}}
            client.send(step_row, fields=given if step == steps - 1 else some)
        return
    with client.writer() as writer:
        for step in range(steps):
            writer.append(row(who, episode, step), fields={"who": who} if step == 1 else None)
        writer.end_episode(terminated=True, fields=fields(who, episode))


def check_rows(batch: Any) -> list[tuple[int, int, int]]:
    """What the rows of a batch are; fails if one has a byte that is not its own."""
    names = [np.asarray(batch[k]).tolist() for k in ("who", "episode", "step")]
    out = list(zip(*names))
    for i, name in enumerate(out):
        expected = row(*name)
        assert batch["text"][i] == expected["text"], name
        assert batch["data"][i] == expected["data"], name
        np.testing.assert_array_equal(batch["tokens"][i], expected["tokens"], str(name))
    return out


def check_tape(storage: Any, sent: dict[int, int], longest: int = 12) -> None:
    """Every row of every client's episodes once and in order, in trajectories with their fields."""
    table = storage.episodes()
    found: dict[int, list[tuple[int, int]]] = {who: [] for who in sent}
    for entry in table:
        got = check_rows(storage.read_episode(int(entry["id"])))
        who, episode, first = got[0]
        assert got == [(who, episode, first + i) for i in range(len(got))], "a mixed trajectory"
        check_fields(entry, who, episode)
        found[who] += [(episode, step) for _, _, step in got]
    for who, count in sent.items():
        wanted = [(e, s) for e in range(count) for s in range(length(who, e, longest))]
        assert sorted(found[who]) == wanted, f"client {who}: rows are missing, or there twice"


def check_fields(entry: Any, who: int, episode: int) -> None:
    """Of one trajectory in `episodes()`; one that is not ended may lack some, and has no others."""
    ended = entry["terminated"]
    for name, value in fields(who, episode).items():
        got, wanted = entry[name].tolist(), np.asarray(value).tolist()
        none = np.zeros_like(value).tolist()
        assert got == wanted or (not ended and got == none), (who, episode, name, got)
