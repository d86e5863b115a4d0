"""`runtime.pass_env`: the ranks get values that no command line holds."""

import os
import subprocess
from dataclasses import replace

import pytest

from shardline.config.settings.config import Runtime
from shardline.launch.commands import LaunchPlan, launch_command
from shardline.launch.exit_on_stdin_close import READ_VARIABLES

PLAN = LaunchPlan(run_id="r-0123456789ab", nodes=2, devices=1, hosts=("a", "b"), port=29500)


@pytest.mark.parametrize("launcher", ["none", "torchrun", "mpirun"])
def test_a_launcher_gets_the_name_and_not_the_value(launcher, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "geh3im-value")
    command = launch_command(
        launcher, ["-m", "x"], replace(PLAN, runtime=Runtime(pass_env=["HF_TOKEN"]))
    )
    assert "HF_TOKEN" in " ".join(command)
    assert "geh3im" not in " ".join(command)
    assert "HF_TOKEN" not in " ".join(launch_command(launcher, ["-m", "x"], PLAN))


def test_listed_hosts_get_the_values_by_the_input_of_the_remote_shell(tmp_path):
    """The whole way, with a remote shell that runs the command here and notes its words."""
    shell = tmp_path / "shell"
    shell.write_text(
        f"""#!/bin/sh\nprintf "%s\\n" "$*" >> '{tmp_path}/words'\nshift\nexec sh -c "$*"\n"""
    )
    shell.chmod(0o755)
    show = f"import os; open('{tmp_path}/' + os.environ['RANK'], 'w').write(os.environ['HF_TOKEN'])"
    plan = replace(PLAN, runtime=Runtime(pass_env=["HF_TOKEN"], remote_shell=str(shell)))
    command = launch_command("none", ["-c", show], plan)
    env = {**os.environ, "HF_TOKEN": 'geh3im "value" \\ ü'}
    subprocess.run(command, env=env, check=True, timeout=300)
    assert [(tmp_path / rank).read_text() for rank in "01"] == [env["HF_TOKEN"]] * 2
    assert "geh3im" not in (tmp_path / "words").read_text()
    assert READ_VARIABLES in (tmp_path / "words").read_text()
