"""The notebook of the tutorials: executed on real results, and shown on the site as it is."""

import importlib.util
import json
import re

import pytest
from docs.figures import notebook

from tests.support.needs import require

ROW = {"dataset": "digits", "model": "linear", "devices": 1, "data.normalize": "global"}
DIGITS = {
    "source": {"type": "digits"}, "shards": 2, "splits": {"train": 0.8, "validation": 0.1, "test": 0.1},
}  # fmt: skip


def texts_of(executed):
    """Return what each cell of code shows, as one text."""
    return [json.dumps(cell["outputs"]) for cell in executed.cells if cell["cell_type"] == "code"]


@pytest.mark.rotating
@pytest.mark.slow
def test_the_notebook_leads_from_a_project_to_a_figure(tiny):
    for package in ("nbclient", "ipykernel"):
        require(importlib.util.find_spec(package), f"install {package}: pip install -e '.[test]'")
    rows = [
        {**ROW, "name": "linear", "optim.lr": [0.001, 0.01], "trainer.max_epochs": 2},
        {**ROW, "name": "long", "optim.lr": 0.0003, "trainer.max_epochs": 3},
    ]
    workspace = tiny(*rows, datasets={"digits": DIGITS})
    done = workspace.snakemake()
    assert done.returncode == 0, done.stdout
    executed = notebook.execute(notebook.NOTEBOOK, workspace.path)
    shown = "\n".join(texts_of(executed))
    accuracy = workspace.the("results/latest/long/evaluations/*.json")
    assert f"{json.loads(accuracy.read_text())['metrics']['accuracy']:.6f}" in shown
    assert "linear_lr=0.01" in shown
    assert re.search(r"\d+ of 1\d\d rows are wrong", shown)
    assert shown.count("<svg") >= 2
    assert (workspace.path / "curves.pdf").read_bytes().startswith(b"%PDF")


def test_the_page_and_its_pictures_are_those_of_the_notebook(golden):
    document = json.loads(notebook.NOTEBOOK.read_text(encoding="utf-8"))
    code = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] or "import" in "".join(cell["source"]) for cell in code)
    text, images = notebook.page_of(document)
    golden(notebook.NOTEBOOK.with_suffix(".md"), text)
    files = {path.name for path in (notebook.DOCS / "images").glob("notebook-*")}
    assert files == images.keys()
    for name, svg in images.items():
        golden(notebook.DOCS / "images" / name, svg)
