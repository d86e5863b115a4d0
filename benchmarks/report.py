"""How large the report's page is, how long it takes to write, and how soon Chromium shows it.

Made-up runs of the files' true form, with as many images as an evaluation may hold, 8 seeds to a line.
Interactive is when the filter has answered: it counts the rows, and comes after them in the page.
"""

import argparse
import base64
import io
import os
import statistics
import tempfile
import time
from pathlib import Path

from PIL import Image
from selenium import webdriver
from tests.support.browser import start_browser
from tests.support.report_runs import write_run

from shardline.report import RunFiles, write_report

LIMIT_S, LIMIT_BYTES = 3.0, 5_000_000
IMAGES = 24  # of a run: 12 typical samples, 12 mistakes
ASK = """
const field = document.getElementById("filter-text");
field.value = "run1"; field.dispatchEvent(new Event("input"));
return [performance.now(), document.getElementById("filter-count").textContent];
"""


def picture() -> str:
    """Return noise of 32 x 32 pixels, which no format makes smaller."""
    file = io.BytesIO()
    Image.frombytes("RGB", (32, 32), os.urandom(3 * 32 * 32)).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def make_runs(folder: Path, num_runs: int) -> list[RunFiles]:
    """Write this many runs, each with images of its own."""
    runs = []
    for number in range(num_runs):
        samples = [
            {"row": row, "label": "3", "predicted": "5", "confidence": 0.6, "loss": 1.2, "image": picture()}
            for row in range(IMAGES)
        ]  # fmt: skip
        kinds = {"typical": samples[: IMAGES // 2], "hardest": samples[IMAGES // 2 :]}
        lr = 0.1 / (1 + number // 8)
        changes = {"evaluation": {"samples": kinds}}
        name, accuracy = f"run{number}", 0.9 + 0.09 * number / num_runs
        runs.append(
            write_run(
                folder, name, seed=number % 8, lr=lr, accuracy=accuracy, num_steps=1000, **changes
            )
        )
    return runs


def opening(browser: webdriver.Chrome, page: Path) -> float:
    """Return the seconds from the start of the page's loading to the filter's answer."""
    browser.get("about:blank")
    browser.get(page.as_uri())
    milliseconds, shown = browser.execute_script(ASK)
    if "runs shown" not in shown:
        raise SystemExit(f"the filter did not answer: {shown!r}")
    return milliseconds / 1000


def main() -> None:
    """Print size and seconds for each number of runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        browser = start_browser(root / "profile")
        print("| runs | page | to write | to open (median, worst) |\n| --- | --- | --- | --- |")
        for num_runs in args.runs:
            page = root / str(num_runs) / "index.html"
            runs = make_runs(root / f"runs-{num_runs}", num_runs)
            start = time.perf_counter()
            write_report(runs, page, generated_from="a benchmark")
            written = time.perf_counter() - start
            seconds = [opening(browser, page) for _ in range(args.repeats)]
            print(
                f"| {num_runs:,} | {page.stat().st_size / 1e6:.2f} MB | {written:.1f} s "
                f"| {statistics.median(seconds):.2f} s, {max(seconds):.2f} s |"
            )
        browser.quit()
    print(f"goals: 100 runs under {LIMIT_BYTES / 1e6:.0f} MB, 1,000 open in under {LIMIT_S:.0f} s")


if __name__ == "__main__":
    main()
