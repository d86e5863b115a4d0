"""A resolved run of Shardline: `python -m benchmarks.steps.project FOLDER MODEL EPOCHS RANKS`.

With `--callbacks` it has three callbacks; with `--lightning` its model is a class of `lightning.pytorch`.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.steps import timed
from benchmarks.steps.timed import ACCELERATOR, EPOCH_STEPS, FEATURES, GLOBAL_BATCH
from tests.support.built import build

from shardline.config.load import load_project
from shardline.pipeline import run_jobs as jobs

SHARDS = 4


def main() -> None:
    folder, model, epochs, ranks = (
        Path(sys.argv[1]),
        sys.argv[2],
        int(sys.argv[3]),
        int(sys.argv[4]),
    )
    splits = {"train": 0.9, "validation": 0.08, "test": 0.02}
    rows = GLOBAL_BATCH * EPOCH_STEPS / splits["train"] / SHARDS
    source = {
        "type": "synthetic", "rows_per_shard": round(rows), "features": FEATURES, "seed": 3,
    }  # fmt: skip
    config: dict[str, Any] = {
        "runs": "config/runs.tsv",
        "defaults": {
            "global_batch": GLOBAL_BATCH, "devices": ranks, "accelerator": ACCELERATOR,
            "trainer": {"max_epochs": epochs}, "early_stopping": {"patience": 100},
        },
        "datasets": {"rows": {"source": source, "shards": SHARDS, "splits": splits}},
    }  # fmt: skip
    (folder / "config").mkdir(parents=True)
    module = "benchmarks.steps.timed"
    if "--lightning" in sys.argv:
        text = Path(timed.__file__).read_text()
        module = "timed_by_lightning"
        (folder / f"{module}.py").write_text(text.replace("pytorch_lightning", "lightning.pytorch"))
    if "--callbacks" in sys.argv:
        own = {"type": f"{module}:Counting"}
        config["defaults"] |= {"callbacks": ["LearningRateMonitor", "Timer", own]}
    (folder / "config/config.yaml").write_text(json.dumps(config))
    path = f"{module}:{model.capitalize()}"
    (folder / "config/runs.tsv").write_text(f"name\tdataset\tmodel\ntimed\trows\t{path}\n")
    os.chdir(folder)
    project = load_project()
    (run,) = project.runs.values()
    dataset = run.dataset
    shards = build(project, dataset)
    jobs.resolve_run(project.part(runs=[run.id]), "run.json", "identity.json")
    print(json.dumps({"manifest": str(folder / dataset.manifest), "shards": str(folder / shards)}))


if __name__ == "__main__":
    main()
