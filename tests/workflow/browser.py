"""Debian's chromium, driven by selenium."""

import shutil
from pathlib import Path

from selenium import webdriver

from tests.conftest import require

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
