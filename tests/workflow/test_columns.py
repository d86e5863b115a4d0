"""A language model over text files, as docs/columns.md tells it, through the real pipeline."""

import json
import math

import pytest

from tests.support.command_line import shardline
from tests.support.workspace import REPOSITORY

ROW = {
    "name": "lm",
    "dataset": "lines",
    "model": "mypkg.models:Language",
    "devices": 2,
    "evaluation.batch": 16,
    "optim.lr": 0.01,
    "evaluation.headline": {"metric": "perplexity", "mode": "min"},
}


@pytest.mark.rotating
@pytest.mark.slow
def test_the_language_model_of_the_docs_is_trained_evaluated_reported_and_up_to_date(
    tiny, monkeypatch
):
    source, model = (
        part.split("```")[0]
        for part in (REPOSITORY / "docs/columns.md").read_text().split("```python\n")[1:]
    )
    datasets = {
        "lines": {"source": {"type": "mypkg.sources:Lines", "files": ["data/*.txt"]}, "shards": 4}
    }
    workspace = tiny(ROW, datasets=datasets)
    workspace.write("mypkg/__init__.py", "")
    workspace.write("mypkg/sources.py", source)
    workspace.write("mypkg/models.py", model)
    for number in range(3):
        lines = [f"{'ab' * (row % 17)} größe {row}" for row in range(200)]
        workspace.write(f"data/{number}.txt", "\n".join(lines))
    done = workspace.snakemake()
    assert done.returncode == 0, done.stdout
    evaluation = json.loads(workspace.the("results/runs/<lm>/evaluations/*.json").read_text())
    assert evaluation["identity"]["ranks"] == 2
    (log,) = workspace.path.glob("logs/evaluate/*.log")
    assert "2 ranks, nodes=1 x devices=2" in log.read_text()
    value = evaluation["metrics"]["perplexity"]
    assert value == pytest.approx(math.exp(evaluation["metrics"]["test_loss"]), rel=1e-5)
    assert value < 90, "of 256 bytes"
    report = json.loads(workspace.the("results/reports/*/report.json").read_text())
    (group,) = report["groups"]
    assert (group["metric"], group["mode"], group["ranking"][0]["mean"]) == (
        "perplexity",
        "min",
        value,
    )
    headline = report["runs"][0]["headline"]
    assert (headline["metric"], headline["value"], headline["interval"]) == (
        "perplexity",
        value,
        None,
    )
    page = workspace.the("results/reports/*/index.html").read_text()
    assert "held-out perplexity" in page
    assert "held-out mse" not in page
    monkeypatch.chdir(workspace.path)
    monkeypatch.setenv("COLUMNS", "200")  # no cell is wrapped
    listed = shardline("ls").stdout
    assert f"perplexity {value:#.4g}" in listed
    differs = shardline("diff", "lm", "lm").stdout
    assert "perplexity (headline, min)" in " ".join(differs.split())
    again = workspace.snakemake("--dry-run")
    assert "Nothing to be done" in again.stdout
