"""Stacks of tables whose layout a client gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from contig import LazyTensorStorage, ReplayBuffer, SharedClient, SharedStorage
from tests.client.serving import client, serving
from tests.tape.test_shown_stacks import GIVEN, STACKED, row, stacks_of
from tests.waiting import WAIT_S


def check(storage: Any) -> None:
    batch = ReplayBuffer(storage)[:]
    np.testing.assert_array_equal(batch["observation"], GIVEN["observation"])
    np.testing.assert_array_equal(batch["next", "observation"], GIVEN["next"]["observation"])


@pytest.mark.parametrize("kind", [LazyTensorStorage, SharedStorage])
def test_the_server_says_which(kind: Any) -> None:
    with kind(100, stack={"observation": 4}) as storage:
        with serving(ReplayBuffer(storage)) as server:
            with client(server, row(GIVEN)) as far:
                far.extend(GIVEN)
                far.wait(WAIT_S)
            assert stacks_of(storage) == [STACKED]
            check(storage)


def test_a_client_in_shared_memory_shows_them() -> None:
    with SharedStorage(100) as storage:
        with serving(ReplayBuffer(storage)) as server:
            with SharedClient(server.name, row(GIVEN)) as near:
                near.extend(GIVEN)
                near.wait(WAIT_S)
            assert stacks_of(storage) == [STACKED]
            check(storage)
