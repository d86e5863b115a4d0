"""The report opened from disk in a real browser: Debian's chromium, driven by selenium."""

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from selenium import webdriver
from selenium.common.exceptions import JavascriptException, StaleElementReferenceException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from shardline.report import RunFiles, write_report
from tests.support.browser import open_page, phone, requested_urls
from tests.support.report_runs import loss, write_run

HOSTILE = "<script>window.hacked=1</script>"
DRAWN = "[...document.querySelectorAll('figure.curves')].every(f => f.view)"

# What a question meets while a chart is drawn again.
REDRAWN = (JavascriptException, StaleElementReferenceException)
GB = 10**9


def draw(pixels: np.ndarray) -> str:
    """Return pixels [8, 8] of 0 to 16 as a PNG's data URL."""
    file = io.BytesIO()
    Image.fromarray((pixels * 15).astype(np.uint8)).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


IMAGE = draw(np.full((8, 8), 3))
SAMPLES = [
    {"row": row, "label": "1", "predicted": "7", "confidence": 0.9, "loss": 2.5, "image": IMAGE}
    for row in range(6)
]
BINS = [
    {"low": low / 10, "high": low / 10 + 0.1, "count": 18, "confidence": low / 10, "accuracy": low / 11}
    for low in range(10)
]  # fmt: skip
OF_DIGITS = {
    "calibration": {"bins": BINS, "ece": 0.04},
    "samples": {"hardest": SAMPLES, "typical": SAMPLES[3:]},
}
DESCRIBED = [
    {
        "row": 1, "loss": 2.5, "image": IMAGE,
        "mask": {"true": draw(np.eye(8) * 9), "predicted": draw(np.eye(8)), "classes": {"1": "1"}},
        "boxes": {"true": [], "predicted": [{"at": [0.25, 0.5, 0.75, 1], "label": HOSTILE, "score": 0.5}]},
    },
    {"row": 2, "loss": 1.5, "text": {"prompt": f"مرحبا {HOSTILE}", "true": "a\nb", "predicted": "wide" * 99}},
]  # fmt: skip
OF_DIABETES = {
    "task": "regression", "metrics": {"loss": 2800.0, "mse": 2800.0}, "confusion": None,
    "measured_by": "model", "samples": {"hardest": DESCRIBED},
}  # fmt: skip


def made(folder: Path, name: str, score: float, lr: float, model: str = "mlp", seed=7) -> RunFiles:
    """Write a run's files; its dataset is what its name begins with, or the digits."""
    is_of_digits = not name.startswith("diabetes")
    records = [{"step": step, "train_loss": loss(step) + lr} for step in range(1, 81)]
    for step in (20, 40, 60, 80):
        value = loss(step) + lr
        own = {"val_accuracy": 1 - value / 9} if is_of_digits else {"val_mse": value}
        records.append({"step": step, "val_loss": value, **own})
    return write_run(
        folder, name, accuracy=score, lr=lr, seed=seed,
        run={"dataset": {"id": "aa" * 6 if is_of_digits else "bb" * 6}, "model": model},
        identity={
            "model": model, "versions": {"training": 2 if model == "mlp" else 1, model: 1},
            "code": {"model": model.ljust(12, "0")},
        },
        evaluation=OF_DIGITS if is_of_digits else {
            **OF_DIABETES, "headline": {"metric": "mse", "value": score, "mode": "min"},
        },
        provenance={"git": {"commit": "5f0c2d1e9ab34c77", "dirty": False, "diff_digest": None}},
        lines=[json.dumps({"epoch": one["step"] // 21, "wall_s": one["step"] / 9, **one}) for one in records],
        asked={
            "dataset_names": ("digits" if is_of_digits else "diabetes",),
            "varied": {"optim.lr": lr, "model": model, "seed": seed},
        },
    )  # fmt: skip


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("report") / "report.html"
    folder = tmp_path_factory.mktemp("runs") / "all"
    runs = [
        *(made(folder, f"digits-mlp_lr=0.1_seed={n}", 0.955 + n / 500, 0.1, seed=n) for n in (1, 2, 3)),
        made(folder, "digits-mlp_lr=0.3", 0.95, 0.3),
        made(folder, "digits-mlp_lr=0.01", 0.9, 0.01),
        made(folder, "digits-linear", 0.93, 0.1, "linear"),
        made(folder, HOSTILE, 0.5, 0.001),
        made(folder, "diabetes-mlp_lr=0.01", 3100.0, 0.01),
        made(folder, "diabetes-mlp_lr=0.1", 2800.0, 0.1),
    ]  # fmt: skip
    write_report(runs, target, generated_from="config/config.yaml, commit 5f0c2d1")
    return target


@pytest.fixture
def browser(shared_browser, page) -> webdriver.Chrome:
    open_page(shared_browser, page, DRAWN)
    return shared_browser


def wait_for_charts(browser: webdriver.Chrome) -> None:
    WebDriverWait(browser, 120).until(lambda b: b.execute_script(f"return {DRAWN}"))


def shown_runs(browser: webdriver.Chrome, dataset: int = 1) -> list[str]:
    rows = browser.find_elements(By.CSS_SELECTOR, f"tbody[data-group=group-{dataset}] tr.run")
    return [
        row.find_element(By.CSS_SELECTOR, "th a, th button").text
        for row in rows
        if row.is_displayed()
    ]


def header(browser: webdriver.Chrome, title: str):
    return browser.find_element(By.XPATH, f"//thead//button[.='{title}']")


def test_page_loads_without_console_error_or_request(browser, page):
    assert requested_urls(browser) == {page.as_uri()}
    assert browser.get_log("browser") == []


def test_a_run_named_like_a_script_is_harmless(browser):
    assert browser.execute_script("return window.hacked") is None
    assert HOSTILE in shown_runs(browser, dataset=2)


def test_charts_are_drawn_with_curves_inside_the_page(browser):
    charts = browser.find_elements(By.CSS_SELECTOR, ".curves .chart :is(svg, canvas).marks")
    assert len(charts) == 2
    for chart in charts:
        assert chart.size["width"] > 600
        assert chart.size["height"] > 200
    lines = browser.find_elements(By.CSS_SELECTOR, ".curves .chart svg .mark-line path")
    assert len(lines) == 2 * 2 + 3 * 7  # panels times runs; val_mse only repeats val_loss
    assert browser.execute_script(
        "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )


def test_header_sorts_both_ways_and_says_so(browser):
    by_place = shown_runs(browser, dataset=2)
    header(browser, "Held-out score").click()
    cell = header(browser, "Held-out score").find_element(By.XPATH, "./..")
    assert cell.get_attribute("aria-sort") == "ascending"
    ascending = shown_runs(browser, dataset=2)
    header(browser, "Held-out score").send_keys(Keys.ENTER)
    assert cell.get_attribute("aria-sort") == "descending"
    assert ascending[0] == HOSTILE
    assert shown_runs(browser, dataset=2)[0] == by_place[0]
    header(browser, "optim.lr").click()
    assert shown_runs(browser, dataset=2)[0] == HOSTILE
    assert shown_runs(browser, dataset=2)[-1] == "digits-mlp_lr=0.3"


def test_filter_narrows_leaderboard_and_details(browser):
    field = browser.find_element(By.ID, "filter-text")
    field.send_keys("digits linear")
    assert shown_runs(browser, dataset=2) == ["digits-linear"]
    assert shown_runs(browser, dataset=1) == []
    assert browser.find_element(By.ID, "filter-count").text == "1 of 9 runs shown"
    details = browser.find_elements(By.CSS_SELECTOR, "#runs-title ~ .details > details")
    assert [one.is_displayed() for one in details].count(True) == 1
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys(Keys.BACKSPACE)
    assert len(shown_runs(browser, dataset=2)) == 5


def open_run(browser: webdriver.Chrome, name: str):
    """Follow the link of a run in the leaderboard; return its details, with the curves drawn."""
    link = browser.find_element(By.LINK_TEXT, name)
    link.click()
    details = browser.find_element(By.ID, link.get_attribute("href").rpartition("#")[2])
    WebDriverWait(browser, 120).until(
        lambda b: b.execute_script("return !!arguments[0].querySelector('figure')?.view", details)
    )
    return details


def test_link_in_the_leaderboard_opens_the_details(browser):
    details = open_run(browser, "digits-linear")
    for said in (
        "Confusion matrix",
        "5f0c2d1e9ab34c77",
        "Calibration",
        "shardline replay digits-linear",
    ):
        assert said in details.text
    lines = details.find_elements(By.CSS_SELECTOR, ".curves .mark-line path")
    assert len(lines) == 3  # of this run alone
    images = details.find_elements(By.TAG_NAME, "img")
    assert len(images) == 9
    assert all(image.get_property("naturalWidth") == 8 for image in images)
    assert browser.get_log("browser") == []


def test_samples_that_a_model_describes_are_drawn_over_their_image(browser):
    details = open_run(browser, "diabetes-mlp_lr=0.1")
    assert HOSTILE in details.find_element(By.CSS_SELECTOR, ".samples dd.prompt").text
    layers = details.find_elements(By.CSS_SELECTOR, ".samples .layers")
    assert len(layers) == 2
    image, mask = (one.rect for one in layers[1].find_elements(By.TAG_NAME, "img"))
    assert mask == pytest.approx(image, abs=1)
    box = layers[1].find_element(By.CSS_SELECTOR, "rect.predicted").rect
    drawn = [(box[edge] - image[edge]) / image["width"] for edge in ("x", "y")]
    assert [*drawn, box["width"] / image["width"]] == pytest.approx([0.25, 0.5, 0.5], abs=0.03)
    with phone(browser):
        assert browser.execute_script(
            "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        )
    assert browser.get_log("browser") == []


def test_details_are_made_when_they_are_opened(browser):
    made = "return document.querySelectorAll('.details .pairs').length"
    before = browser.execute_script(made)
    open_run(browser, "digits-linear")
    after = browser.execute_script(made)
    assert after > before
    browser.find_element(By.LINK_TEXT, "digits-linear").click()
    assert browser.execute_script(made) == after


def test_without_javascript_everything_but_the_charts_can_be_read(browser, page):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(page.as_uri())
        details = browser.find_elements(By.CSS_SELECTOR, "#runs-title ~ .details > details")
        details[0].find_element(By.TAG_NAME, "summary").click()
        assert "Confusion matrix" in details[2].get_attribute("textContent")
        assert "Lineage" in details[0].text
        seeds = browser.find_elements(By.CSS_SELECTOR, "tr.seed")
        assert [row.is_displayed() for row in seeds] == [True] * 3
        assert "Compare two runs" not in browser.find_element(By.TAG_NAME, "main").text
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_runs_of_several_seeds_open_below_their_line(browser):
    button = browser.find_element(By.CSS_SELECTOR, "button.seeds")
    row = button.find_element(By.XPATH, "./ancestor::tr")
    assert button.text == "digits-mlp_lr=0.1"
    assert "±" in row.text
    assert "3 seeds" in row.text

    def shown():
        return [
            one for one in browser.find_elements(By.CSS_SELECTOR, "tr.seed") if one.is_displayed()
        ]

    assert shown() == []
    button.send_keys(Keys.ENTER)
    assert button.get_attribute("aria-expanded") == "true"
    assert len(shown()) == 3
    header(browser, "Loss").click()  # they stay below their line
    following = browser.execute_script("return arguments[0].nextElementSibling.className", row)
    assert following == "seed"
    browser.find_element(By.ID, "filter-text").send_keys("linear")
    assert shown() == []


def compare(browser: webdriver.Chrome, one: str, other: str) -> str:
    for field, name in (("compare-a", one), ("compare-b", other)):
        Select(browser.find_element(By.ID, field)).select_by_visible_text(name)
    return browser.find_element(By.ID, "compare-result").text


def test_two_chosen_runs_are_compared(browser):
    told = compare(browser, "digits-mlp_lr=0.3", "digits-linear")
    assert "optim.lr 0.3 → 0.1" in told
    assert "model mlp → linear" in told
    assert "result version of training 2 → 1" in told
    assert "result version of mlp" not in told
    assert "code of the model differs" in told
    assert re.search(r"Their 95 % intervals .* (overlap|do not overlap)", told)
    assert "held-out accuracy" in told
    assert re.search(r"evaluate/[0-9a-f]{12}/evaluation", told)
    assert "other data" in compare(browser, "digits-linear", "diabetes-mlp_lr=0.1")
    same = compare(browser, "digits-mlp_lr=0.1_seed=1", "digits-mlp_lr=0.1_seed=2")
    assert "nothing but the seed" in same
    assert "seed 1 → 2" in same


def test_a_comparison_has_a_link_and_can_be_swapped(browser, page):
    compare(browser, "digits-mlp_lr=0.3", "digits-linear")
    link = browser.current_url
    browser.find_element(By.ID, "compare-swap").click()
    assert "optim.lr 0.1 → 0.3" in browser.find_element(By.ID, "compare-result").text
    browser.get("about:blank")
    browser.get(link)
    assert "optim.lr 0.3 → 0.1" in browser.find_element(By.ID, "compare-result").text


def test_what_is_open_is_printed_and_what_only_serves_the_screen_is_not(browser):
    details = open_run(browser, "digits-linear")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert details.find_element(By.CSS_SELECTOR, ".confusion").is_displayed()
        for gone in (".filters", ".contents", ".print-run"):
            assert not browser.find_element(By.CSS_SELECTOR, gone).is_displayed()
        # what "Print this run" sets while it prints
        browser.execute_script(
            "document.body.classList.add('one-run'); arguments[0].classList.add('printed')", details
        )
        assert details.is_displayed()
        assert not browser.find_element(By.ID, "leaderboard").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_keyboard_alone_reaches_table_and_details(browser):
    body = browser.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.TAB)
    skip = browser.switch_to.active_element
    assert skip.text == "Skip to the leaderboard"
    skip.send_keys(Keys.ENTER)
    seen = []
    while "Ranks" not in seen:
        ActionChains(browser).send_keys(Keys.TAB).perform()
        seen.append(browser.switch_to.active_element.text)
    assert "Held-out score" in seen
    summary = browser.find_element(By.CSS_SELECTOR, "#runs-title ~ .details summary")
    summary.send_keys(Keys.ENTER)
    details = summary.find_element(By.XPATH, "./..")  # opened when the browser has laid them out
    WebDriverWait(browser, 120).until(lambda _: "Lineage" in details.text)


def test_a_screen_reader_finds_names_and_landmarks(browser):
    """What its tree of the page says, as Chromium gives it to assistive programs."""
    open_run(browser, "digits-linear")
    nodes = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"]
    ]
    roles = {role for role, _ in named}
    assert {"banner", "navigation", "main", "contentinfo", "search", "status"} <= roles
    must = {
        "button",
        "link",
        "combobox",
        "searchbox",
        "img",
        "image",
        "region",
        "columnheader",
        "slider",
    }
    assert [role for role, name in named if role in must and not name.strip()] == []


def test_legend_brings_out_a_run(browser):
    figure = browser.find_element(By.CSS_SELECTOR, "figure.curves")
    key = figure.find_element(By.CSS_SELECTOR, "button.key")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", key)
    key.send_keys(Keys.ENTER)
    assert key.get_attribute("aria-pressed") == "true"

    def opacities(_):
        paths = figure.find_elements(By.CSS_SELECTOR, ".mark-line path")
        return {path.get_attribute("opacity") for path in paths} == {"0.95", "0.08"}

    WebDriverWait(browser, 120, ignored_exceptions=REDRAWN).until(opacities)


def test_pointing_at_a_curve_tells_its_run_value_and_step(browser):
    chart = browser.find_element(By.CSS_SELECTOR, ".curves .chart svg")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)

    def tip(b: webdriver.Chrome) -> WebElement:
        for offset in (
            -199,
            -200,
        ):  # the pointer moves anew, since the chart may have moved meanwhile
            ActionChains(b).move_to_element_with_offset(chart, offset, 0).perform()
        return b.find_element(By.CSS_SELECTOR, "#vg-tooltip-element.visible")

    tooltip = WebDriverWait(browser, 120).until(tip)
    assert re.fullmatch(r"diabetes-mlp_lr=0\.0?1\n[\d,.]+ at step \d+", tooltip.text)


def test_dark_scheme_recolors_page_and_charts(browser):
    def colors():
        return browser.execute_script(
            "return [getComputedStyle(document.body).backgroundColor,"
            " document.querySelector('.curves .chart svg .role-axis-title text').getAttribute('fill')]"
        )

    def emulate(scheme):
        browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
        )

    emulate("light")
    light = colors()
    emulate("dark")
    try:
        WebDriverWait(browser, 120, ignored_exceptions=REDRAWN).until(
            lambda _: all(new != old for new, old in zip(colors(), light, strict=True))
        )
    finally:
        emulate("")


def test_curves_of_very_many_runs_wait_until_they_are_near(shared_browser, tmp_path):
    runs = [write_run(tmp_path / "runs", f"run{n}", num_steps=60) for n in range(201)]
    write_report(runs, tmp_path / "many.html", generated_from="many runs")
    curves = "document.querySelector('figure.curves')"
    open_page(shared_browser, tmp_path / "many.html", f"{curves}.isWired")
    assert shared_browser.execute_script(f"return {curves}.view") is None
    shared_browser.execute_script(f"{curves}.scrollIntoView()")
    drawn = f"{curves}.querySelector('.chart canvas, .chart path') !== null"
    WebDriverWait(shared_browser, 120).until(lambda b: b.execute_script(f"return {drawn}"))


def test_machine_curves_are_drawn_and_tell_what_was_used_when(shared_browser, tmp_path):
    curve = {
        "attempt": [1, 1, 2, 2], "s": [2.0, 4.0, 6.0, 8.0], "rss_bytes": [2 * GB, 3 * GB, 2 * GB, 3 * GB],
        "cpu_percent": [80.0, 150.0, 90.0, 140.0],
    }  # fmt: skip
    ranks = [
        {"rank": rank, "host": "n1", "peak_rss_bytes": 3 * GB, "cpu_s": 9.0, "curve": curve}
        for rank in (0, 1)
    ]
    resources = {"num_cpus": 2, "memory_bytes": 8 * GB, "ranks": ranks}
    run = write_run(tmp_path / "runs", "one", provenance={"resources": resources})
    write_report([run], tmp_path / "one.html", generated_from="one run")
    open_page(shared_browser, tmp_path / "one.html", DRAWN)
    shared_browser.find_element(By.LINK_TEXT, "one").click()
    figure = "document.querySelector('figure.machine')"
    WebDriverWait(shared_browser, 120).until(lambda b: b.execute_script(f"return !!{figure}?.view"))
    lines = f"return {figure}.querySelectorAll('.mark-line path').length"
    assert shared_browser.execute_script(lines) == 2 * 2 * 2, "panels, ranks and attempts"
    dot = shared_browser.find_elements(By.CSS_SELECTOR, "figure.machine .mark-symbol path")[1]

    def tip(b: webdriver.Chrome) -> WebElement:
        for offset in (1, 0):  # as above
            ActionChains(b).move_to_element_with_offset(dot, offset, 0).perform()
        return b.find_element(By.CSS_SELECTOR, "#vg-tooltip-element.visible")

    assert "3 GB at 4 s" in WebDriverWait(shared_browser, 120).until(tip).text
    assert shared_browser.get_log("browser") == []
