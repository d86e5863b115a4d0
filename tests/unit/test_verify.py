"""What verify finds: on files that are really damaged."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from shardline.files import read_json, write_json
from shardline.verify import Verdict, verify_dataset, verify_run
from tests.unit.conftest import FakeProject


def dataset_verdict(fake: FakeProject) -> Verdict:
    return verify_dataset(fake.load(), fake.run("flat").dataset.id)


def shard(fake: FakeProject, number: int = 1) -> Path:
    return Path("store/datasets") / fake.run("flat").dataset.id / f"shard-{number:05d}.safetensors"


def test_an_undamaged_dataset_has_no_problem(fake):
    fake.seal_all()
    verdict = dataset_verdict(fake)
    assert (verdict.problems, verdict.summary) == ([], "4 shards, 0.0 MB")


def test_a_flipped_byte_is_found(fake):
    fake.seal_all()
    content = bytearray(shard(fake).read_bytes())
    content[-1] ^= 1
    shard(fake).write_bytes(content)
    (problem,) = dataset_verdict(fake).problems
    assert problem.startswith(f"{shard(fake)} has SHA-256 ")
    assert ", expected " in problem
    assert "; delete results/datasets/table-" in problem


def test_a_truncated_shard_is_found_by_its_size(fake):
    fake.seal_all()
    size = shard(fake).stat().st_size
    shard(fake).write_bytes(shard(fake).read_bytes()[:-10])
    (problem,) = dataset_verdict(fake).problems
    assert problem.startswith(f"{shard(fake)} has {size - 10} bytes, expected {size}; delete")


def test_each_missing_shard_is_found(fake):
    fake.seal_all()
    for number in (0, 3):
        shard(fake, number).unlink()
    problems = dataset_verdict(fake).problems
    assert [problem.partition(",")[0] for problem in problems] == [
        f"{shard(fake, number)} cannot be read (No such file or directory)" for number in (0, 3)
    ]


def test_an_edited_identity_in_the_manifest_is_found(fake):
    fake.seal_all()
    manifest = fake.run("flat").dataset.manifest
    document = read_json(manifest, remedy="")
    document["identity"]["settings"]["shards"] = 5
    write_json(manifest, document)
    (problem,) = dataset_verdict(fake).problems
    assert problem.startswith(f"{manifest}: the digest of its identity is ")
    assert f"expected {fake.run('flat').dataset.digest};" in problem


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"identity": 1, "shards": [{}]}', '{"identity": NaN}']
)
def test_a_manifest_of_another_form_is_a_problem_and_no_crash(fake, content):
    fake.seal_all()
    fake.run("flat").dataset.manifest.write_text(content)
    assert dataset_verdict(fake).problems


def run_verdict(fake: FakeProject) -> Verdict:
    return verify_run(fake.run("flat").id)


def edit(path: Path, **changes: object) -> None:
    write_json(path, {**read_json(path, remedy=""), **changes})


def test_an_undamaged_run_has_no_problem(fake):
    fake.seal_all()
    verdict = run_verdict(fake)
    assert (verdict.problems, verdict.summary) == ([], "model, metrics, provenance, 1 evaluation")


def test_a_run_that_is_not_trained_yet_is_no_problem(fake):
    fake.seal_all()
    (fake.run("flat").folder / "model.safetensors").unlink()
    verdict = run_verdict(fake)
    assert (verdict.problems, verdict.summary) == ([], "not trained yet")


def test_an_edited_identity_is_found(fake):
    fake.seal_all()
    folder = fake.run("flat").folder
    edit(folder / "identity.json", model="shardline.models.mlp:MLP")
    problems = run_verdict(fake).problems
    assert problems[0].startswith(f"{folder}/identity.json: its digest is ")
    assert (
        f", expected {fake.run('flat').digest}; delete {folder} and run the pipeline again"
        in problems[0]
    )


def test_edited_settings_are_found(fake):
    fake.seal_all()
    run = fake.run("flat")
    edit(run.folder / "run.json", settings={**run.settings, "seed": 99})
    (problem,) = run_verdict(fake).problems
    assert problem.startswith(f"{run.folder}/run.json: settings are not those of identity.json;")


def test_a_model_of_another_run_is_found_by_its_metadata(fake):
    fake.seal_all()
    model = fake.run("flat").folder / "model.safetensors"
    save_file({"w": np.zeros(3, np.float32)}, model, metadata={"identity": "f" * 64})
    problems = run_verdict(fake).problems
    assert problems[0].startswith(
        f"{model}: identity in its metadata is {'f' * 64}, expected {fake.run('flat').digest}"
    )
    assert problems[1].startswith(f"{model}: its SHA-256 is ")


def test_a_truncated_model_is_found(fake):
    fake.seal_all()
    model = fake.run("flat").folder / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-4])
    assert run_verdict(fake).problems[0].startswith(f"{model} is not a whole safetensors file (")


def test_a_flipped_weight_is_found_by_the_provenance(fake):
    fake.seal_all()
    model = fake.run("flat").folder / "model.safetensors"
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    (problem,) = run_verdict(fake).problems
    assert problem.startswith(f"{model}: its SHA-256 is ")


def test_metrics_that_do_not_parse_are_found(fake):
    fake.seal_all()
    metrics = fake.run("flat").folder / "metrics.jsonl"
    metrics.write_text('{"step": 1}\n{"st\n')
    assert (
        run_verdict(fake)
        .problems[0]
        .startswith(f"{metrics}, line 2 is not a JSON object with a step;")
    )


def test_another_manifest_than_the_training_read_is_found(fake):
    fake.seal_all()
    manifest = fake.run("flat").dataset.manifest
    manifest.write_text(json.dumps(read_json(manifest, remedy="")))
    (problem,) = run_verdict(fake).problems
    assert problem.startswith(f"{manifest}: its SHA-256 is ")
    assert "; bring back the manifest of the training, or delete results/runs/flat-" in problem
    manifest.unlink()
    (problem,) = run_verdict(fake).problems
    assert problem.startswith(f"{manifest} cannot be read (No such file or directory), expected ")


def test_provenance_without_file_digests_is_accepted(fake):
    fake.seal_all()
    path = fake.run("flat").folder / "provenance.json"
    document = read_json(path, remedy="")
    del document["files"]
    write_json(path, document)
    assert run_verdict(fake).problems == []


def test_an_edited_evaluation_is_found(fake):
    fake.seal_all()
    run = fake.run("flat")
    edit(run.evaluation, identity={**run.evaluation_document, "settings": {"split": "train"}})
    (problem,) = run_verdict(fake).problems
    assert problem.startswith(f"{run.evaluation}: the digest of its identity is ")
    assert problem.endswith(
        f"expected {run.evaluation_id}; delete {run.evaluation} and run the pipeline again"
    )


@pytest.mark.parametrize("name", ["run.json", "identity.json", "provenance.json"])
@pytest.mark.parametrize("content", ["", "[]", '{"dataset": 3, "files": 3}'])
def test_a_file_of_another_form_is_a_problem_and_no_crash(fake, name, content):
    fake.seal_all()
    (fake.run("flat").folder / name).write_text(content)
    assert run_verdict(fake).problems
