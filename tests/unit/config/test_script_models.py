"""A script as a run's model: what the table may say, and what makes it stale."""

import subprocess
import sys
from typing import Any

import pytest

from shardline.config.load import load_project
from shardline.config.plans import RunPlan
from shardline.config.scripts import is_script, resolve_script, split_script
from shardline.errors import ConfigError
from tests.support.workspace import Workspace

LOCK = (
    "torch==2.12.0\n    # via tool\nnumpy==2.4.6\n    # via torch\nrich==14.0.0\n    # via other\n"
)
FILES = {
    "tools/train.py": "import torch\nfrom beside import WIDTH\n\n\ndef main():\n    return WIDTH\n\n\nmain()\n",
    "tools/beside.py": "from mypkg.deep import FACTOR\n\nWIDTH = 3 * FACTOR\n",
    "tools/unused.py": "VALUE = 1\n",
    "mypkg/__init__.py": "",
    "mypkg/deep.py": "FACTOR = 2\n",
    "beside.py": "raise SystemExit('what stands beside the script comes first')\n",
    "my.lock": LOCK,
}
ROW = {"name": "own", "dataset": "table", "model": "script: tools/train.py --lr 0.1"}
SOURCE = {"type": "synthetic", "rows_per_shard": 8, "features": 2}


class ScriptProject:
    """A project of one run, whose model is a script."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        for name, text in FILES.items():
            workspace.write(name, text)

    def run(self, **changes: Any) -> RunPlan:
        """Return the run, with another row where changes say so."""
        config = {
            "runs": "config/runs.tsv",
            "lock": "my.lock",
            "defaults": {"global_batch": 8},
            "datasets": {"table": {"source": SOURCE, "shards": 2}},
        }
        self.workspace.configure(config, [{**ROW, **changes}])
        (run,) = load_project(workdir=self.workspace.path).runs.values()
        return run


@pytest.fixture
def project(workspace: Workspace) -> ScriptProject:
    return ScriptProject(workspace)


# --- the table ----------------------------------------------------------------------------------


def test_a_script_has_one_spelling(project: ScriptProject) -> None:
    run = project.run()
    assert run.model_class == "script: tools/train.py --lr 0.1"
    for same in (
        "script:tools/train.py  --lr   0.1",
        "script: ./tools/../tools/train.py '--lr' 0.1",
    ):
        assert project.run(model=same).id == run.id
    path = str(project.workspace.path / "tools/train.py")
    assert project.run(model=f"script: {path} --lr 0.1").id == run.id
    assert split_script(project.run(model="script: tools/train.py 'a b'").model_class)[1:] == [
        "a b"
    ]


def test_a_class_of_a_module_named_script_is_no_script() -> None:
    assert not is_script("script:Net")
    assert all(
        is_script(text) for text in ("script: Net", "script:", "script:a.py", "script:a/b.py")
    )


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("script: nowhere/train.py", "nowhere/train.py does not exist in .*; check the path"),
        ("script: tools", "tools is a folder in "),
        ("script: /etc/passwd", "/etc/passwd is outside the project folder .*; move it into the folder"),
    ],
)  # fmt: skip
def test_what_is_no_script_of_the_project_is_refused_by_name(
    project: ScriptProject, model: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        project.run(model=model)
    assert 'config/runs.tsv line 2 (run "own"): model=script:' in str(error.value)


def test_a_link_out_of_the_project_is_refused(project: ScriptProject) -> None:
    folder = project.workspace.path / "inside"
    folder.mkdir()
    (folder / "a.py").symlink_to("/etc/passwd")
    with pytest.raises(ConfigError, match="a.py is outside the project folder"):
        resolve_script("script: a.py", folder, "here")


def test_a_script_that_is_not_valid_python_is_named_with_its_line(project: ScriptProject) -> None:
    project.workspace.write("tools/train.py", "import torch\ndef main(:\n")
    with pytest.raises(ConfigError, match=r"tools/train.py, line 2: not valid Python"):
        project.run()


# --- identity -----------------------------------------------------------------------------------


def identity(run: RunPlan) -> tuple[str, str]:
    return run.id, run.evaluation_id


def test_code_is_the_scripts_own_import_closure(project: ScriptProject) -> None:
    run = project.run()
    document, definitions = run.document, run.definitions["model"]["definitions"]
    modules = {name.partition(":")[0] for name in definitions}
    assert modules - {"mypkg"} == {"tools/train.py", "beside", "mypkg.deep"}
    assert {"tools/train.py:<module>", "tools/train.py:main"} <= definitions.keys()
    assert document["code"].keys() == {"model"}
    assert document["environment"]["packages"] == {"torch": "2.12.0", "numpy": "2.4.6"}
    assert document["model"] == ROW["model"]


@pytest.mark.parametrize(
    ("file", "text", "is_stale"),
    [
        (
            "tools/train.py",
            FILES["tools/train.py"].replace("return WIDTH", "return WIDTH + 1"),
            True,
        ),
        ("tools/train.py", FILES["tools/train.py"].replace("\n\n\ndef", "\n# why\n\ndef"), False),
        ("tools/beside.py", FILES["tools/beside.py"].replace("3", "4"), True),
        ("mypkg/deep.py", "FACTOR = 3\n", True),
        ("mypkg/__init__.py", "print(1)\n", True),
        ("tools/torch.py", "VALUE = 1\n", True),  # it takes the place of the package
        ("tools/unused.py", "VALUE = 2\n", False),
        ("beside.py", "VALUE = 2\n", False),
        ("my.lock", LOCK.replace("numpy==2.4.6", "numpy==2.4.7"), True),
        ("my.lock", LOCK.replace("rich==14.0.0", "rich==14.1.0"), False),
        ("train.py", "VALUE = 1\n", False),
    ],
)
def test_exactly_what_the_script_imports_makes_it_stale(
    project: ScriptProject, file: str, text: str, is_stale: bool
) -> None:
    before = identity(project.run())
    assert FILES.get(file) != text
    project.workspace.write(file, text)
    after = identity(project.run())
    assert [old != new for old, new in zip(before, after, strict=True)] == [is_stale, is_stale]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("model", "script: tools/train.py --lr 0.2"),
        ("model", "script: tools/train.py --lr 0.1 ''"),
        ("model", "script: tools/unused.py --lr 0.1"),
        ("optim.lr", 0.5),
        ("model_args.width", 7),
        ("seed", 3),
        ("devices", 4),
        ("evaluation.split", "validation"),  # the script reads it while it trains
    ],
)
def test_arguments_and_settings_make_a_script_stale(
    project: ScriptProject, column: str, value: object
) -> None:
    before, after = identity(project.run()), identity(project.run(**{column: value}))
    assert [old != new for old, new in zip(before, after, strict=True)] == [True, True]


def test_shardlines_own_training_code_is_no_part_of_it(project: ScriptProject) -> None:
    run = project.run()
    assert run.document["versions"] == run.evaluation_document["versions"] == {"script": 1}
    assert run.evaluation_document["code"] == {}


def test_the_script_is_parsed_and_never_imported(project: ScriptProject) -> None:
    project.workspace.write("tools/train.py", "import beside\nraise SystemExit('imported')\n")
    project.run()
    heavy = "{'torch', 'pytorch_lightning', 'safetensors', 'beside', 'train'}"
    code = (
        "import sys; from pathlib import Path; from shardline.config.load import load_project;"
        f"load_project(workdir=Path({str(project.workspace.path)!r}));"
        f"print(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
