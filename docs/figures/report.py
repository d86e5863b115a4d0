"""Take the site's pictures of a report: `python -m docs.figures.report [--study] [PAGE]`, which needs chromium.

Run `make run` first to write the report. `docs/images/report.png` shows the page down to its first learning curves.
`docs/images/study.png` shows the section of a study, of the report of the tutorial `a-study`.
"""

import argparse
import base64
import tempfile
from pathlib import Path

from tests.support.browser import open_page, start_browser

IMAGES = Path(__file__).parents[1] / "images"
FIGURE = "document.querySelector('{figure}')"
READY = f"document.readyState === 'complete' && !!{FIGURE}?.view"
STUDY = ".study figure[data-title$=-slices]"
WIDTH, MAX_HEIGHT = 1280, 2400  # of the picture, in pixels


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", nargs="?", type=Path, default=Path("results/report/index.html"))
    parser.add_argument("--study", action="store_true", help="the first study of the report")
    given = parser.parse_args()
    page, figure = given.page.resolve(), STUDY if given.study else "figure.curves"
    if not page.exists():
        raise SystemExit(f"{page} does not exist; run `make run` first, or name a report")
    with tempfile.TemporaryDirectory() as folder:
        browser = start_browser(Path(folder))
        try:
            if given.study:  # charts are drawn when they come into view
                browser.set_window_size(WIDTH, 6000)
            open_page(browser, page, READY.format(figure=figure))
            top = "document.querySelector('.study').getBoundingClientRect().top - 10"
            begin = browser.execute_script(f"return {top} + scrollY") if given.study else 0
            of_figure = FIGURE.format(figure=figure)
            end = browser.execute_script(
                f"return {of_figure}.getBoundingClientRect().bottom + scrollY"
            )
            height = min(end + 30 - begin, MAX_HEIGHT)
            clip = {"x": 0, "y": begin, "width": WIDTH, "height": height, "scale": 1}
            options = {"format": "png", "clip": clip, "captureBeyondViewport": True}
            found = browser.execute_cdp_cmd("Page.captureScreenshot", options)
        finally:
            browser.quit()
    image = IMAGES / ("study.png" if given.study else "report.png")
    image.write_bytes(base64.b64decode(found["data"]))
    print(f"docs/images/{image.name}")


if __name__ == "__main__":
    main()
