"""Pictures of the dashboard for the documentation, of a real server that takes episodes in.

    python tools/screenshots.py [docs/images]

Needs chromium and chromedriver (Debian's packages chromium, chromium-driver).
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from contig import LazyTensorStorage, RateLimiter, ReplayBuffer, Server, SliceSampler, TcpTransport
from tests.dashboard.browser import DRIVER, MISSING, opened
from tests.dashboard.scene import FIELDS, ROW, Actors

WIDE, PHONE = (1360, 900), (390, 844)


def learn(buffer: Any, server: Any, stop: threading.Event) -> None:
    """Draws batches, and publishes a version now and then, as a learner does."""
    version = 0
    while not stop.is_set():
        buffer.sample()
        version += 1
        if version % 20 == 0:
            server.publish(version // 20, {"w": [float(version)]})
        time.sleep(0.01)


def shoot(driver: Any, path: Path, settle_s: float = 2.5) -> None:
    time.sleep(settle_s)
    driver.save_screenshot(str(path))
    print(path)


def pictures(url: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as profile, opened(Path(profile), WIDE) as driver:
        driver.get(url)
        shoot(driver, folder / "dashboard-live.png", 8)
        driver.get(f"{url}#/default/episodes?q=return>0+length<120&sort=-return")
        shoot(driver, folder / "dashboard-episodes.png")
        driver.get(f"{url}#/default/episode/70")
        time.sleep(2)
        for _ in range(30):
            driver.find_element("css selector", "[aria-label='a step forward']").click()
        shoot(driver, folder / "dashboard-episode.png", 1)
    with tempfile.TemporaryDirectory() as profile, opened(Path(profile), WIDE, True) as driver:
        driver.get(url)
        shoot(driver, folder / "dashboard-live-dark.png", 8)
        driver.get(f"{url}#/default/episode/2/90")
        time.sleep(2)
        for _ in range(25):
            driver.find_element("css selector", "[aria-label='a step forward']").click()
        shoot(driver, folder / "dashboard-compare-dark.png", 1)
    with tempfile.TemporaryDirectory() as profile, opened(Path(profile), PHONE) as driver:
        driver.get(url)
        shoot(driver, folder / "dashboard-phone.png", 6)
        driver.get(f"{url}#/default/episode/70")
        shoot(driver, folder / "dashboard-phone-episode.png")


def main() -> int:
    if DRIVER is None:
        print(MISSING, file=sys.stderr)
        return 2
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images")
    folder.mkdir(parents=True, exist_ok=True)
    storage = LazyTensorStorage(200_000, example=ROW, fields=FIELDS)
    limiter = RateLimiter(4.0, 500, 4000.0)
    sampler = SliceSampler(slice_len=16)
    buffer = ReplayBuffer(storage, sampler, batch_size=256, limiter=limiter)
    stop = threading.Event()
    with Server(buffer=buffer, transport=TcpTransport()) as server:
        actors = Actors(server.port, 3, 0.4, lambda: server.weights_version or 0)
        learner = threading.Thread(target=learn, args=(buffer, server, stop))
        learner.start()
        try:
            with server.dashboard() as page:
                time.sleep(20)
                pictures(page.url, folder)
        finally:
            stop.set()
            learner.join()
            actors.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
