"""Images, tables and texts of a model on the page of its run: by step, few, small, and never as markup."""

import base64
import json
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from shardline.core.png import png_bytes, png_size
from shardline.records.base import encode
from shardline.records.metrics import Logged, MetricLine
from shardline.report import read_report
from shardline.report.images import choose_images, is_png
from shardline.report.logged import MAX_SIDE, describe_logged
from shardline.report.page import render_page
from shardline.report.sealed import read_metrics
from tests.support.report_runs import write_run


def image(seed: int, side: int = 8) -> str:
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 1), dtype=np.uint8)
    return base64.b64encode(png_bytes(pixels, 0)).decode()


def line(step: int, *items: Logged) -> MetricLine:
    return MetricLine(step=step, values={}, logged=[*items])


def report_of(tmp_path, *lines: MetricLine) -> Any:
    metrics = [json.dumps({"step": 1, "train_loss": 0.5})]
    run = write_run(tmp_path, "one", lines=metrics + [json.dumps(one.to_json()) for one in lines])
    return read_report([run], generated_from="config/config.yaml")


def test_entries_are_shown_by_name_and_step(tmp_path):
    table = {"columns": ["id", "<b>"], "rows": [[n, "<script>x</script>"] for n in range(30)]}
    report = report_of(
        tmp_path,
        line(10, Logged(name="val/a", png=image(1), caption="<i>"), Logged(name="val/a", png=image(2))),
        line(10, Logged(name="table", **table)),
        line(20, Logged(name="val/a", png=image(3))),
        line(20, Logged(name="<u>", text="a </script> b" + 3000 * "x")),
        line(30, Logged(name="table", left_out="bound")),
    )  # fmt: skip
    (run,) = report.runs
    assert [(log.name, log.num_entries) for log in run.logged] == [
        ("val/a", 2),
        ("table", 1),
        ("<u>", 1),
    ]
    assert [entry.step for entry in run.logged[0].entries] == [10, 20]
    assert (run.logged[1].entries[0].num_more, run.logged_until) == (10, 30)
    assert all(map(is_png, report.images.values()))
    assert len(report.images) == 3
    page = render_page(report)
    assert page.count('<img src="#image-') == 3
    for shown in (
        "Logged by the model",
        "step 20",
        "and 10 more rows",
        "&lt;script&gt;x&lt;/script&gt;",
        "From step 30 on",
    ):
        assert shown in page
    assert "<script>x" not in page
    assert "<u>" not in page


def test_a_run_without_entries_has_none_in_the_report(tmp_path):
    report = report_of(tmp_path)
    assert not {"logged", "logged_until"} & encode(report)["runs"][0].keys()
    assert "Logged by the model" not in render_page(report)


def test_few_steps_are_shown_with_the_first_and_the_last():
    lines = [line(step, Logged(name="a", text=f"{step}")) for step in range(1, 101)]
    (log,) = describe_logged(lines, "train/x")
    steps = [entry.step for entry in log.entries]
    assert (steps[0], steps[-1], len(steps), log.num_entries) == (1, 100, 6, 100)
    assert steps == sorted(set(steps))


def test_large_images_are_reduced_and_the_newest_come_first_within_the_budget(tmp_path):
    lines = [line(step, Logged(name="a", png=image(step, 3 * MAX_SIDE))) for step in (1, 2, 3)]
    (run,) = report_of(tmp_path, *lines).runs
    logs = describe_logged(lines, "train/x")
    small = [one.image for entry in logs[0].entries for one in entry.images]
    assert {png_size(base64.b64decode(url.partition(",")[2])) for url in small} == {
        (MAX_SIDE, MAX_SIDE)
    }
    assert {one.width for entry in logs[0].entries for one in entry.images} == {3 * MAX_SIDE}
    chosen = choose_images([replace(run, logged=logs)], budget_bytes=len(small[0]) + len(small[2]))
    assert [*chosen.tokens] in ([small[2], small[1]], [small[2], small[0]], [small[2]])
    assert chosen.num_left_out == 0


@pytest.mark.parametrize(
    "png",
    ["", "AAAA", "not base64!", image(1, 600)[:-40], base64.b64encode(b"GIF89a" * 90).decode()],
)
def test_what_is_no_image_is_left_out(png):
    (log,) = describe_logged([line(1, Logged(name="a", png=png or "A"))], "train/x")
    assert len(log.entries[0].images or []) <= 1
    for one in log.entries[0].images or []:
        assert is_png(one.image)


def test_lines_with_entries_add_nothing_to_the_curves(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [line(1, Logged(name="a", text="b")), MetricLine(step=1, values={"loss": 1.0})]
    path.write_text("".join(json.dumps(one.to_json()) + "\n" for one in lines))
    curves, logged = read_metrics(path)
    assert [*curves] == ["loss"]
    assert logged == lines[:1]
