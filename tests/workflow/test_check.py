"""A mistake of a model is found by the real Snakemake before anything is built."""

import pytest

from tests.support.workspace import REPOSITORY

ROW = {"name": "own", "dataset": "table", "model": "mypkg.models:Net", "devices": 1}


@pytest.mark.rotating
@pytest.mark.slow
def test_nothing_is_built_for_a_model_that_cannot_be_trained(tiny):
    workspace = tiny(ROW, runtime={"check": True})
    page = (REPOSITORY / "docs/how-to/write-a-model.md").read_text()
    model = page.split("```python\n")[1].split("```")[0]
    wrong = model.replace("return self.net(features)", "return self.nett(features)")
    workspace.write("mypkg/__init__.py", "")
    workspace.write("mypkg/models.py", wrong)
    dry = workspace.snakemake("--dry-run")
    assert dry.returncode == 0, "a dry run checks no model"
    done = workspace.snakemake()
    assert done.returncode == 1
    assert done.stdout.count("AttributeError: 'Net' object has no attribute 'nett'") == 1
    assert (
        "own: model=mypkg.models:Net fails when it does a training step on two rows" in done.stdout
    )
    assert "mypkg/models.py, line 21, in forward: return self.nett(features)" in done.stdout
    assert "rule build_shards" not in done.stdout
    assert not workspace.matching("results/datasets/*") + workspace.matching("results/runs/*")
    assert not workspace.matching(".snakemake/locks/*")
    workspace.write("mypkg/models.py", model)
    done = workspace.snakemake("--until", "seal_dataset")
    assert done.returncode == 0, "no training is asked for, so no model is checked"
    assert not workspace.matching("store/checks/*")
    assert workspace.snakemake().returncode == 0
    assert len(workspace.matching("store/checks/*.json")) == 1
