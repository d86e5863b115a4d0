"""Files that a training script is given as arguments: their bytes count, of Python files the code."""

import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardline.config.layout import ResultsLayout
from shardline.config.script_files import files_that_count
from shardline.config.settings.run_settings import RunSettings
from shardline.environments.specs import specs_of
from tests.support.fake_project import LOCK, FakeProject

SCRIPT = "import runpy, sys\n\nrunpy.run_path(sys.argv[1], run_name='__main__')\n"
TRAIN = (
    "from helper import step\n\n\ndef get_config():\n    return {'lr': 0.1}\n\n\n"
    "if __name__ == '__main__':\n    step(get_config())\n"
)
HELPER = "def step(config):\n    return config\n\n\ndef unused():\n    return 1\n"


@pytest.fixture
def own(fake: FakeProject) -> FakeProject:
    """A project of one run, whose script can be given files."""
    for name, text in {
        "tools/run.py": SCRIPT,
        "conf/a b.yaml": "lr: 1",
        "conf.yaml": "lr: 2",
        "exp/train.py": TRAIN,
        "exp/helper.py": HELPER,
    }.items():
        fake.workspace.write(name, text)
    del fake.rows[1]
    return fake


def given_arguments(own: FakeProject, *words: str) -> Any:
    own.rows[0]["model"] = f"script: tools/run.py {shlex.join(words)}"
    return own.run("net")


# --- files that are no Python ---------------------------------------------------------------------

FORMS = ("{}", "--config={}", "config={}", "@{}", "--args=@{}", "{root}/{}", "./conf/../{}")
WORDS = st.one_of(
    st.tuples(st.sampled_from(FORMS), st.sampled_from(["conf.yaml", "conf/a b.yaml"])),
    st.tuples(st.just("{}"), st.text(st.characters(codec="utf-8", exclude_characters="\t\r\n\0\"'{}/")
                                     .filter(str.isprintable), max_size=8)),
    st.tuples(st.just("{}"), st.sampled_from(["conf", "--lr", "0.1", "..", "/etc/hostname", "none.yaml", "x" * 300])),
)  # fmt: skip


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    words=st.lists(WORDS, max_size=4),
    edited=st.sampled_from(["conf.yaml", "conf/a b.yaml", "other.yaml"]),
    text=st.sampled_from(["lr: 1", "lr: 2", "", "lr: 1\n", "\0"]),
)
def test_a_files_bytes_count_exactly_where_an_argument_names_it(
    own: FakeProject, words: list[tuple[str, str]], edited: str, text: str
) -> None:
    root = own.workspace.path
    before = {"conf.yaml": "lr: 2", "conf/a b.yaml": "lr: 1", "other.yaml": ""}
    for name, content in before.items():
        own.workspace.write(name, content)
    arguments = [form.format(name, root=root) for form, name in words]
    named = {name for _, name in words} & before.keys()
    old = given_arguments(own, *arguments)
    assert ("code_files" in old.document) == bool(named)
    own.workspace.write(edited, text)
    is_stale = edited in named and text != before[edited]
    assert (own.run("net").id != old.id) == is_stale


def counted(root: Path, *words: str) -> list[str]:
    layout = ResultsLayout(root=root, named_store=root / "elsewhere")
    model = f"script: tools/run.py {shlex.join(words)}"
    return [
        str(path.relative_to(root))
        for path in files_that_count(model, RunSettings(), layout, "here")
    ]


def test_results_and_what_the_script_writes_do_not_count(
    own: FakeProject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = own.workspace.path
    for made in ("results/a.json", "logs/a.txt", "elsewhere/a.bin", ".snakemake/a"):
        own.workspace.write(made, "")
        assert counted(root, made) == []
    for option in ("-o", "--out", "--output-file", "--model_out", "--save-path", "--log"):
        assert counted(root, option, "conf.yaml") == counted(root, f"{option}=conf.yaml") == []
    for option in ("--layout", "--save-best", "--log-config", "-c", "-"):
        assert counted(root, option, "conf.yaml") == ["conf.yaml"]
    assert counted(root, "conf.yaml", "--a=conf.yaml", "conf/a b.yaml") == [
        "conf.yaml",
        "conf/a b.yaml",
    ], "each once, in their order"
    with (root / "large.bin").open("wb") as file:
        file.truncate((1 << 30) + 1)
    assert counted(root, "large.bin") == []
    outside = tmp_path_factory.mktemp("outside") / "b.yaml"
    outside.write_text("1")
    (root / "link.yaml").symlink_to(outside)
    assert counted(root, str(outside)) == []
    assert counted(root, "link.yaml") == ["link.yaml"], "it is named in the project"


def test_a_file_that_code_files_names_as_well_counts_once(own: FakeProject) -> None:
    own.rows[0]["code_files"] = "conf.yaml"
    document = given_arguments(own, "--config", "conf.yaml").document
    assert list(document["code_files"]) == ["00000/conf.yaml"], "as before arguments counted"


def test_why_names_the_files_that_changed(own: FakeProject) -> None:
    given_arguments(own, "exp/train.py", "--config=conf.yaml")
    own.seal_all()
    own.workspace.write("conf.yaml", "lr: 3")
    own.workspace.write("exp/train.py", TRAIN.replace("0.1", "0.2"))
    assert own.why("net") == [
        "code of the argument exp/train.py: exp/train.py: get_config changed "
        "(counts as a whole: an argument of the script)",
        "source bytes changed in conf.yaml",
    ]


def test_why_tells_that_a_python_file_began_to_count(own: FakeProject) -> None:
    given_arguments(own, "new.py")
    own.seal_all()
    own.workspace.write("new.py", "LR = 1\n")
    assert own.why("net") == ["code of the argument new.py newly counts"]


# --- Python files ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "text", "is_stale"),
    [
        ("exp/train.py", f"# why\n{TRAIN}", False),
        ("exp/train.py", TRAIN.replace("\n\n\n", "\n\n\n\n"), False),
        ("exp/train.py", TRAIN.replace("0.1", "0.2"), True),
        ("exp/train.py", f"{TRAIN}\n\ndef get_other():\n    return 1\n", True),  # may be asked for
        ("exp/helper.py", HELPER.replace("return config", "return 2"), True),
        ("exp/helper.py", HELPER.replace("return 1", "return 2"), False),
        ("tools/helper.py", "def step(config):\n    return 3\n", False),
    ],
)
@pytest.mark.parametrize("form", ["{}", "--program={}"])
def test_the_meaning_of_a_python_file_counts(
    own: FakeProject, file: str, text: str, is_stale: bool, form: str
) -> None:
    before = given_arguments(own, form.format("exp/train.py"))
    assert before.document["code"].keys() == {"model", "argument exp/train.py"}
    assert "code_files" not in before.document
    own.workspace.write(file, text)
    assert (own.run("net").id != before.id) == is_stale
    assert (own.run("net").evaluation_id != before.evaluation_id) == is_stale


def test_what_a_python_file_imports_counts_and_is_installed(own: FakeProject) -> None:
    own.workspace.write("my.lock", LOCK.format(torch="2.12.0") + "timm==1.0\n    # via x\n")
    own.workspace.write("exp/train.py", "import timm\nfrom beside import A\n")
    own.workspace.write("tools/beside.py", "A = 1\n")  # beside the script that runs it
    before = given_arguments(own, "exp/train.py")
    assert before.document["environment"]["packages"]["timm"] == "1.0"
    assert "timm ==1.0" in specs_of(own.load(), "train")
    own.workspace.write("tools/beside.py", "A = 2\n")
    assert own.run("net").id != before.id
