"""Save an element of a report page as a small PNG: python -m examples.picture PAGE PNG SELECTOR."""

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image
from selenium.webdriver.common.by import By

from tests.support.browser import open_page, start_browser

DRAWN = "[...document.querySelectorAll('figure.curves')].every(figure => figure.view)"


def main(page: Path, target: Path, selector: str) -> None:
    """Save the first element that matches a CSS selector, in 64 colours."""
    with tempfile.TemporaryDirectory() as profile:
        browser = start_browser(Path(profile))
        try:
            browser.set_window_size(1280, 2000)  # large enough to show figures whole
            open_page(browser, page.resolve(), DRAWN)
            shot = browser.find_element(By.CSS_SELECTOR, selector).screenshot_as_png
        finally:
            browser.quit()
    Image.open(io.BytesIO(shot)).convert("RGB").quantize(64).save(target, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
