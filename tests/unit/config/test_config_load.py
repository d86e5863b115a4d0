"""The config as a whole: what is resolved and documented; most refusals are in `test_config_remedies_applied.py`."""

import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardline.config import checks
from shardline.config.load import load_project
from shardline.config.project import Project
from shardline.config.reference import reference
from shardline.config.settings import defaults_of, keys_of
from shardline.config.settings.config import Runtime
from shardline.config.settings.run_settings import RunSettings
from shardline.core.nested import flatten
from shardline.errors import ConfigError
from tests.support.small_config import CONFIG, ONE_ROW

REPOSITORY = Path(__file__).parents[3]

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
            {"global_batch": 16, "devices": 8, "data": {"streams": 8}},
            "datasets.digits.shards=2 is too few for data.streams=8 read by 8 ranks, each of which "
            "needs its own shard; use at least 8, or data.streams=1",
        ),
    ],
)
def test_settings_that_do_not_fit_together(
    load: Load, defaults: dict[str, Any], expected: str
) -> None:
    assert message(load, defaults=defaults) == ROW + expected


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


def test_mistakes_that_do_not_depend_on_each_other_come_at_once(load: Load) -> None:
    source = {
        "type": "csv", "files": ["gone.csv"], "label": "y", "num_classes": 2, "features": ["y"], "delimiter": ";;",
    }  # fmt: skip
    splits = {"train": 0.5, "validation": 0.1, "test": 0.1}
    with pytest.raises(ConfigError) as error:
        load(
            "name\tdataset\tmodel\tglobal_batch\tdevices\na\td\tmlpp\t7\t2\n",
            datasets={"d": {"source": source, "shards": 2, "splits": splits}},
        )
    found = str(error.value).split("\n")
    expected = (
        "source.features contains y", 'source.delimiter=";;"', "splits sum to 0.7", "gone.csv matches no file",
        "model=mlpp is neither", "global_batch=7 cannot be split",
    )  # fmt: skip
    assert len(found) == len(expected)
    assert all(part in line for part, line in zip(expected, found, strict=True))


def test_several_ranks_without_a_launcher(load: Load) -> None:
    with pytest.raises(ConfigError, match="devices=2, but runtime.launcher=none starts one rank"):
        load(defaults={"devices": 2}, runtime={"launcher": "none"}).check_devices()


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


def test_key_twice_is_seen_though_snakemake_read_the_file(load: Load, tmp_path: Path) -> None:
    load()
    (tmp_path / "config" / "config.yaml").write_text("runs: a\nruns: b\n")
    assert "line 2: runs is set twice" in message(load)


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
