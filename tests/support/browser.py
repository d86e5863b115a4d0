"""Debian's chromium, driven by selenium."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

from tests.support.needs import require

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-prefers-reduced-motion",  # else a click hits where the link was before scrolling
    "--window-size=1280,1000",
)


def start_browser(profile: Path) -> webdriver.Chrome:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    require(
        chromium and driver,
        f"the browser test found chromium={chromium} and chromedriver={driver}; it needs both: "
        "apt-get install -y --no-install-recommends chromium chromium-driver",
    )
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))


def open_page(browser: webdriver.Chrome, page: Path, ready: str) -> None:
    """Open a page with empty logs, and wait until a JavaScript condition holds."""
    for kind in ("browser", "performance"):
        browser.get_log(kind)  # reading empties it
    browser.get(page.as_uri())
    WebDriverWait(browser, 120).until(lambda b: b.execute_script(f"return {ready}"))


@contextmanager
def phone(browser: webdriver.Chrome) -> Iterator[None]:
    """Have a page shown as on a phone, 390 pixels wide."""
    size = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def requested_urls(browser: webdriver.Chrome) -> set[str]:
    """Return what was asked for since the page was opened, but what lies in the page itself."""
    events = [json.loads(one["message"])["message"] for one in browser.get_log("performance")]
    urls = {
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    }
    return {url for url in urls if not url.startswith("data:")}
