"""The report as data: report.json, runs.csv, and what page and programs get of lineage and images."""

import base64
import json
import re
from dataclasses import replace

import pandas as pd
import pytest

from shardline.config.resolved import Size, Study
from shardline.pipeline import invocation
from shardline.records.base import encode
from shardline.report import read_report, write_report
from shardline.report.compare import comparison
from shardline.report.images import choose_images
from shardline.report.leaderboard import Leaderboards
from shardline.report.reported import read_run
from shardline.report.sealed import sha256_of
from shardline.report.trained_in import find_differences
from tests.support.job_records import job_document
from tests.support.report_runs import render, write_run

MEASURED = {
    "throughput": {
        "samples_per_s": 812.5,
        "step_s": {"median": 0.1, "p10": 0.1, "p90": 0.2},
        "steps": 90,
        "warmup_steps": 10,
        "global_batch": 64,
        "ranks": 2,
    },
    "goodput": {
        "elapsed_s": 10.0,
        "share": 0.8,
        "parts": {"compute": 8.0, "other": 2.0, "queue": None},
    },
    "resources": {"num_cpus": 4, "memory_bytes": 8 * 10**9, "ranks": []},
    "files": {"model.safetensors": "ee" * 32},
}


def write_dataset(folder, dataset="0123456789ab", **provenance):
    path = folder / "datasets" / dataset / "manifest.json"
    path.parent.mkdir(parents=True)
    shards = [
        {
            "file": f"shard-{n:05d}.bin",
            "rows": {"train": 5, "validation": 0, "test": 1},
            "bytes": 100,
            "blake3": f"{n:064x}",
        }
        for n in range(30)
    ]
    manifest = {
        "dataset": dataset, "bytes": 3000, "shards": shards, "splits": {"train": 150, "validation": 0, "test": 30},
        "schema": {"task": "classification", "feature_shape": [1], "feature_dtype": "float32"},
        "statistics": {"class_counts": {}, "features": {"count": 1, "mean": [0], "std": [0], "min": [0], "max": [0]}},
        "skipped": {},
        "identity": {"settings": {"source": {"type": "csv", "label": "y"}}, "source": {"0/a.csv": "cd" * 32}},
    }  # fmt: skip
    path.write_text(json.dumps(manifest))
    if provenance:
        whole = {key: {} for key in ("definitions", "inferred", "files")}
        whole |= {"dataset": dataset, "identity": "ab" * 32, "parts": []}
        whole |= {"action": job_document(f"seal_dataset/{dataset}")} | provenance
        path.with_name("provenance.json").write_text(json.dumps(whole))
    return path


def document_of(runs, **options):
    return encode(read_report(runs, generated_from="config/runs.tsv", **options))


def test_every_figure_of_a_run_stands_beside_the_action_that_made_it(tmp_path):
    files = write_run(tmp_path, "one", provenance=MEASURED)
    run = document_of([files])["runs"][0]
    key = run["id"]
    assert run["headline"]["action"] == run["metrics"]["action"] == f"evaluate/{key}/evaluation"
    for part in ("best_validation", "training", "throughput", "goodput", "resources"):
        assert run[part]["action"] == f"train/{key}"
    assert [action["id"].split("/")[0] for action in run["actions"].values()] == list(
        run["actions"]
    )
    assert run["files"]["metrics.jsonl"] == sha256_of(files.metrics)
    assert run["files"]["model.safetensors"] == "ee" * 32
    page = render([files], generated_from="config/runs.tsv")
    assert f'<code class="action">train/{key}</code>' in page
    assert '<code class="action">shardline replay one</code>' in page


def test_settings_that_the_own_optimiser_of_a_model_ignores_are_not_listed(tmp_path):
    own = {**MEASURED, "training": {"own_optimizer": True}}
    listed = [
        document_of([write_run(tmp_path, name, provenance=of)])["runs"][0]["settings"]
        for name, of in (("plain", MEASURED), ("own", own))
    ]
    assert {key for key in listed[0] if key not in listed[1]} == {"optim.name", "optim.lr"}


@pytest.mark.parametrize(
    ("method", "datasets", "rows"),
    [
        ("best_fit", [("ab" * 6, 1234, 0.0312)], ["packs 1,234 of 1,024 tokens, 3.12 % padding"]),
        ("concat", [("ab" * 6, 7, 0.5), ("cd" * 6, 9, 0)], [
            "blocks from abababababab 7 of 1,024 tokens, 50.00 % of the values left out",
            "blocks from cdcdcdcdcdcd 9 of 1,024 tokens, 0.00 % of the values left out",
        ]),
    ],
)  # fmt: skip
def test_a_run_tells_of_its_packs_and_what_they_waste(tmp_path, method, datasets, rows):
    parts = [{"id": one, "number": number, "waste": waste} for one, number, waste in datasets]
    packs = {"method": method, "column": "tokens", "length": 1024, "datasets": parts}
    files = write_run(tmp_path, "one", provenance={"packs": packs})
    run = document_of([files])["runs"][0]
    assert run["packs"] == {**packs, "action": f"train/{run['id']}"}
    page = render([files], generated_from="config/runs.tsv")
    text = " ".join(re.sub(r"<[^>]*>", " ", page).split())
    assert all(row in text for row in rows)


def test_page_data_and_table_say_the_same(tmp_path):
    runs = [
        write_run(tmp_path / "runs", f"r{n}", accuracy=0.9 + n / 100, lr=n, provenance=MEASURED)
        for n in range(3)
    ]
    target = tmp_path / "report" / "index.html"
    write_report(runs, target, generated_from="config/runs.tsv")
    document = json.loads(target.with_name("report.json").read_text())
    table = pd.read_csv(target.with_name("runs.csv"))
    assert list(table["id"]) == [run["id"] for run in document["runs"]]
    for column, read in {
        "value": lambda run: run["headline"]["value"],
        "metrics.loss": lambda run: run["metrics"]["loss"],
        "settings.optim.lr": lambda run: run["settings"]["optim.lr"],
        "samples_per_s": lambda run: run["throughput"]["samples_per_s"],
        "goodput_share": lambda run: run["goodput"]["share"],
        "duration_s": lambda run: run["training"]["duration_s"],
        "train_action": lambda run: run["actions"]["train"]["id"],
    }.items():
        assert list(table[column]) == [read(run) for run in document["runs"]], column
    page = target.read_text()
    for run in document["runs"]:
        assert f"{100 * run['headline']['value']:.1f} %" in page


def test_what_is_not_a_number_is_null_in_the_data_and_empty_in_the_table(tmp_path):
    headline = {"metric": "accuracy", "value": None, "mode": "max"}
    files = write_run(tmp_path / "runs", "failed", evaluation={"headline": headline, "metrics": {}})
    target = tmp_path / "report" / "index.html"
    write_report([files], target, generated_from="config/runs.tsv")
    text = target.with_name("report.json").read_text()
    assert "NaN" not in text
    assert json.loads(text)["runs"][0]["headline"]["value"] is None
    assert pd.read_csv(target.with_name("runs.csv"))["value"].isna().all()


def test_data_and_table_have_the_same_bytes_whatever_the_order(tmp_path):
    runs = [write_run(tmp_path / "runs", f"r{n}", accuracy=0.9 + n / 100) for n in range(3)]
    for name, order in (("one", runs), ("two", runs[::-1])):
        write_report(order, tmp_path / name / "index.html", generated_from="config/runs.tsv")
    for file in ("index.html", "report.json", "runs.csv"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_lineage_goes_down_to_shards_and_source(tmp_path):
    parts = [job_document("build_shards/0123456789ab/00000-00029")]
    manifest = write_dataset(tmp_path, parts=parts)
    files = write_run(tmp_path / "runs", "one", provenance={"manifest_sha256": sha256_of(manifest)})
    document = document_of([files], manifests=[manifest])
    dataset = document["datasets"][0]
    assert dataset["action"] == "seal_dataset/0123456789ab"
    assert [one["id"] for one in dataset["actions"]] == [dataset["action"], parts[0]["id"]]
    assert (dataset["num_shards"], len(dataset["shards"])) == (30, 20)
    assert dataset["source"]["files"] == {"0/a.csv": "cd" * 32}
    assert document["notes"] == []
    page = render([files], generated_from="config/runs.tsv", manifests=[manifest])
    assert f"{3:064x}" in page
    assert "and 10 more; the manifest lists all." in page


def test_a_run_of_another_manifest_is_told(tmp_path):
    manifest = write_dataset(tmp_path)
    files = write_run(tmp_path / "runs", "one", provenance={"manifest_sha256": "00" * 32})
    notes = document_of([files], manifests=[manifest])["notes"]
    assert notes == [
        "Trained on another manifest than their dataset has now: one. "
        "To find altered files, run `shardline verify`."
    ]


def test_the_start_of_a_pipeline_run_is_told_to_its_jobs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert invocation.recorded() is None
    invocation.record()
    first = invocation.recorded()
    assert first is not None
    assert first.endswith("Z")


def image(content: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(content).decode()


def with_images(folder, name, *images):
    samples = [
        {"row": n, "label": "1", "predicted": "2", "loss": 1.0, "image": one}
        for n, one in enumerate(images)
    ]
    return write_run(folder, name, evaluation={"samples": {"hardest": samples, "typical": []}})


def test_an_image_of_two_runs_is_in_the_page_once(tmp_path):
    shared = image(b"same" * 50)
    runs = [with_images(tmp_path, name, shared) for name in ("a", "b")]
    page = render(runs, generated_from="config/runs.tsv")
    assert page.count(shared) == 1
    assert page.count('src="#image-0"') == 2


def test_images_beyond_the_budget_are_left_out_and_counted(tmp_path):
    runs = [
        read_run(with_images(tmp_path, name, *(image(name.encode() * 30 + bytes([n])) for n in range(4))))[0]
        for name in ("a", "b")
    ]  # fmt: skip
    size = len(image(b"a" * 31))
    chosen = choose_images(runs, budget_bytes=4 * size)
    kept = list(chosen.tokens)
    assert chosen.num_left_out == 4
    # both runs keep their two hardest
    assert [run.samples.hardest[n]["image"] for n in (0, 1) for run in runs] == kept


def test_only_png_data_is_taken_for_an_image(tmp_path):
    files = with_images(
        tmp_path, "a", "https://example.org/x.png", 'data:image/png;base64,"><script>'
    )
    page = render([files], generated_from="config/runs.tsv")
    assert "example.org" not in page
    assert "#image-0" not in page


def test_environment_is_held_against_the_lock():
    lock = ["a==1.0", "b==2.0", "c==3.0; sys_platform == 'win32'", "d==4.0"]
    locked = {"python": "3.11", "requirements": lock}
    assert find_differences(locked, "3.12.1", {"a": "1.0+cu128", "b": "2.1"}) == [
        "Python 3.12.1 ran, 3.11 is locked",
        "b 2.1 was installed, 2.0 is locked",
        "d was not installed, 4.0 is locked",
    ]


def test_a_comparison_holds_only_what_differs_and_each_of_it_once(tmp_path):
    runs = [write_run(tmp_path, f"r{n}", seed=n % 2, lr=0.1) for n in range(4)]
    report = read_report(runs, generated_from="config/runs.tsv")
    settings = comparison(Leaderboards.of(report.runs), report.environments)["parts"]["settings"]
    assert settings["keys"] == [["seed"]]
    assert sorted(settings["values"][0]) == [0, 1]
    assert sorted(settings["rows"]) == [[0], [1]]


def test_a_studys_runs_have_details_but_no_place_in_the_leaderboard(tmp_path):
    base = write_run(tmp_path, "base")
    apart = write_run(tmp_path, "base_nodes=1_devices=2", accuracy=0.999)
    apart = replace(apart, asked=replace(apart.asked, in_table=False))
    key = json.loads(apart.run.read_text())["run"]
    study = Study(
        name="more", run="base", mode="strong", sizes=(Size(nodes=1, devices=2, run=key),)
    )
    report = read_report([base, apart], generated_from="config/runs.tsv", studies=[study])
    boards = Leaderboards.of(report.runs)
    assert [row.title for row in boards.groups[0].rows] == ["base"]
    assert [entry.title for entry in boards.apart] == ["base_nodes=1_devices=2"]
    assert report.studies[0]["sizes"][0]["run"] == key
    page = render([base, apart], generated_from="config/runs.tsv", studies=[study])
    assert f'<details id="{boards.apart[0].anchor}">' in page
    assert 'id="scaling-title"' in page


@pytest.mark.parametrize("manifest", ['{"splits": {}}', "["])
def test_a_malformed_manifest_is_named(tmp_path, manifest):
    path = write_dataset(tmp_path)
    path.write_text(manifest)
    with pytest.raises(Exception, match="manifest.json"):
        document_of([write_run(tmp_path / "runs", "one")], manifests=[path])
