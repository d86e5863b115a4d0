"""The page in windows of several widths: nothing is cut, broken or hidden behind something else."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from shardline.report import write_report
from tests.support.browser import open_page, phone
from tests.support.report_runs import write_run

DRAWN = "[...document.querySelectorAll('figure.curves')].every(f => f.view)"
LONG = "tabular-net-optim.lr={lr}-model_args.hidden={width}-schedule.warmup_steps=1000"


@pytest.fixture(scope="module")
def wide(tmp_path_factory) -> Path:
    """A page of long names, four varied settings and more metrics than the usual ones."""
    target = tmp_path_factory.mktemp("wide") / "report.html"
    runs = []
    for number, (lr, width) in enumerate((lr, w) for lr in (0.1, 0.001, 1e-5) for w in (64, 256)):
        varied = {"optim.lr": lr, "model_args.hidden": width, "optim.name": "adam" if number % 2 else "sgd",
                  "schedule.warmup_steps": 10 * number + 10}  # fmt: skip
        lines = [
            {"step": step, "epoch": 0, "wall_s": step / 9, "train_loss": 1 / step, "val_loss": 1 / step,
             "val_accuracy": 1 - 1 / step, "grad_norm": step * lr, "val_auroc": 0.5 + step / 900}
            for step in range(10, 101, 10)
        ]  # fmt: skip
        name = LONG.format(lr=lr, width=width)
        runs.append(
            write_run(target.parent / "runs", name, accuracy=0.9 + number / 100, lr=lr,
                      lines=[json.dumps(line) for line in lines], asked={"varied": varied})
        )  # fmt: skip
    write_report(runs, target, generated_from="config/config.yaml")
    return target


@contextmanager
def window(browser: webdriver.Chrome, width: int) -> Iterator[None]:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


# how many lines each number in a text takes
LINES_OF_NUMBERS = """
const found = [];
for (const root of document.querySelectorAll("#leaderboard tr.run th a, #leaderboard tr.run td:not([hidden])")) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    for (const match of node.textContent.matchAll(/\\d[\\d.e-]*\\d/g)) {
      const range = document.createRange();
      range.setStart(node, match.index);
      range.setEnd(node, match.index + match[0].length);
      const tops = new Set([...range.getClientRects()].map((rect) => Math.round(rect.top)));
      if (tops.size) found.push([match[0], tops.size]);
    }
  }
}
return found;
"""
SIZES = """
const frame = document.getElementById("leaderboard").parentElement;
return [frame.scrollWidth - frame.clientWidth,
        document.documentElement.scrollWidth - document.documentElement.clientWidth];
"""


@pytest.mark.parametrize("width", [1280, 1920, 390])
def test_the_table_fits_and_no_number_breaks(shared_browser, wide, width):
    with phone(shared_browser) if width < 600 else window(shared_browser, width):
        open_page(shared_browser, wide, DRAWN)
        numbers = shared_browser.execute_script(LINES_OF_NUMBERS)
        assert len(numbers) > 20
        assert [number for number, lines in numbers if lines > 1] == []
        assert shared_browser.execute_script(SIZES) == [0, 0], "no column is cut"
        heads = shared_browser.find_elements(By.CSS_SELECTOR, "#leaderboard thead th")
        left_out = sum(not head.is_displayed() for head in heads)
        choice = shared_browser.find_element(By.CSS_SELECTOR, "#columns summary").text
        assert choice == (f"Columns ({left_out} more)" if left_out else "Columns")
        assert (left_out > 0) == (width == 1280), "a wide window has room for all of them"


def test_columns_that_a_reader_has_chosen_stay(shared_browser, wide):
    with window(shared_browser, 1280):
        open_page(shared_browser, wide, DRAWN)
        shared_browser.find_element(By.CSS_SELECTOR, "#columns summary").click()
        box = shared_browser.find_element(
            By.XPATH, "//details[@id='columns']//label[.='Ranks']/input"
        )
        assert not box.is_selected()
        box.click()
    with window(shared_browser, 1100):
        assert shared_browser.find_element(By.XPATH, "//thead//button[.='Ranks']").is_displayed()


OVERLAPS = """
const figure = [...document.querySelectorAll("figure.drawn")].find((one) => /side by side/.test(one.textContent));
const texts = [...figure.querySelectorAll("svg text")].filter((one) => one.textContent.trim());
const boxes = texts.map((one) => [one.textContent, one.getBoundingClientRect()]);
const meet = (a, b) => a.left < b.right && b.left < a.right && a.top + 2 < b.bottom && b.top + 2 < a.bottom;
return [texts.length, boxes.flatMap(([name, a], i) =>
  boxes.slice(i + 1).filter(([, b]) => meet(a, b)).map(([other]) => [name, other]))];
"""


@pytest.mark.parametrize("width", [1280, 1920, 700])
def test_no_label_of_the_parallel_coordinates_lies_over_another(shared_browser, wide, width):
    with window(shared_browser, width):
        open_page(shared_browser, wide, DRAWN)
        WebDriverWait(shared_browser, 120).until(lambda b: b.execute_script(OVERLAPS)[0] > 10)
        assert shared_browser.execute_script(OVERLAPS)[1] == []


def test_every_logged_metric_can_be_drawn(shared_browser, wide):
    open_page(shared_browser, wide, DRAWN)

    def panels() -> list[str]:
        return shared_browser.execute_script(
            "return document.querySelector('figure.curves').view && "
            "[...document.querySelectorAll('figure.curves svg .role-axis-title text')]"
            ".map((one) => one.textContent).filter((one) => one !== 'step')"
        )

    usual = ["train loss", "val loss", "val accuracy"]
    assert panels() == usual
    summary = shared_browser.find_element(By.CSS_SELECTOR, ".metrics summary")
    assert summary.text == "Metrics (2 more)"
    summary.click()
    boxes = {
        label.text: label.find_element(By.TAG_NAME, "input")
        for label in shared_browser.find_elements(By.CSS_SELECTOR, ".metrics label")
    }
    assert [*boxes] == ["train_loss", "val_loss", "val_accuracy", "grad_norm", "val_auroc"]
    for name in ("val_auroc", "train_loss"):
        boxes[name].click()
    WebDriverWait(shared_browser, 120).until(
        lambda b: panels() == ["val loss", "val accuracy", "val auroc"]
    )
    assert shared_browser.get_log("browser") == []
