"""A raw table with empty ages and a category, through the real pipeline to predictions of new rows."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

DATASETS = {
    "people": {
        "source": {
            "type": "csv",
            "files": ["data/people.csv"],
            "label": "buys",
            "classes": ["no", "yes"],
            "preprocess": {"columns": {"age": {"impute": "flag"}}},
        },
        "shards": 2,
    }
}
ROW = {
    "name": "buyers",
    "dataset": "people",
    "model": "mlp",
    "devices": 2,
    "trainer.max_epochs": 15,
}


@pytest.mark.slow
def test_a_table_with_gaps_and_categories_is_trained_on_and_new_rows_are_predicted(tiny):
    workspace = tiny(
        ROW, datasets=DATASETS, predictions={"new": {"run": "buyers", "files": ["data/new.csv"]}}
    )
    rng = np.random.default_rng(1)
    lines, buys = [], []
    for number in range(800):
        age, city = int(rng.integers(18, 80)), ("Bern", "Chur", "Zug")[number % 3]
        buys.append((age > 45) != (city == "Chur"))
        shown = "" if rng.random() < 0.08 else age
        lines.append((f"{shown},{city}", "yes" if buys[-1] else "no", bool(shown)))
    workspace.write(
        "data/people.csv", "\n".join(["age,city,buys", *(f"{a},{b}" for a, b, _ in lines)])
    )
    new = [text for text, _, _ in lines[:100]]
    workspace.write("data/new.csv", "\n".join(["age,city", *new, "30,Genf", ",Genf"]))
    done = workspace.snakemake()
    assert done.returncode == 0, done.stdout

    manifest = json.loads(workspace.the("results/datasets/<people>/manifest.json").read_text())
    assert manifest["schema"]["feature_shape"] == [5]
    fitted = manifest["preprocessing"]
    gaps = sum(not is_known for _, _, is_known in lines)
    assert 0 < fitted["numbers"][0]["gaps"] < gaps, "those of train rows alone"
    assert fitted["train_rows"] == manifest["splits"]["train"]
    provenance = json.loads(workspace.the("results/datasets/<people>/provenance.json").read_text())
    assert provenance["inferred"]["features"] == {
        "age": "number, impute flag, scale standard",
        "city": "category, encode onehot",
    }
    found = pq.read_table(workspace.path / "results/predictions/new.parquet").to_pylist()
    assert len(found) == 102
    right = [
        row["prediction"] == label
        for row, (_, label, is_known) in zip(found, lines[:100], strict=False)
        if is_known
    ]
    assert np.mean(right) > 0.85, "categories and ages are read as in training"
    assert "Nothing to be done" in workspace.snakemake().stdout
