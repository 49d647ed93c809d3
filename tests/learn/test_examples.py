"""The examples run, shortened; `make examples` runs them in full."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def keep_threads() -> Any:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def weights(net: torch.nn.Module) -> Any:
    return torch.nn.utils.parameters_to_vector(net.parameters()).detach().clone()


def test_every_example_is_here() -> None:
    here = {n.removeprefix("test_") for n in globals() if n.startswith("test_")}
    assert {p.stem for p in EXAMPLES.glob("*.py")} <= here


def run(name: str, *arguments: str) -> str:
    """An example that starts processes, in one of its own; what it prints."""
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_data_parallel() -> None:
    assert run("data_parallel", "--steps", "20")


def test_sb3_dqn() -> None:
    assert run("sb3_dqn", "--frames", "1500")


def test_torchrl_dqn() -> None:
    assert "episodes, the longest" in run("torchrl_dqn", "--frames", "1000")


@pytest.mark.soak
def test_ray_r2d2() -> None:
    assert run("ray_r2d2", "--seconds", "5")


@pytest.mark.soak
def test_ray_train() -> None:
    assert run("ray_train", "--steps", "20")


def test_recurrent_ppo() -> None:
    example = load("recurrent_ppo")
    assert example.main(frames=2 * 1024, seed=0) > 15  # a random policy gets about 22


def test_dqn() -> None:
    example = load("dqn")
    assert example.main(frames=1500, seed=0) > 10


def test_jax_dqn(monkeypatch: pytest.MonkeyPatch) -> None:
    example = load("jax_dqn")
    monkeypatch.setattr(example, "WARM_UP", 500)
    priorities: list[float] = []
    update = example.ReplayBuffer.update_priority

    def look(self: Any, index: Any, priority: Any) -> None:
        priorities.append(float(priority.mean()))
        update(self, index, priority)

    monkeypatch.setattr(example.ReplayBuffer, "update_priority", look)
    assert example.main(frames=1500, seed=0) > 10
    assert len(priorities) == (1500 - 500) // 4 and min(priorities) > 0
    assert example.update._cache_size() == 1  # batches are alike: traced once


def test_sac(monkeypatch: pytest.MonkeyPatch) -> None:
    example = load("sac")
    kept: list[Any] = []
    made = example.Learner.__init__

    def remember(self: Any) -> None:
        made(self)
        kept.append((self, weights(self.actor), weights(self.target)))

    monkeypatch.setattr(example.Learner, "__init__", remember)
    monkeypatch.setattr(example, "RANDOM", 200)
    monkeypatch.setattr(example, "FRAMES_PER_UPDATE", 8)
    mean = example.main(frames=800, seed=0)
    assert -2000 < mean < -200  # untrained: about -1200
    learner, actor, target = kept[0]
    assert not torch.equal(weights(learner.actor), actor)
    assert not torch.equal(weights(learner.target), target)


def test_demo_mixing(monkeypatch: pytest.MonkeyPatch) -> None:
    example = load("demo_mixing")
    seen: list[tuple[int, int, int]] = []
    step = example.Learner.step

    def look(self: Any, rows: Any) -> None:
        demo = rows["buffer_ids"] == 0
        assert rows["intervened"][demo].all()  # only what humans did is a demonstration
        share, acted = rows["fields"]["human"], rows["intervened"]
        assert (share[demo] == 1).all() and (share[acted] > 0).all()
        seen.append((int(demo.sum()), int((~demo).sum()), int(acted[~demo].sum())))
        step(self, rows)

    monkeypatch.setattr(example.Learner, "step", look)
    assert example.main(episodes=15, seed=1) > 0.4  # without demonstrations: 0.1
    assert all(demos == online == example.BATCH // 2 for demos, online, _ in seen)
    assert any(corrected > 0 for _, _, corrected in seen)


def test_r2d2(monkeypatch: pytest.MonkeyPatch) -> None:
    example = load("r2d2")
    monkeypatch.setattr(example, "WARM_UP", 1500)
    seen: list[tuple[int, int]] = []
    step = example.Learner.step

    def look(self: Any, rows: Any) -> None:
        burn_in, first = rows["collector"]["burn_in"], rows["is_init"]
        seen.append((int(burn_in.sum()), int(rows["recurrent_state"][first].any(-1).sum())))
        step(self, rows)

    monkeypatch.setattr(example.Learner, "step", look)
    assert example.main(frames=2560, seed=0) > 10
    assert len(seen) == (2560 - 1500) // 32 + 1
    assert all(burnt > 0 and stored > 0 for burnt, stored in seen)
