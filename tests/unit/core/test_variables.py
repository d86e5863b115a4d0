"""No variable of the shell changes what is trained, evaluated or counted."""

import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import pytorch_lightning as pl
from msgspec import convert
from pytorch_lightning.callbacks import Callback

from shardline.config.checks import check_environment
from shardline.config.resolved import ActualGeometry
from shardline.config.settings.config import Runtime
from shardline.core import lightning_compat as compat
from shardline.core import variables
from shardline.core.errors import ConfigError
from shardline.core.rank_environment import rank_variables
from shardline.launch.commands import LaunchPlan, launch_command
from shardline.launch.start import prepare_start
from shardline.pipeline.hooks import open_project
from shardline.records.trainings import TrainingProvenance
from shardline.results import diff
from shardline.training.rank_task import write_task
from tests.support.evaluated_model import Rows, evaluated
from tests.support.simulated_kills import Case, Trainings, build_trainings
from tests.support.workspace import REPOSITORY
from tests.unit.training.test_evaluate_steps import TABLE, Tested

COUNTING = Case(name="Counting", model="tests.support.killed_models:Counting")
ARGUMENTS = inspect.signature(pl.Trainer).parameters
# what changes most about a training; an argument that is not listed gets 1
NASTY = {
    "accelerator": "tpu", "strategy": "ddp_spawn", "devices": "7", "num_nodes": "3", "precision": "bf16-true",
    "fast_dev_run": "1", "max_epochs": "1", "max_time": "00:00:00:00", "overfit_batches": "2",
    "gradient_clip_val": "0.001", "gradient_clip_algorithm": "value", "accumulate_grad_batches": "2",
    "max_steps": "2", "inference_mode": "False", "num_sanity_val_steps": "-1", "val_check_interval": "2",
    "profiler": "simple", "default_root_dir": "/proc/none", "callbacks": "x", "plugins": "x", "logger": "True",
    "model_registry": "x",
}  # fmt: skip


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    return build_trainings(tmp_path_factory.mktemp("project") / "tiny")


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A shell with a variable for every argument of the installed Trainer, and the rest of Lightning's."""
    found = {f"PL_TRAINER_{name.upper()}": NASTY.get(name, "1") for name in ARGUMENTS}
    found |= {"PL_GLOBAL_SEED": "77", "PL_SEED_WORKERS": "0"}
    found |= {f"LT_{name}": "1" for name in ("CLI_USED", "DEVICES", "NUM_NODES")}
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


def test_a_trainer_gets_each_argument_of_the_installed_signature(monkeypatch):
    given = {}

    def init(self, **arguments):
        given.update(arguments)

    init.__signature__ = inspect.signature(pl.Trainer.__init__)
    monkeypatch.setattr(pl.Trainer, "__init__", init)
    compat.new_trainer(max_epochs=7)
    assert given == {name: one.default for name, one in ARGUMENTS.items()} | {"max_epochs": 7}


def test_every_argument_in_the_shell_changes_no_bit_of_a_training(trainings, shell, monkeypatch):
    with_shell = Trainings(trainings._spec, trainings._data)
    found, _ = with_shell.unbroken(COUNTING)
    for name in shell:
        monkeypatch.delenv(name, raising=False)
    expected, _ = trainings.unbroken(COUNTING)
    assert found.differences(expected) == []


def test_every_argument_in_the_shell_changes_no_evaluation(tmp_path, shell, monkeypatch):
    found, _ = evaluated(tmp_path / "a", Rows(**TABLE), model_class=Tested, batch=16)
    for name in shell:
        monkeypatch.delenv(name, raising=False)
    expected, _ = evaluated(tmp_path / "b", Rows(**TABLE), model_class=Tested, batch=16)
    assert found == expected
    assert found["num_samples"] > 16


@pytest.mark.parametrize("group", compat.FACTORIES)
def test_callbacks_of_installed_packages_are_named_and_left_out(
    group, monkeypatch, capsys, request
):
    def points(*, group):
        known = EntryPoint(name="spy", value="spy:make", group=group)
        return [known] if group == known_group else []

    known_group = group
    monkeypatch.setattr(compat, "entry_points", points)
    compat.callback_factories.cache_clear()
    request.addfinalizer(compat.callback_factories.cache_clear)
    monkeypatch.setattr("lightning_fabric.utilities.registry.entry_points", points)
    trainer = compat.new_trainer(
        logger=False, enable_checkpointing=False, accelerator="cpu", callbacks=[Callback()]
    )
    assert "spy:make" in capsys.readouterr().out
    assert len(trainer.callbacks) == 3  # with Lightning's bar and summary


def test_there_is_one_constructor_of_trainers():
    made = re.compile(r"\b(?:(?:pl|pytorch_lightning|lightning)\.|return _)Trainer\(")
    files = (REPOSITORY / "src").rglob("*.py")
    assert [one.name for one in files if made.search(one.read_text())] == ["lightning_compat.py"]


# the table


def test_the_docs_show_the_table():
    text = (REPOSITORY / "docs/reference/variables.md").read_text()
    for kind in ("removed", "set", "recorded", "harmless"):
        section = text.partition(f"\n## {kind.capitalize()}\n")[2].partition("\n## ")[0]
        shown = [line for line in section.splitlines() if line.startswith("|")]
        rows = [
            f"| {' '.join(f'`{name}`' for name in sorted(row.names))} | {row.reason} |"
            for row in variables.TABLE
            if row.kind == kind
        ]
        assert shown == ["| variables | why |", "| --- | --- |", *rows]


# what these packages read that tells a process its place, or what a logger or a test is to do
_ELSEWHERE = re.compile(
    r"(COMET|WANDB|MLFLOW|SLURM|LSB|LSF|JSM|KUBERNETES|XLA|PT_XLA|OMPI_COMM_WORLD|SM|HYDRA|COLAB|CI|KUBEFLOW)_?\w*|MASTER_\w+"
    r"|(LOCAL_|NODE_|GROUP_)?RANK|(LOCAL_)?WORLD_SIZE|STANDALONE_PORT|TORCHELASTIC_\w+|DISABLE_MPS|BITSANDBYTES_\w+"
    r"|DOCTEST_\w+|SKIP_SLOW_DOCTEST|FREEZE_REQUIREMENTS|LIGHTING_TESTING|PATH|HOME|TVM_\w+|CUDA_VISIBLE_DEVICES"
)
_READS = re.compile(r"(?:environ(?:\.get|\.setdefault|\.pop)?[\[(]|getenv\()\s*[\"'](\w+)")


@pytest.mark.parametrize(
    "package", ["pytorch_lightning", "lightning_fabric", "torchmetrics", "safetensors"]
)
def test_each_variable_that_an_installed_package_reads_has_a_row(package):
    folder = Path(importlib.util.find_spec(package).origin).parent
    read = {name for one in folder.rglob("*.py") for name in _READS.findall(one.read_text("utf-8"))}
    unknown = {one for one in read if not variables.row_of(one) and not _ELSEWHERE.fullmatch(one)}
    assert unknown == set(), "look at what they do, and give each a row in core/variables.py"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("PL_TRAINER_MAX_STEPS", "removed"), ("TORCHDYNAMO_DISABLE", "removed"), ("TORCH_LOGS_OUT", "harmless"),
        ("ONEDNN_DEFAULT_FPMATH_MODE", "removed"), ("ONEDNN_MAX_CPU_ISA", "recorded"), ("PYTHONHASHSEED", "set"),
        ("TORCH_NCCL_BLOCKING_WAIT", "recorded"), ("TORCH_NCCL_TRACE_BUFFER_SIZE", "harmless"), 
        ("MKL_CBWR", "recorded"), ("OMP_STACKSIZE", "harmless"), ("TORCHINDUCTOR_CACHE_DIR", "harmless"),
    ],
)  # fmt: skip
def test_the_longest_name_that_fits_decides(name, kind):
    assert variables.row_of(name).kind == kind
    assert variables.row_of("EDITOR") is None


def test_ranks_get_no_variable_that_changes_numbers_but_the_profiles_own():
    shell = {
        "PL_TRAINER_MAX_STEPS": "3",
        "TORCH_COMPILE_DISABLE": "1",
        "NVIDIA_TF32_OVERRIDE": "1",
        "LT_DEVICES": "9",
    }
    shell |= {"PATH": "/bin", "PYTHONHASHSEED": "7", "PYTHONOPTIMIZE": "1", "MKL_CBWR": "AVX2"}
    start = prepare_start(
        ["-m", "x"], run_id="r-0123456789ab", geometry=ActualGeometry(nodes=1, devices=2), accelerator="cpu",
        runtime=Runtime(variables={"NVIDIA_TF32_OVERRIDE": 0}), env=shell, num_cpus=2,
    )  # fmt: skip
    assert not {"PL_TRAINER_MAX_STEPS", "TORCH_COMPILE_DISABLE", "LT_DEVICES"} & start.env.keys()
    kept = {
        name: start.env[name]
        for name in ("PYTHONHASHSEED", "PYTHONOPTIMIZE", "MKL_CBWR", "NVIDIA_TF32_OVERRIDE")
    }
    assert list(kept.values()) == ["0", "", "AVX2", "0"]
    ranks = {**start.env, "TORCH_FROM_A_NODES_PROFILE": "1"}  # as a rank finds it
    assert variables.clean(ranks) == ["TORCH_FROM_A_NODES_PROFILE"]
    assert ranks["NVIDIA_TF32_OVERRIDE"] == "0"
    assert set(start.plan.variables) > {
        *variables.OF_PYTHON,
        variables.GIVEN,
    }  # by name, to all other machines


@pytest.mark.parametrize(
    "name", ["PYTHONHASHSEED", "PYTHONOPTIMIZE", "PL_TRAINER_MAX_STEPS", "LT_DEVICES"]
)
def test_a_profile_that_would_change_what_is_trained_is_refused(name):
    with pytest.raises(
        ConfigError, match=f"config.yaml: runtime.variables sets {name}, .*; remove {name}, and use"
    ):
        check_environment(Runtime(variables={name: 5}), "config.yaml")


def test_listed_hosts_start_python_with_the_fixed_hash_seed(tmp_path):
    """A remote shell whose own profile sets others; each rank's program verifies its interpreter."""
    shell = tmp_path / "shell"
    shell.write_text(
        '#!/bin/sh\nshift\nexport PYTHONHASHSEED=7 PYTHONOPTIMIZE=1\nexec sh -c "$*"\n'
    )
    shell.chmod(0o755)
    show = (
        "import os; from shardline.core.variables import check_python; check_python(); "
        f"open('{tmp_path}/' + os.environ['RANK'], 'w').write(str(hash('text')))"
    )
    given = rank_variables(1, {}, "")
    plan = LaunchPlan(
        run_id="r-0123456789ab", nodes=2, devices=1, hosts=("a", "b"), port=29500, variables=(*given,),
        runtime=Runtime(remote_shell=str(shell)),
    )  # fmt: skip
    command = launch_command("none", ["-c", show], plan)
    subprocess.run(command, env={**os.environ, **given}, check=True, timeout=300)
    assert len({(tmp_path / rank).read_text() for rank in "01"}) == 1


def test_a_rank_whose_hash_seed_was_lost_is_refused():
    program = "from shardline.core.variables import check_python; check_python()"
    for env, lost in (
        ({"PYTHONHASHSEED": "7"}, "PYTHONHASHSEED=0"),
        ({"PYTHONHASHSEED": "0", "PYTHONOPTIMIZE": "2"}, "PYTHONOPTIMIZE=,"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
        )
        assert f"started without {lost}" in done.stderr


def test_secrets_are_not_recorded_and_comparisons_show_no_places():
    env = {
        "HF_TOKEN": "s3cret",
        "TORCH_SECRET": "s3cret",
        "MKL_CBWR": "AVX2",
        "SLURM_JOB_ID": "17",
        "PYTHONOPTIMIZE": "",
    }
    env |= rank_variables(2, {"TORCHINDUCTOR_MAX_AUTOTUNE": 1, "MY_TOKEN": "s3cret"}, "")
    found = variables.recorded_variables(env)
    assert "s3cret" not in found.values()
    assert (
        found["TORCHINDUCTOR_MAX_AUTOTUNE"] == "1"
    )  # it changes numbers, and the profile asked for it
    assert variables.compared(found) == {
        "MKL_CBWR": "AVX2", "OMP_NUM_THREADS": "2", "PYTHONHASHSEED": "0", "PYTHONUTF8": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
    } | {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}  # fmt: skip


def test_the_start_names_what_it_ignores(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PL_TRAINER_LIMIT_TRAIN_BATCHES", "3")
    monkeypatch.setenv("PYTHONHASHSEED", "9")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError):  # there is no project here; the environment comes first
        open_project(
            {}, None, is_main=True, is_making=False, is_remote=False, has_no_shared_disk=False
        )
    told = capsys.readouterr().err
    assert told.startswith(
        "environment: PL_TRAINER_LIMIT_TRAIN_BATCHES would change what is trained, and is ignored;"
    )
    assert "PL_TRAINER_LIMIT_TRAIN_BATCHES" not in os.environ
    assert os.environ["PYTHONHASHSEED"] == "0"


# the ranks' program

MATRIX = {
    "PYTHONHASHSEED": "7", "PYTHONOPTIMIZE": "2", "PYTHONUTF8": "0", "OMP_NUM_THREADS": "3",
    "MKL_NUM_THREADS": "5", "OMP_DYNAMIC": "true", "PYTORCH_JIT": "0", "TORCHDYNAMO_DISABLE": "1",
    "TORCH_MKLDNN_MATMUL_MIN_DIM": "1", "TORCH_LINEAR_FLATTEN_3D": "1", "ONEDNN_DEFAULT_FPMATH_MODE": "BF16",
    "DNNL_DEFAULT_FPMATH_MODE": "BF16", "NVIDIA_TF32_OVERRIDE": "1", "ACCELERATE_MIXED_PRECISION": "bf16",
    "PL_TRAINER_LIMIT_TRAIN_BATCHES": "3", "PL_GLOBAL_SEED": "77", "LT_DEVICES": "3", "SLURM_NTASKS": "4",
    "LSB_JOBID": "5", "JSM_NAMESPACE_RANK": "2", "TZ": "Asia/Tokyo",
}  # fmt: skip


def program_of_ranks(trainings, folder, shell, monkeypatch):
    """Train by the ranks' own program, started as a job in this shell would; return bits, record and output."""
    case = Case(name="Hashed", model="tests.support.hashed_model:Hashed")
    spec = trainings.rank_task(folder, case, every_steps=0, keep=1)
    plan = trainings.spec_of(case)
    document = {**trainings._spec, "model": case.model, "identity": plan.identity}
    (folder / "run.json").write_text(json.dumps(document))
    write_task(folder / "rank.json", spec)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    start = prepare_start(
        ["-m", "shardline.training.rank", str(folder / "rank.json")], run_id="r-0123456789ab",
        geometry=ActualGeometry(nodes=1, devices=1), accelerator="cpu",
        runtime=Runtime(launcher="none", threads_per_rank=1), env={**os.environ, **shell}, num_cpus=1,
    )  # fmt: skip
    # as a node's own profile may set them behind the launcher
    late = {name: value for name, value in shell.items() if variables.is_removed(name)}
    done = subprocess.run(
        start.command, env={**start.env, **late}, cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    provenance = json.loads((folder / "results/provenance.json").read_text())
    return (folder / "results/model.safetensors").read_bytes(), provenance, done.stdout


@pytest.mark.rotating
def test_the_shells_matrix_changes_no_bit_of_a_training_by_the_ranks_own_program(
    trainings, tmp_path, monkeypatch
):
    found, provenance, told = program_of_ranks(trainings, tmp_path / "0", MATRIX, monkeypatch)
    expected, alone, silent = program_of_ranks(trainings, tmp_path / "1", {}, monkeypatch)
    assert found == expected
    assert "would change what is trained, and are ignored" in told
    assert "ignored" not in silent
    assert provenance["training"]["steps"] == alone["training"]["steps"]
    pair = [variables.compared(one["action"]["variables"]) for one in (provenance, alone)]
    assert {name for name in pair[0] if pair[0].get(name) != pair[1].get(name)} == {"TZ"}

    sides = convert(alone, TrainingProvenance), convert(provenance, TrainingProvenance)
    told = [one.text for one in diff._circumstances(*sides) if one.kind == "variable"]
    assert "TZ unset -> Asia/Tokyo" in told
