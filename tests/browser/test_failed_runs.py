"""The report over runs of which some or all have failed, in a real browser, on a screen and on a phone."""

from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from shardline.pipeline import late_report
from shardline.records.failures import Failure
from shardline.supervision.job_failures import FailureFile
from tests.support.browser import open_page, phone, requested_urls
from tests.support.fake_project import FakeProject
from tests.support.workspace import Workspace

CAUSES = (
    'run "net": optim.lr=-1, expected more than 0; set a positive rate',
    "rank 1 on host node-01, its log is logs/train/7902fb1cc50d/rank-1.log:\nRuntimeError: no luck\n"
    "  own.py, line 4, in training_step: raise RuntimeError('no luck')",
    "/mnt/data/" + "a-very-long-folder-name-without-any-space" * 4 + "/shard-00000.safetensors is damaged",
    "<script>window.hacked = true</script> is not one of adam, adamw, sgd",
)  # fmt: skip
NUM_RUNS = 6


def make_report(folder: Path, num_failed: int) -> tuple[Path, list[str]]:
    """Return the report's page of a project of six runs of which the first ones have failed, and their logs."""
    fake = FakeProject(Workspace(folder))
    fake.rows = [
        {
            "name": f"run-{number}",
            "dataset": "table",
            "model": "linear",
            "optim.lr": (number + 1) / 10,
        }
        for number in range(NUM_RUNS)
    ]
    project, logs = fake.load(), []
    for number, run in enumerate(project.runs.values()):
        if number >= num_failed:
            fake.seal_run(run)
            fake.seal_evaluation(run)
            continue
        log = Path(f"logs/train/{run.id}.log")
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("what was printed")
        file = FailureFile(Path("store/failures"), log)
        cause = CAUSES[number % len(CAUSES)]
        failure = Failure(
            sentence=cause, when="2026-01-31T10:00:00Z", rule=file.rule, key=file.key,
            log=file.declared_log, code=2, is_final=number % 2 == 0,
        )  # fmt: skip
        file.write(failure)
        logs.append(failure.log)
    return project.workdir / late_report.render(project)["report"], logs


@pytest.mark.parametrize("num_failed", [1, 5, 6])
def test_failed_runs_are_listed_with_cause_log_and_remedy(
    shared_browser: webdriver.Chrome, tmp_path, monkeypatch, num_failed
):
    monkeypatch.chdir(tmp_path)
    page, logs = make_report(tmp_path, num_failed)
    open_page(shared_browser, page, "document.readyState === 'complete'")
    rows = shared_browser.find_elements(By.CSS_SELECTOR, ".outcomes tbody tr")
    assert [row.find_element(By.TAG_NAME, "th").text.split()[0] for row in rows] == [
        f"run-{number}" for number in range(num_failed)
    ]
    for number, row in enumerate(rows):
        shown = " ".join(row.text.split())
        assert " failed " in shown
        assert " ".join(CAUSES[number % len(CAUSES)].split()) in shown
        assert f"log {logs[number]}" in shown
        assert "give the same snakemake command again" in shown
    lead = shared_browser.find_element(By.CSS_SELECTOR, "header .lead").text
    assert lead.startswith(f"{NUM_RUNS - num_failed} of 6 runs finished; {num_failed} failed")
    ranked = shared_browser.find_elements(By.CSS_SELECTOR, "#leaderboard tr.run")
    assert len(ranked) == NUM_RUNS - num_failed
    assert shared_browser.find_element(By.CLASS_NAME, "skip").get_attribute("href").endswith(
        "#leaderboard-title" if ranked else "#outcomes-title"
    )  # fmt: skip
    with phone(shared_browser):
        assert shared_browser.execute_script("return document.documentElement.scrollWidth") <= 390
        for row in rows:
            for cell in row.find_elements(By.CSS_SELECTOR, "th, td"):
                box = cell.rect
                assert box["x"] >= 0
                assert box["x"] + box["width"] <= 390, "nothing is cut"
                assert cell.get_property("scrollWidth") <= cell.get_property("clientWidth")
        cause = rows[0].find_element(By.CSS_SELECTOR, "[data-label=Cause]")
        assert cause.rect["width"] > 300, "as wide as the phone"
    assert shared_browser.execute_script("return window.hacked") is None
    assert shared_browser.get_log("browser") == []
    assert requested_urls(shared_browser) == {page.as_uri()}
