"""Fields of trajectories and leaves of any size, over the shards of a cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
import ray

from contig import RayReplayBuffer, SharedStorage, SliceSampler, WindowSampler
from contig.sample.shards import decode

from .rows import OF_PRODUCER, OF_TRAJECTORY, trajectory

FIELDS = {"whose": np.zeros(2, np.int64), "judged": 0.0}


def storage(slot: int) -> SharedStorage:
    return SharedStorage(5000, fields=FIELDS)


@ray.remote(num_cpus=0)
class Producer:
    def run(self, handle: Any, producer: int) -> None:
        with handle.connect() as to:
            for number in range(8):
                rows = trajectory(producer, number, 10)
                to.extend_trajectory(rows, terminated=True, fields={"whose": [producer, number]})
            to.flush(60)


def whose(rows: Any) -> np.ndarray[Any, Any]:
    at = rows["observation"][:, 0]
    return np.stack([at // OF_PRODUCER, at % OF_PRODUCER // OF_TRAJECTORY], 1)


def test_fields_over_shards(cluster: Any) -> None:
    sampler = WindowSampler(SliceSampler(slice_len=5, fields=("whose", "judged")), last_rows=10_000)
    with RayReplayBuffer(3, storage, sampler, batch_size=40, seed=2) as buffer:
        made = [
            Producer.options(resources={f"node{i}": 1}).remote()  # type: ignore[attr-defined]
            for i in range(3)
        ]
        ray.get([p.run.remote(buffer.client(), i) for i, p in enumerate(made)])
        for number in range(6):  # of this process: through memory, and by TCP
            rows, mine = trajectory(7, number, 10), {"whose": [7, number]}
            buffer.extend_trajectory(rows, terminated=True, fields=mine, shard=number % 3)
        for number in range(3):
            rows = trajectory(8, number, 10)
            buffer.extend(rows, fields={"whose": [8, number]}, shard=number)
        buffer.flush(60)
        episodes = buffer.episodes()
        assert len(episodes) == 33 and len(set(episodes["id"].tolist())) == 33
        assert set(decode(episodes["id"])[0]) == {0, 1, 2}
        want = {(p, n) for p in range(3) for n in range(8)}
        want |= {(7, n) for n in range(6)} | {(8, n) for n in range(3)}
        assert {tuple(w) for w in episodes["whose"].tolist()} == want

        value = episodes["whose"] @ np.array([100.0, 1.0])
        assert buffer.set_fields(episodes["id"], {"judged": value}) == 33
        gone = episodes["id"][:2] + 1000
        assert buffer.set_fields([*gone, episodes["id"][5]], {"judged": -1.0}) == 1
        after = buffer.episodes()
        judged = dict(zip(after["id"].tolist(), after["judged"].tolist()))
        expected = dict(zip(episodes["id"].tolist(), value.tolist()))
        expected[int(episodes["id"][5])] = -1.0
        assert judged == expected

        by_owner = {tuple(w): judged[i] for i, w in zip(after["id"].tolist(), after["whose"])}
        seen = set()
        for _ in range(20):
            batch = buffer.sample()
            assert np.array_equal(batch["fields", "whose"], whose(batch))
            for owner, said in zip(whose(batch).tolist(), batch["fields", "judged"].tolist()):
                assert by_owner[tuple(owner)] == said
                seen.add(owner[0])
        assert seen == {0, 1, 2, 7, 8}


def test_predicates_over_shards(cluster: Any) -> None:
    sampler = SliceSampler(slice_len=5, where=[("judged", ">", 0.0)], fields=("whose",))
    with RayReplayBuffer(2, storage, sampler, batch_size=40, seed=2) as buffer:
        for number in range(20):
            rows, mine = trajectory(1, number, 10), {"whose": [1, number]}
            buffer.extend_trajectory(rows, terminated=True, fields=mine)
        buffer.flush(60)
        episodes = buffer.episodes()
        chosen = episodes[episodes["whose"][:, 1] % 5 == 2]
        assert buffer.set_fields(chosen["id"], {"judged": 1.0}) == len(chosen) == 4
        seen = {int(n) for _ in range(20) for n in whose(buffer.sample())[:, 1]}
        assert seen == {2, 7, 12, 17}


def test_leaves_of_any_size_over_shards(cluster: Any) -> None:
    def row(number: int) -> dict[str, Any]:
        text = f"{number}:" * (number % 7)
        return {"text": text, "at": number, "next": {"done": number % 5 == 4}}

    def make(slot: int) -> SharedStorage:
        return SharedStorage(5000, blob_bytes=1 << 20)

    with RayReplayBuffer(3, make, batch_size=50, seed=2) as buffer:
        for number in range(300):
            buffer.add(row(number), shard=number // 5 % 3)
        buffer.flush(60)
        assert len(buffer) == 300
        for _ in range(10):
            batch = buffer.sample()
            for i, number in enumerate(batch["at"].tolist()):
                assert batch["text"][i] == row(number)["text"]
