"""The charts on a bare page in a real browser: drawn, chosen from, in both schemes, on a phone."""

from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from tests.support.browser import open_page, phone, requested_urls
from tests.support.chart_page import write_page

OPEN = "[...document.querySelectorAll('figure.curves, figure.drawn')].filter(f => !f.closest('#closed'))"
CURVES = "document.querySelector('figure.curves')"
LINES = f"[...{CURVES}.querySelectorAll('.mark-line path')]"


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("charts")
    write_page(folder, folder / "charts.html")
    return folder / "charts.html"


@pytest.fixture
def browser(shared_browser, page) -> webdriver.Chrome:
    open_page(shared_browser, page, f"{OPEN}.every(f => f.view)")
    return shared_browser


def until(browser: webdriver.Chrome, condition: str) -> None:
    WebDriverWait(browser, 120).until(lambda b: b.execute_script(f"return {condition}"))


def text_of(browser: webdriver.Chrome, selector: str) -> str:
    return browser.find_element(By.CSS_SELECTOR, selector).text


def lengths(browser: webdriver.Chrome) -> list[float]:
    return browser.execute_script(f"return {LINES}.map(path => path.getTotalLength())")


def test_no_console_message_no_request_and_no_script_of_a_name(browser, page):
    assert requested_urls(browser) == {page.as_uri()}
    assert browser.get_log("browser") == []
    assert browser.execute_script("return window.hacked") is None


def test_every_chart_has_marks_and_says_what_it_shows(browser):
    counts = browser.execute_script(
        f"return {OPEN}.map(f => [f.dataset.title, f.querySelectorAll('.chart svg path').length,"
        " f.querySelector('[role=img]').getAttribute('aria-label').length])"
    )
    assert len(counts) == 8
    assert all(marks > 10 and words > 10 for _, marks, words in counts)
    images = browser.execute_script(
        "return [...document.querySelectorAll('svg[role=img], .bar[role=img]')]"
        ".map(e => e.getAttribute('aria-label'))"
    )
    assert any(label.startswith("Reliability diagram. Expected calibration") for label in images)
    assert any("queue 4.0 s, environment 9.5 s, data wait" in label for label in images)
    assert any("train: 12 ran, 88 fresh, 1 h 29 min." in label for label in images)


def test_each_panel_of_a_study_has_its_points_a_ring_and_the_failed_trial(browser):
    figure = "document.querySelector('figure[data-title=search-slices]')"
    found = browser.execute_script(
        f"return [0, 1, 2].map(n => ['slice', 'ring', 'failed'].map(name => "
        f"{figure}.querySelectorAll(`.${{name}}_${{n}}_marks path`).length))"
    )
    # trials 0, 3, 6 and 9 have no momentum, and trial 5 failed
    assert found == [[11, 1, 1], [11, 1, 1], [7, 1, 1]]
    texts = "[...document.querySelectorAll('figure[data-title=search-trials] svg text')]"
    assert "not set" in browser.execute_script(f"return {texts}.map(one => one.textContent)")


def test_the_axis_across_can_be_chosen(browser):
    num_lines = len(lengths(browser))
    field = Select(browser.find_element(By.CSS_SELECTOR, ".controls select"))
    assert [option.text for option in field.options] == ["step", "epoch", "training time, min"]
    for name, last in (("epoch", 4), ("training time, min", 2.5)):
        field.select_by_visible_text(name)
        until(browser, f"{CURVES}.querySelector('.role-axis-title text').textContent === '{name}'")
        found = browser.execute_script(f"return {CURVES}.view.scale('x').domain()[1]")
        assert last <= found < 1.1 * last
    assert len(lengths(browser)) == num_lines


def test_smoothing_is_off_at_first_and_keeps_what_was_recorded(browser):
    recorded = lengths(browser)
    assert text_of(browser, ".controls output") == "off"
    field = browser.find_element(By.CSS_SELECTOR, ".controls input[type=range]")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", field)
    field.send_keys(*[Keys.ARROW_RIGHT] * 80)
    until(browser, f"{LINES}.length === {2 * len(recorded)}")
    until(browser, f"{CURVES}.isQueued === false")
    assert text_of(browser, ".controls output") == "0.8"
    both = lengths(browser)
    assert sum(both) - sum(recorded) < 0.8 * sum(recorded)  # a smooth line is a short one


def test_a_picked_run_stays_picked_when_the_axis_changes(browser):
    key = browser.find_element(By.CSS_SELECTOR, "button.key")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", key)
    key.send_keys(Keys.ENTER)
    Select(browser.find_element(By.CSS_SELECTOR, ".controls select")).select_by_value("epoch")
    until(browser, f"{CURVES}.querySelector('.role-axis-title text').textContent === 'epoch'")
    until(browser, f"{LINES}.filter(p => p.getAttribute('opacity') === '0.95').length === 2")


def test_a_closed_figure_is_drawn_when_it_is_opened(browser):
    closed = "document.querySelector('#closed')"
    assert browser.execute_script(f"return {closed}.querySelector('figure').view === undefined")
    browser.execute_script(f"{closed}.open = true; shardlineCharts.draw({closed})")
    until(browser, f"{closed}.querySelector('.chart svg') !== null")


def test_images_are_shown_pixel_by_pixel(browser):
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('.samples img')]"
        ".map(i => [i.naturalWidth, i.naturalHeight, getComputedStyle(i).imageRendering])"
    )
    assert len(sizes) == 24
    assert {tuple(size) for size in sizes} == {(8, 8, "pixelated")}


def test_a_phone_needs_no_sideways_scrolling_and_a_wider_window_is_filled_again(browser):
    with phone(browser):
        until(browser, f"{CURVES}.querySelector('.chart svg').clientWidth <= 390")
        until(browser, "document.documentElement.scrollWidth <= 390")
    until(browser, f"{OPEN}.every(f => f.querySelector('.chart svg').clientWidth > 600)")
