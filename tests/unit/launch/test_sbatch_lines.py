"""What reaches sbatch: the plugin's own line for a run's resources and the shipped profile, held by a file each."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from snakemake_executor_plugin_slurm.submit_string import get_submit_command
from snakemake_executor_plugin_slurm.utils import set_gres_string

from shardline.config.settings.config import Runtime
from shardline.config.settings.run_settings import RunSettings
from shardline.launch.request import requested

REPOSITORY = Path(__file__).parents[3]
GOLDEN = REPOSITORY / "tests" / "golden" / "sbatch"
PROFILE = yaml.safe_load((REPOSITORY / "profiles" / "slurm" / "profile.yaml").read_text())
PARAMS = {
    "run_uuid": "uuid", "slurm_logfile": "logs/%j.log", "comment_str": "rule_train", "workdir": ".",
    "account": "-A mine", "partition": "-p main",
}  # fmt: skip


class Resources(dict):
    """A job's resources, as Snakemake's: keys are attributes too."""

    __getattr__ = dict.__getitem__


def sbatch_line(launcher, nodes, devices, accelerator="cpu", **changes):
    settings = RunSettings(nodes=nodes, devices=devices, accelerator=accelerator)
    asked = requested(settings, Runtime(launcher=launcher, threads_per_rank=3))
    general = {**PROFILE["default-resources"], **PROFILE["set-resources"]["train"]}
    general = {
        key: str(value).strip("'") if key == "slurm_extra" else value
        for key, value in general.items()
    }
    job = SimpleNamespace(resources=Resources({**general, **asked, **changes}), threads=1)
    owner = SimpleNamespace(
        requeue=PROFILE["slurm-requeue"], no_requeue=False, qos=None, reservation=None
    )
    return get_submit_command(job, PARAMS, settings=owner) + set_gres_string(job)


CASES = {
    "one-rank": ("torchrun", 1, 1),
    "one-node-torchrun": ("torchrun", 1, 4),
    "one-node-srun": ("srun", 1, 4),
    "two-nodes-torchrun": ("torchrun", 2, 4),
    "two-nodes-srun": ("srun", 2, 4),
    "two-nodes-mpirun": ("mpirun", 2, 4),
    "four-nodes-of-one": ("srun", 4, 1),
    "gpus-srun": ("srun", 2, 4, "gpu"),
    "gpus-torchrun": ("torchrun", 2, 4, "gpu"),
    "gpus-one-node": ("torchrun", 1, 4, "gpu"),
}


@pytest.mark.parametrize("case", CASES)
def test_sbatch_lines(case, golden):
    line = re.sub(r" (?=-)", "\n", sbatch_line(*CASES[case])) + "\n"
    golden(GOLDEN / f"{case}.txt", line)


def test_every_case_is_held():
    assert {path.stem for path in GOLDEN.iterdir()} == set(CASES)


def test_the_commented_form_for_gpus_per_task():
    """What docs and profile advise to a site that grants GPUs by task only."""
    extra = "--open-mode=append --gpus-per-task=1"
    line = sbatch_line("srun", 2, 4, "gpu", gres="", slurm_extra=extra)
    assert "--gres" not in line
    assert "--nodes=2" in line
    assert "--ntasks-per-node=4" in line
    assert "--gpus-per-task=1" in line


def test_slurm_is_the_one_owner_of_retries():
    assert " --requeue " in sbatch_line("srun", 2, 4)
    assert (PROFILE["retries"], PROFILE["slurm-requeue"]) == (0, True)
