"""An episode whose oldest steps were evicted, in a real browser: steps keep their numbers."""

from __future__ import annotations

import numpy as np
import pytest

from contig import LazyTensorStorage, ReplayBuffer
from tests.dashboard.browser import CHROMIUM, DRIVER, MISSING, complaints_of, frame_of, opened
from tests.dashboard.pages import ask
from tests.dashboard.scene import FIELDS, ROW, episode
from tests.waiting import until

if CHROMIUM is None or DRIVER is None:
    pytest.skip(MISSING, allow_module_level=True)


def test_steps_of_a_trimmed_episode(tmp_path):
    buffer = ReplayBuffer(LazyTensorStorage(60, example=ROW, fields=FIELDS), batch_size=4)
    for number, steps in ((0, 40), (1, 45)):
        rows, fields = episode(number, steps)
        buffer.extend_trajectory(rows, terminated=True, fields=fields)
    expected = episode(0, 40)[0]["observation"]["pixels"]
    with buffer.dashboard() as page, opened(tmp_path) as driver:
        told = ask(page.url, "/api/tables/default/episodes/0").json
        assert (told["first"], told["rows"]) == (25, 15)
        assert told["reward"]["steps"] == list(range(25, 40))
        leaf = next(x["number"] for x in told["leaves"] if x["kind"] == "image")
        gone = ask(page.url, f"/api/tables/default/episodes/0/frames?leaf={leaf}&from=24")
        assert gone.status == 404 and "25 is its oldest" in gone.json["error"]

        driver.get(f"{page.url}#/default/episode/0")

        def shown():
            """The step that is shown, what its first pixel says it is, and the label."""
            found = driver.find_elements("css selector", "canvas.frame") and frame_of(driver)
            label = driver.find_element("css selector", "#step").text
            return found and [found[0], int(found[1][0, 0, 0]), label]

        assert until(shown, "a frame") == [25, 25, "25 / 39"]
        for value in (33, 39, 26):
            driver.execute_script(
                "const s = document.querySelector('#scrub');"
                f"s.value = {value}; s.dispatchEvent(new Event('input'))"
            )
            want = [value, int(expected[value, 0, 0, 0]), f"{value} / 39"]
            until(lambda want=want: shown() == want, f"step {value}")
        driver.get(f"{page.url}#/default/episode/0/1")  # beside one that is whole
        label = "return document.querySelector('#step')?.textContent"
        until(lambda: driver.execute_script(label) == "0 / 44", "both")
        assert complaints_of(driver) == []
    assert np.array_equal(expected[:, 0, 0, 0], np.arange(40))
