"""Starting a project: what is written, and that nothing is overwritten."""

import re
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shardline.cli import app
from shardline.cli.new_project import init_beside, init_project
from shardline.config.load import load_project
from shardline.errors import ConfigError, DataError
from tests.support.workspace import REPOSITORY, SNAKEMAKE


def tree(folder: Path) -> dict[str, bytes | None]:
    return {str(p): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def test_a_new_project_is_valid_and_shows_each_thing_that_one_brings(tmp_path):
    folder = tmp_path / "new" / "vision"
    done = CliRunner().invoke(app, ["init", str(folder)])
    assert done.exit_code == 0, done.output
    assert f"cd {folder} && snakemake" in done.output
    place = str(REPOSITORY).encode()
    assert not any(place in (content or b"") for content in tree(folder).values())
    project = load_project(workdir=folder)
    assert [run.name for run in project.runs.values()] == ["linear", "net_width=16", "net_width=64"]
    assert {dataset.name for dataset in project.datasets.values()} == {"digits", "rings"}
    definitions = list(project.runs.values())[1].definitions["model"]["definitions"]
    assert "mypkg.models" in {name.partition(":")[0] for name in definitions}
    profiles = {path.name for path in (folder / "profiles").iterdir()}
    assert profiles == {"default", "local", "slurm", "azureml"}
    assert (folder / "README.md").read_text().startswith("# vision\n")


def test_a_projects_own_snakefile_refuses_two_owners_of_retries(tmp_path):
    init_project(tmp_path)
    command = [SNAKEMAKE, "--executor", "slurm", "--slurm-requeue", "--retries", "2", "--jobs", "1"]
    done = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, check=False)
    assert done.returncode == 1
    assert "both Slurm and Snakemake would start a failed job again" in done.stderr


def test_the_lock_of_a_project_gives_the_identities_that_the_shipped_one_gives(tmp_path):
    init_project(tmp_path)
    runs = list(load_project(workdir=tmp_path).runs)
    config = tmp_path / "config" / "config.yaml"
    config.write_text(re.sub("(?m)^lock: .*", "", config.read_text()))
    (tmp_path / "requirements.lock").unlink()
    assert list(load_project(workdir=tmp_path).runs) == runs


@pytest.mark.parametrize("taken", ["Snakefile", "config/runs.tsv", "requirements.lock"])
def test_a_file_that_is_there_is_named_and_nothing_changes(tmp_path, taken):
    path = tmp_path / taken
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    before = tree(tmp_path)
    with pytest.raises(ConfigError, match=f"exist already: {taken}; nothing was written"):
        init_project(tmp_path)
    assert tree(tmp_path) == before


def test_all_that_is_in_the_way_is_named_at_once(tmp_path):
    (tmp_path / "README.md").symlink_to("nowhere")
    (tmp_path / "config").write_text("a file, where a folder is needed")
    (tmp_path / "notes.txt").write_text("in nobody's way")
    done = CliRunner().invoke(app, ["init", str(tmp_path)])
    assert done.exit_code == ConfigError.exit_code
    assert "exist already: README.md, config; nothing" in done.output
    assert len(tree(tmp_path)) == 3


def test_a_folder_that_is_a_file_is_named(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(ConfigError, match=re.escape(f"exist already: {file};")):
        init_project(file)
    with pytest.raises(DataError, match="could not be written: Not a directory"):
        init_project(file / "below")
    assert file.read_text() == "mine"


@pytest.mark.parametrize("name", ["model", "source"])
def test_the_pages_show_what_a_new_project_has(name):
    page = (REPOSITORY / f"docs/how-to/write-a-{name}.md").read_text()
    shown = re.search(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert shown
    assert (REPOSITORY / "config" / "project" / "mypkg" / f"{name}s.py").read_text() == shown[1]


def with_code(folder: Path) -> Path:
    """Make a folder with code, and with files that a new project would have."""
    for name, text in {
        "src/model.py": "class Net:\n    def __init__(self, width=4): ...\n",
        "src/data.py": "class Rows:\n    def __init__(self, root): ...\n",
        "README.md": "mine",
        ".gitignore": "mine",
        "configs/model.yaml": "_target_: src.model.Net\nwidth: 8\n",
        "requirements.txt": "torch",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


OF_CODE = ["--model", "src.model:Net", "--data", "src.data:Rows"]


def test_a_folder_with_code_gets_config_profiles_and_snakefile_and_keeps_all_files(
    tmp_path, monkeypatch
):
    before = tree(with_code(tmp_path))
    checked = []
    monkeypatch.setattr(
        "shardline.cli.check.check_runs", lambda *given: checked.append(given) or []
    )
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["init", ".", *OF_CODE])
    assert done.exit_code == 0, done.output
    after = tree(tmp_path)
    assert before.items() <= after.items()
    paths = [Path(name) for name in after.keys() - before.keys()]
    new = {str(path.relative_to(tmp_path)) for path in paths if path.is_file()}
    profiles = {f"profiles/{one}/profile.yaml" for one in ("azureml", "default", "local", "slurm")}
    files = {
        "Snakefile",
        "config/README.md",
        "config/config.yaml",
        "config/runs.tsv",
        "requirements.lock",
    }
    assert (
        new - {name for name in new if name.startswith(("results/", "store/"))} == files | profiles
    )
    assert len(checked) == 1, "the config was loaded, and its models checked"
    shown = " ".join(done.output.split())
    assert "1 run checked, no error" in shown
    assert "left to decide, in config/config.yaml: - datasets.rows.source.options.root" in shown
    assert "add results/, store/, logs/, benchmarks/ and .snakemake/ to .gitignore" in shown
    assert done.output.endswith("Begin with: snakemake --profile profiles/local\n")
    (run,) = load_project(workdir=tmp_path).runs.values()
    assert run.settings.model_args == {"width": 8}

    again = CliRunner().invoke(app, ["init", ".", *OF_CODE])
    assert again.exit_code == ConfigError.exit_code
    assert "exist already: Snakefile, config/README.md, config/config.yaml" in again.output
    assert tree(tmp_path) == after


@pytest.mark.parametrize("taken", ["Snakefile", "config", "profiles/local/profile.yaml"])
def test_nothing_is_written_beside_code_if_a_file_is_in_the_way(tmp_path, taken):
    path = with_code(tmp_path) / taken
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    before = tree(tmp_path)
    with pytest.raises(ConfigError, match=f"exist already: {taken}; .* move these files away"):
        init_beside(tmp_path, "src.model:Net", "src.data:Rows")
    assert tree(tmp_path) == before


def test_nothing_is_written_beside_code_that_does_not_import(tmp_path):
    before = tree(with_code(tmp_path))
    with pytest.raises(ConfigError, match="src.model:Nett does not import"):
        init_beside(tmp_path, "src.model:Nett", "src.data:Rows")
    assert tree(tmp_path) == before
    with pytest.raises(ConfigError, match="no such folder, expected one with the code"):
        init_beside(tmp_path / "none", "src.model:Net", "src.data:Rows")
    done = CliRunner().invoke(app, ["init", str(tmp_path), *OF_CODE[:2]])
    assert "init --model is given without --data" in " ".join(done.output.split())
