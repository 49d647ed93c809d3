"""bfloat16, the default of many models, from every way in to every way out; also where numpy lacks
it, because ml_dtypes is missing."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from contig import (
    DiskStorage,
    LazyTensorStorage,
    NStepSampler,
    PrioritizedSampler,
    RemoteReplayBuffer,
    ReplayBuffer,
    RolloutDataset,
    RolloutStorage,
    RolloutWriter,
    Server,
    SharedClient,
    SharedStorage,
    SliceSampler,
    TcpClient,
    TcpTransport,
    TrajectoryReplayBuffer,
    learn,
)
from contig.dataset import from_rlinf, to_rlinf, to_rollouts

HALF = torch.bfloat16
ROWS = 64


def rows(first: int = 0, count: int = ROWS) -> dict[str, Any]:
    """Numbers that bfloat16 holds exactly: row and column in each."""
    at = first + torch.arange(count)
    return {
        "observation": (at[:, None] + torch.tensor([0.0, 0.5])).to(HALF),
        "action": at.to(HALF),
        "next": {"reward": at.to(HALF), "done": at % 8 == 7},
    }


@pytest.fixture(params=["memory", "shared", "disk"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    made = {
        "memory": lambda: LazyTensorStorage(ROWS),
        "shared": lambda: SharedStorage(ROWS),
        "disk": lambda: DiskStorage(tmp_path / "tape", capacity=ROWS),
    }[request.param]()
    with made:
        yield made


def ways_in(buffer: ReplayBuffer, way: str) -> None:
    data = rows()
    if way == "dict":
        buffer.extend(data)
    elif way == "tensordict":
        buffer.extend(TensorDict(data, [ROWS]))
    elif way == "trajectory":
        for first in range(0, ROWS, 8):
            buffer.extend_trajectory(rows(first, 8))
    elif way == "step by step":
        for i in range(ROWS):
            buffer.add(TensorDict(data, [ROWS])[i])
    else:  # casts that keep these values
        buffer.extend(rows(0, 8))
        later = rows(8, ROWS - 8)
        later["observation"] = later["observation"].double()
        later["action"] = later["action"].long().numpy()
        buffer.extend(later)


@pytest.mark.parametrize("way", ["dict", "tensordict", "trajectory", "step by step", "casts"])
def test_from_every_way_in_to_every_way_out(storage, way):
    ways_in(ReplayBuffer(storage), way)
    assert len(storage) == ROWS
    samplers = [None, SliceSampler(slice_len=4), PrioritizedSampler(), NStepSampler(1, 0.9)]
    for sampler, output in zip(samplers, ("numpy", "torch", "tensordict", "torch")):
        buffer = ReplayBuffer(storage, sampler, batch_size=32, output=output, seed=0)
        batch = buffer.sample()
        seen = batch["observation"]
        if output == "numpy":
            assert seen.dtype.name == batch["next", "reward"].dtype.name == "bfloat16"
            seen = seen.astype(np.float32)
        else:
            assert seen.dtype == batch["next", "reward"].dtype == HALF
            seen = seen.float().numpy()
        index = np.asarray(batch["index"]).reshape(-1)
        assert np.array_equal(seen, index[:, None] + np.array([0.0, 0.5]))
        if isinstance(sampler, PrioritizedSampler):
            buffer.update_priority(batch["index"], torch.ones(32, dtype=HALF))
    episode = storage.read_episode(int(storage.episodes()["id"][0]))
    assert episode["observation"].dtype.name == "bfloat16"


def test_what_bfloat16_cannot_hold_is_refused():
    buffer = ReplayBuffer(LazyTensorStorage(100))
    buffer.extend(rows(0, 8))
    wrong = rows(0, 8)
    wrong["action"] = torch.full((8,), 1e39, dtype=torch.float64)
    with pytest.raises(ValueError, match='"action": value 1e.39 .* bfloat16.*overflows'):
        buffer.extend(wrong)
    assert len(buffer) == 8


def test_checkpoints_and_what_follows(tmp_path):
    buffer = ReplayBuffer(LazyTensorStorage(ROWS), batch_size=32, seed=0)
    buffer.extend(rows())
    buffer.save(tmp_path / "saved")
    again = ReplayBuffer(DiskStorage(tmp_path / "tape", capacity=ROWS), batch_size=32)
    again.load(tmp_path / "saved")
    batch = again.sample()
    assert np.array_equal(batch["observation"][:, 0].astype(int), batch["index"])
    again.storage.close()
    with DiskStorage(tmp_path / "tape", read_only=True) as reopened:
        dataset = RolloutDataset(reopened, device="cpu", check_finite=True)
        got = torch.cat([b.observation for b in dataset])
        assert got.dtype == HALF and got[:, 0].int().tolist() == list(range(ROWS))


def test_over_the_wire():
    example = {"x": torch.zeros(2, dtype=HALF)}
    with Server(example, 4, TcpTransport()) as server:
        with TcpClient("127.0.0.1", server.port, example) as client:
            for i in range(8):
                client.send({"x": torch.tensor([i, i + 0.5]).to(HALF)})
            client.wait(30)
        for first in (0, 4):
            batch = server.sample(timeout=30).batch
            assert batch["x"].dtype.name == "bfloat16"
            seen = batch.torch()["x"].float()[:, 1]
            assert seen.tolist() == [first + i + 0.5 for i in range(4)]


def test_tables_and_weights_over_the_wire():
    example = {k: v[0] for k, v in rows().items() if k != "next"}
    example["next"] = {k: v[0] for k, v in rows()["next"].items()}
    with SharedStorage(3 * ROWS, example=example) as storage:
        with Server(buffer=ReplayBuffer(storage), transport=TcpTransport()) as server:
            server.publish(0, {"w": torch.tensor([1.5, -2.0]).to(HALF)})
            clients = (TcpClient("127.0.0.1", server.port), SharedClient(server.name))
            for number, client in enumerate(clients):
                with client:
                    client.extend(rows(number * ROWS))
                    client.wait(30)
                    newest = client.weights(timeout_s=30)
                    assert newest.tree["w"].dtype.name == "bfloat16"
                    assert newest.tree["w"].astype(float).tolist() == [1.5, -2.0]
            with RemoteReplayBuffer("127.0.0.1", server.port, output="torch") as far:
                batch = far.sample(200)
            assert batch["observation"].dtype == HALF
            assert torch.equal(batch["observation"][:, 0], batch["index"].to(HALF))


def test_rollouts_and_their_files(tmp_path):
    storage = RolloutStorage(2, 4, (2,), None, (), seed=0)
    for step in range(4):
        ids = (10 * step + torch.arange(2)).to(HALF)
        state = ids.reshape(1, 2, 1).expand(1, 2, 3)
        storage.add_transitions(
            RolloutStorage.Transition(
                observations=ids[:, None].expand(2, 2),
                actions=ids,
                rewards=ids,
                dones=torch.zeros(2),
                values=ids,
                hidden_states=(state, None),
            )
        )
    storage.compute_returns(torch.zeros(2, dtype=HALF), 0.0, 0.0, normalize_advantage=False)
    for batch in (
        *storage.mini_batch_generator(2, 1),
        *storage.recurrent_mini_batch_generator(1, 1, packed=True),
    ):
        assert batch.obs.dtype == batch.returns.dtype == HALF
        assert torch.equal(batch.obs[:, 0], batch.actions)
        assert torch.equal(batch.returns[:, 0], batch.actions)
    buffer = ReplayBuffer(LazyTensorStorage(100), output="torch")
    storage.to_replay(buffer)
    assert buffer[:]["observation"].dtype == HALF
    with RolloutWriter(tmp_path / "files", frames_per_file=3) as writer:
        data = rows(0, 8)
        writer.add_trajectory(
            {"observation": data["observation"], "action": data["action"], "reward": data["action"]}
        )
    batch = RolloutDataset(tmp_path / "files", device="cpu").get_batch(8)
    assert batch.observation.dtype == HALF
    assert torch.equal(batch.observation[:, 0], data["observation"])
    broken = data["observation"].clone()
    broken[3, 1] = float("nan")
    with RolloutWriter(tmp_path / "broken") as writer:
        writer.add_trajectory({"observation": broken, "action": broken, "reward": broken[:, 0]})
    with pytest.raises(ValueError, match="observation is not finite at frame 3"):
        RolloutDataset(tmp_path / "broken", device="cpu", check_finite=True).get_batch()


def test_rlinfs_files(tmp_path):
    source = ReplayBuffer(LazyTensorStorage(ROWS))
    for first in range(0, 24, 8):
        source.extend_trajectory(rows(first, 8), terminated=True, truncated=False)
    assert to_rlinf(source, tmp_path / "rlinf") == 3
    target = ReplayBuffer(LazyTensorStorage(ROWS))
    assert from_rlinf(tmp_path / "rlinf", target) == 3
    assert target[:]["action"].dtype.name == "bfloat16"
    assert target[:]["action"].astype(int).tolist() == list(range(24))
    assert to_rollouts(source, tmp_path / "rollouts") == 3
    own = TrajectoryReplayBuffer()
    own.add_trajectories([{"rewards": torch.ones(4, 2, dtype=HALF)}])
    assert own.sample(3)["rewards"].dtype == HALF


def test_returns_of_bfloat16():
    short = {"reward": torch.ones(4, dtype=HALF), "done": torch.zeros(4)}
    long = {k: v.float() for k, v in short.items()}
    got, want = (
        learn.discounted_return(**x, next_value=x["reward"], gamma=0.5) for x in (short, long)
    )
    assert torch.equal(got, want) and got.dtype == torch.float32


def test_the_torch_extra_brings_what_it_takes():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    for extra in ("torch", "tensordict"):
        needs = project["project"]["optional-dependencies"][extra]
        assert any(need.startswith("ml_dtypes") for need in needs)


# -- text ---------------------------------------------------------------------------------------


def test_text_in_a_tensordict_is_not_dropped(tmp_path):
    """It is a node without leaves there. A layout without it refuses it; else it is a Blob."""
    buffer = ReplayBuffer(LazyTensorStorage(100))
    buffer.extend(TensorDict(rows(0, 8), [8]))
    word = TensorDict({**rows(0, 8), "words": TensorDict({"task": "pick up"}, [8])}, [8])
    words = TensorDict(rows(0, 8), [8])
    words.set_non_tensor("task", [str(i) for i in range(8)])
    for data, path in ((word, r'\("words", "task"\)'), (words, '"task"')):
        for write in (buffer.extend, buffer.add_step):
            with pytest.raises(ValueError, match=rf"unexpected {path}"):
                write(data)
        with pytest.raises(ValueError, match=path):  # of a list, a row has all of it
            buffer.add(data[0])
        other = ReplayBuffer(LazyTensorStorage(100))
        other.extend(data)
        assert list(other[:][("task",) if path == '"task"' else ("words", "task")]) == (
            [str(i) for i in range(8)] if path == '"task"' else ["pick up"] * 8
        )
        with pytest.raises(ValueError, match=rf"{path}: its rows have different lengths"):
            learn.split_trajectories(data, as_nested=True)
    assert len(buffer) == 8
    buffer.extend(words.exclude("task"))
    assert len(buffer) == 16


def test_text_and_objects_elsewhere():
    buffer = ReplayBuffer(LazyTensorStorage(100))
    buffer.extend({**rows(0, 8), "task": np.array(["a", "bc"] * 4)})
    assert list(buffer[:]["task"]) == ["a", "bc"] * 4
    objects, lone = np.array([None] * 8, object), "a column of str: give a list"
    for wrong, hint in ((objects, "ragged"), ("a", lone)):
        buffer = ReplayBuffer(LazyTensorStorage(100))
        for data in ({**rows(0, 8), "task": wrong}, {"task": {"deep": wrong}, **rows(0, 8)}):
            with pytest.raises(ValueError, match=f'"task".*{hint}'):
                buffer.extend(data)
        assert len(buffer) == 0
    inside = {**rows(0, 8), "observation": TensorDict({"a": torch.zeros(8)}, [8])}
    with pytest.raises(ValueError, match='"observation": a TensorDict inside other containers'):
        buffer.extend(inside)
    storage = RolloutStorage(8, 1, TensorDict({"a": torch.zeros(8)}, [8]))
    step = RolloutStorage.Transition(
        observations=TensorDict({"a": torch.zeros(8), "task": "x"}, [8]),
        actions=torch.zeros(8),
        rewards=torch.zeros(8),
        dones=torch.zeros(8),
    )
    with pytest.raises(ValueError, match='"task": a NonTensorData'):
        storage.add_transitions(step)


# -- without ml_dtypes --------------------------------------------------------------------------

CHILD = """
    import sys


    class Missing:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "ml_dtypes":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)


    sys.meta_path.insert(0, Missing())
    import torch
    from contig import *
    from contig import learn
    from contig.dataset import from_rlinf

    half = torch.ones(4, dtype=torch.bfloat16)
    path = sys.argv[1]

    def refused(call, kind=ImportError):
        try:
            call()
        except kind as error:
            text = str(error)
            assert "bfloat16" in text and "pip install ml_dtypes" in text, text
            assert not isinstance(error, ModuleNotFoundError)
        else:
            raise AssertionError("went through")

    buffer = ReplayBuffer(LazyTensorStorage(10))
    refused(lambda: buffer.extend({"x": half}))
    refused(lambda: buffer.add({"x": half[0]}))
    assert len(buffer) == 0
    buffer.extend({"x": half.float()})
    refused(lambda: buffer.extend({"x": half}))
    assert len(buffer) == 4
    refused(lambda: DiskStorage(path + "/tape"), (ImportError, ValueError))
    refused(lambda: TcpClient("127.0.0.1", 1, {"x": half}))
    refused(lambda: from_rlinf(path + "/rlinf", ReplayBuffer(LazyTensorStorage(10))))
    # What needs no numpy goes on.
    storage = RolloutStorage(4, 1, (), None, (), seed=0)
    storage.add_transitions(
        RolloutStorage.Transition(observations=half, actions=half, rewards=half, dones=half,
                                  values=half))
    storage.compute_returns(half, 0.9, 0.9)
    assert next(storage.mini_batch_generator(1, 1)).obs.dtype == torch.bfloat16
    done = torch.zeros(4)
    assert learn.discounted_return(reward=half, next_value=half, done=done, gamma=0.5).shape == (4,)
    gru = GRUModule(1, 2, in_keys=["x", "h", "is_init"], out_keys=["y", ("next", "h")])
    rows = {"x": half[:, None], "h": torch.zeros(4, 1, 2), "is_init": torch.zeros(4)}
    with torch.autocast("cpu"), set_recurrent_mode("recurrent"):
        gru(rows)["y"].sum().backward()
    print("done")
"""


def test_without_ml_dtypes_an_error_says_what_to_install(tmp_path):
    source = ReplayBuffer(DiskStorage(tmp_path / "tape"))
    source.extend_trajectory(rows(0, 8), terminated=True, truncated=False)
    to_rlinf(source, tmp_path / "rlinf")
    source.storage.close()
    code = [sys.executable, "-c", textwrap.dedent(CHILD), str(tmp_path)]
    ran = subprocess.run(code, check=False, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0 and ran.stdout.strip() == "done", ran.stderr
