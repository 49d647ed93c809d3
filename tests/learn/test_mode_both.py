"""The recurrent mode of contig and of TorchRL: either holds for the modules of both."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchrl")
from tensordict import TensorDict  # noqa: E402
from torchrl.modules import GRUModule as TheirGRU  # noqa: E402
from torchrl.modules import recurrent_mode  # noqa: E402
from torchrl.modules import set_recurrent_mode as theirs  # noqa: E402

from contig import GRUModule, recurrent_mode_state  # noqa: E402
from contig import set_recurrent_mode as ours  # noqa: E402

T = 5


def gru(kind: Any) -> Any:
    torch.manual_seed(0)
    if kind is GRUModule:
        keys = {"in_keys": ["x", "h", "is_init"], "out_keys": ["y", ("next", "h")]}
        return GRUModule(3, 4, **keys)
    return TheirGRU(3, 4, in_keys=["x", "h"], out_keys=["y", ("next", "h")])


def reaches_back(module: Any) -> bool:
    """Whether the last step's output has a gradient with respect to the first step's input."""
    x = torch.ones(1, T, 3, requires_grad=True)
    init = torch.zeros(1, T, 1, dtype=torch.bool)
    init[:, 0] = True
    rows = TensorDict({"x": x, "h": torch.zeros(1, T, 1, 4), "is_init": init}, [1, T])
    module(rows)["y"][:, -1].sum().backward()
    return bool(x.grad[:, 0].abs().sum() > 0)


@pytest.mark.parametrize("kind", [GRUModule, TheirGRU], ids=["our module", "their module"])
@pytest.mark.parametrize("mode", [ours, theirs], ids=["our block", "their block"])
def test_gradients_go_through_time(mode: Any, kind: Any) -> None:
    module = gru(kind)
    with mode("recurrent"):
        assert reaches_back(module)
        assert mode(True)(reaches_back)(module)
    assert recurrent_mode_state() == "sequential" and recurrent_mode() is None


@pytest.mark.parametrize("outer", [ours, theirs])
@pytest.mark.parametrize("inner", [ours, theirs])
def test_the_innermost_block_holds(outer: Any, inner: Any) -> None:
    for first in (True, False):
        with outer(first):
            for second in (True, False):
                with inner(second):
                    expected = "recurrent" if second else "sequential"
                    assert (recurrent_mode_state(), recurrent_mode()) == (expected, second)
            expected = "recurrent" if first else "sequential"
            assert (recurrent_mode_state(), recurrent_mode()) == (expected, first)
    with ours(True), theirs(None):  # TorchRL's way to say: the default
        assert recurrent_mode_state() == "sequential"
    assert recurrent_mode() is None


LATER = """
from contig import recurrent_mode_state, set_recurrent_mode
with set_recurrent_mode("recurrent"):
    import torchrl.modules
    assert recurrent_mode_state() == "recurrent"
    with torchrl.modules.set_recurrent_mode(False):
        assert recurrent_mode_state() == "sequential"
    assert recurrent_mode_state() == "recurrent"
assert recurrent_mode_state() == "sequential"
assert torchrl.modules.recurrent_mode() is None
"""


def test_torchrl_that_is_loaded_inside_a_block() -> None:
    subprocess.run([sys.executable, "-c", LATER], check=True, timeout=100)
