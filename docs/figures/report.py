"""Take the site's pictures of a report: `python -m docs.figures.report [PAGE]`, which needs chromium.

`make run` writes the report. The whole page becomes `docs/images/report.png`, and each of its sections
`docs/images/report-SECTION.png`.
"""

import argparse
import base64
import tempfile
from pathlib import Path

from selenium import webdriver
from tests.support.browser import open_page, start_browser

IMAGES = Path(__file__).parents[1] / "images"
READY = "document.readyState === 'complete' && document.querySelectorAll('canvas, svg.marks').length > 0"
# By the picture's name: the heading of the section.
SECTIONS = {"leaderboard": "leaderboard-title", "curves": "curves-title"}
MAX_HEIGHT = 1900  # of a picture, in pixels


def picture(browser: webdriver.Chrome, box: dict[str, float]) -> bytes:
    """Return a part of the page, also where it is not in view."""
    clip = {**box, "height": min(box["height"], MAX_HEIGHT), "scale": 1}
    found = browser.execute_cdp_cmd(
        "Page.captureScreenshot", {"format": "png", "clip": clip, "captureBeyondViewport": True}
    )
    return base64.b64decode(found["data"])


def box_of(browser: webdriver.Chrome, heading: str) -> dict[str, float] | None:
    """Return where the section with a heading is; None where the report has none."""
    return browser.execute_script(
        "const found = document.getElementById(arguments[0])?.closest('section')?.getBoundingClientRect();"
        "return found &&"
        " {x: found.x + scrollX - 20, y: found.y + scrollY, width: found.width + 40, height: found.height}",
        heading,
    )


def main() -> None:
    """Take all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", nargs="?", type=Path, default=Path("results/report/index.html"))
    page = parser.parse_args().page.resolve()
    if not page.exists():
        raise SystemExit(f"{page} does not exist; run `make run` first, or name a report")
    with tempfile.TemporaryDirectory() as folder:
        browser = start_browser(Path(folder))
        try:
            open_page(browser, page, READY)
            height = browser.execute_script("return document.documentElement.scrollHeight")
            whole = {"x": 0, "y": 0, "width": 1280, "height": height}
            boxes = {"report": whole}
            for name, heading in SECTIONS.items():
                if found := box_of(browser, heading):
                    boxes[f"report-{name}"] = found
            for name, box in boxes.items():
                (IMAGES / f"{name}.png").write_bytes(picture(browser, box))
                print(f"docs/images/{name}.png")
        finally:
            browser.quit()


if __name__ == "__main__":
    main()
