"""What verify finds: on files that are really damaged."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner, Result

from shardline.cli import app
from shardline.config.plans import shards_of_part
from shardline.config.resolved import as_plain
from shardline.core.digests import file_sha256
from shardline.core.files import read_json, write_json
from shardline.core.seals import seal
from shardline.core.visible import from_here
from shardline.provenance.resume_certificates import write_certificate
from shardline.results.findings import VerifyResult
from shardline.results.verify import verify_dataset
from shardline.results.verify_runs import verify_run
from tests.support.fake_project import FakeProject
from tests.support.workspace import REPOSITORY


def dataset_verdict(fake: FakeProject) -> VerifyResult:
    return verify_dataset(fake.load(), fake.run("flat").dataset.id)


def shard(fake: FakeProject, number: int = 1) -> Path:
    run = fake.run("flat")
    return run.layout.shards(run.dataset.id) / f"shard-{number:05d}.safetensors"


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
    assert problem.startswith(f"{shard(fake)} has BLAKE3 digest ")
    assert ", expected " in problem
    assert problem.endswith("; run `shardline verify --repair table`, then `snakemake`")


def test_a_truncated_shard_is_found_by_its_size(fake):
    fake.seal_all()
    size = shard(fake).stat().st_size
    shard(fake).write_bytes(shard(fake).read_bytes()[:-10])
    (problem,) = dataset_verdict(fake).problems
    assert problem.startswith(
        f"{shard(fake)} has {size - 10} bytes, expected {size}; run `shardline"
    )


def test_each_missing_shard_is_found(fake):
    fake.seal_all()
    for number in (0, 3):
        shard(fake, number).unlink()
    problems = dataset_verdict(fake).problems
    assert [problem.partition(",")[0] for problem in problems] == [
        f"{shard(fake, number)} cannot be read (No such file or directory)" for number in (0, 3)
    ]


def test_a_store_that_is_not_mounted_is_one_problem(fake):
    fake.seal_all()
    folder = shard(fake).parent
    shutil.move(folder, "elsewhere")
    verdict = dataset_verdict(fake)
    (problem,) = verdict.problems
    assert problem.startswith(f"{folder} is not there; set SHARDLINE_STORE to where the store is")
    assert len(verdict.bad_shards) == 4


def test_an_edited_identity_in_the_manifest_is_found(fake):
    fake.seal_all()
    manifest = fake.run("flat").dataset.manifest
    document = read_json(manifest, remedy="")
    document["identity"]["settings"]["shards"] = 5
    write_json(manifest, document)
    (problem,) = dataset_verdict(fake).problems
    assert problem.startswith(f"{manifest}: the digest of its identity is ")
    assert f"expected {fake.run('flat').dataset.id};" in problem


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"identity": 1, "shards": [{}]}', '{"identity": NaN}']
)
def test_a_manifest_of_another_form_is_a_problem_and_no_crash(fake, content):
    fake.seal_all()
    fake.run("flat").dataset.manifest.write_text(content)
    assert dataset_verdict(fake).problems


def run_verdict(fake: FakeProject) -> VerifyResult:
    run = fake.run("flat")
    return verify_run(run.layout, run.id)


def edit(path: Path, **changes: object) -> None:
    """Change a file, and seal it again where it was sealed."""
    document = {**read_json(path, remedy=""), **changes}
    write_json(path, seal(document) if "sha256" in document else document)


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
    edit(folder / "identity.json", model="shardline.training.models.mlp:MLP")
    problems = run_verdict(fake).problems
    assert problems[0].startswith(f"{folder}/identity.json: its digest is ")
    assert (
        f", expected {fake.run('flat').id}; delete {folder} and run the pipeline again"
        in problems[0]
    )


def test_edited_settings_are_found(fake):
    fake.seal_all()
    run = fake.run("flat")
    edit(run.folder / "run.json", settings={**as_plain(run.settings), "seed": 99})
    (problem,) = run_verdict(fake).problems
    assert problem.startswith(
        f"{run.folder}/run.json: the settings differ from those in identity.json;"
    )


def test_a_model_of_another_run_is_found_by_its_metadata(fake):
    fake.seal_all()
    model = fake.run("flat").folder / "model.safetensors"
    save_file({"w": np.zeros(3, np.float32)}, model, metadata={"identity": "f" * 64})
    problems = run_verdict(fake).problems
    assert problems[0].startswith(
        f"{model}: identity in its metadata is {'f' * 64}, expected {fake.run('flat').id}"
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
    assert "; bring back the manifest of the training, or delete " in problem
    manifest.unlink()
    (problem,) = run_verdict(fake).problems
    assert problem.startswith(f"{manifest} cannot be read (No such file or directory), expected ")


def test_an_altered_or_missing_resume_certificate_is_found(fake):
    fake.seal_all()
    path = write_certificate({"identity": {}, "verdict": "survived"})
    told = {"path": str(path), "sha256": file_sha256(path), "verdict": "survived"}
    edit(fake.run("flat").folder / "provenance.json", certificate=told)
    assert run_verdict(fake).problems == []
    path.write_text(path.read_text().replace("survived", "hardly survived"))
    (problem,) = run_verdict(fake).problems
    assert problem.startswith(f"{path.absolute()}: its SHA-256 is ")
    path.unlink()
    (problem,) = run_verdict(fake).problems
    assert problem.startswith(f"{path.absolute()} cannot be read")
    assert problem.endswith("; bring back the certificate that the training found")


def test_an_edited_evaluation_is_found(fake):
    fake.seal_all()
    run = fake.run("flat")
    edit(run.evaluation, identity={**run.evaluation_document, "settings": {"split": "train"}})
    (problem,) = run_verdict(fake).problems
    assert problem.startswith(f"{run.evaluation}: the digest of its identity is ")
    assert problem.endswith(
        f"expected {run.evaluation_id}; delete {run.evaluation} and run the pipeline again"
    )


def test_an_evaluation_of_another_model_is_found(fake):
    fake.seal_all()
    run = fake.run("flat")
    edit(run.evaluation, files={"model.safetensors": "0" * 64})
    (problem,) = run_verdict(fake).problems
    sealed = read_json(run.folder / "provenance.json", remedy="")["files"]["model.safetensors"]
    assert problem.startswith(
        f"{run.evaluation}: SHA-256 of the evaluated model.safetensors is {'0' * 64}, expected {sealed}"
    )


@pytest.mark.parametrize("name", ["run.json", "identity.json", "provenance.json"])
@pytest.mark.parametrize("content", ["", "[]", '{"dataset": 3, "files": 3}'])
def test_a_file_of_another_form_is_a_problem_and_no_crash(fake, name, content):
    fake.seal_all()
    (fake.run("flat").folder / name).write_text(content)
    assert run_verdict(fake).problems


# --- repair -----------------------------------------------------------------------------------


def repair(*names: str) -> Result:
    return CliRunner().invoke(app, ["verify", "--repair", *names])


@pytest.fixture
def cut(fake) -> FakeProject:
    """Sealed datasets whose parts are of two shards each."""
    fake.config["datasets"]["table"]["shards_per_job"] = 2
    fake.seal_all()
    for part in fake.run("flat").dataset.parts:
        describe_part(fake, part)
    return fake


def describe_part(fake: FakeProject, part: str) -> Path:
    """Write the sealed list of a part's shards."""
    dataset, numbers = fake.run("flat").dataset, shards_of_part(part)
    records = read_json(dataset.manifest, remedy="")["shards"][numbers.start : numbers.stop]
    moments = {"count": 2, "mean": [1.0], "m2": [2.0], "low": [0.0], "high": [2.0]}
    counted = {"class_counts": {}, "features": moments}
    statistics = [{"first": numbers.start, "stop": numbers.stop, **counted}]
    path = shard(fake).parent / "parts" / f"{part}.json"
    document = {"dataset": dataset.id, "shards": records, "statistics": statistics}
    write_json(path, seal(document))
    return path


def files(fake: FakeProject) -> set[str]:
    folders = (shard(fake).parent, fake.run("flat").dataset.manifest.parent)
    return {path.name for folder in folders for path in folder.rglob("*") if path.is_file()}


def test_repair_drops_the_bad_shard_its_part_and_the_manifest_and_says_what_to_run(cut):
    write_json(shard(cut).parent / "verified" / "node" / shard(cut, 3).name, [])
    write_json(shard(cut).parent / "verified" / "node" / shard(cut, 0).name, [])
    before = files(cut)
    shard(cut, 3).write_bytes(b"!" * shard(cut, 3).stat().st_size)
    result = repair("table")
    assert result.exit_code == 0, result.output
    manifest = cut.run("flat").dataset.manifest
    assert before - files(cut) == {shard(cut, 3).name, "00002-00003.json", "manifest.json"}
    assert not list(shard(cut).parent.glob(f"verified/*/{shard(cut, 3).name}"))
    assert list(shard(cut).parent.glob(f"verified/*/{shard(cut, 0).name}"))
    assert "dropped 1 bad shard and the manifest" in result.stdout
    assert (
        "to rebuild 1 part and seal the dataset again, run\n"
        f"  snakemake --snakefile {REPOSITORY.resolve()}/Snakefile --cores all {from_here(str(manifest))}"
        in (result.stdout)
    )


def test_repair_of_a_missing_shard_drops_its_part_of_an_earlier_cut_too(cut):
    describe_part(cut, "00000-00003")
    shard(cut, 0).unlink()
    assert repair("table").exit_code == 0
    assert {path.name for path in shard(cut).parent.glob("parts/*")} == {"00002-00003.json"}


def test_repair_of_a_damaged_manifest_keeps_every_shard_and_part(cut):
    before = files(cut)
    cut.run("flat").dataset.manifest.write_text("{")
    result = repair("table")
    assert result.exit_code == 0
    assert "dropped the manifest\nto rebuild 0 parts" in result.stdout
    assert before - files(cut) == {"manifest.json"}


def test_repair_of_an_undamaged_dataset_changes_nothing(cut):
    before = files(cut)
    result = repair("table")
    assert result.exit_code == 0
    assert "nothing to repair: table (" in result.stdout
    assert files(cut) == before


def test_an_edited_list_of_a_part_is_found_and_repair_drops_it(cut):
    path = shard(cut).parent / "parts" / "00002-00003.json"
    write_json(path, {**read_json(path, remedy=""), "statistics": []})
    (problem,) = dataset_verdict(cut).problems
    assert problem.startswith(f"{path}: the digest of its content is ")
    assert problem.endswith("; run `shardline verify --repair table`, then `snakemake`")
    before = files(cut)
    assert repair("table").exit_code == 0
    assert before - files(cut) == {path.name, "manifest.json"}


def test_repair_that_was_cut_off_is_found_and_finished_by_the_next(cut):
    shard(cut, 1).unlink()
    (shard(cut).parent / "parts" / "00000-00001.json").unlink()
    assert repair("table").exit_code == 0
    assert not cut.run("flat").dataset.manifest.exists()


def test_repair_is_refused_while_snakemake_runs(cut):
    shard(cut).write_bytes(b"")
    before = files(cut)
    write_json(Path(".snakemake/locks/0.input.lock"), {})
    result = repair("table")
    assert (result.exit_code, files(cut)) == (1, before)
    assert result.stderr.startswith(".snakemake/locks/0.input.lock exists, so Snakemake may be")


def test_a_manifest_cannot_make_repair_delete_anything_but_shards(cut):
    (shard(cut).parent / "mine.txt").write_text("kept")
    manifest = cut.run("flat").dataset.manifest
    document = read_json(manifest, remedy="")
    document["shards"][0]["file"] = "mine.txt"
    write_json(manifest, document)
    assert repair("table").exit_code == 0
    assert (shard(cut).parent / "mine.txt").read_text() == "kept"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), "verify --repair names no dataset, expected one; add a dataset's name\n"),
        (
            ("flat",),
            'verify --repair names the run "flat", expected a dataset; delete results/runs/',
        ),
        (("tables",), 'the config names no run or dataset "tables"; did you mean "table"?'),
    ],
)
def test_repair_names_what_it_was_not_given(cut, names, message):
    result = repair(*names)
    assert result.exit_code == 2
    assert result.stderr.startswith(message)


def test_a_dataset_of_an_earlier_identity_cannot_be_repaired(cut):
    old = cut.run("flat").dataset.id
    shard(cut).write_bytes(b"")
    before = files(cut)
    cut.config["datasets"]["table"]["source"]["seed"] = 7
    cut.load()
    result = repair(old)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{old} is not what the config names now, expected a dataset")
    assert "or restore the settings it was made from" in result.stdout
    cut.config["datasets"]["table"]["source"]["seed"] = 0
    assert files(cut) == before
