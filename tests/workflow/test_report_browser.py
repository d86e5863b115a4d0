"""The report opened from disk in a real browser: Debian's chromium, driven by selenium.

The runs are real: scikit-learn models trained for a few hundred steps on digits and diabetes.
"""

import hashlib
import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait
from sklearn.datasets import load_diabetes, load_digits
from sklearn.metrics import accuracy_score, confusion_matrix, log_loss, mean_squared_error
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.preprocessing import StandardScaler

from shardline.report import RunFiles, write_report
from tests.conftest import require

HOSTILE = "<script>window.hacked=1</script>"
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
BATCH = 64


def split_parts(load):
    features, target = load(return_X_y=True)
    train, rest, train_y, rest_y = train_test_split(features, target, test_size=0.4, random_state=0)
    valid, test, valid_y, test_y = train_test_split(rest, rest_y, test_size=0.5, random_state=0)
    scaler = StandardScaler().fit(train)
    return (
        (scaler.transform(train), train_y),
        (scaler.transform(valid), valid_y),
        (scaler.transform(test), test_y),
    )


def digits_run(folder: Path, name: str, *, lr: float, hidden: tuple[int, ...], epochs=6):
    train, valid, test = split_parts(load_digits)
    model = MLPClassifier(
        hidden_layer_sizes=hidden, learning_rate_init=lr, solver="sgd", random_state=7
    )
    classes = list(range(10))

    def measure(part):
        probabilities = model.predict_proba(part[0])
        return {
            "loss": float(log_loss(part[1], probabilities, labels=classes)),
            "accuracy": float(accuracy_score(part[1], probabilities.argmax(axis=1))),
        }

    metrics = fit(model, train, valid, lr, epochs, measure, {"classes": classes})
    held_out = measure(test)
    counts = confusion_matrix(test[1], model.predict(test[0]), labels=classes).tolist()
    evaluation = {
        "task": "classification",
        "num_samples": len(test[1]),
        "metrics": held_out,
        "headline": {"metric": "accuracy", "value": held_out["accuracy"], "mode": "max"},
        "confusion": {"classes": [str(name) for name in classes], "counts": counts},
    }
    return seal(folder, name, "digits", "mlp" if hidden else "linear", lr, metrics, evaluation)


def diabetes_run(folder: Path, name: str, *, lr: float, hidden: tuple[int, ...]):
    train, valid, test = split_parts(load_diabetes)
    model = MLPRegressor(hidden_layer_sizes=hidden, learning_rate_init=lr, random_state=7)

    def measure(part):
        error = float(mean_squared_error(part[1], model.predict(part[0])))
        return {"loss": error, "mse": error}

    metrics = fit(model, train, valid, lr, 20, measure, {})
    held_out = measure(test)
    evaluation = {
        "task": "regression",
        "num_samples": len(test[1]),
        "metrics": held_out,
        "headline": {"metric": "mse", "value": held_out["mse"], "mode": "min"},
        "reference": {"metric": "mse", "value": 5200.0, "meaning": "error of predicting the mean"},
    }
    return seal(folder, name, "diabetes", "mlp", lr, metrics, evaluation)


def fit(model, train, valid, lr, epochs, measure, first_fit):
    records, step, begin = [], 0, time.monotonic()
    generator = np.random.default_rng(0)
    for epoch in range(epochs):
        for batch in np.array_split(generator.permutation(len(train[1])), len(train[1]) // BATCH):
            model.partial_fit(train[0][batch], train[1][batch], **first_fit)
            step += 1
            stamp = {"step": step, "epoch": epoch, "wall_s": round(time.monotonic() - begin, 3)}
            records.append({**stamp, "train_loss": float(model.loss_), "lr": lr})
        records.append({**stamp, **{f"val_{key}": v for key, v in measure(valid).items()}})
    return records


def seal(folder, name, dataset, model, lr, metrics, evaluation) -> RunFiles:
    identity = hashlib.sha256(name.encode()).hexdigest()
    run = f"{name}-{identity[:12]}"
    target = folder / identity[:12]
    target.mkdir(parents=True)
    settings = {
        "seed": 7,
        "nodes": 1,
        "devices": 2,
        "global_batch": BATCH,
        "optim": {"name": "sgd", "lr": lr},
    }
    documents = {
        "run": {
            "run": run,
            "name": name,
            "dataset": {"name": dataset, "id": f"{dataset}-0123456789ab"},
            "model": model,
            "settings": settings,
            "varied": {"optim.lr": lr, "model": model},
            "identity": identity,
        },
        "evaluation": {"run": run, "split": "test", "identity": identity, **evaluation},
        "provenance": {
            "run": run,
            "seed": 7,
            "started": "2026-05-04T09:12:00Z",
            "ended": "2026-05-04T09:13:10Z",
            "duration_s": metrics[-1]["wall_s"],
            "attempts": 1,
            "world": {"world_size": 2, "nodes": 1, "launcher": "torchrun"},
            "devices": ["cpu", "cpu"],
            "software": {"python": "3.11.7", "torch": "2.13.0", "pytorch-lightning": "2.6.6"},
            "git": {"commit": "5f0c2d1e9ab34c77", "dirty": lr == 0.3, "diff_digest": "9be1"},
            "host": "node-01",
            "manifest_sha256": identity[::-1],
        },
    }
    for stem, document in documents.items():
        (target / f"{stem}.json").write_text(json.dumps(document))
    (target / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in metrics))
    return RunFiles(
        run=target / "run.json",
        metrics=target / "metrics.jsonl",
        evaluation=target / "evaluation.json",
        provenance=target / "provenance.json",
    )


def real_runs(folder: Path) -> list[RunFiles]:
    return [
        digits_run(folder, "digits-mlp_lr=0.1", lr=0.1, hidden=(64,)),
        digits_run(folder, "digits-mlp_lr=0.3", lr=0.3, hidden=(64,)),
        digits_run(folder, "digits-mlp_lr=0.01", lr=0.01, hidden=(64,)),
        digits_run(folder, "digits-linear", lr=0.1, hidden=()),
        digits_run(folder, HOSTILE, lr=0.001, hidden=(16,), epochs=2),
        diabetes_run(folder, "diabetes-mlp_lr=0.01", lr=0.01, hidden=(32,)),
        diabetes_run(folder, "diabetes-mlp_lr=0.1", lr=0.1, hidden=(32,)),
    ]


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


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("report") / "report.html"
    runs = real_runs(tmp_path_factory.mktemp("runs"))
    write_report(runs, target, generated_from="config/config.yaml, commit 5f0c2d1")
    return target


@pytest.fixture(scope="module")
def shared_browser(tmp_path_factory) -> Iterator[webdriver.Chrome]:
    browser = start_browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.quit()


@pytest.fixture
def browser(shared_browser, page) -> webdriver.Chrome:
    for kind in ("browser", "performance"):
        shared_browser.get_log(kind)  # reading empties it
    shared_browser.get(page.as_uri())
    wait_for_charts(shared_browser)
    return shared_browser


def wait_for_charts(browser: webdriver.Chrome) -> None:
    WebDriverWait(browser, 30).until(
        lambda b: b.execute_script(
            "return [...document.querySelectorAll('figure.curves')].every(f => f.view)"
        )
    )


def shown_runs(browser: webdriver.Chrome, dataset: int = 1) -> list[str]:
    rows = browser.find_elements(By.CSS_SELECTOR, f"tbody[data-group=group-{dataset}] tr.run")
    return [row.find_element(By.CSS_SELECTOR, "th a").text for row in rows if row.is_displayed()]


def header(browser: webdriver.Chrome, title: str):
    return browser.find_element(By.XPATH, f"//thead//button[.='{title}']")


def test_page_loads_without_console_error_or_request(browser, page):
    events = [json.loads(one["message"])["message"] for one in browser.get_log("performance")]
    requested = {
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    }
    assert {url for url in requested if not url.startswith("data:")} == {page.as_uri()}
    assert browser.get_log("browser") == []


def test_a_run_named_like_a_script_is_harmless(browser):
    assert browser.execute_script("return window.hacked") is None
    assert HOSTILE in shown_runs(browser, dataset=2)


def test_charts_are_drawn_with_curves_inside_the_page(browser):
    charts = browser.find_elements(By.CSS_SELECTOR, ".chart svg, .chart canvas")
    assert len(charts) == 2
    for chart in charts:
        assert chart.size["width"] > 600
        assert chart.size["height"] > 200
    lines = browser.find_elements(By.CSS_SELECTOR, ".chart svg .mark-line path")
    assert len(lines) == 2 * 2 + 3 * 5  # panels times runs; val_mse only repeats val_loss
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
    assert browser.find_element(By.ID, "filter-count").text == "1 of 7 runs shown"
    details = browser.find_elements(By.CSS_SELECTOR, ".details > details")
    assert [one.is_displayed() for one in details].count(True) == 1
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys(Keys.BACKSPACE)
    assert len(shown_runs(browser, dataset=2)) == 5


def test_link_in_the_leaderboard_opens_the_details(browser):
    browser.find_element(By.LINK_TEXT, "digits-linear").click()
    details = browser.find_element(By.CSS_SELECTOR, "details[open]")
    assert "Confusion matrix" in details.text
    assert "5f0c2d1e9ab34c77" in details.text


def test_legend_brings_out_a_run(browser):
    figure = browser.find_element(By.CSS_SELECTOR, "figure.curves")
    key = figure.find_element(By.CSS_SELECTOR, "button.key")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", key)
    key.send_keys(Keys.ENTER)
    assert key.get_attribute("aria-pressed") == "true"

    def opacities(_):
        paths = figure.find_elements(By.CSS_SELECTOR, ".mark-line path")
        return {path.get_attribute("opacity") for path in paths} == {"0.95", "0.08"}

    WebDriverWait(browser, 10).until(opacities)


def test_pointing_at_a_curve_tells_its_run_value_and_step(browser):
    chart = browser.find_element(By.CSS_SELECTOR, ".chart svg")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    ActionChains(browser).move_to_element_with_offset(chart, -200, 0).perform()
    tooltip = WebDriverWait(browser, 10).until(
        lambda b: b.find_element(By.CSS_SELECTOR, "#vg-tooltip-element.visible")
    )
    assert re.fullmatch(r"diabetes-mlp_lr=0\.0?1\n[\d,.]+ at step \d+", tooltip.text)


def test_dark_scheme_recolors_page_and_charts(browser):
    def colors():
        return browser.execute_script(
            "return [getComputedStyle(document.body).backgroundColor,"
            " document.querySelector('.chart svg .role-axis-title text').getAttribute('fill')]"
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
        WebDriverWait(browser, 10).until(
            lambda _: all(new != old for new, old in zip(colors(), light, strict=True))
        )
    finally:
        emulate("")


def test_phone_width_needs_no_sideways_scrolling(browser):
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True},
    )
    try:
        WebDriverWait(browser, 10).until(
            lambda b: b.execute_script(
                "return document.documentElement.scrollWidth <= 390 &&"
                " document.querySelector('.chart svg').clientWidth <= 390"
            )
        )
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
