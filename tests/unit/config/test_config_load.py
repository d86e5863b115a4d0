"""The config as a whole: what is refused and how, what is resolved, what is documented."""

import datetime
import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardline.config import checks
from shardline.config.key_schema import defaults_of, keys_of
from shardline.config.load import load_project
from shardline.config.project import Project
from shardline.config.reference import reference
from shardline.config.settings.run import RunSettings
from shardline.config.settings.runtime import Runtime
from shardline.core.nested import flatten
from shardline.errors import ConfigError

REPOSITORY = Path(__file__).parents[3]
DIGITS: dict[str, Any] = {"source": {"type": "digits"}, "shards": 2}
CONFIG: dict[str, Any] = {"runs": "config/runs.tsv", "defaults": {}, "datasets": {"digits": DIGITS}}
ONE_ROW = "name\tdataset\tmodel\na\tdigits\tmlp\n"

Load = Callable[..., Project]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load a project of this config and table, as Snakemake would hand it over."""

    def make(table: str = ONE_ROW, **config: Any) -> Project:
        (tmp_path / "config").mkdir(exist_ok=True)
        (tmp_path / "config" / "runs.tsv").write_text(table)
        return load_project({**CONFIG, **config}, workdir=tmp_path)

    return make


def message(load: Load, *args: Any, **config: Any) -> str:
    with pytest.raises(ConfigError) as error:
        load(*args, **config)
    return str(error.value)


def source(**settings: Any) -> dict[str, Any]:
    return {"d": {"source": settings, "shards": 2}}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"datasets": None}, "datasets=empty is not a table of keys; fill it in or drop the line"),
        ({"datasets": {}}, "datasets is empty; add an entry"),
        ({"runtime": None}, "runtime=empty is not a table of keys; fill it in or drop the line"),
        ({"defaults": {"optim": None}}, "defaults.optim=empty is not a table of keys; fill it in or drop the line"),
        ({"defaults": {"optim": 3}}, "defaults.optim=3 is not a table of keys"),
        ({"defaults": {"lr": 1}}, 'defaults.lr is not a known key; did you mean "optim.lr"?'),
        ({"defaults": {"optim": {"lrr": 1}}}, 'defaults.optim.lrr is not a known key; did you mean "lr"?'),
        ({"defaults": {"optim": {"lr": "x"}}}, 'defaults.optim.lr="x" is not a number; write one, such as 0.1'),
        ({"defaults": {"optim": {"lr": float("inf")}}}, "defaults.optim.lr=inf is not a finite number; give one"),
        ({"defaults": {"seed": True}}, "defaults.seed=true is not a whole number; write one, such as 1"),
        ({"defaults": {"deterministic": "yes"}}, 'defaults.deterministic="yes" is not true or false; write true'),
        (
            {"defaults": {"model_args": {1: 2}}},
            "key 1 of defaults.model_args is of type int, not text; put it in quotes",
        ),
        ({"defaults": {False: 2}}, "key False of defaults is of type bool, not text; put it in quotes"),
        (
            {"defaults": {"model_args": {"day": datetime.date(2020, 1, 1)}}},
            "defaults.model_args.day=2020-01-01 is of type date, not text or a number; put it in quotes",
        ),
        (
            {"runtime": {"launcher": "torchrum"}},
            'runtime.launcher=torchrum is not one of torchrun, srun, mpirun, azureml, none; did you mean "torchrun"?',
        ),
        ({"dataset": {}}, 'dataset is not a known key; did you mean "datasets"?'),
        (
            {"datasets": {"../x": DIGITS}},
            'datasets."../x": the name is not made of letters, digits and . _ + - '
            "after a first letter or digit; rename it",
        ),
        ({"datasets": {"d": {"shards": 2}}}, "datasets.d.source is missing; add it"),
        ({"datasets": source()}, "datasets.d.source.type is missing; add it"),
        ({"datasets": source(type=3)}, "datasets.d.source.type=3 is not text; put it in quotes"),
        ({"datasets": source(type="digits", seed=3)}, "datasets.d.source.seed is not a known key; known are type"),
        ({"datasets": source(type="idx")}, "datasets.d.source.files is missing; add it"),
        (
            {"datasets": source(type="synthetic", features=3, row_per_shard=1)},
            'datasets.d.source.row_per_shard is not a known key; did you mean "rows_per_shard"?',
        ),
        (
            {"datasets": {"digits": {**DIGITS, "splits": {"train": 0.8, "validation": 0.1, "test": 0.05}}}},
            "datasets.digits.splits sum to 0.95, not 1; change one of {'train': 0.8, 'validation': 0.1, 'test': 0.05}",
        ),
        (
            {"datasets": {"digits": {**DIGITS, "source": {"type": "digit"}}}},
            "datasets.digits.source.type=digit is neither one of csv, delta, digits, hf, idx, image_folder, "
            "jsonl, litdata, mds, parquet, synthetic, text, webdataset nor an import path such as "
            'mypkg.models:Net; did you mean "digits"?',
        ),
    ],
)  # fmt: skip
def test_config_message(load: Load, config: dict[str, Any], expected: str) -> None:
    assert message(load, **config) == f"config/config.yaml: {expected}"


ROW = 'config/runs.tsv line 2 (run "a"): '


@pytest.mark.parametrize(
    ("defaults", "expected"),
    [
        (
            {"global_batch": 100, "nodes": 2, "devices": 4},
            "global_batch=100 cannot be split over 8 ranks (nodes=2 x devices=4); "
            "use 96 or 104, or change nodes/devices",
        ),
        (
            {"global_batch": 10, "devices": 2, "trainer": {"accumulate": 4}},
            "global_batch=10 cannot be split over 2 ranks (nodes=1 x devices=2) in "
            "trainer.accumulate=4 parts each; use 8 or 16, or change nodes/devices",
        ),
        (
            {"global_batch": 16, "data": {"streams": 3}},
            "global_batch=16 cannot be shared by data.streams=3; use 18, or change data.streams",
        ),
        (
            {"global_batch": 16, "devices": 8, "data": {"streams": 8}},
            "datasets.digits.shards=2 is too few for data.streams=8 read by 8 ranks, each of which "
            "needs a shard of its own; use at least 8, or data.streams=1",
        ),
        (
            {"global_batch": 16, "data": {"streams": 2, "epoch": "partition"}},
            "data.partition_shards=1 is too few for data.streams=2 read by 2 ranks, each of which "
            "needs a shard of its own; use at least 2, or data.streams=1",
        ),
        (
            {"data": {"epoch": "partition", "partition_shards": 5}},
            "data.partition_shards=5 is more than datasets.digits.shards=2; use at most 2, or cut "
            "the dataset into more shards",
        ),
        (
            {"strategy": "fsdp", "precision": "16-mixed"},
            "strategy=fsdp does not take precision=16-mixed; use 32-true or bf16-mixed, or strategy=ddp",
        ),
        (
            {"precision": "16-mixed", "accelerator": "cpu"},
            "precision=16-mixed needs GPUs, and accelerator=cpu; use bf16-mixed or 32-true",
        ),
    ],
)
def test_settings_that_do_not_fit_together(
    load: Load, defaults: dict[str, Any], expected: str
) -> None:
    assert message(load, defaults=defaults) == ROW + expected


def test_dataset_that_is_not_there(load: Load) -> None:
    assert message(load, ONE_ROW.replace("digits", "digit")) == (
        f'{ROW}dataset=digit is not in datasets of config/config.yaml; did you mean "digits"?'
    )


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (
            "mpl",
            "model=mpl is neither one of linear, mlp, cnn, .* nor an import path .*; did you mean",
        ),
        (
            "shardline.training.models.mlp:MPL",
            r"model=shardline.training.models.mlp:MPL: .*mlp.py has no MPL; did you",
        ),
        ("shardline.models.mpl:MLP", "no module shardline.models.mpl in .*; run from the folder"),
        ("mypkg.model:Net", "no module mypkg.model in .*; run from the folder that holds it"),
        ("../x:Net", "is neither one of"),
    ],
)
def test_model_that_is_not_there(load: Load, tmp_path: Path, model: str, expected: str) -> None:
    (tmp_path / "mypkg").mkdir()
    (tmp_path / "mypkg" / "__init__.py").touch()
    (tmp_path / "mypkg" / "models.py").write_text("class Net: ...\n")
    assert re.search(expected, message(load, ONE_ROW.replace("mlp", model)))
    assert load(ONE_ROW.replace("mlp", "mypkg.models:Net"))


def test_source_pattern_that_matches_nothing(load: Load, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "rings.py").write_text("class Rings: ...\n")
    entry = {"type": "rings:Rings", "files": ["data/*.csv"]}
    digits = {"digits": {"source": entry, "shards": 1}}
    where = "config/config.yaml: datasets.digits.source.files: "
    assert message(load, datasets=digits) == f"{where}data/*.csv matches no file; check the path"
    entry["files"] = ["data"]
    assert message(load, datasets=digits) == f"{where}data is a folder; write data/*"


def test_more_devices_than_the_machine_has(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "num_cpus", lambda: 2)
    monkeypatch.setattr(checks, "num_gpus", lambda: 0)
    defaults = {"devices": 4}
    with pytest.raises(ConfigError) as error:
        load(defaults=defaults).check_devices()
    assert str(error.value) == (
        f"{ROW}devices=4, but this machine has 2 CPU cores; use at most 2, "
        "or set runtime.oversubscribe: true, or set elastic: true to train with the same global batch on "
        "fewer ranks"
    )
    load(defaults=defaults, runtime={"oversubscribe": True}).check_devices()
    monkeypatch.setattr(checks, "num_gpus", lambda: 1)
    with pytest.raises(
        ConfigError, match=r"this machine has 1 GPUs; use at most 1, or set elastic"
    ):
        load(defaults=defaults, runtime={"oversubscribe": True}).check_devices()


def test_the_store_is_named_by_the_config_or_before_it_by_the_environment(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHARDLINE_STORE", raising=False)
    project = load()
    assert project.store == project.workdir / "store"
    assert load(runtime={"store": "/scratch/x"}).store == Path("/scratch/x")
    monkeypatch.setenv("SHARDLINE_STORE", "/mnt/y")
    assert load(runtime={"store": "/scratch/x"}).store == Path("/mnt/y")


def test_a_profiles_config_values_arrive_as_text(load: Load) -> None:
    runtime = load(runtime={"oversubscribe": "true", "log_every_steps": "4"}).runtime
    assert runtime.oversubscribe is True
    assert runtime.log_every_steps == 4


def test_several_ranks_without_a_launcher(load: Load) -> None:
    with pytest.raises(ConfigError, match="devices=2, but runtime.launcher=none starts one rank"):
        load(defaults={"devices": 2}, runtime={"launcher": "none"}).check_devices()


def test_several_machines_on_a_profile_that_has_one(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "num_cpus", lambda: 2)
    two = {"nodes": 2, "devices": 1}
    with pytest.raises(
        ConfigError, match="nodes=2, but this profile runs on one machine; use nodes=1"
    ):
        load(defaults=two).check_devices()
    with pytest.raises(ConfigError, match="nodes=2, but runtime.hosts lists 1; use nodes=1"):
        load(defaults=two, runtime={"hosts": ["a"]}).check_devices()
    load(defaults=two, runtime={"hosts": ["a", "b"], "launcher": "none"}).check_devices()


def test_an_environment_that_the_launcher_cannot_enter(load: Load) -> None:
    message = "runtime.environment=conda, but runtime.launcher=azureml .* runtime.environment=job"
    with pytest.raises(ConfigError, match=message):
        load(runtime={"environment": "conda", "launcher": "azureml"})


def test_srun_outside_of_slurm(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(ConfigError, match="launcher=srun, but jobs run on this machine, outside"):
        load(defaults={"devices": 1}, runtime={"launcher": "srun"}).check_devices()


@pytest.mark.parametrize(
    ("visible", "number"), [("0,1", 2), ("", 0), ("-1", 0), ("GPU-8932f937", 1)]
)
def test_gpus_that_are_visible(monkeypatch: pytest.MonkeyPatch, visible: str, number: int) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert checks.num_gpus() == number


def test_numbers_have_one_form_however_they_are_written(load: Load) -> None:
    text = {"optim": {"lr": "1e-3", "weight_decay": 0}, "seed": 1.0, "nodes": "1"}
    number = {"optim": {"lr": 0.001, "weight_decay": 0.0}, "seed": 1, "nodes": 1}
    assert list(load(defaults=text).runs) == list(load(defaults=number).runs)
    (run,) = load(defaults={"model_args": {"rate": "1e-3", "width": 3}}).runs.values()
    assert run.settings.model_args == {"rate": 0.001, "width": 3}


def test_ordered_dict_of_snakemake_is_as_good_as_a_dict(load: Load) -> None:
    ordered = OrderedDict(digits=OrderedDict(shards=2, source=OrderedDict(type="digits")))
    assert list(load(datasets=ordered).datasets) == list(load().datasets)


def test_runs_share_no_settings(load: Load) -> None:
    first, second = load(f"{ONE_ROW}b\tdigits\tcnn\n").runs.values()
    first.settings.model_args["hidden"] = 3
    assert second.settings.model_args == {}
    assert flatten(defaults_of(RunSettings))["optim.lr"] == 0.001


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("runs: a\nruns: b\n", r"config.yaml, line 2: runs stands twice in one table; drop one"),
        ("defaults:\n  optim: {lr: 1, lr: 2}\n", "line 2: lr stands twice"),
        ("[1", r"not valid YAML \(.*\); fix it"),
        ("- a\n", "holds no keys; see config/README.md"),
        ("", "holds no keys; see config/README.md"),
        ("a: &a {b: *a}\n", "holds itself; drop the YAML alias"),
        (b"a: \xff", "byte 3 is not UTF-8; save it as UTF-8"),
    ],
)
def test_file_message(load: Load, tmp_path: Path, text: str | bytes, expected: str) -> None:
    (tmp_path / "config").mkdir()
    path = tmp_path / "config" / "config.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=expected):
        load_project(workdir=tmp_path)


def test_key_twice_is_seen_though_snakemake_read_the_file(load: Load, tmp_path: Path) -> None:
    load()
    (tmp_path / "config" / "config.yaml").write_text("runs: a\nruns: b\n")
    assert "line 2: runs stands twice" in message(load)


def test_file_with_byte_order_mark(load: Load, tmp_path: Path) -> None:
    load()
    text = yaml.safe_dump(CONFIG)
    (tmp_path / "config" / "config.yaml").write_text(text, encoding="utf-8-sig")
    assert list(load_project(workdir=tmp_path).runs) == list(load().runs)


def test_shipped_config_sets_every_setting_to_its_default_and_comments_it() -> None:
    text = (REPOSITORY / "config" / "config.yaml").read_text()
    shipped = yaml.safe_load(text)["defaults"]
    assert flatten(shipped) == flatten(defaults_of(RunSettings))
    block = text.partition("\ndefaults:\n")[2].partition("\n\n")[0]
    uncommented = [line for line in block.splitlines() if not re.search(r":$|# \w", line)]
    assert uncommented == []


def test_readme_is_written_from_the_types() -> None:
    assert (REPOSITORY / "config" / "README.md").read_text() == reference(), (
        "renew it: python -m shardline.config.reference > config/README.md"
    )


def test_readme_names_every_key() -> None:
    page = reference()
    for key in flatten(defaults_of(RunSettings)):
        assert f"| `{key}` |" in page
    for key, known in keys_of(Runtime).items():
        for name in [f"{key}.{inner}" for inner in known.below] or [key]:
            assert f"| `{name}` |" in page
