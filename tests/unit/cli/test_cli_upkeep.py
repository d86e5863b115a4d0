"""`shardline gc` and `shardline verify` as their user meets them."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shardline.core.files import write_json
from tests.support.command_line import lines, shardline
from tests.support.fake_project import DIGEST

# --- gc ---------------------------------------------------------------------------------------


def test_gc_lists_and_deletes_nothing(fake):
    fake.seal_all()
    fake.remember("run", "old")
    fake.workspace.write(f"store/work/{DIGEST}/f", "x" * 2000)
    result = shardline("gc")
    assert result.exit_code == 0
    assert lines(result) == [
        ["path", "size", "written", "reason"],
        [f"store/work/{DIGEST}", "2.0 kB", "just now", "old, no longer in the config"],
        [""],
        ["1 item, 2.0 kB; `shardline gc --delete` deletes them"],
    ]
    assert Path(f"store/work/{DIGEST}/f").exists()


def test_gc_of_a_clean_project(fake):
    fake.seal_all()
    for arguments in (("gc",), ("gc", "--delete")):
        result = shardline(*arguments)
        assert (result.exit_code, result.stdout) == (
            0,
            "Nothing to delete: the config uses all files.\n",
        )


def test_gc_keeps_what_the_config_names_and_no_run_uses(fake):
    fake.seal_all()
    fake.rows[0]["dataset"] = "table"
    fake.load()
    items = json.loads(shardline("gc", "--json").stdout)["items"]
    assert [item["reason"] for item in items] == ["earlier net"]


def test_gc_points_out_models_that_have_no_successor(fake):
    fake.seal_all()
    fake.rows[1]["seed"] = 2
    fake.load()
    assert (
        "the list contains the only trained models of flat, which are stale"
        in shardline("gc").stdout
    )


def test_gc_delete_with_yes_says_what_it_freed(fake):
    fake.seal_all()
    fake.remember("run", "old")
    fake.workspace.write(f"store/work/{DIGEST}/f", "x" * 2000)
    result = shardline("gc", "--delete", "--yes")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "freed 2,000 bytes (2.0 kB)"
    assert not Path(f"store/work/{DIGEST}").exists()
    assert fake.run("net").is_sealed


def test_gc_delete_deletes_nothing_unasked(fake):
    fake.load()
    fake.remember("run", "old")
    fake.workspace.write(f"store/work/{DIGEST}/f", "x")
    result = shardline("gc", "--delete")
    assert (result.exit_code, result.stderr) == (
        1,
        "gc --delete asks before it deletes, but standard input is not a terminal; add --yes\n",
    )
    assert Path(f"store/work/{DIGEST}/f").exists()


@pytest.mark.parametrize(("answer", "code"), [("n", 1), ("y", 0)])
def test_gc_delete_asks_on_a_terminal(fake, answer, code):
    fake.load()
    fake.remember("run", "old")
    fake.workspace.write(f"store/work/{DIGEST}/f", "x")
    command = [sys.executable, "-c", "from shardline.cli import main; main()", "gc", "--delete"]
    master, slave = pty.openpty()
    try:
        os.write(master, f"{answer}\n".encode())
        done = subprocess.run(command, stdin=slave, capture_output=True, check=False, timeout=300)
    finally:
        os.close(master)
        os.close(slave)
    assert done.returncode == code
    assert Path(f"store/work/{DIGEST}").exists() is (answer == "n")


def test_gc_refuses_to_delete_under_a_running_snakemake(fake):
    fake.load()
    fake.remember("run", "old")
    fake.workspace.write(f"store/work/{DIGEST}/f", "x")
    fake.workspace.write(".snakemake/locks/0.input.lock", "")
    result = shardline("gc", "--delete", "--yes")
    assert result.exit_code == 1
    assert result.stderr.startswith(".snakemake/locks/0.input.lock exists")
    assert Path(f"store/work/{DIGEST}/f").exists()
    assert shardline("gc").exit_code == 0


def test_gc_as_json(fake):
    fake.load()
    fake.remember("run", "old")
    fake.workspace.write(f"store/work/{DIGEST}/f", "xyz")
    document = json.loads(shardline("gc", "--json").stdout)
    assert (document["deleted"], document["bytes"]) == (False, 3)
    assert document["items"][0]["path"] == f"store/work/{DIGEST}"
    assert json.loads(shardline("gc", "--delete", "--yes", "--json").stdout)["deleted"] is True
    assert not Path(f"store/work/{DIGEST}").exists()


# --- verify -----------------------------------------------------------------------------------


def test_verify_takes_all_that_exists_of_the_config(fake):
    fake.rows.append({**fake.rows[1], "name": "untrained", "seed": 3})
    fake.load()
    assert (
        shardline("verify").stdout
        == "Nothing to verify: nothing that the config names exists yet.\n"
    )
    fake.seal_all()
    write_json(Path(f"results/runs/{DIGEST}/run.json"), {})
    result = shardline("verify")
    assert result.exit_code == 0
    assert [line[:2] for line in lines(result)[:-2]] == [
        ["ok", kind] for kind in ("dataset",) * 2 + ("run",) * 3 + ("names",)
    ]
    assert lines(result)[-1] == ["6 verified, none with problems"]


def test_verify_ends_with_code_3_and_names_the_file(fake):
    fake.seal_all()
    shard = Path("store/datasets") / fake.run("flat").dataset.id / "shard-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"!")
    result = shardline("verify")
    assert result.exit_code == 3
    assert re.search(rf"^BAD +dataset +table \({shard.parent.name}\)", result.stdout, re.MULTILINE)
    assert f"     {shard} has BLAKE3 digest" in result.stdout
    assert result.stdout.endswith("\n5 verified, 1 with problems\n")
    assert shardline("verify", "rows", "net").exit_code == 0
    assert shardline("verify", "table").exit_code == 3


def test_verify_takes_names_and_ids_of_present_and_earlier_things(fake):
    fake.seal_all()
    old = fake.run("flat")
    fake.rows[1]["seed"] = 2
    fake.load()
    result = shardline("verify", old.id, old.dataset.id, "table", "net")
    titles = [f"table ({old.dataset.id})", f"flat ({old.id})", f"net ({fake.run('net').id})"]
    assert [line[2] for line in lines(result)[:-2]] == titles
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
