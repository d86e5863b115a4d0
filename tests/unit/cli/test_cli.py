"""The `shardline` command as its user meets it: what it prints, and its exit codes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shardline import __version__
from shardline.cli import EXIT_CODES
from shardline.cli.display.plain_tables import show_rows
from shardline.cli.display.terminal import say, say_json
from shardline.core.files import write_json
from shardline.core.seals import seal
from shardline.core.visible import from_here
from tests.support.command_line import lines, shardline

COMMANDS = (
    "ls",
    "best",
    "why",
    "check",
    "data show",
    "data init",
    "preflight",
    "gc",
    "verify",
    "replay",
    "diff",
    "lineage",
    "export",
    "predict",
    "find",
)


def help_of(*command: str) -> str:
    """Return a help text without colours, which typer forces in some CI services."""
    result = shardline(*command, "--help")
    assert result.exit_code == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", result.stdout)


# --- the command as a whole -------------------------------------------------------------------


def test_the_general_help_names_every_exit_code_and_a_commands_help_does_not_repeat_them():
    text = help_of()
    for code, meaning in EXIT_CODES.items():
        assert text.count(f"{code}  {meaning}") == 1
    assert not [name for name in COMMANDS if "Exit codes" in help_of(*name.split())]


def test_completion_is_installed_by_one_command_and_completes(tmp_path, monkeypatch):
    env = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": ""}
    program = Path(sys.executable).with_name("shardline")
    # from a shell, which the command asks for its name
    command = ["bash", "-c", f"'{program}' --install-completion; exit $?"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert "bash completion installed" in done.stdout
    assert ".bash_completions/shardline.sh" in (tmp_path / ".bashrc").read_text()
    assert "_SHARDLINE_COMPLETE" in (tmp_path / ".bash_completions/shardline.sh").read_text()
    asked = {
        **env,
        "_SHARDLINE_COMPLETE": "complete_bash",
        "COMP_WORDS": "shardline pref",
        "COMP_CWORD": "1",
    }
    found = subprocess.run([program], env=asked, capture_output=True, text=True, check=False)
    assert found.stdout.split() == ["preflight"]


def test_the_general_help_names_every_command():
    assert all(f" {name.split()[0]} " in help_of() for name in COMMANDS)


def test_the_documentation_names_every_command_and_exit_code():
    page = (Path(__file__).parents[3] / "docs/reference/commands.md").read_text()
    places = {name: name.replace(" ", "-") for name in COMMANDS}
    assert all(f"## `{name}` {{ #{place} }}" in page for name, place in places.items())
    assert all(f"| {code} | {meaning} |" in page for code, meaning in EXIT_CODES.items())


def test_the_version():
    assert shardline("--version").stdout == f"shardline {__version__}\n"


@pytest.mark.parametrize(
    "arguments", [("lss",), ("ls", "--jsn"), ("why",), ("--config",)], ids=lambda a: " ".join(a)
)
def test_a_wrong_command_line_is_code_2(arguments):
    assert shardline(*arguments).exit_code == 2


def test_a_wrong_config_is_one_sentence_and_code_2(fake):
    fake.rows[0]["optim.lr"] = "fast"
    fake.workspace.configure(fake.config, fake.rows)
    result = shardline("ls")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith('config/runs.tsv line 2 (run "net"): optim.lr=')
    assert result.stderr.count("\n") == 1


def test_outside_a_project_the_config_is_missed_by_name(fake):
    result = shardline("--config", "other.yaml", "ls")
    assert result.exit_code == 2
    assert result.stderr.endswith(
        "other.yaml: cannot be read (No such file or directory); run from the project's folder\n"
    )


def test_another_config_can_be_named(fake):
    fake.load()
    Path("config/config.yaml").rename("other.yaml")
    assert shardline("--config", "other.yaml", "ls", "--json").exit_code == 0


def test_no_command_imports_torch_and_the_usual_ones_no_numpy(fake):
    fake.seal_all()
    program = (
        "import sys; from shardline.cli import app\n"
        "for command in ('--help', 'ls', 'why net', 'gc', 'verify'):\n"
        "    app(command.split(), standalone_mode=False)\n"
        "    assert not {'torch', 'pytorch_lightning'} & sys.modules.keys(), command\n"
        "    light = command in ('--help', 'ls', 'why net')\n"  # NumPy takes a fifth of their time
        "    assert not (light and 'numpy' in sys.modules), command"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=300)
    assert done.returncode == 0


# --- ls ---------------------------------------------------------------------------------------


def test_ls_shows_every_state(fake):
    fake.rows = [
        {**fake.rows[1], "name": name, "seed": seed} for seed, name in enumerate("abcde", start=10)
    ]
    for name in ("a", "b", "d"):
        fake.seal_run(fake.run(name))
    fake.seal_evaluation(fake.run("a"), accuracy=0.97777)
    fake.begin_training(fake.run("c"), steps=1234)
    fake.rows[3]["seed"] = 5
    fake.load()
    result = shardline("ls")
    digests = [run.id for run in fake.load().runs.values()]
    assert lines(result) == [
        ["run", "dataset", "model", "state", "headline", "identity"],
        ["a", "table", "linear", "done", "accuracy 0.9778", digests[0]],
        ["b", "table", "linear", "trained", "-", digests[1]],
        ["c", "table", "linear", "stopped, step 1,234", "-", digests[2]],
        ["d", "table", "linear", "stale", "-", digests[3]],
        ["e", "table", "linear", "new", "-", digests[4]],
        [""],
        ["5 runs: 1 done, 1 trained, 1 stopped, 1 stale, 1 new"],
    ]


def test_ls_as_json(fake):
    fake.seal_all()
    records = json.loads(shardline("ls", "--json").stdout)
    run = fake.run("net")
    assert records[0] == {
        "run": "net", "names": ["net"], "id": run.id, "dataset": "rows",
        "model": "mypkg.models:Net", "state": "done", "step": None, "progress": None, "failure": None,
        "headline": {"metric": "accuracy", "mode": "max", "value": 0.9778}, "warnings": [],
        "folder": from_here(str(run.folder)), "mean": None, "bases": [],
    }  # fmt: skip


def test_ls_names_the_present_report(fake):
    report = fake.seal_all().report
    report.parent.mkdir(parents=True)
    report.write_text("page")
    assert shardline("ls").stdout.endswith(f"report: {from_here(str(report))}\n")


def test_ls_survives_a_damaged_evaluation(fake):
    fake.seal_all()
    fake.run("net").evaluation.write_text("{")
    result = shardline("ls")
    assert result.exit_code == 0
    assert "unreadable" in result.stdout.splitlines()[1]


def test_a_pipe_gets_whole_lines_however_long_the_name(fake):
    fake.rows[0]["name"] = "n" * 150
    fake.load()
    assert len(shardline("ls").stdout.splitlines()) == 5


# --- why --------------------------------------------------------------------------------------


def test_why_of_a_fresh_run_says_where_it_is(fake):
    fake.seal_all()
    result, run = shardline("why", "net"), fake.run("net")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"net ({run.id}) is fresh: nothing that it was made from has changed",
        f"  {from_here(str(run.model))}",
        f"  {from_here(str(run.evaluation))}",
    ]


def test_why_of_a_stale_run_groups_the_causes(fake):
    fake.seal_all()
    old = fake.run("net")
    fake.rows[0] |= {"optim.lr": 0.01, "seed": 2}
    fake.workspace.write("data/b.csv", "changed\n")
    run = fake.run("net")
    for wanted in ("net", run.id):
        result = shardline("why", wanted)
        assert result.exit_code == 0
        assert result.stdout.splitlines()[0] == f"net ({run.id}) is stale"
        assert result.stdout.splitlines()[1].startswith(
            f"compared with {from_here(str(old.folder))}/identity.json ("
        )
        assert lines(result)[3:] == [
            ["settings", "seed 1 -> 2"],
            ["optim.lr 0.1 -> 0.01"],
            ["dataset", "dataset rows: source bytes changed in b.csv"],
        ]


def test_why_as_json(fake):
    fake.seal_all()
    old = fake.run("net")
    fake.rows[0]["model_args.hidden"] = 64
    fake.load()
    assert json.loads(shardline("why", "net", "--json").stdout) == {
        "run": fake.run("net").id,
        "state": "stale",
        "compared_with": f"{from_here(str(old.folder))}/identity.json",
        "causes": [{"kind": "settings", "text": "model_args.hidden unset -> 64"}],
        "failure": None,
        "progress": None,
        "variables": [],
        "length": "",
        "edited": "",
    }


def test_why_in_the_other_states(fake):
    def verdict() -> str:
        fake.load()
        return shardline("why", "flat").stdout.splitlines()[0].partition(") ")[2]

    assert verdict() == "is new: no run was trained before"
    fake.seal_run(fake.run("net"))
    assert verdict() == "is new; differences from the nearest other run:"
    fake.begin_training(fake.run("flat"), steps=20)
    assert verdict() == "is not finished: training continues near step 20"
    fake.seal_run(fake.run("flat"))
    assert verdict() == "is trained, but was never evaluated"
    fake.seal_evaluation(fake.run("flat"))
    fake.config["defaults"]["evaluation"] = {"batch": 9}
    assert verdict() == "is trained, but its evaluation is stale"


def test_why_of_an_unknown_run_suggests_the_nearest(fake):
    fake.load()
    result = shardline("why", "nett")
    assert (result.exit_code, result.stderr) == (
        2,
        'the config names no run "nett"; did you mean "net"?\n',
    )
    assert (
        shardline("why", "zzz").stderr
        == 'the config names no run "zzz"; `shardline ls` lists them\n'
    )


def test_values_are_printed_as_they_are_and_never_as_markup(fake):
    fake.seal_all()
    fake.config["datasets"]["rows"]["source"]["options"] = {"tags": ["bold", ":car:"]}
    fake.load()
    assert 'source.options.tags unset -> ["bold", ":car:"]' in shardline("why", "net").stdout


def test_a_character_that_reorders_text_is_spelled_on_the_terminal(capsys):
    say("run a\u202eb")
    show_rows(("name",), [("c\u2067d",)])
    say_json({"name": "e\u202ef"})
    shown = capsys.readouterr().out
    assert "run a⟨U+202E⟩b\n" in shown
    assert "c⟨U+2067⟩d" in shown
    assert json.loads(shown[shown.index("{") :]) == {"name": "e\u202ef"}
    assert not re.search("[\u202e\u2067]", shown)
    error = shardline("digest", "no\u202ething").stderr
    assert "no⟨U+202E⟩thing" in error


@pytest.mark.parametrize("columns", ["40", "120"])
def test_metrics_of_any_name_are_listed_and_compared(fake, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    fake.rows.append({**fake.rows[1], "name": "other", "seed": 9})
    names = ["test/acc", "loss [train]", "a.b (c) {d}"]
    project = fake.load().named_runs()
    for name, value in (("flat", 0.5), ("other", 0.75)):
        fake.seal_run(project[name])
        headline = {"metric": names[0], "value": value, "mode": "max"}
        document = {
            "run": project[name].id, "headline": headline, "metrics": dict.fromkeys(names, value),
            "identity": project[name].evaluation_document,
        }  # fmt: skip
        write_json(project[name].evaluation, seal(document))
    listed, compared = shardline("ls"), shardline("diff", "flat", "other")
    assert (listed.exit_code, compared.exit_code) == (0, 0)
    if columns == "120":
        assert "test/acc 0.75" in listed.stdout
    for name in names:
        assert name in " ".join(compared.stdout.split())
