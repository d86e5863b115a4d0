"""A language model over text files, as docs/columns.md tells it, through the real pipeline."""

import json

import pytest

from tests.support.workspace import REPOSITORY

ROW = {
    "name": "lm",
    "dataset": "lines",
    "model": "mypkg.models:Language",
    "devices": 2,
    "optim.lr": 0.01,
}


@pytest.mark.slow
def test_the_language_model_of_the_docs_is_trained_evaluated_reported_and_up_to_date(tiny):
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
    assert evaluation["headline"]["metric"] == "val_loss"
    assert evaluation["headline"]["value"] < 4.5, "of ln 256 = 5.5"
    assert "val_loss" in workspace.the("results/reports/*/index.html").read_text()
    again = workspace.snakemake("--dry-run")
    assert "Nothing to be done" in again.stdout
