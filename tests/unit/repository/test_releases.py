"""What a release needs: versions, locks with hashes, workflows, and the rules of Snakemake's catalogs."""

import importlib.util
import re
import subprocess
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from yte import process_yaml

from shardline.identity.package_lock import load_lock, normalize
from tests.support.workspace import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
LOCKS = ("requirements", "requirements-azureml", "requirements-docs")
WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))
# Plugins of Snakemake, each with the documents that the catalog shows.
PLUGINS = ("snakemake-executor-plugin-azureml", "snakemake-logger-plugin-shardline")


@pytest.fixture(scope="module")
def release():
    spec = importlib.util.spec_from_file_location("release", REPOSITORY / ".ci" / "release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- versions and changelog -----------------------------------------------------------------------


def test_every_file_has_the_same_version(release):
    assert set(release.versions(REPOSITORY).values()) == {PROJECT["project"]["version"]}


def test_notes_are_a_section_of_the_changelog_and_need_a_date(release, tmp_path):
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## 0.2.0 - 2027-01-02\n\n- b\n\n## 0.1.0 - unreleased\n\n- a\n"
    )
    assert release.notes(tmp_path, "0.2.0") == "- b\n"
    with pytest.raises(ValueError, match=r"is '## 0\.1\.0 - unreleased', expected the day"):
        release.notes(tmp_path, "0.1.0")
    with pytest.raises(ValueError, match=r"no section 0\.3\.0"):
        release.notes(tmp_path, "0.3.0")


def test_links_of_notes_and_of_the_page_on_pypi_name_the_files_of_the_tag(release, tmp_path):
    text = "[a](docs/a.md#b), [c](https://c.org), [d](#e), [![f](g.svg)](h.md)\n"
    (tmp_path / "CHANGELOG.md").write_text(f"## 0.2.0 - 2027-01-02\n\n{text}")
    files = "https://github.com/shardline/shardline/blob/v0.2.0"
    assert release.notes(tmp_path, "0.2.0") == (
        f"[a]({files}/docs/a.md#b), [c](https://c.org), [d](#e), "
        f"[![f](https://raw.githubusercontent.com/shardline/shardline/v0.2.0/g.svg)]({files}/h.md)\n"
    )


def test_a_paragraph_of_the_notes_is_one_line(release, tmp_path):
    text = (
        "Two\nlines.\n\n### Added\n\n- One\n  entry.\n  - Within.\n- Another.\n\n| a |\n| --- |\n"
    )
    (tmp_path / "CHANGELOG.md").write_text(f"## 0.2.0 - 2027-01-02\n\n{text}")
    assert release.notes(tmp_path, "0.2.0") == (
        "Two lines.\n\n### Added\n\n- One entry.\n  - Within.\n- Another.\n\n| a |\n| --- |\n"
    )


def test_a_change_without_a_version_is_refused(release, tmp_path):
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## Unreleased\n\n- c\n\n## 0.2.0 - 2027-01-02\n\n- b\n"
    )
    with pytest.raises(ValueError, match=r"move them to the section 0\.2\.0"):
        release.notes(tmp_path, "0.2.0")


def test_the_changelog_names_files_that_exist():
    text = (REPOSITORY / "CHANGELOG.md").read_text()
    named = re.findall(r"\]\((?!\w+:)([^)#]+)", text)
    assert named
    assert [name for name in named if not (REPOSITORY / name).is_file()] == []


def test_a_tag_of_another_version_is_refused():
    done = subprocess.run(
        [sys.executable, REPOSITORY / ".ci" / "release.py", "v9.9.9"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "plugins/shardline-io/pyproject.toml has version 0.1.0, expected 9.9.9" in done.stderr
    assert "CHANGELOG.md has no section 9.9.9" in done.stderr


# --- locks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lock", LOCKS)
def test_hashes_are_those_of_the_lock(lock):
    locked = load_lock(REPOSITORY / f"{lock}.lock").versions
    text = (REPOSITORY / f"{lock}.hashes").read_text()
    entries = re.split(r"\n(?=\S)", text.strip())
    assert {
        normalize(re.split("==", one)[0]): re.split("==| ", one)[1] for one in entries
    } == locked
    assert all(re.search(r" --hash=sha256:[0-9a-f]{64}(\s|$)", one) for one in entries)
    assert not re.search(r"://|^-", text, re.MULTILINE)  # no index, and no folder of a machine


def test_the_lock_contains_each_extra_and_no_excluded_version():
    versions = load_lock(REPOSITORY / "requirements.lock").versions
    named = {re.match(r"\w+\[(.*)\]", EXTRAS["all"][0])[1]}.pop().split(",")
    (line,) = re.findall(r"^EXTRAS := (.*)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert line.split() == named
    # notebook is part of figures; the others are environments or tools
    assert EXTRAS.keys() - {*named} == {"all", "azure-blob", "azureml", "dev", "notebook", "test"}
    wanted = [*PROJECT["project"]["dependencies"], *(one for name in named for one in EXTRAS[name])]
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(versions[normalize(requirement.name)]), requirement


def test_azureml_core_and_its_setuptools_are_for_users_of_sdk_v1_alone():
    plugin = tomllib.loads((REPOSITORY / "plugins" / PLUGINS[0] / "pyproject.toml").read_text())
    bound = ("azureml-core", "setuptools")
    always = [*plugin["project"]["dependencies"], *PROJECT["project"]["dependencies"]]
    for name, listed in EXTRAS.items():
        always += [] if name in ("dev", "azureml") else listed
    assert [one for one in always if one.startswith(bound)] == []
    assert [one.split(";")[0] for one in plugin["project"]["optional-dependencies"]["v1"]] == [
        "azureml-core>=1.61,<2", "setuptools<81",
    ]  # fmt: skip


# --- workflows of GitHub --------------------------------------------------------------------------


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_a_job_has_fifteen_minutes_and_the_least_rights(file):
    workflow = yaml.safe_load(file.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] <= 15, name
        for step in job["steps"]:
            # values of an event reach a shell as variables alone
            assert "${{ github." not in step.get("run", ""), step
            if script := re.match(r"(\.ci/[\w.-]+)", step.get("run", "")):
                assert (REPOSITORY / script[1]).stat().st_mode & 0o100, script[1]


def test_each_folder_of_tests_has_a_job():
    text = (REPOSITORY / ".github" / "workflows" / "ci.yml").read_text()
    jobs = yaml.safe_load(text)["jobs"]
    named = {
        folder
        for one in jobs["tests"]["strategy"]["matrix"]["include"]
        for folder in one["folders"].split()
    }
    named |= {f"tests/{one['name']}" for one in jobs["root"]["strategy"]["matrix"]["include"]}
    named |= {"tests/unit", "tests/azureml", "tests/acceptance"}
    folders = {
        f"tests/{path.parent.relative_to(REPOSITORY / 'tests').parts[0]}"
        for path in (REPOSITORY / "tests").glob("*/**/*.py")
        if path.name.startswith(("test_", "check_"))
    }
    assert named == folders


def test_two_halves_are_all_files_of_a_folder():
    files = []
    for half in ("1", "2"):
        done = subprocess.run(
            [REPOSITORY / ".ci" / "half", half, "tests/workflow"],
            cwd=REPOSITORY, capture_output=True, text=True, check=True,
        )  # fmt: skip
        files += done.stdout.split()
    assert sorted(files) == sorted(
        path.relative_to(REPOSITORY).as_posix()
        for path in (REPOSITORY / "tests" / "workflow").glob("**/test_*.py")
    )


# --- catalogs of Snakemake ------------------------------------------------------------------------


def test_the_workflow_meets_the_rules_of_the_catalog():
    for file in ("README.md", "LICENSE", "config/README.md", "workflow/Snakefile", "CHANGELOG.md"):
        assert (REPOSITORY / file).is_file(), file
    for folder in ("rules", "scripts", "envs", "config", "tests", "profiles"):
        assert (REPOSITORY / folder).is_dir(), folder
    assert all(path.suffix == ".smk" for path in (REPOSITORY / "rules").iterdir())
    usage = yaml.safe_load((REPOSITORY / ".snakemake-workflow-catalog.yml").read_text())["usage"]
    assert usage["report"] is True
    assert usage["software-stack-deployment"] == {"conda": False}
    flags = usage["mandatory-flags"]["flags"].split()
    assert (REPOSITORY / flags[flags.index("--report-metadata") + 1]).is_file()


def test_the_snakefile_of_the_catalog_is_that_of_the_root():
    lines = (REPOSITORY / "workflow" / "Snakefile").read_text().splitlines()
    code = [line.partition("#")[0].strip() for line in lines]
    assert [line for line in code if line] == [
        'include: "../Snakefile"',
        'workflow.default_target = "all"',
    ]


def test_the_first_page_of_snakemakes_report_has_metadata():
    with (REPOSITORY / "report" / "captions" / "metadata.yaml").open() as file:
        found = process_yaml(file)
    assert found["Shardline"] == PROJECT["project"]["version"]
    assert all(isinstance(value, str) for value in found.values())


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_plugin_has_the_documents_of_the_catalog(plugin):
    folder = REPOSITORY / "plugins" / plugin
    intro, further = ((folder / "docs" / name).read_text() for name in ("intro.md", "further.md"))
    assert not intro.startswith("#")  # the catalog writes a title above
    assert further.startswith("## ")
    assert f"pip install {plugin}" in further
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert {"snakemake", "plugin", plugin.split("-")[1]} <= set(project["keywords"])
    assert project["urls"]["Repository"]
    assert project["description"].startswith(f"A Snakemake {plugin.split('-')[1]} plugin")


# --- conda ----------------------------------------------------------------------------------------


def test_the_recipe_has_the_dependencies_of_the_wheel():
    recipe = yaml.safe_load((REPOSITORY / "conda" / "recipe.yaml").read_text())
    names = {
        "blake3": "python-blake3", "msgspec": "msgspec-python", "snakemake": "snakemake-minimal", "torch": "pytorch",
    }  # fmt: skip
    expected = {"python": set(PROJECT["project"]["requires-python"].split(",")), "aiohttp": {""}}
    for requirement in map(Requirement, PROJECT["project"]["dependencies"]):
        name = names.get(requirement.name, requirement.name)
        expected[name] = set(str(requirement.specifier).split(","))
    found = {}
    for line in recipe["requirements"]["run"]:
        name, _, limits = line.partition(" ")
        found[name] = set(limits.split(","))
    assert found == expected
