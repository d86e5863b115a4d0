"""A language model over the lines of a text file, by the guide's source, through the real pipeline."""

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
def test_a_language_model_is_trained_evaluated_reported_and_up_to_date(tiny, monkeypatch):
    page = (REPOSITORY / "docs/how-to/write-a-source.md").read_text()
    blocks = [part.split("```")[0] for part in page.split("```python\n")[1:]]
    (lines,) = (block for block in blocks if "class Lines" in block)
    imports = "import numpy as np\nfrom shardline.sources import Schema, Source, Table\n"
    assert blocks[0].startswith(imports.removesuffix("Table\n")), "the page's imports"
    datasets = {
        "lines": {
            "source": {"type": "mypkg.sources:Lines", "files": ["data/lines.txt"]},
            "shards": 4,
        }
    }
    workspace = tiny(ROW, datasets=datasets)
    workspace.write("mypkg/__init__.py", "")
    workspace.write("mypkg/sources.py", imports + lines)
    workspace.write("mypkg/models.py", (REPOSITORY / "tests/support/language.py").read_text())
    texts = [f"{'ab' * (row % 17)} größe {row % 200}" for row in range(600)]
    workspace.write("data/lines.txt", "\n".join(texts))
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
