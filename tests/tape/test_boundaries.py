"""Where trajectories start and end, and which leaf says so."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from contig import LayoutError, LazyTensorStorage, ReplayBuffer, SliceSampler
from contig.testing import steps
from tests.tape.rows import pieces, row, rows


def ids(values, **more):
    return {"collector": {"traj_ids": np.array(values), **more}}


# -- the ring's seam -------------------------------------------------------------------------------


def test_reference_capacity_10_episodes_of_4_14_rows_written():
    """The ring holds seqs 4-13: #1 (4-7), #2 (8-11, wrapping), #3 (12-13, open); #0 is gone."""
    storage = LazyTensorStorage(10)
    writer = storage.writer()
    for uid in range(14):
        assert writer.add(row(uid, "...t"[uid % 4])) == uid
    table = storage.episodes()
    assert table["id"].tolist() == [1, 2, 3]
    assert table["first"].tolist() == [4, 8, 12]
    assert table["steps"].tolist() == [4, 4, 2]
    assert table["terminated"].tolist() == [True, True, False]
    assert table["complete"].tolist() == [True, True, False]
    assert table["trimmed"].tolist() == [False, False, False]
    assert pieces(storage) == [[4, 5, 6, 7], [8, 9, 10, 11], [12, 13]]


@pytest.mark.parametrize("capacity", range(1, 13))
def test_every_offset_of_the_seam(capacity):
    """Episodes of 3: at every moment what is stored is the newest rows, cut at dones."""
    storage = LazyTensorStorage(capacity)
    writer = storage.writer()
    for uid in range(3 * capacity + 5):
        writer.add(row(uid, "..t"[uid % 3]))
        kept = range(max(0, uid + 1 - capacity), uid + 1)
        expected: dict[int, list[int]] = {}
        for u in kept:
            expected.setdefault(u // 3, []).append(u)
        assert pieces(storage) == list(expected.values())
        assert storage.episodes()["trimmed"].tolist() == [
            us[0] % 3 != 0 for us in expected.values()
        ]


def test_an_episode_longer_than_the_ring_is_its_last_rows():
    storage = LazyTensorStorage(5)
    writer = storage.writer()
    for uid in range(12):
        writer.add(row(uid, ".", next={"reward": float(uid)}))
    assert pieces(storage) == [[7, 8, 9, 10, 11]]
    (line,) = storage.episodes()
    assert line["trimmed"] and not line["complete"] and line["steps"] == 5 and line["first"] == 7
    assert line["return"] == sum(range(12)), "the return is the trajectory's, not what is left"


# -- what starts a trajectory ----------------------------------------------------------------------


def test_a_done_row_ends_and_the_next_row_starts():
    storage = LazyTensorStorage(20)
    storage.writer().extend(rows(range(6), ".t.u.b"))
    assert pieces(storage) == [[0, 1], [2, 3], [4, 5]]
    table = storage.episodes()
    assert table["terminated"].tolist() == [True, False, True]
    assert table["truncated"].tolist() == [False, True, True]


def test_a_changed_id_starts():
    storage = LazyTensorStorage(20)
    storage.writer().extend(rows(range(6), "......", **ids([4, 4, 9, 9, 9, 1])))
    assert pieces(storage) == [[0, 1], [2, 3, 4], [5]]
    assert storage.episodes()["traj_id"].tolist() == [4, 9, 1]
    assert not storage.episodes()["complete"].any(), "none of them ended"


def test_a_done_row_starts_another_trajectory_of_the_same_id():
    storage = LazyTensorStorage(20)
    storage.writer().extend(rows(range(5), "..t..", **ids([4] * 5)))
    assert pieces(storage) == [[0, 1, 2], [3, 4]]
    assert storage.episodes()["traj_id"].tolist() == [4, 4]


@pytest.mark.parametrize("shape", [(), (1,)])
def test_is_init_starts_without_a_done(shape):
    init = np.array([1, 0, 0, 1, 0], bool).reshape(5, *shape)
    storage = LazyTensorStorage(20)
    storage.writer().extend(rows(range(5), ".....", is_init=init))
    assert pieces(storage) == [[0, 1, 2], [3, 4]]
    assert storage.episodes()["terminated"].tolist() == [False, False], "the first was left open"


def test_rows_before_the_first_is_init_are_no_beginning():
    storage = LazyTensorStorage(20)
    init = np.array([0, 0, 1, 0])
    storage.writer().extend(rows(range(4), ".t.t", is_init=init.astype(bool)))
    assert storage.episodes()["complete"].tolist() == [False, True]


def test_another_writer_starts():
    storage = LazyTensorStorage(20)
    a, b = storage.writer(), storage.writer()
    a.extend(rows([0, 1], ".."))
    b.extend(rows([10], "."))
    a.extend(rows([2], "t"))
    b.extend(rows([11], "u"))
    assert pieces(storage) == [[0, 1, 2], [10, 11]]
    table = storage.episodes()
    assert table["writer"].tolist() == [a.id, b.id] and a.id != b.id
    assert table["complete"].all()


def test_equal_ids_of_different_writers_never_join():
    storage = LazyTensorStorage(20)
    a, b = storage.writer(), storage.writer()
    for uid in range(0, 6, 2):
        a.extend(rows([uid], ".", **ids([7])))
        b.extend(rows([uid + 1], ".", **ids([7])))
    assert pieces(storage) == [[0, 2, 4], [1, 3, 5]]
    table = storage.episodes()
    assert table["traj_id"].tolist() == [7, 7]
    assert len(set(table["id"])) == 2 and table["writer"].tolist() == [a.id, b.id]


def test_a_beginning_after_a_done_does_not_depend_on_how_it_was_batched():
    """The same rows, the same id used again after its done, whether in one append or in two."""
    data = rows(range(4), ".t.t", is_init=np.array([True, False, False, False]), **ids([3] * 4))

    def part(a, b):
        return {
            k: {j: w[a:b] for j, w in v.items()} if isinstance(v, dict) else v[a:b]
            for k, v in data.items()
        }

    complete = []
    for cuts in ([0, 4], [0, 2, 4], [0, 1, 2, 3, 4]):
        storage = LazyTensorStorage(10)
        writer = storage.writer()
        for a, b in itertools.pairwise(cuts):
            writer.extend(part(a, b))
        assert pieces(storage) == [[0, 1], [2, 3]]
        complete.append(storage.episodes()["complete"].tolist())
    assert complete[0] == complete[1] == complete[2]


# -- batching never cuts ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 5, 12])
def test_how_rows_were_batched_changes_nothing(size):
    """Two envs interleaved in one stream by id: parts are joined, whatever lies between them."""
    letters, envs = "....t..t....", [0, 1, 1, 0, 0, 1, 0, 1, 1, 0, 0, 1]
    reward = np.arange(12, dtype=np.float32)
    storage = LazyTensorStorage(20)
    writer = storage.writer()
    for at in range(0, 12, size):
        part = slice(at, at + size)
        writer.extend(
            rows(
                range(12)[part],
                letters[part],
                next={"reward": reward[part]},
                **ids([10 + e for e in envs[part]]),
            )
        )
    assert pieces(storage) == [[0, 3, 4], [1, 2, 5, 7], [6, 9, 10], [8, 11]]
    table = storage.episodes()
    assert table["return"].tolist() == [7.0, 15.0, 25.0, 19.0]
    assert table["complete"].tolist() == [True, True, False, False]
    assert table["first"].tolist() == [0, 1, 6, 8]


def test_interleaved_pieces_are_sampled_whole():
    storage = LazyTensorStorage(60)
    buffer = ReplayBuffer(storage, SliceSampler(slice_len=6, strict_length=True), seed=0)
    writers = [storage.writer() for _ in range(3)]
    for step in range(10):
        for w, writer in enumerate(writers):
            writer.add_step(rows([100 * w + step, 100 * w + 50 + step], ".." if step < 9 else "tt"))
    assert len(storage.episodes()) == 6
    for _ in range(30):
        uids = buffer.sample(12)["uid"].reshape(2, 6)
        assert (np.diff(uids) == 1).all()


def test_extend_without_ids_goes_on_while_the_last_row_was_not_done():
    storage = LazyTensorStorage(20)
    writer = storage.writer()
    writer.extend(rows([0, 1], ".."))
    writer.extend(rows([2, 3], ".t"))
    writer.extend(rows([4, 5], ".."))
    assert pieces(storage) == [[0, 1, 2, 3], [4, 5]]


def test_extend_that_does_not_continue_starts_anew():
    storage = LazyTensorStorage(20)
    writer = storage.writer()
    writer.extend(rows([0, 1], ".."))
    writer.extend(rows([2, 3], ".t"), continues=False)
    assert pieces(storage) == [[0, 1], [2, 3]]
    assert storage.episodes()["complete"].tolist() == [False, True]


def test_told_to_continue_what_it_does_not_hold_is_never_complete():
    storage = LazyTensorStorage(20)
    storage.writer().extend(rows([2, 3], ".t"), continues=True)
    assert storage.episodes()["complete"].tolist() == [False]
    assert storage.episodes()["trimmed"].tolist() == [False]


def test_is_init_is_a_beginning_even_if_told_to_continue():
    storage = LazyTensorStorage(20)
    data = rows([0, 1], ".t", is_init=np.array([True, False]))
    storage.writer().extend(data, continues=True)
    assert storage.episodes()["complete"].tolist() == [True]


def test_lanes_without_ids_start_new_trajectories_unless_told():
    storage = LazyTensorStorage(40, ndim=2)
    writer = storage.writer()
    writer.extend(rows([[0, 1], [10, 11]], "...."))
    writer.extend(rows([[2, 3], [12, 13]], "...."))
    assert pieces(storage) == [[0, 1], [10, 11], [2, 3], [12, 13]]
    writer.extend(rows([[4], [14]], "tu"), continues=True)
    assert pieces(storage) == [[0, 1], [10, 11], [2, 3, 4], [12, 13, 14]]


def test_a_single_lane_does_not_go_on_with_one_of_several():
    storage = LazyTensorStorage(40, ndim=2)
    writer = storage.writer()
    writer.extend(rows([[0, 1], [10, 11]], "...."))
    writer.add(row(20, "."))
    writer.extend(rows([21], "."))
    writer.extend(rows([[2, 3], [12, 13]], "...."), continues=True)
    writer.extend(rows([22], "t"))
    assert pieces(storage) == [[0, 1, 2, 3], [10, 11, 12, 13], [20, 21, 22]]


def test_lanes_with_ids_join_within_their_lane():
    storage = LazyTensorStorage(40, ndim=2)
    writer = storage.writer()
    writer.extend(rows([[0, 1], [10, 11]], "....", **ids([[5, 5], [5, 5]])))
    writer.extend(rows([[2, 3], [12, 13]], "....", **ids([[5, 6], [5, 5]])))
    assert pieces(storage) == [[0, 1, 2], [10, 11, 12, 13], [3]]


def test_add_goes_on_until_done():
    storage = LazyTensorStorage(20)
    writer = storage.writer()
    for uid, letter in enumerate("..t.u."):
        writer.add(row(uid, letter))
    assert pieces(storage) == [[0, 1, 2], [3, 4], [5]]


def test_add_step_continues_each_env():
    storage = LazyTensorStorage(20)
    writer = storage.writer()
    for step, letters in enumerate(["...", ".t.", "..u", "t.."]):
        writer.add_step(rows([step, 10 + step, 20 + step], letters))
    assert pieces(storage) == [[0, 1, 2, 3], [10, 11], [20, 21, 22], [12, 13], [23]]
    assert storage.episodes()["complete"].tolist() == [True, True, True, False, False]


# -- which key decides -----------------------------------------------------------------------------

BY_KEY = {
    "traj_ids": {"collector": {"traj_ids": np.array([0, 1, 1, 1, 1, 1])}},
    "episode": {"episode": np.array([0, 0, 1, 1, 1, 1])},
    "next.done": {"next": {"done": np.array([0, 0, 1, 0, 0, 0], bool)}},
    "done": {"done": np.array([0, 0, 0, 1, 0, 0], bool)},
}


@pytest.mark.parametrize(
    ("have", "expected"),
    [
        # ids decide, and a done below next ends a trajectory besides
        (["traj_ids", "episode"], [[0], [1, 2, 3, 4, 5]]),
        (["traj_ids", "episode", "next.done", "done"], [[0], [1, 2], [3, 4, 5]]),
        (["episode"], [[0, 1], [2, 3, 4, 5]]),
        (["episode", "done"], [[0, 1], [2, 3], [4, 5]]),
        (["next.done", "done"], [[0, 1, 2], [3, 4, 5]]),
        (["next.done"], [[0, 1, 2], [3, 4, 5]]),
        (["done"], [[0, 1, 2, 3], [4, 5]]),
    ],
)
def test_order_of_resolution(have, expected):
    storage = LazyTensorStorage(20)
    data = rows(range(6))
    for name in have:
        for key, value in BY_KEY[name].items():
            data[key] = {**data.get(key, {}), **value} if isinstance(value, dict) else value
    storage.writer().extend(data)
    assert pieces(storage) == expected


def test_an_explicit_traj_key_decides_alone():
    """Neither done nor is_init nor other ids cut it, and its interleaved parts join."""
    storage = LazyTensorStorage(20)
    ReplayBuffer(storage, SliceSampler(slice_len=2, traj_key="chunk"))
    init = np.array([1, 0, 0, 1, 0, 0, 1, 0], bool)
    data = rows(
        range(8),
        "..t..u..",
        is_init=init,
        chunk=np.array([0, 0, 0, 0, 1, 1, 0, 0]),
        **ids([1, 2, 3, 4, 5, 6, 7, 8]),
    )
    storage.writer().extend(data)
    assert pieces(storage) == [[0, 1, 2, 3, 6, 7], [4, 5]]
    assert storage.episodes()["traj_id"].tolist() == [0, 1]


def test_trajectory_key_is_another_name_of_traj_key():
    storage = LazyTensorStorage(20)
    ReplayBuffer(storage, SliceSampler(slice_len=2, trajectory_key="chunk"))
    storage.writer().extend(rows(range(4), ".t..", chunk=np.array([0, 0, 0, 1])))
    assert pieces(storage) == [[0, 1, 2], [3]]


def test_an_explicit_end_key_replaces_the_ids():
    storage = LazyTensorStorage(20)
    ReplayBuffer(storage, SliceSampler(slice_len=2, end_key="last"))
    last = np.array([0, 1, 0, 0, 1, 0], bool)
    storage.writer().extend(rows(range(6), last=last, **ids([1, 2, 2, 2, 2, 2])))
    assert pieces(storage) == [[0, 1], [2, 3, 4], [5]]
    assert storage.episodes()["complete"].tolist() == [True, True, False]


def test_a_differing_key_before_the_first_row_names_both():
    storage = LazyTensorStorage(20)
    ReplayBuffer(storage, SliceSampler(slice_len=2, traj_key="chunk"))
    with pytest.raises(ValueError, match=r'"other".*"chunk"'):
        ReplayBuffer(storage, SliceSampler(slice_len=2, traj_key="other"))
    ReplayBuffer(storage, SliceSampler(slice_len=2, traj_key="chunk"))
    ReplayBuffer(storage, SliceSampler(slice_len=2))


@pytest.mark.parametrize("key", ["traj_key", "end_key"])
def test_a_differing_key_after_the_first_row_names_both(key):
    storage = LazyTensorStorage(20)
    ReplayBuffer(storage, SliceSampler(slice_len=2, **{key: "mine"}))
    storage.writer().extend(rows(range(2), mine=np.array([0, 1]), other=np.array([0, 1])))
    with pytest.raises(ValueError, match=r'"other".*"mine"'):
        ReplayBuffer(storage, SliceSampler(slice_len=2, **{key: "other"}))
    ReplayBuffer(storage, SliceSampler(slice_len=2, **{key: "mine"}))


@pytest.mark.parametrize("how", ["row", "example"])
@pytest.mark.parametrize("key", ["episode", "uid"])
def test_a_traj_key_that_comes_too_late_is_refused_and_the_error_says_what_counts(how, key):
    """Dones cut what is written, so the key would not decide alone, not even the one of the ids."""
    data = rows(range(3), "...", episode=np.array([0, 0, 1]))
    storage = LazyTensorStorage(20, example=steps.first(data) if how == "example" else None)
    if how == "row":
        storage.writer().extend(data)
    with pytest.raises(ValueError) as error:
        ReplayBuffer(storage, SliceSampler(slice_len=2, traj_key=key))
    text = str(error.value)
    assert f'asks for traj_key "{key}"' in text and "without traj_key" in text
    assert 'where "episode" changes, after rows with ("next", "done")' in text
    assert "written with" not in text
    ReplayBuffer(storage, SliceSampler(slice_len=2))


def test_a_key_that_decides_alone_anyway_may_be_named_later():
    storage = LazyTensorStorage(20)
    storage.writer().extend({"x": np.arange(4), "episode": np.array([0, 0, 1, 1])})
    ReplayBuffer(storage, SliceSampler(slice_len=2, traj_key="episode"))
    with pytest.raises(ValueError, match=r'("collector", "traj_ids").*"episode"'):
        ReplayBuffer(storage, SliceSampler(slice_len=2, traj_key=("collector", "traj_ids")))


@pytest.mark.parametrize("leaf", [np.zeros((2, 3)), None])
def test_a_named_key_that_does_not_fit_is_refused_and_the_leaves_are_listed(leaf):
    storage = LazyTensorStorage(20)
    ReplayBuffer(storage, SliceSampler(slice_len=2, traj_key="chunk"))
    data = rows(range(2), ".t")
    if leaf is not None:
        data["chunk"] = leaf
    with pytest.raises(LayoutError, match=r'traj_key "chunk".*"uid"'):
        storage.writer().extend(data)
    assert len(storage) == 0
    storage.writer().extend(rows(range(2), ".t", chunk=np.array([0, 1])))  # nothing was fixed
    assert pieces(storage) == [[0], [1]]


# -- returns, versions, agents ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("leaves", "expected"),
    [
        ({"next": {"reward": np.array([1.5, 2.0, 4.0], np.float32)}}, [3.5, 4.0]),
        ({"next": {"reward": np.array([[1.5], [2.0], [4.0]])}}, [3.5, 4.0]),
        ({"next": {"reward": np.array([1, 2, 4])}}, [3.0, 4.0]),
        ({"next": {"reward": np.array([[1.0, 10], [2, 20], [4, 40]])}}, [33.0, 44.0]),
        ({"reward": np.array([1.5, 2.0, 4.0])}, [3.5, 4.0]),
        (
            {"reward": np.array([9.0, 9.0, 9.0]), "next": {"reward": np.array([1.5, 2.0, 4.0])}},
            [3.5, 4.0],
        ),
        ({}, [np.nan, np.nan]),
    ],
)
def test_returns(leaves, expected):
    storage = LazyTensorStorage(20)
    storage.writer().extend(rows(range(3), ".t.", **leaves))
    np.testing.assert_array_equal(storage.episodes()["return"], expected)


def test_the_policy_version_may_change_within_a_trajectory():
    storage = LazyTensorStorage(20)
    writer = storage.writer()
    writer.extend(rows(range(4), "....", collector={"policy_version": np.array([1, 1, 2, 2])}))
    writer.extend(rows([4, 5, 6], ".t.", collector={"policy_version": np.array([2, 3, 3])}))
    assert pieces(storage) == [[0, 1, 2, 3, 4, 5], [6]]
    table = storage.episodes()
    assert table["policy_version"].tolist() == [3, 3]
    assert table["complete"].tolist() == [True, False]
    assert storage.read_episode(0)["collector", "policy_version"].tolist() == [1, 1, 2, 2, 2, 3]


def test_flags_of_agents_are_ordinary_leaves():
    """[N, A] flags neither cut trajectories nor are they completed."""
    storage = LazyTensorStorage(20)
    agents = np.array([[0, 1], [1, 1], [1, 0]], bool)
    storage.writer().extend(
        rows(range(3), "..t", agents={"done": agents, "reward": np.ones((3, 2))})
    )
    assert pieces(storage) == [[0, 1, 2]]
    batch = storage.read_episode(0)
    np.testing.assert_array_equal(batch["agents", "done"], agents)
    assert ("agents", "terminated") not in batch


def test_flags_of_agents_in_the_usual_place_are_ordinary_leaves_too():
    storage = LazyTensorStorage(20)
    agents = np.array([[0, 1], [1, 1], [1, 0]], bool)
    storage.writer().extend(rows(range(3), next={"done": agents}, **ids([1, 1, 2])))
    assert pieces(storage) == [[0, 1], [2]]
    batch = storage.read_episode(0)
    np.testing.assert_array_equal(batch["next", "done"], agents[:2])
    assert ("next", "terminated") not in batch


@pytest.mark.parametrize("n", [2, 3])
def test_flags_of_agents_beside_a_flag_of_the_row(n):
    """done per agent, terminated per row: terminated is the mark, and no byte goes astray."""
    storage = LazyTensorStorage(20)
    agents = np.ones((n, 2), bool)
    terminated = np.arange(n) == 1
    writer = storage.writer()
    for at in (0, 10):
        data = rows(np.arange(n) + at, next={"done": agents, "terminated": terminated})
        data["zeros"] = np.zeros(n, np.int64)
        writer.extend(data)
    uids = [u for piece in pieces(storage) for u in piece]
    assert sorted(uids) == sorted([*range(n), *range(10, 10 + n)])
    batch = ReplayBuffer(storage)[:]
    np.testing.assert_array_equal(batch["next", "done"], np.ones((2 * n, 2), bool))
    np.testing.assert_array_equal(batch["next", "terminated"], np.tile(terminated, 2))
    np.testing.assert_array_equal(batch["zeros"], np.zeros(2 * n))
    assert not batch["next", "truncated"].any()


# -- whole trajectories ----------------------------------------------------------------------------


def test_extend_trajectory_is_one_trajectory_whatever_ids_its_rows_have_if_it_is_given_one():
    storage = LazyTensorStorage(20)
    writer = storage.writer()
    seqs = writer.extend_trajectory(rows(range(4), "...t", **ids([1, 2, 3, 4])), traj_id=42)
    assert seqs.tolist() == [0, 1, 2, 3]
    assert pieces(storage) == [[0, 1, 2, 3]]
    (line,) = storage.episodes()
    assert line["traj_id"] == 42 and line["terminated"] and line["complete"]


@pytest.mark.parametrize(
    ("told", "flags"),
    [
        ({"terminated": True}, (True, False)),
        ({"truncated": True}, (False, True)),
        ({"terminated": True, "truncated": True}, (True, True)),
        ({}, (False, True)),
        ({"terminated": False}, (False, False)),
    ],
)
@pytest.mark.parametrize("trailing", [(), (1,)])
def test_extend_trajectory_told_how_it_ended_writes_the_flags(told, flags, trailing):
    storage = LazyTensorStorage(20, example=row(0, next={"done": np.zeros(trailing, bool)}))
    storage.writer().extend_trajectory(rows(range(3)), **told)
    (line,) = storage.episodes()
    assert (line["terminated"], line["truncated"]) == flags
    batch = storage.read_episode(0)
    assert batch["next", "terminated"].reshape(-1).tolist() == [False, False, flags[0]]
    assert batch["next", "truncated"].reshape(-1).tolist() == [False, False, flags[1]]
    assert batch["next", "done"].reshape(-1).tolist() == [False, False, any(flags)]


def test_extend_trajectory_that_contradicts_its_last_row_is_refused():
    storage = LazyTensorStorage(20)
    with pytest.raises(ValueError, match=r'"terminated".*False.*terminated=True'):
        storage.writer().extend_trajectory(rows(range(3), "..u"), terminated=True)
    assert len(storage) == 0


def test_extend_trajectory_leaves_the_writers_open_trajectory_alone():
    storage = LazyTensorStorage(20)
    writer = storage.writer()
    writer.add(row(0, "."))
    writer.extend_trajectory(rows([10, 11], ".t"), policy_version=3)
    writer.add(row(1, "t"))
    assert pieces(storage) == [[0, 1], [10, 11]]
    assert storage.episodes()["policy_version"].tolist() == [-1, 3]
    assert storage.episodes()["complete"].tolist() == [True, True]


def test_extend_trajectory_takes_the_datas_own_id():
    storage = LazyTensorStorage(20)
    storage.writer().extend_trajectory(rows(range(3), "..t", **ids([8, 8, 8])))
    assert storage.episodes()["traj_id"].tolist() == [8]


def test_extend_trajectory_takes_the_datas_own_version():
    storage = LazyTensorStorage(20)
    version = {"collector": {"policy_version": np.array([2, 2, 5])}}
    storage.writer().extend_trajectory(rows(range(3), "..t", **version))
    assert storage.episodes()["policy_version"].tolist() == [5]


# -- what was evicted ------------------------------------------------------------------------------


def test_a_trajectory_that_goes_on_after_all_of_it_was_evicted_is_trimmed():
    storage = LazyTensorStorage(4)
    a, b = storage.writer(), storage.writer()
    a.extend(rows([0, 1], ".."))
    b.extend(rows([10, 11, 12, 13], "...."))
    a.extend(rows([2, 3], ".t"))
    table = storage.episodes()
    assert pieces(storage) == [[12, 13], [2, 3]]
    assert table["trimmed"].tolist() == [True, True]
    assert table["complete"].tolist() == [False, False]


def test_the_same_after_empty():
    storage = LazyTensorStorage(8)
    writer = storage.writer()
    writer.extend(rows([0, 1], ".."))
    storage.empty()
    assert len(storage) == 0 and len(storage.episodes()) == 0
    assert writer.extend(rows([2, 3], ".t")).tolist() == [2, 3], "seqs go on"
    (line,) = storage.episodes()
    assert line["trimmed"] and not line["complete"]


def test_many_open_ids_do_not_make_an_old_one_begin_again():
    """A thousand open ids later the writer still knows that id 5 is not new."""
    storage = LazyTensorStorage(8)
    writer = storage.writer()
    writer.extend(rows([0, 1], "..", **ids([5, 5])))
    for first in range(0, 3000, 500):
        many = np.arange(first, first + 500)
        writer.extend(rows(many, "." * 500, **ids(1000 + many)))
    writer.extend(rows([2, 3], ".t", **ids([5, 5])))
    line = storage.episodes()[-1]
    assert line["traj_id"] == 5 and line["trimmed"] and not line["complete"]


def test_an_append_larger_than_the_ring_keeps_the_last_rows():
    storage = LazyTensorStorage(5)
    writer = storage.writer()
    writer.extend(rows([0, 1], ".."))
    seqs = writer.extend(rows(range(10, 22), "..t..t..t..."))
    assert seqs.tolist() == [2, 3, 4, 5, 6] and len(storage) == 5
    assert pieces(storage) == [[17, 18], [19, 20, 21]]
    assert storage.episodes()["trimmed"].tolist() == [True, False]
    writer.extend(rows([22], "t"))
    assert pieces(storage) == [[18], [19, 20, 21, 22]]
    assert storage.episodes()["complete"].tolist() == [False, True]


def test_lanes_larger_than_the_ring_keep_the_last_rows():
    storage = LazyTensorStorage(5, ndim=2)
    seqs = storage.writer().extend(rows([[0, 1, 2], [10, 11, 12], [20, 21, 22]], "........."))
    assert seqs.tolist() == [0, 1, 2, 3, 4]
    assert pieces(storage) == [[11, 12], [20, 21, 22]]
