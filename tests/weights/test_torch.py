"""State dicts on a weights board."""

from __future__ import annotations

import numpy as np
import pytest

from contig import LayoutError
from contig.weights.board import WeightsBoard

torch = pytest.importorskip("torch")


def module(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 2, bias=False)
    )


def test_a_state_dict_comes_back() -> None:
    board = WeightsBoard.create(module(0).state_dict())
    for version in range(5):
        sent = module(version + 1)
        board.publish(version, sent.state_dict())
        found = board.read()
        assert found is not None and found.version == version
        assert set(found.tree) == set(sent.state_dict())
        received = module(99)
        received.load_state_dict({k: torch.from_numpy(np.array(v)) for k, v in found.tree.items()})
        for (path, a), b in zip(sent.state_dict().items(), received.state_dict().values()):
            assert a.dtype == b.dtype and torch.equal(a, b), path
    board.close()


def test_tensors_of_all_sorts() -> None:
    tree = {
        "half": torch.arange(5).to(torch.float16),
        "brain": torch.arange(6).to(torch.bfloat16).reshape(2, 3),
        "scalar": torch.tensor(7),
        "empty": torch.zeros(0, 4),
        "flags": torch.tensor([True, False]),
        "turned": torch.arange(6.0).reshape(2, 3).T,  # not contiguous
        "trained": torch.nn.Parameter(torch.ones(2)),
    }
    board = WeightsBoard.create(tree)
    board.publish(1, tree)
    found = board.read()
    assert found is not None
    for name, tensor in tree.items():
        array = found.tree[name]
        assert array.shape == tuple(tensor.shape), name
        expected = tensor.detach().to(torch.float64).numpy()
        assert np.array_equal(array.astype(np.float64), expected), name
    assert found.tree["brain"].dtype.name == "bfloat16"
    board.close()


def test_what_changed_after_publishing_does_not_show() -> None:
    net = module(3)
    board = WeightsBoard.create(net.state_dict())
    board.publish(1, net.state_dict())
    before = {k: v.clone() for k, v in net.state_dict().items()}
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(1)
    found = board.read()
    assert found is not None
    for name, tensor in before.items():
        assert np.array_equal(found.tree[name], tensor.numpy()), name
    board.close()


def test_another_module_is_refused() -> None:
    board = WeightsBoard.create(module(0).state_dict())
    board.publish(0, module(0).state_dict())
    with pytest.raises(LayoutError, match="layout"):
        board.publish(1, torch.nn.Linear(3, 5).state_dict())
    narrow = {k: v.to(torch.float64) for k, v in module(0).state_dict().items()}
    narrow["0.weight"] = torch.zeros(5, 4)
    with pytest.raises(LayoutError, match="0.weight"):
        board.publish(1, narrow)
    assert board.newest == 0
    board.close()
