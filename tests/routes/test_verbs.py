"""No verb that writes without the suite: every public member of what takes rows is either driven by
a route, or named here as one that does not write.

The rest is in `tests/cluster/test_routes.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

import contig
from contig.client.stream import StreamWriter
from contig.tape import Writer
from contig.testing import VerbKind
from tests.routes.clients import CLIENT_VERBS, WRITER_VERBS
from tests.routes.local import ENSEMBLE_VERBS, STORED_VERBS, WriterRoute
from tests.routes.verbs import check_members

NOTHING: dict[str, VerbKind] = {}
STATE = {"state", "load_state", "save", "load", "stats", "empty", "close", "limiter"}
READS = {"sample", "draw", "lend", "take_back", "update_priority", "update_tensordict_priority"}
FEEDS = {"feed", "watch", "dashboard"}
BUFFER = STATE | READS | FEEDS | {"set_fields"}
RUNS = {"END", "start", "pause", "resume", "check", "shutdown", "async_shutdown"}
WEIGHTS = {"weights", "publish"}
REMOTE = {"server_is_there", "portable_arguments", "table"}

CLASSES: list[tuple[type, Mapping[str, VerbKind], set[str]]] = [
    (
        Writer,
        WriterRoute.verbs,
        # `add_env_step` is what the buffers' `add_step` calls.
        {"add_env_step", "adopt", "detach", "id", "open_trajectories"},
    ),
    (StreamWriter, WRITER_VERBS, {"close", "close_now", "end_episode", "forget", "send_held"}),
    (contig.ReplayBuffer, STORED_VERBS, BUFFER),
    (contig.TensorDictReplayBuffer, STORED_VERBS, BUFFER),
    (
        contig.ReplayBufferEnsemble,
        ENSEMBLE_VERBS,
        {"member_for", "set_fields", "sample", "stats", "empty", "close"}
        | {"update_priority", "update_tensordict_priority"},
    ),
    (
        contig.TcpClient,
        CLIENT_VERBS,
        {"acked", "asking", "blocked", "close", "closed", "fields", "move_to", "pending", "place"}
        | {"resends", "wait", "wait_for_server", "writer"} | WEIGHTS | REMOTE,
    ),
    (
        contig.SharedClient,
        CLIENT_VERBS,
        {"close", "go_on_from", "open_trajectories", "wait", "weights", "writer"},
    ),
    (
        contig.RemoteReplayBuffer,
        STORED_VERBS,
        {"close", "flush", "sample", "set_fields", "stats", "update_priority"} | WEIGHTS | REMOTE,
    ),
    (
        contig.Server,
        NOTHING,  # `submit` takes single items of a queue, which have no trajectories
        {"buffers", "check", "close", "dashboard", "dataset_iter", "info", "metrics_port", "pid"}
        | {"port", "publish", "reset_histograms", "sample", "start", "stats", "submit"}
        | {"weights_version"},
    ),
    (
        contig.TrajectoryReplayBuffer,
        NOTHING,  # `add_trajectories` takes grids, whose episodes lie inside
        {"add_trajectories", "clear", "close", "export_rlinf", "flush", "get_stats", "is_ready"}
        | {"load_checkpoint", "read_trajectory", "sample", "save_checkpoint", "size"}
        | {"total_samples", "trajectory_counter", "trajectory_index"},
    ),
    # Collectors write by being run, which the routes of `collectors.py` do.
    (contig.Collector, NOTHING, RUNS | {"frames", "policy_version", "update_policy_weights_"}),
    (
        contig.MultiCollector,
        NOTHING,
        RUNS | {"frames", "policy_version", "update_policy_weights_", "dropped_frames"}
        | {"dropped_trajectories", "pids", "restarts"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "driven", "others"), CLASSES, ids=[kind.__name__ for kind, *_ in CLASSES]
)
def test_every_verb_that_writes_is_driven(
    kind: type, driven: Mapping[str, VerbKind], others: set[str]
) -> None:
    check_members(kind, driven, others)


def test_a_new_verb_is_found() -> None:
    class More(contig.ReplayBuffer[contig.Batch]):
        def ingest(self) -> None: ...

    with pytest.raises(AssertionError, match="ingest"):
        check_members(More, STORED_VERBS, BUFFER)
