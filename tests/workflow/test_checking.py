"""`shardline replay | diff | lineage | export` on a pipeline that was really run."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
import yaml
from safetensors.torch import load_file

from shardline.core.canonical import digest, short_digest
from shardline.core.files import write_json
from tests.support.command_line import lines, shardline
from tests.support.exported import lines_of_card, predicted
from tests.support.workspace import TINY_CONFIG, Workspace

pytestmark = pytest.mark.slow
COMMON = {"dataset": "digits", "devices": 1, "trainer.max_epochs": 1}
ROWS = [
    {"name": "cnn", "model": "cnn", **COMMON},
    {"name": "own", "model": "mine:Net", **COMMON},
    {"name": "odd", "model": "mine:Odd", **COMMON},
]
MODEL = """
from shardline.training.models.linear import Linear


class Net(Linear):
    def forward(self, features):
        print("a model may say what it likes")
        return super().forward(features)


class Odd(Linear):
    def forward(self, features):
        logits = super().forward(features)
        return logits + 1 if float(features.square().sum()) > 1e3 else logits
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A project with trained and evaluated runs, which no test changes."""
    workspace = Workspace(tmp_path_factory.mktemp("project"))
    workspace.configure(TINY_CONFIG, ROWS)
    workspace.write("mine.py", MODEL)
    done = workspace.snakemake()
    assert done.returncode == 0, done.stdout
    return workspace


@pytest.fixture
def project(trained, tmp_path, monkeypatch):
    """A copy of it, in the present folder."""
    for name in ("SHARDLINE_STORE", "COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "project"
    shutil.copytree(trained.path, folder, symlinks=True)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return Workspace(folder)


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def forge(path: Path, change) -> Path:
    """Change a recorded evaluation so that every digest still holds, as one made otherwise has it."""
    document = json.loads(path.read_text())
    document.pop("sha256", None)
    change(document)
    document["sha256"] = digest(document)
    path.unlink()
    forged = path.with_name(f"{short_digest(document['identity'])}.json")
    write_json(forged, document)
    return forged


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


# --- replay -----------------------------------------------------------------------------------


def test_a_replay_finds_every_number_again_and_writes_nothing(project):
    before = content_of(project.path)
    for name in ("cnn", "own"):
        result = shardline("replay", name)
        assert result.exit_code == 0, result.output
        assert "is replayed exactly" in result.stdout.splitlines()[-1]
    evaluation = json.loads(project.the("results/runs/<own>/evaluations/*.json").read_text())
    table = {line[0]: line[1:] for line in lines(result)}
    accuracy = str(evaluation["metrics"]["accuracy"])
    assert table["metrics.accuracy"] == table["headline.value"] == [accuracy, accuracy, "equal"]
    assert table["confusion"][1:] == ["the same", "equal"]
    assert content_of(project.path) == before


@pytest.mark.rotating
def test_a_number_that_does_not_come_out_again_is_code_3_unless_it_is_within_the_tolerance(project):
    def change(document):
        document["metrics"]["loss"] *= 1 + 1e-9
        document["confusion"]["counts"][0][0] += 0

    forge(project.the("results/runs/<own>/evaluations/*.json"), change)
    result = shardline("replay", "own")
    assert result.exit_code == 3
    assert result.stdout.splitlines()[-1].endswith("not replayed exactly")
    loss = next(line for line in lines(result) if line[0] == "metrics.loss")
    assert loss[-1] == "different by 1e-09"
    near = shardline("replay", "own", "--tolerance", "1e-6")
    assert near.exit_code == 0
    assert "within the tolerance by 1e-09" in near.stdout
    document = json.loads(shardline("replay", "own", "--json").stdout)
    assert document["equal"] is False
    assert document["action"] == f"evaluate/{document['run']}/{Path(document['evaluation']).stem}"
    assert {n["name"] for n in document["numbers"] if n["verdict"] == "different"} == {
        "metrics.loss"
    }


@pytest.mark.parametrize("command", [("replay",), ("export", "--to", "safetensors")])
@pytest.mark.parametrize("what", ["model", "shard", "manifest"])
def test_one_altered_byte_is_refused_by_name(project, command, what):
    pattern = {
        "model": "results/runs/<cnn>/model.safetensors",
        "shard": "store/datasets/<digits>/shard-00000.safetensors",
        "manifest": "results/datasets/<digits>/manifest.json",
    }[what]
    path = project.the(pattern)
    flip(path)
    result = shardline(command[0], "cnn", *command[1:])
    assert result.exit_code == 3
    assert str(path.relative_to(project.path)) in result.stderr
    assert not Path("exports").exists() or not list(Path("exports").iterdir())


def test_other_code_than_the_recorded_is_refused_by_name_unless_it_is_wanted(project):
    run = project.the("results/runs/<own>").name
    project.write("mine.py", MODEL.replace("return super()", "return -super()", 1))
    assert "has no result yet; name an earlier id" in shardline("replay", "own").stderr
    result = shardline("replay", run)
    assert result.exit_code == 2
    assert f"({run}) was evaluated with other code" in result.stderr
    assert "code of the model: mine: Net.forward changed" in result.stderr
    assert shardline("export", run, "--to", "safetensors").exit_code == 2
    forced = shardline("replay", run, "--force")
    assert forced.exit_code == 3, "another forward gives other numbers"
    assert (
        "the code has changed since the evaluation: code of the model: mine: Net.forward changed"
        in forced.stdout
    )


def test_another_environment_than_the_recorded_is_refused_by_name_unless_it_is_wanted(project):
    def change(document):
        document["identity"]["environment"]["packages"]["numpy"] = "1.0"

    forge(project.the("results/runs/<cnn>/evaluations/*.json"), change)
    result = shardline("replay", "cnn")
    assert result.exit_code == 2
    assert f"numpy {np.__version__} is installed, 1.0 is locked" in result.stderr
    assert "runtime.environment" in result.stderr
    forced = shardline("replay", "cnn", "--force")
    assert forced.exit_code == 0, forced.output
    assert "the packages have changed since the evaluation: numpy" in forced.stdout


def test_a_replay_starts_in_the_environment_that_the_profile_names(project):
    config = {**TINY_CONFIG, "runtime": {"environment": "conda"}}
    project.configure(config, ROWS)
    missing = shardline("replay", "cnn")
    assert missing.exit_code == 3
    assert "results/envs/train/environment.json cannot be read" in missing.stderr
    python = project.write(
        "prefix/bin/python", f"""#!/bin/sh\ntouch used\nexec '{sys.executable}' "$@"\n"""
    )
    python.chmod(0o755)
    write_json(
        Path("results/envs/train/environment.json"), {"prefix": str(project.path / "prefix")}
    )
    result = shardline("replay", "cnn")
    assert result.exit_code == 0, result.output
    assert Path("used").exists()


def test_a_run_that_the_config_no_longer_names_is_replayed_by_its_id(project):
    run = project.the("results/runs/<cnn>").name
    project.configure(TINY_CONFIG, [{**ROWS[0], "optim.lr": 0.5}])
    stale = shardline("replay", "cnn")
    assert stale.exit_code == 2
    assert f"name an earlier id ({run})" in stale.stderr
    assert shardline("replay", run).exit_code == 0


# --- diff -------------------------------------------------------------------------------------


def test_a_diff_tells_models_code_hardware_and_what_the_metrics_are_worth(project):
    provenance = project.the("results/runs/<own>/provenance.json")
    document = json.loads(provenance.read_text())
    document["environment"]["packages"]["numpy"] = "1.0"
    document["host"] = "elsewhere"
    write_json(provenance, document)
    result = shardline("diff", "own", "cnn")
    assert result.exit_code == 0, result.output
    assert "model own class -> cnn" in result.stdout
    assert f"numpy 1.0 -> {np.__version__}" in result.stdout
    assert "host elsewhere -> " in result.stdout
    accuracy = next(line for line in lines(result) if line[0] == "accuracy (headline, max)")
    assert " to " in accuracy[4]
    is_equal = accuracy[1] == accuracy[2]  # of so few samples it may be
    assert accuracy[5] == "equal" if is_equal else "the choice of held-out samples" in accuracy[5]
    found = json.loads(shardline("diff", "own", "own", "--json").stdout)
    assert (found["causes"], found["circumstances"]) == ([], [])


# --- lineage ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "action"),
    [
        ("results/latest/cnn/model.safetensors", "train/"),
        ("results/latest/cnn/evaluation.json", "evaluate/"),
        ("results/runs/<cnn>/run.json", "resolve_run/"),
        ("results/runs/<cnn>/provenance.json", "train/"),
        ("results/datasets/<digits>/manifest.json", "seal_dataset/"),
        ("store/datasets/<digits>/shard-00001.safetensors", "build_shards/"),
        ("store/datasets/<digits>/parts/00000-00001.json", "build_shards/"),
        ("store/work/<cnn>/checkpoints/step-*/state.pt", "train/"),
    ],
)
def test_the_lineage_of_every_kind_of_file_ends_at_its_source(project, pattern, action):
    path = project.the(pattern)
    result = shardline("lineage", str(path))
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[1].startswith(f"└── {action}")
    if action != "resolve_run/":
        assert "digits.csv.gz  sha256" in result.stdout
    found = json.loads(shardline("lineage", str(path), "--json").stdout)
    assert found["files"][found["file"]]["made_by"].startswith(action)
    assert all(
        name in found["files"] for made in found["actions"].values() for name in made["inputs"]
    )


@pytest.mark.parametrize(
    "pattern",
    ["results/runs/<cnn>/model.safetensors", "store/datasets/<digits>/shard-00001.safetensors"],
)
def test_the_lineage_of_an_altered_file_says_that_its_action_did_not_write_this(project, pattern):
    flip(project.the(pattern))
    result = shardline("lineage", str(project.the(pattern)))
    assert result.exit_code == 3
    assert "is not what" in result.stdout.splitlines()[-1]


def test_the_lineage_of_the_report_holds_every_run(project):
    found = json.loads(shardline("lineage", "results/report/index.html", "--json").stdout)
    (report,) = (
        made for name, made in found["actions"].items() if name.startswith("render_report")
    )
    assert sum("evaluations/" in name for name in report["inputs"]) == len(ROWS)


# --- export -----------------------------------------------------------------------------------


def outputs_of(folder: Path, features: np.ndarray) -> np.ndarray:
    """Compute as a user of the export does, who has nothing but its folder."""
    if (folder / "model.onnx").exists():
        session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
        return session.run(None, {"features": features})[0]
    return torch.jit.load(str(folder / "model.pt"))(torch.from_numpy(features)).detach().numpy()


@pytest.mark.parametrize("to", ["onnx", "torchscript"])
def test_an_export_judges_stored_features_as_the_evaluation_did(project, to):
    result = shardline("export", "cnn", "--to", to)
    assert result.exit_code == 0, result.output
    (folder,) = Path("exports").iterdir()
    assert "its outputs differ from the original's by" in result.stdout
    evaluation = json.loads(project.the("results/runs/<cnn>/evaluations/*.json").read_text())
    manifest = json.loads(project.the("results/datasets/<digits>/manifest.json").read_text())
    correct = 0
    for record in manifest["shards"]:
        shard = load_file(project.the(f"store/datasets/<digits>/{record['file']}"))
        rows = record["rows"]
        test = slice(rows["train"] + rows["validation"], None)
        logits = outputs_of(folder, shard["features"][test].numpy())
        correct += int((logits.argmax(1) == shard["labels"][test].numpy()).sum())
    assert correct / manifest["splits"]["test"] == evaluation["metrics"]["accuracy"]
    if to == "onnx":
        features = shard["features"][test][:1]
        row = ",".join(map(str, features.flatten().tolist()))
        outputs, shown = predicted(folder, lines_of_card(folder), row)
        assert np.array_equal(outputs, outputs_of(folder, features.numpy()))
        assert shown == str(outputs.argmax())
        assert "Save these lines as `predict.py`" in (folder / "README.md").read_text()
    again = shardline("export", "cnn", "--to", to)
    assert again.exit_code == 2
    assert "nothing is overwritten" in again.stderr


def test_an_export_to_safetensors_has_weights_normalisation_and_a_card_that_says_how(project):
    assert shardline("export", "own", "--to", "safetensors", "--output", "out/net").exit_code == 0
    folder = Path("out/net")
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md", "config.json", "model.safetensors", "normalization.safetensors",
    ]  # fmt: skip
    run = project.the("results/runs/<own>")
    assert (folder / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()
    card = (folder / "README.md").read_text()
    front_matter = yaml.safe_load(card.split("---\n")[1])
    evaluation = json.loads(next(run.glob("evaluations/*.json")).read_text())
    (result,) = front_matter["model-index"][0]["results"]
    assert {m["name"]: m["value"] for m in result["metrics"]} == evaluation["metrics"]
    for told in (f"train/{run.name}", f"shardline replay {run.name}", "normalization.safetensors"):
        assert told in card
    program = card.split("```python\n")[1].split("```")[0]
    scope: dict[str, object] = {}
    sys.path.insert(0, str(Path.cwd()))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(program, scope)  # the card's own words
    assert scope["outputs"].shape == (1, 10)


@pytest.mark.parametrize(
    ("to", "code", "told"),
    [
        ("torchscript", 3, "differ from the original's by 1 on 176 test rows"),
        ("onnx", 2, "mine:Odd cannot be exported to onnx"),
    ],
)
def test_a_model_that_a_format_cannot_hold_is_refused_and_leaves_nothing(project, to, code, told):
    result = shardline("export", "odd", "--to", to)
    assert result.exit_code == code, result.output
    assert told in result.stderr
    assert list(Path("exports").iterdir()) == []
