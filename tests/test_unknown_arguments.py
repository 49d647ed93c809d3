"""A constructor that is given an argument it does not know says which one was meant."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import contig

CASES: dict[str, tuple[Any, str]] = {
    "another name": (
        lambda: contig.LazyTensorStorage(10, exampel={}),
        "unexpected keyword argument 'exampel'; did you mean `example`",
    ),
    "of a base class": (
        lambda: contig.PrioritizedSliceSampler(slice_length=4),
        "'slice_length'; did you mean `slice_len`",
    ),
    "TorchRL's": (
        lambda: contig.ReplayBuffer(collate_fn=list),
        "'collate_fn'; `contig.adapters.torchrl.ReplayBuffer` takes this",
    ),
    "of a collector": (
        lambda: contig.MultiCollector([None], None, frames_per_batch=2, num_workers=3),
        "'num_workers'; `contig.adapters.torchrl.MultiCollector` takes this",
    ),
    "of a client": (
        lambda: contig.TcpClient("localhost", 1, {}, max_inflight=3),
        "'max_inflight'; did you mean `max_inflight_msgs`",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_was_meant(case: str) -> None:
    make, text = CASES[case]
    with pytest.raises(TypeError) as error:
        make()
    assert text in str(error.value)


def test_nothing_is_guessed() -> None:
    with pytest.raises(TypeError) as error:
        contig.LazyTensorStorage(10, flavour="vanilla")
    assert str(error.value).endswith("got an unexpected keyword argument 'flavour'")


def test_other_type_errors_are_as_they_were() -> None:
    with pytest.raises(TypeError, match="storage: expected a Storage, got 3"):
        contig.ReplayBuffer(3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="missing 2 required positional arguments"):
        contig.NStepSampler()  # type: ignore[call-arg]


def test_signatures_stay() -> None:
    parameters = inspect.signature(contig.ReplayBuffer).parameters
    assert [*parameters][:3] == ["storage", "sampler", "batch_size"]
    assert not hasattr(contig.Batch.__init__, "__wrapped__")  # one is made for every sample


def test_value_network_is_another_name_of_value_net() -> None:
    pytest.importorskip("torch")

    def net(rows: Any) -> Any:
        return rows["value"]

    for kind in (contig.GAE, contig.TD0, contig.TDLambda):
        more = {} if kind is contig.TD0 else {"lmbda": 0.9}
        assert kind(gamma=0.9, value_network=net, **more).value_net is net
        with pytest.raises(TypeError, match="value_net and value_network are two names"):
            kind(gamma=0.9, value_network=net, value_net=net, **more)


def test_names_that_only_torchrl_has() -> None:
    for name, instead in (
        ("DistributedSyncDataCollector", "DistributedSyncCollector"),
        ("ListStorage", "Lazy"),
    ):
        with pytest.raises(ImportError, match=f"contig has no {name}: use .*{instead}"):
            exec(f"from contig import {name}")
    assert not hasattr(contig, "nothing_of_the_kind")
