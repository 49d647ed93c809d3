"""The page in a real browser, of a real server that takes episodes in."""

from __future__ import annotations

import re
import threading
from urllib.parse import urlsplit

import numpy as np
import pytest

from contig import LazyTensorStorage, RateLimiter, ReplayBuffer, Server, SliceSampler, TcpTransport
from tests.dashboard.browser import (
    CHROMIUM,
    DRIVER,
    MISSING,
    complaints_of,
    frame_of,
    opened,
    requests_of,
)
from tests.dashboard.scene import FIELDS, ROW, SIDE, Actors, episode
from tests.waiting import until

if CHROMIUM is None or DRIVER is None:
    pytest.skip(MISSING, allow_module_level=True)


class Learner:
    """Draws batches until it is told to stop."""

    def __init__(self, buffer):
        self._buffer = buffer
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while not self._stop.wait(0.02):
            self._buffer.sample()

    def close(self):
        self._stop.set()
        self._thread.join(60)


@pytest.fixture(scope="module")
def page():
    storage = LazyTensorStorage(60_000, example=ROW, fields=FIELDS)
    buffer = ReplayBuffer(
        storage, SliceSampler(slice_len=8), batch_size=64, limiter=RateLimiter(2.0, 200, 5000.0)
    )
    # The first ten are always the same; actors send more.
    for number in range(10):
        rows, fields = episode(number, 30 + number, version=number)
        ends = {"terminated": number % 3 != 2, "truncated": number % 3 == 2}
        told = {"traj_id": 1000 + number, "policy_version": number, "fields": fields}
        buffer.extend_trajectory(rows, **ends, **told)
    with Server(buffer=buffer, transport=TcpTransport()) as server, server.dashboard() as page:
        learner, actors = Learner(buffer), Actors(server.port, 2, 0.2)
        try:
            yield page
        finally:
            learner.close()  # first: it may wait for rows
            actors.close()


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    with opened(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(autouse=True)
def quiet(driver, page):
    """No test leaves a complaint on the console, or asks another host for anything."""
    requests_of(driver)
    complaints_of(driver)
    yield
    assert complaints_of(driver) == []
    # A browser that has just been started opens a page of its own.
    asked = {urlsplit(url) for url in requests_of(driver)}
    asked = {url for url in asked if url.scheme not in ("data", "blob", "chrome", "about")}
    assert asked and {url.netloc for url in asked} == {f"127.0.0.1:{page.port}"}


def opens(driver, page, place=""):
    driver.get("about:blank")
    driver.get(f"{page.url}#/default{place}")
    until(lambda: driver.find_elements("css selector", "#main > div"), "a view is shown")


def text(driver, selector):
    found = driver.find_elements("css selector", selector)
    return found[0].text if found else ""


def press(driver, *keys):
    from selenium.webdriver.common.action_chains import ActionChains

    for key in keys:
        ActionChains(driver).send_keys(key).perform()


def found(driver):
    """Ids of the list that is shown."""
    links = driver.execute_script(
        "return [...document.querySelectorAll('#list a[data-id]')].map((a) => Number(a.dataset.id))"
    )
    return links


def test_numbers_move_while_rows_come_in(driver, page):
    opens(driver, page)
    rows = lambda: int(text(driver, "#tile-in small").split()[0].replace(",", "") or 0)  # noqa: E731
    first = until(lambda: text(driver, "#tile-in small") and rows(), "rows are counted")
    until(lambda: rows() > first, "there are more")
    for tile in ("in", "out", "fill", "ratio", "age", "return"):
        value = until(lambda tile=tile: text(driver, f"#tile-{tile} b").strip("– "), tile)
        assert re.match(r"-?[\d.]+", value)
    assert text(driver, "#tile-ratio small") == "limiter: 2"
    until(lambda: text(driver, "#tile-clients b") == "2", "both clients")
    assert len(driver.find_elements("css selector", "#live table tbody tr")) == 2
    lines = "#live .plot .line"
    until(lambda: len(driver.find_elements("css selector", lines)) >= 5, "charts are drawn")
    until(lambda: driver.find_elements("css selector", "#live .plot .bar"), "histograms are drawn")
    assert text(driver, "#state") == "live"
    assert "what the learner draws" in text(driver, "#live")


def test_search(driver, page):
    opens(driver, page, "/episodes")
    until(lambda: len(found(driver)) == 25, "the newest 25")
    box = driver.find_element("css selector", "#search")
    box.send_keys("traj=1000..1009 length>35")
    until(lambda: found(driver) == [9, 8, 7, 6], "four are longer")
    assert "4 of" in text(driver, "#found")
    assert "q=traj" in driver.current_url  # a link to it
    box.clear()
    box.send_keys("traj=1000..1009 task=1 truncated")
    until(lambda: found(driver) == [5], "by a field")
    box.clear()
    box.send_keys("retrun>3")
    until(lambda: "no column 'retrun'" in text(driver, "#found"), "says what is wrong")
    # Browsers write every answer that is a 4xx to the console themselves.
    complaints = complaints_of(driver)
    assert complaints and all("status of 400" in line for line in complaints)


def test_an_episode_with_images_opens_and_plays(driver, page):
    opens(driver, page, "/episode/4")
    step, pixels = until(
        lambda: driver.find_elements("css selector", "canvas.frame") and frame_of(driver)
    )
    expected = episode(4, 34)[0]["observation"]["pixels"]
    assert (step, pixels.shape) == (0, (SIDE, SIDE, 3))
    assert np.array_equal(pixels, expected[0])
    for kind in ("is_init", "terminated"):
        assert driver.find_elements("css selector", f"line.mark.{kind}")
    assert "truncated" not in text(driver, ".pane .legend")
    play = driver.find_element("css selector", "#play")
    play.click()
    until(lambda: frame_of(driver)[0] >= 5, "it plays")
    play.click()
    at = int(text(driver, "#step").split(" / ")[0])
    step, pixels = until(lambda: frame_of(driver)[0] == at and frame_of(driver), "it stops")
    assert np.array_equal(pixels, expected[step])
    assert play.get_attribute("aria-pressed") == "false"
    driver.execute_script(
        "const s = document.querySelector('#scrub');"
        "s.value = 33; s.dispatchEvent(new Event('input'))"
    )
    step, pixels = until(lambda: frame_of(driver)[0] == 33 and frame_of(driver), "the scrubber")
    assert np.array_equal(pixels, expected[33])
    strip = driver.find_element("css selector", "canvas.strip")
    assert int(strip.get_attribute("width")) > int(strip.get_attribute("height"))


def test_two_episodes_side_by_side(driver, page):
    opens(driver, page, "/episodes?q=traj=1000..1009")
    until(lambda: len(found(driver)) == 10)
    for number in (8, 3):
        driver.find_element("css selector", f"[aria-label='select episode {number}']").click()
    href = driver.find_element("css selector", "a[data-as=csv]").get_attribute("href")
    assert "ids=8%2C3" in href
    driver.find_element("css selector", "#compare").click()
    until(lambda: driver.current_url.endswith("/episode/8/3"), "a link to both")
    panes = until(
        lambda: (
            len(driver.find_elements("css selector", "canvas.frame")) == 2
            and driver.find_elements("css selector", ".pane")
        )
    )
    assert [p.find_element("css selector", "h2").text.split()[1] for p in panes] == ["#8", "#3"]
    left, right = (p.rect for p in panes)
    assert left["y"] == right["y"] and left["x"] + left["width"] <= right["x"]
    assert text(driver, "#step") == "0 / 37"


def test_the_keyboard_alone(driver, page):
    from selenium.webdriver.common.keys import Keys

    opens(driver, page)
    press(driver, "2")
    until(lambda: found(driver), "the list")
    press(driver, "/")
    assert driver.switch_to.active_element.get_attribute("id") == "search"
    press(driver, *"traj=1004..1006")
    until(lambda: found(driver) == [6, 5, 4], "what was typed")
    press(driver, Keys.ESCAPE, "j", "j", "x")
    until(
        lambda: driver.find_element("css selector", "[aria-label='select episode 5']").is_selected()
    )
    press(driver, Keys.ENTER)
    until(lambda: driver.current_url.endswith("/episode/5"), "it is opened")
    until(lambda: driver.find_elements("css selector", "canvas.frame") and frame_of(driver))
    press(driver, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT)
    until(lambda: text(driver, "#step") == "1 / 34", "step by step")
    press(driver, Keys.END)
    until(lambda: text(driver, "#step") == "34 / 34")
    press(driver, Keys.HOME, " ")
    until(lambda: int(text(driver, "#step").split()[0]) >= 3, "Space plays")
    press(driver, " ", Keys.ESCAPE)
    until(lambda: found(driver) == [6, 5, 4], "back, to what was searched for")
    assert driver.find_element("css selector", "[aria-label='select episode 5']").is_selected()
    press(driver, "?")
    assert driver.find_element("css selector", "#keys").is_displayed()
    press(driver, Keys.ESCAPE)
    until(lambda: not driver.find_element("css selector", "#keys").is_displayed())
    press(driver, "1")
    until(lambda: driver.find_elements("css selector", "#live"), "live again")


def focused(driver):
    """What the keyboard is at: its name, if it has one."""
    script = "const a = document.activeElement; return a.ariaLabel || a.textContent.slice(0, 20)"
    return driver.execute_script(script)


def test_the_keyboard_stays_where_it_is(driver, page):
    """The list is drawn anew when something is selected or sorted, and every few seconds."""
    opens(driver, page, "/episodes?q=traj=1000..1009")
    until(lambda: len(found(driver)) == 10)
    box = "[aria-label='select episode 7']"
    driver.execute_script(f'document.querySelector("{box}").focus()')
    press(driver, " ")
    assert driver.find_element("css selector", box).is_selected()
    assert focused(driver) == "select episode 7"
    before = driver.find_element("css selector", "#list table")
    until(lambda: driver.find_element("css selector", "#list table") != before, "it is refreshed")
    assert focused(driver) == "select episode 7"
    driver.execute_script("document.querySelectorAll('#list .sort')[1].focus()")
    press(driver, " ")
    until(lambda: "sort=-return" in driver.current_url, "it is sorted")
    until(lambda: text(driver, "#list [aria-sort] button") == "return ↓", "and drawn")
    assert focused(driver) == "return ↓"


def test_the_keyboard_when_its_row_is_gone(driver, page):
    opens(driver, page, "/episodes?q=traj=1000..1009")
    until(lambda: len(found(driver)) == 10)
    driver.execute_script("document.querySelector('#list a[data-id=\"3\"]').focus()")
    driver.execute_script(
        "const s = document.querySelector('#search');"
        "s.value = 'traj=1004'; s.dispatchEvent(new Event('input'))"
    )
    until(lambda: found(driver) == [4])
    assert driver.switch_to.active_element.get_attribute("id") == "list"
    press(driver, "j")
    assert focused(driver) == "#4"


def test_space_plays_at_the_scrubber(driver, page):
    opens(driver, page, "/episode/4")
    until(lambda: driver.find_elements("css selector", "canvas.frame") and frame_of(driver))
    driver.execute_script("document.querySelector('#scrub').focus()")
    press(driver, " ")
    until(lambda: int(text(driver, "#step").split()[0]) >= 2, "it plays")
    press(driver, " ")
    assert text(driver, "#play") == "▶ Play"


def test_back_to_the_same_list(driver, page):
    opens(driver, page, "/episodes?q=traj=1000..1009&sort=return&sel=3,8")
    until(lambda: len(found(driver)) == 10)
    listed = found(driver)
    driver.find_element("css selector", "#list a[data-id='8']").click()
    until(lambda: driver.find_elements("css selector", "#episode"), "it is opened")
    driver.find_element("css selector", "#episode a.button").click()  # ← Episodes
    until(lambda: found(driver) == listed, "the same search, sorted as it was")
    for number in (3, 8):
        box = driver.find_element("css selector", f"[aria-label='select episode {number}']")
        assert box.is_selected()


def test_an_address_that_cannot_be_read(driver, page):
    opens(driver, page)
    driver.execute_script("location.hash = '#/%'")
    until(lambda: driver.current_url.endswith("#/%"))
    until(lambda: driver.find_elements("css selector", "#live"), "the first table")


@pytest.mark.parametrize("width", [1500, 1280, 1000, 700])
def test_tiles_fill_their_rows(driver, page, width):
    desk = {"height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {**desk, "width": width})
    try:
        opens(driver, page)
        tiles = driver.find_elements("css selector", ".tile")
        tops = [tile.rect["y"] for tile in tiles]
        assert len(tiles) == 8 and len({tops.count(top) for top in tops}) == 1
    finally:
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {**desk, "width": 1280})


def test_light_and_dark(driver, page):
    opens(driver, page)
    colour = lambda: driver.execute_script("return getComputedStyle(document.body).backgroundColor")  # noqa: E731
    light = colour()
    press(driver, "t")
    dark = until(lambda: colour() != light and colour())
    assert sum(map(int, re.findall(r"\d+", dark)[:3])) < sum(
        map(int, re.findall(r"\d+", light)[:3])
    )
    opens(driver, page, "/episodes")  # it is kept
    assert colour() == dark
    driver.find_element("css selector", "#theme").click()
    until(lambda: colour() == light)


@pytest.mark.parametrize("place", ["", "/episodes", "/episode/4", "/episode/4/5"])
def test_at_phone_width(driver, page, place):
    phone = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    try:
        opens(driver, page, place)
        ready = {"": "#live .plot .line", "/episodes": "#list a"}.get(place, "canvas.frame")
        until(lambda: driver.find_elements("css selector", ready))
        wide = driver.execute_script("return document.documentElement.scrollWidth")
        assert wide <= 390  # nothing is beside the screen
        if place.count("/") == 3:
            first, second = driver.find_elements("css selector", ".pane")
            assert second.rect["y"] >= first.rect["y"] + first.rect["height"]
    finally:
        desk = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", desk)
