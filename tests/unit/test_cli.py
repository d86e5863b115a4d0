"""The `shardline` command as its user meets it: what it prints, and its exit codes."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from shardline import __version__
from shardline.cli import EXIT_CODES, app
from shardline.files import write_json
from tests.unit.conftest import DIGEST

COMMANDS = ("ls", "why", "gc", "verify")


def shardline(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def help_of(*command: str) -> str:
    """Return a help text without colours, which typer forces in some CI services."""
    result = shardline(*command, "--help")
    assert result.exit_code == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", result.stdout)


def lines(result: Result) -> list[list[str]]:
    """Return each line's cells."""
    return [re.split(r"\s{2,}", line.strip()) for line in result.stdout.splitlines()]


# --- the command as a whole -------------------------------------------------------------------


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_every_help_names_every_exit_code(command):
    text = help_of(*command)
    for code, meaning in EXIT_CODES.items():
        assert f"{code}  {meaning}" in text


def test_the_general_help_names_every_command():
    assert all(f" {name} " in help_of() for name in COMMANDS)


def test_the_documentation_names_every_command_and_exit_code():
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    assert all(f"## `shardline {name}" in page for name in COMMANDS)
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
    assert result.stderr.startswith('config/runs.tsv row 1 (run "net"): optim.lr=')
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


def test_no_command_imports_torch(fake):
    fake.seal_all()
    program = (
        "import sys; from shardline.cli import app\n"
        "for command in ('--help', 'ls', 'why net', 'gc', 'verify'):\n"
        "    app(command.split(), standalone_mode=False)\n"
        "    assert not {'torch', 'pytorch_lightning'} & sys.modules.keys(), command"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=300)
    assert done.returncode == 0


# --- ls ---------------------------------------------------------------------------------------


def test_ls_shows_every_state(fake):
    fake.rows = [{**fake.rows[1], "name": name} for name in ("a", "b", "c", "d", "e")]
    for name in ("a", "b", "d"):
        fake.seal_run(fake.run(name))
    fake.seal_evaluation(fake.run("a"), accuracy=0.97777)
    fake.begin_training(fake.run("c"), steps=1234)
    fake.rows[3]["seed"] = 5
    fake.load()
    result = shardline("ls")
    digests = [run.digest for run in fake.load().runs.values()]
    assert lines(result) == [
        ["run", "dataset", "model", "state", "headline", "identity"],
        ["a", "table", "linear", "done", "accuracy 0.9778", digests[0]],
        ["b", "table", "linear", "trained", "-", digests[1]],
        ["c", "table", "linear", "in progress, step 1,234", "-", digests[2]],
        ["d", "table", "linear", "stale", "-", digests[3]],
        ["e", "table", "linear", "new", "-", digests[4]],
        [""],
        ["5 runs: 1 done, 1 trained, 1 in progress, 1 stale, 1 new"],
    ]


def test_ls_as_json(fake):
    fake.seal_all()
    records = json.loads(shardline("ls", "--json").stdout)
    run = fake.run("net")
    assert records[0] == {
        "run": "net", "id": run.id, "identity": run.digest, "dataset": "rows",
        "model": "mypkg.models:Net", "state": "done", "step": None,
        "headline": {"metric": "accuracy", "value": 0.9778}, "folder": str(run.folder),
    }  # fmt: skip


def test_ls_names_the_present_report(fake):
    report = fake.seal_all().report
    report.parent.mkdir(parents=True)
    report.write_text("page")
    assert shardline("ls").stdout.endswith(f"report: {report}\n")


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
        f"{run.id} is fresh: nothing that it was made from has changed",
        f"  {run.folder}/model.safetensors",
        f"  {run.evaluation}",
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
        assert result.stdout.splitlines()[0] == f"{run.id} is stale"
        assert result.stdout.splitlines()[1].startswith(
            f"compared with {old.folder}/identity.json ("
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
        "compared_with": f"{old.folder}/identity.json",
        "causes": [{"kind": "settings", "text": "model_args.hidden unset -> 64"}],
    }


def test_why_in_the_other_states(fake):
    def verdict() -> str:
        fake.load()
        return shardline("why", "flat").stdout.splitlines()[0].partition(" ")[2]

    assert verdict() == "is new: nothing was trained before"
    fake.seal_run(fake.run("net"))
    assert verdict() == "is new; the nearest other run differs in this"
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


# --- gc ---------------------------------------------------------------------------------------


def test_gc_lists_and_deletes_nothing(fake):
    fake.seal_all()
    fake.workspace.write(f"store/work/old-{DIGEST}/f", "x" * 2000)
    result = shardline("gc")
    assert result.exit_code == 0
    assert lines(result) == [
        ["path", "size", "written", "why it may go"],
        [f"store/work/old-{DIGEST}", "2.0 kB", "just now", "no longer in the config"],
        [""],
        ["1 item, 2.0 kB; `shardline gc --delete` deletes them"],
    ]
    assert Path(f"store/work/old-{DIGEST}/f").exists()


def test_gc_of_a_clean_project(fake):
    fake.seal_all()
    for arguments in (("gc",), ("gc", "--delete")):
        result = shardline(*arguments)
        assert (result.exit_code, result.stdout) == (
            0,
            "Nothing to delete: the config names all that is there.\n",
        )


def test_gc_keeps_what_the_config_names_and_no_run_uses(fake):
    fake.seal_all()
    fake.rows[0]["dataset"] = "table"
    fake.load()
    items = json.loads(shardline("gc", "--json").stdout)["items"]
    assert [item["path"].rpartition("-")[0] for item in items] == ["results/runs/net"]


def test_gc_points_out_models_that_have_no_successor(fake):
    fake.seal_all()
    fake.rows[1]["seed"] = 2
    fake.load()
    assert "among them the only trained models of flat, which are stale" in shardline("gc").stdout


def test_gc_delete_with_yes_says_what_it_freed(fake):
    fake.seal_all()
    fake.workspace.write(f"store/work/old-{DIGEST}/f", "x" * 2000)
    result = shardline("gc", "--delete", "--yes")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "freed 2,000 bytes (2.0 kB)"
    assert not Path(f"store/work/old-{DIGEST}").exists()
    assert fake.run("net").is_sealed


def test_gc_delete_deletes_nothing_unasked(fake):
    fake.load()
    fake.workspace.write(f"store/work/old-{DIGEST}/f", "x")
    result = shardline("gc", "--delete")
    assert (result.exit_code, result.stderr) == (
        1,
        "gc --delete asks before it deletes and here is nobody to ask; add --yes\n",
    )
    assert Path(f"store/work/old-{DIGEST}/f").exists()


@pytest.mark.parametrize(("answer", "code"), [("n", 1), ("y", 0)])
def test_gc_delete_asks_on_a_terminal(fake, answer, code):
    fake.load()
    fake.workspace.write(f"store/work/old-{DIGEST}/f", "x")
    command = [sys.executable, "-c", "from shardline.cli import main; main()", "gc", "--delete"]
    master, slave = pty.openpty()
    try:
        os.write(master, f"{answer}\n".encode())
        done = subprocess.run(command, stdin=slave, capture_output=True, check=False, timeout=300)
    finally:
        os.close(master)
        os.close(slave)
    assert done.returncode == code
    assert Path(f"store/work/old-{DIGEST}").exists() is (answer == "n")


def test_gc_refuses_to_delete_under_a_running_snakemake(fake):
    fake.load()
    fake.workspace.write(f"store/work/old-{DIGEST}/f", "x")
    fake.workspace.write(".snakemake/locks/0.input.lock", "")
    result = shardline("gc", "--delete", "--yes")
    assert result.exit_code == 1
    assert result.stderr.startswith(".snakemake/locks/0.input.lock exists")
    assert Path(f"store/work/old-{DIGEST}/f").exists()
    assert shardline("gc").exit_code == 0


def test_gc_as_json(fake):
    fake.load()
    fake.workspace.write(f"store/work/old-{DIGEST}/f", "xyz")
    document = json.loads(shardline("gc", "--json").stdout)
    assert (document["deleted"], document["bytes"]) == (False, 3)
    assert document["items"][0]["path"] == f"store/work/old-{DIGEST}"
    assert json.loads(shardline("gc", "--delete", "--yes", "--json").stdout)["deleted"] is True
    assert not Path(f"store/work/old-{DIGEST}").exists()


# --- verify -----------------------------------------------------------------------------------


def test_verify_takes_all_that_exists_of_the_config(fake):
    fake.rows.append({**fake.rows[1], "name": "untrained", "seed": 3})
    fake.load()
    assert (
        shardline("verify").stdout
        == "Nothing to verify: nothing that the config names exists yet.\n"
    )
    fake.seal_all()
    write_json(Path(f"results/runs/old-{DIGEST}/run.json"), {})
    result = shardline("verify")
    assert result.exit_code == 0
    assert [line[:2] for line in lines(result)[:-2]] == [
        ["ok", kind] for kind in ("dataset",) * 2 + ("run",) * 3
    ]
    assert lines(result)[-1] == ["5 verified, none with problems"]


def test_verify_ends_with_code_3_and_names_the_file(fake):
    fake.seal_all()
    shard = Path("store/datasets") / fake.run("flat").dataset.id / "shard-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"!")
    result = shardline("verify")
    assert result.exit_code == 3
    assert re.search(rf"^BAD +dataset +{shard.parent.name}", result.stdout, re.MULTILINE)
    assert f"     {shard} has BLAKE3 digest" in result.stdout
    assert result.stdout.endswith("\n4 verified, 1 with problems\n")
    assert shardline("verify", "rows", "net").exit_code == 0
    assert shardline("verify", "table").exit_code == 3


def test_verify_takes_names_and_ids_of_present_and_earlier_things(fake):
    fake.seal_all()
    old = fake.run("flat")
    fake.rows[1]["seed"] = 2
    fake.load()
    result = shardline("verify", old.id, old.dataset.id, "table", "net")
    assert [line[2] for line in lines(result)[:-2]] == [old.dataset.id, old.id, fake.run("net").id]
    assert result.exit_code == 0


def test_verify_of_something_unknown_suggests_the_nearest(fake):
    fake.load()
    result = shardline("verify", "tables")
    assert (result.exit_code, result.stderr) == (
        2,
        'the config names no run or dataset "tables"; did you mean "table"?\n',
    )


def test_verify_of_a_named_run_that_is_not_there_is_a_problem(fake):
    fake.load()
    result = shardline("verify", "net")
    assert result.exit_code == 3
    assert "run.json cannot be read (No such file or directory)" in result.stdout


def test_verify_as_json(fake):
    fake.seal_all()
    (fake.run("net").folder / "metrics.jsonl").write_text("{")
    result = shardline("verify", "net", "flat", "--json")
    assert result.exit_code == 3
    first, second = json.loads(result.stdout)
    assert (first["kind"], first["id"], len(first["problems"])) == ("run", fake.run("net").id, 2)
    assert second["problems"] == []
