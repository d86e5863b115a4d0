"""A bare page with every chart of the report on it, without the report around them."""

import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from jinja2 import FileSystemLoader

from shardline.config.resolved import Size, Study
from shardline.data.sources.digits import Digits
from shardline.records.measured import Goodput, StepSeconds, Throughput
from shardline.records.reported_parts import Curve, ReportedHeadline, ReportedTraining
from shardline.records.reported_runs import ReportedRun
from shardline.report.charts.curves import learning_curves
from shardline.report.charts.series import Series
from shardline.report.scaling_runs import view_study
from shardline.report.template import javascript_bundle, load_template
from tests.support.evaluated_model import Rows, evaluated
from tests.support.searched_study import searched

REPORT = Path(__file__).parents[2] / "report"
HOSTILE = "<img src=x onerror='window.hacked=1'>"
PAGE = """
{% import "evidence.html.j2" as evidence %}{% import "studies.html.j2" as studies %}
<!doctype html><html lang="en"><head><meta charset="utf-8"><title>charts</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,"><style>{{ css | safe }}</style></head><body><div class="wrap"><main>
<figure class="curves" data-title="digits" data-renderer="svg"><h3>digits</h3>
<div class="keys">{% for label, color in group.legend.items() %}
<button type="button" class="key" aria-pressed="false" data-label="{{ label }}">{{ label }}</button>
{% endfor %}<button type="button" class="save">Save as SVG</button></div>
<div class="chart" role="img" aria-label="Learning curves"></div>
<script type="application/json">{{ group.chart | tojson }}</script></figure>
{{ studies.hyperparameters(group) }}
{% for view in views %}{{ studies.scaling(view) }}{% endfor %}
{{ studies.sweep(searched) }}
{{ studies.goodput(runs) }}
{{ studies.workflow(graph) }}
{% for run in judged %}<details open><summary>{{ run.name }}</summary><div class="parts">
<section>{{ evidence.calibration(run) }}{{ evidence.residuals(run) }}</section>
<section class="wide">{{ evidence.samples(run) }}</section></div></details>{% endfor %}
<details id="closed"><summary>later</summary>{{ studies.scaling(views[0]) }}</details>
</main></div><script>{{ bundle | safe }}</script><script>{{ script | safe }}</script>
<script>shardlineCharts.startCharts();</script></body></html>
"""
GRAPH = {
    "nodes": [
        {"rule": "build_shards", "ran": 0, "fresh": 16, "seconds": None},
        {"rule": "seal_dataset", "ran": 0, "fresh": 2, "seconds": None},
        {"rule": "resolve_run", "ran": 12, "fresh": 88, "seconds": 3.2},
        {"rule": "train", "ran": 12, "fresh": 88, "seconds": 5321.0},
        {"rule": "evaluate", "ran": 12, "fresh": 88, "seconds": 61.0},
        {"rule": "render_report", "ran": 1, "fresh": 0, "seconds": None},
    ],
    "edges": [
        ["build_shards", "seal_dataset"],
        ["seal_dataset", "train"],
        ["resolve_run", "train"],
        ["train", "evaluate"],
        ["evaluate", "render_report"],
    ],
}


def curve_of(lr: float, every: int, noise: float, num_steps: int = 600) -> Curve:
    """Return a loss that falls the faster the larger lr is, over four epochs and two minutes."""
    steps = tuple(range(every, num_steps + 1, every))
    generator = np.random.default_rng(int(lr * 1000) + every)
    values = [0.2 + 2 * math.exp(-step * lr / 20) + noise * generator.normal() for step in steps]
    return Curve(
        steps=steps,
        values=tuple(values),
        epochs=tuple((step - 1) // 150 for step in steps),
        wall_s=tuple(step / 4 for step in steps),
    )


def run_of(name: str, settings: Mapping[str, Any], value: float, ranks: int = 1) -> ReportedRun:
    """Return a run as the macros read it, with what training measures."""
    parts = {"queue": 4.0, "environment": 9.5, "rendezvous": None, "data_wait": 3.1 * ranks}
    parts |= {"compute": 120 / ranks, "validation": 8.0, "checkpoint": 2.5, "lost": 0.0}
    elapsed = sum(seconds or 0 for seconds in parts.values()) + 1
    lr = settings["optim.lr"]
    return ReportedRun(
        id=f"{name}-0123456789ab",
        name=name,
        varied=sorted(settings),
        varied_values=dict(settings),
        headline=ReportedHeadline(metric="accuracy", value=value, num_samples=180, action=""),
        curves={"train_loss": curve_of(lr, 2, 0.05), "val_loss": curve_of(lr, 150, 0.01)},
        training=ReportedTraining(steps=600, duration_s=elapsed),
        goodput=Goodput(
            elapsed_s=elapsed,
            parts={**parts, "other": 1.0},
            share=parts["compute"] / elapsed,
            action="",
        ),
        throughput=Throughput(
            step_s=StepSeconds(median=0.02 / ranks**0.9, p10=0.01, p90=0.03),
            samples_per_s=3000 * ranks**0.9,
            steps=600,
            warmup_steps=0,
            global_batch=64,
            ranks=ranks,
            action="",
        ),
    )


def trials() -> list[Any]:
    """Return runs over learning rate, model and seed, the best first; one of a hostile name."""
    found = []
    for index, lr in enumerate((0.3, 0.1, 0.03, 0.01)):
        for model in ("mlp", "cnn", HOSTILE):
            value = 0.9 - 0.05 * abs(index - 1) + 0.02 * len(model) / 40
            settings = {"optim.lr": lr, "model": model, "seed": index % 2, "model_args.width": 64}
            found.append(run_of(f"{model}_lr={lr}", settings, value))
    del found[-1].curves["val_loss"]  # the panels have not the same runs
    return sorted(found, key=lambda run: -run.value)


def group_of(runs: list[Any]) -> Any:
    """Return a leaderboard of these runs, as the macros read it."""
    entries = [
        SimpleNamespace(run=run, series=Series(run=run.name, rank=rank, curves=run.curves))
        for rank, run in enumerate(runs)
    ]
    series = [entry.series for entry in entries]
    return SimpleNamespace(
        title="digits",
        metric="accuracy",
        mode="max",
        entries=entries,
        legend={one.label: one.color for one in series},
        chart=learning_curves(series, ["train_loss", "val_loss"]),
    )


def judged_runs(folder: Path) -> list[Any]:
    """Return runs with real evaluations: of images, and of a table with numbers to predict."""
    table = Rows(num_shards=2, shape=(11,), dtype="float32", task="regression")
    weights = np.linspace(-1, 1, 11, dtype=np.float32)
    table.labels = table.labels + table.features @ weights
    sources = {"images": (Digits(num_shards=2), 60), "table": (table, 300)}
    found = []
    for name, (source, num_steps) in sources.items():
        (folder / name).mkdir()
        result, _ = evaluated(folder / name, source, num_steps=num_steps)
        found.append(
            SimpleNamespace(
                name=name,
                held_out_task=result["task"],
                reliability=result.get("calibration"),
                residuals=result.get("residuals"),
                samples=result["samples"],
                num_samples=result["num_samples"],
                split=result["split"],
                headline=SimpleNamespace(is_logged_by_model=False),
            )
        )
    return found


def write_page(folder: Path, target: Path) -> None:
    """Write the page, with the report's own styles, script and libraries."""
    environment = load_template().environment.overlay(loader=FileSystemLoader(REPORT))
    runs, sized = trials(), [run_of(f"r{n}", {"optim.lr": 0.1}, 0.9, n) for n in (1, 2, 4)]
    sizes = tuple(Size(nodes=1, devices=n, run=f"r{n}-0123456789ab") for n in (1, 2, 4))
    views = [
        view_study(Study(name=f"mlp-{mode}", run="mlp", mode=mode, sizes=sizes), sized)
        for mode in ("strong", "weak")
    ]
    styles = "".join(path.read_text() for path in sorted(REPORT.glob("*.css")))
    page = environment.from_string(PAGE).render(
        css=environment.from_string(styles).render(),
        script=(REPORT / "charts.js").read_text(),
        bundle=javascript_bundle(),
        group=group_of(runs),
        views=views,
        runs=runs[:5],
        searched=searched(HOSTILE),
        graph=GRAPH,
        judged=judged_runs(folder),
    )
    target.write_text(page.strip(), encoding="utf-8")
