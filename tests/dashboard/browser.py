"""Debian's chromium, headless, driven by selenium."""

from __future__ import annotations

import io
import json
import shutil
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
MISSING = "chromium and chromedriver are not installed: apt-get install chromium chromium-driver"
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


@contextmanager
def opened(profile: Path, size: tuple[int, int] = (1280, 900), dark: bool = False) -> Iterator[Any]:
    """A browser with an empty profile, its requests and console recorded."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    wide, high = size
    more = [f"--window-size={wide},{high}", f"--user-data-dir={profile}"]
    for flag in (*_FLAGS, *more, *(["--force-dark-mode"] if dark else [])):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER or ""))
    try:
        # Headless windows have a least width; a phone's is less.
        metrics = {"width": wide, "height": high, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        yield driver
    finally:
        driver.quit()


def requests_of(driver: Any) -> list[str]:
    """The urls that the page asked for since the last call."""
    out = []
    for line in driver.get_log("performance"):
        message = json.loads(line["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            out.append(message["params"]["request"]["url"])
    return out


def complaints_of(driver: Any) -> list[str]:
    """What was written to the console since the last call."""
    return [line["message"] for line in driver.get_log("browser") if line["level"] != "DEBUG"]


def frame_of(driver: Any) -> tuple[int, np.ndarray[Any, Any]] | None:
    """What is on the canvas of the player, as pixels, and the step it says it is of."""
    told = driver.execute_script(
        "const c = document.querySelector('canvas.frame');"
        "return [c.dataset.step, c.toDataURL('image/png')]"
    )
    if told[0] is None:
        return None
    image = Image.open(io.BytesIO(b64decode(told[1].partition(",")[2]))).convert("RGB")
    return int(told[0]), np.asarray(image)
