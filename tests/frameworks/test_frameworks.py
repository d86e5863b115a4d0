"""Programs of each framework under the real Snakemake on two ranks, in every place that starts them."""

import sys

import pytest
import yaml

from tests.hosts.test_hosts import documented_profile
from tests.support.frameworks import FRAMEWORKS, LAUNCHERS, assert_same
from tests.support.slurm.pipeline import FAST, SHIPPED
from tests.support.workspace import REPOSITORY


@pytest.mark.rotating
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_killed_and_stopped_program_ends_as_an_uninterrupted_one_by_the_samples_of_lightning(
    framework, on_one_machine, record
):
    record(framework, "one machine", LAUNCHERS[framework][0])
    project = on_one_machine(framework)
    assert "runtime.watch_reads=warn" not in project.logs(), "each file that is read counts"
    whole, broken = project.trained("whole"), project.trained("broken")
    assert whole.ends == [("sealed", 0)]
    assert whole.accuracy > 0.9, "of 0.1 by chance"
    assert broken.ends == [("failed", 1), ("stopped", 75), ("sealed", 0)]
    assert "was ended by SIGKILL" in broken.reasons
    assert "saved at step 15" in broken.reasons
    assert_same(broken, whole)
    of_lightning = project.trained("lightning").ledger
    assert len(of_lightning) == 44, "an epoch"
    assert {step: rows for step, rows in whole.ledger.items() if step <= 44} == of_lightning


OVER_SSH = [(name, launcher) for name in FRAMEWORKS for launcher in LAUNCHERS[name]]


@pytest.mark.places
@pytest.mark.parametrize(("framework", "launcher"), OVER_SSH)
def test_two_hosts_give_what_one_machine_gives(
    framework, launcher, lan, on_one_machine, tmp_path, record
):
    record(framework, "two hosts", launcher)
    local = on_one_machine(framework)
    project = local.copy(tmp_path / framework)
    project.configure({"whole": "script: train.py"}, nodes=2, runtime={"launcher": launcher})
    (tmp_path / "hosts").mkdir()
    profile = documented_profile(tmp_path / "hosts", launcher)
    done = lan["host-a"].run(*project.command(profile), cwd=project.path, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + project.logs()
    trained = project.trained("whole")
    assert trained.hosts == ["host-a", "host-b"]
    assert_same(trained, local.trained("whole"))


@pytest.mark.places
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_two_nodes_of_slurm_give_what_one_machine_gives(
    framework, slurm, on_one_machine, tmp_path, record
):
    local = on_one_machine(framework)
    project = local.copy(tmp_path / framework)
    launcher = "mpirun" if LAUNCHERS[framework] == ("mpirun",) else "srun"
    record(framework, "Slurm", launcher)
    project.configure({"whole": "script: train.py"}, nodes=2, runtime={"launcher": launcher})
    profile = yaml.safe_load(SHIPPED.read_text())
    profile["config"]["runtime"]["launcher"] = launcher
    profile["default-resources"]["mem_mb"] = 1000
    profile["set-resources"]["train"]["mem_mb"] = 3000
    project.workspace.write("slurm/profile.yaml", yaml.safe_dump({**profile, **FAST}))
    fast = REPOSITORY / "tests/support/slurm/snakemake_fast.py"
    command = [sys.executable, str(fast), "--profile", str(project.path / "slurm")]
    done = slurm.login.run(*command, cwd=project.path, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + project.logs()
    trained = project.trained("whole")
    assert trained.hosts == ["n1", "n2"]
    assert_same(trained, local.trained("whole"))
