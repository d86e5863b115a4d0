"""Take the site's picture of a report: `python -m docs.figures.report [PAGE]`, which needs chromium.

Run `make run` first to write the report. `docs/images/report.png` shows the page down to its first learning curves.
"""

import argparse
import base64
import tempfile
from pathlib import Path

from tests.support.browser import open_page, start_browser

IMAGE = Path(__file__).parents[1] / "images" / "report.png"
FIGURE = "document.querySelector('figure.curves')"
READY = f"document.readyState === 'complete' && !!{FIGURE}?.view"
WIDTH, MAX_HEIGHT = 1280, 2400  # of the picture, in pixels


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", nargs="?", type=Path, default=Path("results/report/index.html"))
    page = parser.parse_args().page.resolve()
    if not page.exists():
        raise SystemExit(f"{page} does not exist; run `make run` first, or name a report")
    with tempfile.TemporaryDirectory() as folder:
        browser = start_browser(Path(folder))
        try:
            open_page(browser, page, READY)
            end = browser.execute_script(
                f"return {FIGURE}.getBoundingClientRect().bottom + scrollY"
            )
            height = min(end + 30, MAX_HEIGHT)
            clip = {"x": 0, "y": 0, "width": WIDTH, "height": height, "scale": 1}
            options = {"format": "png", "clip": clip, "captureBeyondViewport": True}
            found = browser.execute_cdp_cmd("Page.captureScreenshot", options)
        finally:
            browser.quit()
    IMAGE.write_bytes(base64.b64decode(found["data"]))
    print(f"docs/images/{IMAGE.name}")


if __name__ == "__main__":
    main()
