"""What `shardline check` asks and lists: each distinct model once, what this machine lacks, a profile's keys."""

import json
import logging
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from shardline.core.machine import free_memory_bytes
from shardline.errors import ConfigError
from shardline.results.check import checked_models, machine_needs
from shardline.results.check.all import check_before_building, check_runs
from shardline.results.check.checked_models import check_models
from shardline.results.check.checked_sweeps import check_sweeps, check_trials
from shardline.results.check.found import Finding, merged
from shardline.results.check.profiles import problems_of_profile, rule_names
from shardline.training.rank_task import ModelResult, read_task, write_result
from tests.support.command_line import shardline
from tests.support.fake_project import FakeProject
from tests.support.studies import load
from tests.support.workspace import REPOSITORY


@pytest.fixture
def asked(monkeypatch):
    """Have the check's program find what a test wants; returns what it was asked, by call."""
    calls: list[list[str]] = []

    def start(project, python, paths, limit_s, package):
        tasks = [read_task(path) for path in paths]
        calls.append([one.run.name for one in tasks])
        for task in tasks:
            if found := start.find(task):
                write_result(task.action.output, found)
        return "the check took longer than 1 s"

    start.find = lambda task: ModelResult(weights_bytes=4, state_bytes=12)
    monkeypatch.setattr(checked_models, "_start", start)
    start.calls = calls
    return start


def found_of(fake: FakeProject) -> list[str]:
    project = fake.load()
    return [f"{one.kind}: {one.text}" for one in check_runs(project, project.runs, {})]


def test_runs_that_differ_in_rate_or_length_alone_are_one_model(fake, asked):
    net = fake.rows[0]
    fake.rows = [
        {**net, "name": "a", "optim.lr": 0.1},
        {**net, "name": "b", "optim.lr": 0.2},
        {**net, "name": "c", "trainer.max_epochs": 3, "seed": 7},
        {**net, "name": "d", "model_args.width": 16},
        {**net, "name": "e", "checkpoint.monitor": "val_accuracy"},
        {**net, "name": "f", "dataset": "table"},
    ]
    project = fake.load()
    assert len(check_models(project, project.runs).results) == 6
    assert asked.calls == [["a", "d", "e", "f"]]


def test_a_model_that_was_found_well_is_not_asked_for_again_until_its_code_changes(fake, asked):
    for _ in range(2):
        assert found_of(fake) == []
    assert asked.calls == [["net", "flat"]]
    (fake.workspace.path / "mypkg/models.py").write_text("class Net:\n    pass\n")
    assert found_of(fake) == []
    assert asked.calls[1:] == [["net"]]


def test_initial_weights_are_compared_once_their_run_is_sealed(fake, asked):
    net = fake.rows[0]
    fake.rows = [net, {**net, "name": "tuned", "init_from": "run:net", "init.ignore": "[[head.*]]"}]
    later = "init_from=run:net has no sealed weights yet; names and shapes are compared when the training begins"
    for _ in range(2):
        assert found_of(fake) == [f"not checked: tuned: {later}"]
    assert asked.calls == [["net", "tuned"]]
    model = fake.load().named_runs()["net"].model
    model.parent.mkdir(parents=True)
    model.write_bytes(b"weights")
    assert found_of(fake) == []
    assert asked.calls[1:] == [["tuned"]]


def test_a_damaged_record_of_a_check_is_none(fake, asked):
    found_of(fake)
    for path in Path("store/checks").iterdir():
        path.write_text("{")
    found_of(fake)
    assert len(asked.calls) == 2


@pytest.mark.parametrize("what", ["problems", "not_checked"])
def test_what_was_not_found_well_is_asked_for_again(what, fake, asked):
    asked.find = lambda task: ModelResult(**{what: ["it is wrong"]})
    kind = {"problems": "error", "not_checked": "not checked"}[what]
    for _ in range(2):
        assert found_of(fake) == [f"{kind}: net, flat: it is wrong"]
    assert len(asked.calls) == 2


def test_a_program_that_ends_early_leaves_the_rest_not_checked(fake, asked):
    well = asked.find
    asked.find = lambda task: well(task) if task.run.name == "net" else None
    assert found_of(fake) == [
        "not checked: flat: model=linear was not checked: the check took longer than 1 s"
    ]


def test_an_environment_that_is_not_made_yet_is_not_checked_and_no_mistake(fake, asked):
    fake.config["runtime"] = {"environment": "conda"}
    found = found_of(fake)
    assert len(found) == 2
    assert all("runtime.environment=conda is not made yet" in one for one in found)
    assert asked.calls == []


def test_a_training_script_is_no_model(fake, asked):
    fake.workspace.write("train.py", "print(1)\n")
    fake.rows = [{"name": "own", "dataset": "table", "model": "script: train.py"}]
    assert found_of(fake) == []
    assert asked.calls == []


def test_findings_of_one_sentence_are_one_and_errors_come_first():
    given = [
        Finding(kind="not checked", sentence="x", runs=("a",)),
        *(Finding(kind="error", sentence="y", runs=(name,)) for name in "abcde"),
    ]
    assert [one.text for one in merged(given)] == ["a, b, c and 2 more: y", "a: x"]


def test_a_global_batch_of_more_rows_than_the_dataset_has_is_told_of_each_run(fake, asked):
    asked.find = lambda task: ModelResult(num_rows=100)
    net = fake.rows[0]
    fake.rows = [
        {**net, "name": "small", "global_batch": 96},
        {**net, "name": "large", "global_batch": 128},
        {**net, "name": "padded", "global_batch": 128, "data.last_batch": "pad"},
        {**net, "name": "drawn", "global_batch": 128, "data.class_weights": "balanced"},
    ]
    for _ in range(2):  # the second time as recorded
        assert found_of(fake) == [
            "error: large: global_batch=128 is more than the 100 rows of dataset rows; use a smaller batch, more data "
            "or data.last_batch=pad"
        ]


def test_settings_of_an_optimiser_that_a_model_ignores_are_named(fake, asked):
    asked.find = lambda task: ModelResult(own_optimizer=task.run.name == "net")
    fake.rows = [{key: of for key, of in row.items() if key != "optim.lr"} for row in fake.rows]
    for _ in range(2):  # the second time as recorded
        assert found_of(fake) == []
    fake.config["defaults"] |= {"optim": {"lr": 0.1}, "schedule": {"name": "cosine"}}
    assert found_of(fake) == [
        "warning: net: optim.lr, schedule.name of the config's defaults have no effect, since model=mypkg.models:Net "
        "has its own configure_optimizers; remove them, or read model_args in the method"
    ]


# --- before a pipeline ----------------------------------------------------------------------------


def test_before_anything_is_built_the_runs_that_will_be_trained_are_checked(fake, asked):
    fake.config["runtime"] = {"check": True}
    project = fake.load()
    model = project.layout.name_of(project.named_runs()["flat"].model)
    check_before_building(project, {model, "results/other"}, logging.getLogger())
    assert asked.calls == [["flat"]]
    check_before_building(project, {"results/other"}, logging.getLogger())
    asked.find = lambda task: ModelResult(problems=["one", "two"])
    fake.rows[1]["model"] = "mlp"
    project = fake.load()
    model = project.layout.name_of(project.named_runs()["flat"].model)
    with pytest.raises(ConfigError, match=r"^flat: one\nflat: two$"):
        check_before_building(project, {model}, logging.getLogger())


def test_the_screen_says_that_models_are_tried_which_takes_seconds(fake, asked, caplog):
    caplog.set_level("INFO")
    fake.config["runtime"] = {"check": True}
    project = fake.load()
    model = project.layout.name_of(project.named_runs()["flat"].model)
    for _ in range(2):  # the second time nothing is tried
        check_before_building(project, {model}, logging.getLogger())
    assert caplog.messages == ["checking 1 model before the first job"]


def test_the_check_can_be_left_out(fake, asked):
    fake.config["runtime"] = {"check": False}
    project = fake.load()
    every = {project.layout.name_of(run.model) for run in project.runs.values()}
    check_before_building(project, every, logging.getLogger())
    assert asked.calls == []


# --- the machine ----------------------------------------------------------------------------------


def test_packages_of_extras_are_named_with_the_extra(fake, asked, monkeypatch):
    monkeypatch.setattr(machine_needs.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("shardline.tracking.processes._is_installed", lambda name: False)
    fake.config["runtime"] = {"tracking": ["wandb"]}
    fake.rows[1] |= {"data.transform": "flip", "data.eval_transform": "{type: resize, size: 8}"}
    assert found_of(fake) == [
        "error: runtime.tracking=[wandb] needs the package wandb, which is not installed; pip install "
        "'shardline[wandb]', or remove wandb from runtime.tracking",
        "error: flat: data.eval_transform=resize needs the package simplejpeg, which is not installed; pip install "
        "'shardline[images]'",
    ]
    fake.config["runtime"] |= {"launcher": "azureml"}  # whose jobs have an environment of their own
    assert found_of(fake) == []


def test_a_disk_that_is_too_small_is_a_warning_with_both_numbers(fake, asked, monkeypatch):
    asked.find = lambda task: ModelResult(weights_bytes=10**9, state_bytes=3 * 10**9)
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(machine_needs.shutil, "disk_usage", lambda path: usage(5 * 10**9))
    (found,) = found_of(fake)
    assert found == (
        f"warning: store {fake.workspace.path / 'store'} has 5 GB free, expected about 22 GB (264 bytes of shards, "
        "22 GB of training checkpoints), as estimated; free some, name another disk in runtime.store, or lower "
        "runtime.checkpoint.keep"
    )
    monkeypatch.setattr(machine_needs.shutil, "disk_usage", lambda path: usage(10**12))
    assert found_of(fake) == []


def test_folders_that_cannot_be_written_are_named(fake, asked, monkeypatch):
    project = fake.load()
    monkeypatch.setattr("shardline.core.files.os.access", lambda path, mode: False)
    found = [one.sentence for one in machine_needs.check_machine(project, {}, {}, {})]
    assert [one.partition(" cannot be written to")[0] for one in found] == [
        f"store {project.store}",
        f"folder {project.layout.results}",
        f"folder {project.layout.logs}",
    ]


def test_a_store_that_does_not_answer_is_named(fake, monkeypatch):
    project = fake.load()
    monkeypatch.setattr(machine_needs, "_STORE_S", 0.01)
    held = __import__("threading").Event()
    monkeypatch.setattr(machine_needs, "check_writable", lambda path: held.wait(10))
    found = [one.sentence for one in machine_needs.check_machine(project, {}, {}, {})]
    held.set()
    assert found[0] == f"store {project.store} does not answer within 0.01 s; check its mount"


def test_memory_that_is_free_is_some():
    assert 0 <= free_memory_bytes() < 1 << 50


# --- profiles -------------------------------------------------------------------------------------

OPTIONS = {"executor", "keep-going", "set-resources", "set-threads", "slurm-requeue", "jobs"}


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        (
            {"keep-gong": True},
            "keep-gong is no option of Snakemake or of its installed plugins; did you mean \"keep-going\"?",
        ),
        (
            {"set-resources": {"trains": {"mem_mb": 1}}},
            "set-resources.trains names no rule of Shardline's; did you mean \"train\"?",
        ),
        (
            {"executor": "azureml", "azureml-compute": "x"},
            "executor=azureml needs the package snakemake-executor-plugin-azureml, which is not installed; "
            "run `make env-azureml` in a clone of Shardline, and activate .venv-azureml (docs/how-to/install.md)",
        ),
        (
            {"executor": "lsf"},
            "executor=lsf needs the package snakemake-executor-plugin-lsf, which is not installed; "
            "pip install snakemake-executor-plugin-lsf",
        ),
        ({"executor": "local", "jobs": 1, "config": {}, "set-threads": {"train": 2}}, None),
        ({"executor": "slurm", "slurm-requeue": True}, None),
    ],
)  # fmt: skip
def test_a_profile(profile, expected):
    found = list(
        problems_of_profile(profile, Path("p.yaml"), OPTIONS, {"snakemake_executor_plugin_slurm"})
    )
    assert found == ([f"p.yaml: {expected}"] if expected else [])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"slurm-array-jobs": "train, evaluate"}, []),
        ({"slurm-array-jobs": "all"}, []),
        (
            {"slurm-array-jobs": "trains"},
            ["slurm-array-jobs: trains names no rule of Shardline's; did you mean \"train\"?"],
        ),
        ({"slurm-exclude-failed-nodes": "n7,n[10-12]"}, []),
        (
            {"slurm-exclude-failed-nodes": "n[1,3]"},
            ["slurm-exclude-failed-nodes='n[1,3]', expected names of nodes with commas between them; write n7,n12"],
        ),
        (
            {"slurm-exclude-failed-nodes": ["n1"]},
            ["slurm-exclude-failed-nodes=['n1'], expected names of nodes with commas between them; write n7,n12"],
        ),
        ({"slurm-partition-config": "good.yaml"}, []),
        (
            {"slurm-partition-config": "bad.yaml"},
            [
                "slurm-partition-config: bad.yaml: gpu.max_runtme is no limit of the plugin; did you mean "
                '"max_runtime"?'
            ],
        ),
        (
            {"slurm-partition-config": "empty.yaml"},
            [
                "slurm-partition-config: empty.yaml has no table `partitions`; write the limits of each partition "
                "below its name, such as max_runtime: 60"
            ],
        ),
        (
            {"slurm-partition-config": "good.yaml", "set-resources": {"train": {"slurm_partition": "gpu"}}},
            [
                "slurm-partition-config has no effect on jobs with set-resources.train.slurm_partition, which names "
                "their partition; drop one of them"
            ],
        ),
    ],
)  # fmt: skip
def test_options_of_the_slurm_plugin(tmp_path, monkeypatch, options, expected):
    monkeypatch.chdir(tmp_path)
    Path("good.yaml").write_text("partitions: {gpu: {max_runtime: 60, max_gpu: 8, cluster: a}}")
    Path("bad.yaml").write_text("partitions: {gpu: {max_runtme: 60}}")
    Path("empty.yaml").write_text("gpu: {max_runtime: 60}")
    known, installed = {*OPTIONS, *options}, {"snakemake_executor_plugin_slurm"}
    profile = {"executor": "slurm", **options}
    found = list(problems_of_profile(profile, Path("p.yaml"), known, installed))
    assert found == [f"p.yaml: {sentence}" for sentence in expected]


def test_a_file_of_partitions_that_is_missing():
    known = {*OPTIONS, "slurm-partition-config"}
    profile = {"executor": "slurm", "slurm-partition-config": "absent.yaml"}
    [found] = problems_of_profile(
        profile, Path("p.yaml"), known, {"snakemake_executor_plugin_slurm"}
    )
    assert found.startswith("p.yaml: slurm-partition-config: absent.yaml cannot be read (")


def test_every_rule_is_known():
    assert {"train", "evaluate", "build_shards", "render_report", "all"} <= rule_names()


def test_the_command_lists_all_mistakes_at_once(fake, asked):
    asked.find = lambda task: ModelResult(problems=[f"{task.run.model} is wrong"])
    fake.load()
    done = shardline("check")
    assert done.exit_code == 2
    assert done.stdout.splitlines() == [
        "error: net: mypkg.models:Net is wrong", "error: flat: linear is wrong", "2 runs checked, 2 errors",
    ]  # fmt: skip
    asked.find = lambda task: ModelResult()
    assert (shardline("check", "flat").stdout, asked.calls[-1]) == ("1 run checked, no error\n", ["flat"])  # fmt: skip
    assert json.loads(shardline("check", "--json").stdout) == []


def test_files_are_counted_only_where_the_source_names_files(fake, asked):
    asked.find = lambda task: ModelResult(inferred={"table": {"files": 1}, "rows": {"files": 2}})
    found = [line for line in found_of(fake) if line.startswith("read: ")]
    assert found == ["read: dataset rows is read as\n  files: 2"]


def test_a_profile_and_a_config_that_are_wrong_are_told_together(fake, monkeypatch):
    fake.load()
    monkeypatch.setattr(
        "shardline.cli.check.snakemake_options",
        lambda: (OPTIONS, {"snakemake_executor_plugin_slurm"}),
    )
    fake.workspace.write(
        "profiles/mine/profile.yaml", "jbs: 3\nconfig: {runtme: {store: x}, runtime: {stor: y}}\n"
    )
    done = shardline("--profile", "profiles/mine", "check", "--json")
    assert done.exit_code == 2
    assert [one["sentence"] for one in json.loads(done.stdout)] == [
        'profiles/mine/profile.yaml: jbs is no option of Snakemake or of its installed plugins; did you mean "jobs"?',
        'config/config.yaml: runtime.stor is not a known key; did you mean "store"?',
        'config/config.yaml: runtme is not a known key; did you mean "runtime"?',
    ]


def test_the_shipped_profiles_are_well(monkeypatch):
    from shardline.results.check.profiles import read_profile, snakemake_options

    monkeypatch.chdir(REPOSITORY)
    options, installed = snakemake_options()
    for file in sorted(Path("profiles").glob("*/profile.yaml")):
        found = list(problems_of_profile(read_profile(file), file, options, installed))
        assert all("which is not installed" in one for one in found), found


def found_in_sweep(**sweep) -> list[str]:
    project = load(**sweep)
    plans = [*project.sweeps.values()]
    found = [*check_trials(project, plans), *check_sweeps(project, plans)]
    return [f"{one.kind}: {one.text}" for one in found]


def test_trials_are_tried_with_the_first_and_the_last_values_and_the_metric_of_the_objective(
    asked, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    seen = []

    def find(task):
        settings = task.run.settings
        seen.append((settings.model_args, settings.checkpoint.monitor, settings.checkpoint.mode))
        wide = ["13 is no width"] if settings.model_args["hidden"] == 13 else []
        return ModelResult(problems=["checkpoint.monitor=val_acc is not logged", *wide])

    asked.find = find
    objective = {"metric": "val_acc", "mode": "max"}
    space = {"model_args.hidden": [8, 64, 13], "optim.lr": [0.1, 0.2]}
    assert found_in_sweep(space=space, objective=objective, trials=6) == [
        "error: sweeps.s: objective.metric=val_acc is not logged",
        'warning: sweeps.s: trials with {"model_args.hidden":13,"optim.lr":0.2} would fail: 13 is no width',
    ]
    assert seen == [({"hidden": 8}, "val_acc", "max"), ({"hidden": 13}, "val_acc", "max")]
    asked.find = lambda task: ModelResult()
    assert found_in_sweep(space={"optim.lr": [0.1, 0.2]}, trials=2) == []
    assert len(asked.calls[-1]) == 1, "the rate makes no other model"


@pytest.mark.parametrize(
    ("sweep", "sentence"),
    [
        ({"sampler": "own:Genes"}, "sweeps.s.sampler=own:Genes is a NSGAIISampler, which keeps its state"),
        ({"sampler": "own:fits"}, "sweeps.s.sampler=own:fits cannot be made with seed"),
        ({"constraints": "own:fits"}, "sweeps.s.constraints=own:fits returned None for"),
        ({"constraints": "own:Genes"}, "sweeps.s.constraints=own:Genes raised"),
    ],
)  # fmt: skip
def test_a_sampler_or_constraints_of_the_user_that_do_not_work_are_errors(
    sweep, sentence, asked, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own", raising=False)
    (tmp_path / "own.py").write_text(
        "from optuna.samplers import NSGAIISampler\n\n\nclass Genes(NSGAIISampler):\n    pass\n\n\n"
        "def fits(settings):\n    pass\n"
    )
    (found,) = found_in_sweep(**sweep)
    assert found.startswith(f"error: {sentence}")
