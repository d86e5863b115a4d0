"""Snakemake's own report over a real pipeline run, made without any network."""

import json
import zipfile

import pandas as pd
import pytest

# Whatever asks for the network is refused at once.
OFFLINE = dict.fromkeys(("http_proxy", "https_proxy", "HTTPS_PROXY"), "http://127.0.0.1:9")


@pytest.mark.slow
def test_snakemakes_report_holds_page_data_and_each_runs_files(tiny):
    workspace = tiny({"name": "linear", "dataset": "digits", "model": "linear", "devices": 1})
    done = workspace.snakemake()
    assert done.returncode == 0, done.stdout

    document = json.loads((workspace.path / "results/report/report.json").read_text())
    table = pd.read_csv(workspace.path / "results/report/runs.csv")
    assert list(table["value"]) == [run["headline"]["value"] for run in document["runs"]]
    trained = next(node for node in document["workflow"]["nodes"] if node["rule"] == "train")
    assert (trained["ran"], trained["fresh"]) == (1, 0)
    (dataset,) = document["datasets"]
    assert dataset["num_shards"] == 2
    assert dataset["manifest_sha256"] == document["runs"][0]["manifest_sha256"]

    reported = workspace.snakemake("--report", "report.zip", env=OFFLINE)
    assert reported.returncode == 0, reported.stdout
    with zipfile.ZipFile(workspace.path / "report.zip") as archive:
        names = {name.rpartition("/")[2] for name in archive.namelist()}
        overview = archive.read("report/report.html").decode()
    assert {"index.html", "report.json", "runs.csv", "provenance.json"} <= names
    for said in (
        "The page that compares all runs",
        "How linear (",
        "Training experiments by Shardline",
    ):
        assert said in overview
    single = workspace.snakemake("--report", "report.html", env=OFFLINE)
    assert single.returncode == 0, single.stdout
