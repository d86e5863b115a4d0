"""Files and folders that values of `model_args` name: their bytes count, and results are no input."""

import re
from pathlib import Path
from typing import Any

import pytest

from shardline.config import script_files
from shardline.config.script_files import uncounted_paths
from shardline.errors import ConfigError
from tests.support.fake_project import FakeProject

FILES = ("weights/base.pt", "weights/more/a.bin", "base", "my.pt", "data/a.csv")


@pytest.fixture
def own(fake: FakeProject, tmp_path_factory: pytest.TempPathFactory) -> FakeProject:
    """A project of one run, with files that its arguments may name, some of them elsewhere."""
    for name in FILES:
        fake.workspace.write(name, name)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "far.pt").write_text("far")
    (fake.workspace.path / "link").symlink_to(elsewhere)
    del fake.rows[1]
    return fake


def given(own: FakeProject, value: Any, key: str = "init", **row: str) -> Any:
    if isinstance(value, dict | list):
        own.config["defaults"]["model_args"] = {key: value}
    else:
        own.rows[0][f"model_args.{key}"] = value
    own.rows[0] |= row
    return own.run("net")


def counted(own: FakeProject, value: Any, key: str = "init", **row: str) -> list[str]:
    found = given(own, value, key, **row).document.get("code_files", {})
    return [name.partition("/")[2] for name in found]


def said(own: FakeProject) -> list[str]:
    run = own.run("net")
    return uncounted_paths(run.model_class, run.settings, run.layout)


# --- what counts ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "file"),
    [
        ("weights/base.pt", "weights/base.pt"),
        ("./weights/../my.pt", "my.pt"),
        ("my.pt", "my.pt"),
        ("base", "base"),
        ("{root}/my.pt", "my.pt"),
        ("weights/", "weights/more/a.bin"),
        ("./weights", "weights/base.pt"),
        ("link/far.pt", "link/far.pt"),
        ("~/far.pt", "link/far.pt"),
        ({"encoder": {"init": [3, "weights/base.pt"]}}, "weights/base.pt"),
    ],
)
def test_the_bytes_that_a_value_leads_to_count(
    own: FakeProject, value: Any, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = own.workspace.path
    monkeypatch.setenv("HOME", str((root / "link").resolve()))
    if isinstance(value, str):
        value = value.replace("{root}", str(root))
    before = given(own, value)
    (root / file).write_text("other")
    after = own.run("net")
    assert after.id != before.id
    (root / file).write_text("far" if "far" in file else file)
    assert own.run("net").id == before.id
    (root / "data/b.csv.txt").write_text("of no identity")
    assert own.run("net").id == before.id
    assert said(own) == []


@pytest.mark.parametrize(
    "value",
    ["relu", "none/there.pt", ".", "/", "", "..", "x" * 5000, "~nobody/x", "https://h/x.pt", "/dev/null", 3,
     "/proc", "logs/a.txt", {"a": [1, None, True, "a\nb", "a\0b"]}],
)  # fmt: skip
def test_other_values_count_as_before(own: FakeProject, value: Any) -> None:
    own.workspace.write("logs/a.txt", "")
    assert "code_files" not in given(own, value).document
    assert said(own) == []


@pytest.mark.parametrize("key", ["cache_dir", "out", "log_dir", "save_path", "outputdir", "tmp"])
def test_what_the_model_writes_does_not_count(own: FakeProject, key: str) -> None:
    assert counted(own, "./weights", key) == []
    assert said(own) == []


@pytest.mark.parametrize("key", ["layout", "init", "cached", "logit", "tokens", "weights_path"])
def test_what_is_no_output_by_its_name_counts(own: FakeProject, key: str) -> None:
    assert counted(own, "my.pt", key) == ["my.pt"]


def test_a_folders_name_alone_is_a_text_and_is_said(own: FakeProject) -> None:
    assert counted(own, "weights", "backbone") == []
    assert said(own) == [
        "model_args.backbone=weights is also the name of a folder here, whose files do not count in the run's "
        "identity; write ./weights if the model reads them, or name backbone in the column uncounted_args"
    ]
    assert counted(own, "./weights", "backbone") == ["base.pt", "more/a.bin"]
    assert counted(own, "weights", "backbone", uncounted_args="backbone") == []
    assert said(own) == []


@pytest.mark.parametrize(("limit", "value"), [("_LARGEST_BYTES", 20), ("_MOST_FILES", 1)])
def test_a_folder_that_is_too_large_does_not_count_and_is_said(
    own: FakeProject, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(script_files, limit, value)
    assert counted(own, "./weights") == []
    (sentence,) = said(own)
    assert sentence.startswith("model_args.init=./weights contains more than")
    assert counted(own, "./weights", code_files="weights/base.pt") == ["base.pt"]


def test_an_argument_can_be_left_out_and_the_earlier_identity_is_back(own: FakeProject) -> None:
    before = given(own, "none.pt").id
    own.workspace.write("none.pt", "1")
    assert own.run("net").id != before
    assert given(own, "none.pt", uncounted_args="init other").id == before


def test_a_file_that_code_files_names_as_well_counts_once(own: FakeProject) -> None:
    assert counted(own, "weights/base.pt", code_files="weights/base.pt") == ["base.pt"]


def test_why_names_the_file_that_newly_counts_and_the_one_that_changed(own: FakeProject) -> None:
    given(own, "weights/base.pt")
    own.seal_all()
    own.workspace.write("weights/base.pt", "other")
    assert own.why("net") == ["source bytes changed in base.pt"]


# --- what is no input -----------------------------------------------------------------------------

RESULT = "results/runs/0123456789ab/model.safetensors"


@pytest.fixture
def tuned(own: FakeProject) -> FakeProject:
    own.workspace.write(RESULT, "base")
    own.workspace.write("store/work/a.ckpt", "base")
    latest = own.workspace.path / "results/latest"
    latest.mkdir()
    (latest / "base").symlink_to("../runs/0123456789ab")
    (own.workspace.path / "begin").symlink_to("results/latest/base")
    return own


@pytest.mark.parametrize(
    "value",
    [
        "results/latest/base",
        "results/latest/base/model.safetensors",
        "results/latest/not-trained-yet",
        "./results/../results/latest/base/",
        RESULT,
        "store/work/a.ckpt",
        "begin/model.safetensors",
        "./begin",
        ["results/latest/base"],
    ],
)
def test_a_value_that_leads_into_the_results_is_refused(tuned: FakeProject, value: Any) -> None:
    text = value if isinstance(value, str) else value[0]
    with pytest.raises(ConfigError) as error:
        given(tuned, value)
    message = str(error.value)
    assert re.search(
        rf"model_args\.init(\.0)?={re.escape(text)} leads into (results|store), whose", message
    )
    assert "copy it into the project (cp " in message
    assert "code_files" in message
    assert given(tuned, value, uncounted_args="init")


def test_each_remedy_for_a_result_leads_to_a_run_that_counts_the_bytes(tuned: FakeProject) -> None:
    file = "results/latest/base/model.safetensors"
    with pytest.raises(ConfigError) as error:
        given(tuned, "results/latest/base")
    assert f"name {file} in the column code_files" in str(error.value)
    before = given(tuned, "results/latest/base", code_files=file).id
    tuned.workspace.write(RESULT, "trained again")
    assert tuned.run("net").id != before
    tuned.rows[0]["code_files"] = ""
    Path("weights/copy.safetensors").write_bytes(Path(file).read_bytes())
    assert counted(tuned, "weights/copy.safetensors") == ["copy.safetensors"]
