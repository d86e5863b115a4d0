"""Draw the diagrams of the site: `python -m docs.figures.diagrams`, which needs chromium and npm.

Each `docs/figures/NAME.mmd` becomes `docs/images/NAME.svg`. Pages show the SVG, so that no page needs a script.
"""

import subprocess
import tempfile
from pathlib import Path

from selenium import webdriver
from tests.support.browser import start_browser

FIGURES = Path(__file__).parent
IMAGES = FIGURES.parent / "images"
MERMAID = "mermaid@11.17.2"
# Text as SVG text, since a page shows no HTML within an image.
CONFIG = """{
  startOnLoad: false, deterministicIds: true, theme: "neutral", htmlLabels: false, flowchart: {htmlLabels: false},
  fontFamily: "system-ui, sans-serif", themeCSS: ".edgeLabel rect { fill: white; opacity: 1; }"
}"""


def draw(browser: webdriver.Chrome, name: str, text: str) -> str:
    """Return a diagram as SVG, on white."""
    drawn: str = browser.execute_async_script(
        f"const done = arguments[2]; mermaid.initialize({CONFIG});"
        "mermaid.render(arguments[0], arguments[1]).then((one) => done(one.svg), (error) => done('' + error))",
        name,
        text,
    )
    if not drawn.startswith("<svg"):
        raise SystemExit(f"docs/figures/{name}.mmd: {drawn}")
    return drawn.replace("<br>", "<br/>").replace("max-width:", "background: white; max-width:", 1)


def main() -> None:
    """Draw all of them."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "install", "--silent", "--prefix", folder, MERMAID], check=True)
        script = Path(folder, "node_modules/mermaid/dist/mermaid.min.js")
        page = Path(folder, "page.html")
        page.write_text(f'<meta charset="utf-8"><script src="{script}"></script>', encoding="utf-8")
        browser = start_browser(Path(folder, "profile"))
        try:
            browser.get(page.as_uri())
            for one in sorted(FIGURES.glob("*.mmd")):
                svg = draw(browser, one.stem, one.read_text(encoding="utf-8"))
                (IMAGES / f"{one.stem}.svg").write_text(svg + "\n", encoding="utf-8")
        finally:
            browser.quit()


if __name__ == "__main__":
    main()
