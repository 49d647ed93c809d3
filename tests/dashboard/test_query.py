"""The search box: each term against a table that a loop goes over."""

from __future__ import annotations

import time

import numpy as np
import pytest

from contig.dashboard.query import search
from contig.tape.episodes import EPISODE


def table(n=40, seed=3):
    rng = np.random.default_rng(seed)
    out = np.zeros(n, np.dtype([*EPISODE.descr, ("task", "<i8"), ("goal", "<f4", (2,))]))
    out["id"] = np.arange(n) + 5
    out["traj_id"] = 1000 + np.arange(n)
    out["steps"] = rng.integers(1, 100, n)
    out["return"] = rng.normal(0, 10, n)
    ends = rng.integers(0, 3, n)
    out["terminated"], out["truncated"] = ends == 1, ends == 2
    out["trimmed"] = rng.random(n) < 0.2
    out["policy_version"] = rng.integers(0, 6, n)
    out["time"] = time.time() - rng.integers(0, 7200, n)
    out["task"] = rng.integers(0, 4, n)
    out["goal"] = rng.normal(0, 1, (n, 2))
    return out


CASES = {
    "": lambda e: True,
    "return>3": lambda e: e["return"] > 3,
    "return<=-2.5": lambda e: e["return"] <= -2.5,
    "length<50": lambda e: e["steps"] < 50,
    "steps>=50 return>0": lambda e: e["steps"] >= 50 and e["return"] > 0,
    "version=2..4": lambda e: 2 <= e["policy_version"] <= 4,
    "version=..1": lambda e: e["policy_version"] <= 1,
    "policy_version!=3": lambda e: e["policy_version"] != 3,
    "terminated": lambda e: e["terminated"],
    "open": lambda e: not (e["terminated"] or e["truncated"]),
    "-trimmed truncated": lambda e: e["truncated"] and not e["trimmed"],
    "id=7": lambda e: e["id"] == 7,
    "7": lambda e: e["id"] == 7,
    "#1003": lambda e: e["traj_id"] == 1003,
    "traj:1004": lambda e: e["traj_id"] == 1004,
    "task=2": lambda e: e["task"] == 2,
    "goal>1": lambda e: (e["goal"] > 1).any(),
    "age<30m": lambda e: time.time() - e["time"] < 1800,
}


@pytest.mark.parametrize("text", CASES, ids=lambda t: t or "nothing")
def test_terms(text):
    episodes = table()
    expected = [bool(CASES[text](line)) for line in episodes]
    assert search(text, episodes).tolist() == expected
    if text not in ("", "age<30m"):
        assert 0 < sum(expected) < len(episodes)  # it says something


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("retrun>3", "no column 'retrun'; there are length, version"),
        ("return>much", "expected a number, got 'much'"),
        ("return>", "expected a number, got ''"),
        ("red", "expected a comparison such as return>100"),
        ("return>1" * 100, "characters"),
        ("age<", "expected a number"),
    ],
)
def test_what_cannot_be_read(text, said):
    with pytest.raises(ValueError, match=said):
        search(text, table())


def test_fields_come_before_other_names_of_columns():
    episodes = np.zeros(3, np.dtype([*EPISODE.descr, ("length", "<f4"), ("version", "<i8")]))
    episodes["steps"], episodes["length"] = [5, 6, 7], [0.5, 1.5, 2.5]
    episodes["policy_version"], episodes["version"] = [1, 2, 3], [3, 2, 1]
    assert search("length<1", episodes).tolist() == [True, False, False]
    assert search("steps>5 version=1", episodes).tolist() == [False, False, True]
    assert search("policy_version=1", episodes).tolist() == [True, False, False]


def test_no_episodes():
    assert search("return>3 goal>1", table(0)).shape == (0,)


def test_ids_of_63_bits_are_compared_exactly():
    episodes = table(3)
    episodes["writer"] = [8510331805512549370, 8510331805512549371, 8510331805512549372]
    for text, expected in {
        "writer=8510331805512549371": [False, True, False],
        "writer!=8510331805512549371": [True, False, True],
        "writer=8510331805512549371..8510331805512549372": [False, True, True],
        "writer<8510331805512549371": [True, False, False],
        "writer=99999999999999999999999": [False, False, False],
    }.items():
        assert search(text, episodes).tolist() == expected, text
