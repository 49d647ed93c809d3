"""The examples run, shortened; `make examples` runs them in full."""

from __future__ import annotations

import importlib.util
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


def test_recurrent_ppo() -> None:
    example = load("recurrent_ppo")
    assert example.main(frames=2 * 1024, seed=0) > 15  # a random policy gets about 22


def test_dqn() -> None:
    example = load("dqn")
    assert example.main(frames=2000, seed=0) > 10
