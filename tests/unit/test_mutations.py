"""One change at a time: exactly what depends on it becomes stale, and nothing else.

Each test changes one thing in a project of its own (config, run table, user
code, external data, and copies of the library, the lock and the report's
template) and compares the identities before and after. What is expected comes
from elsewhere than the code under test: a table, Python's own modulefinder, or
the installed packages' metadata.
"""

import functools
import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from shardline.config import load_project, project
from shardline.config.schema import defaults_of, flatten, load_schema, merge, unflatten
from shardline.identity import code, environment
from shardline.workflow import report_folder

REPOSITORY = Path(__file__).parents[2]

ROWS = [  # name, dataset, model
    ("linear", "digits", "linear"),
    ("mlp", "digits", "mlp"),
    ("table", "synthetic", "linear"),
    ("own", "rings", "mypkg.models:Net"),
]
USER_FILES = {
    "data/rings.csv": "1,2,0\n3,4,1\n",
    "mypkg/__init__.py": "",
    "mypkg/models.py": (
        "from pytorch_lightning import LightningModule\nfrom mypkg import helpers\n\n\n"
        "class Net(LightningModule):\n    def forward(self, x):\n        return helpers.scale(x)\n"
    ),
    "mypkg/helpers.py": "from .deep import FACTOR\n\n\ndef scale(x):\n    return x * FACTOR\n",
    "mypkg/deep.py": "FACTOR = 2\n",
    "mypkg/sources.py": (
        "from shardline.sources import Source\n\n\nclass Rings(Source):\n    pass\n"
    ),
    "mypkg/unused.py": "VALUE = 1\n",
}
DATASETS = {f"dataset {dataset}" for _, dataset, _ in ROWS}
TRAINS = {f"train {name}" for name, _, _ in ROWS}
EVALUATES = {f"evaluate {name}" for name, _, _ in ROWS}
REPORT = {"report"}
EVERYTHING = DATASETS | TRAINS | EVALUATES | REPORT


def of_runs(*names: str) -> set[str]:
    """The stages of some runs, from training on."""
    return {f"{stage} {name}" for name in names for stage in ("train", "evaluate")} | REPORT


def of_dataset(dataset: str) -> set[str]:
    """The stages of a dataset and of all its runs."""
    runs = (name for name, used, _ in ROWS if used == dataset)
    return {f"dataset {dataset}"} | of_runs(*runs)


@dataclass
class Place:
    """A project folder, with copies of all that counts besides."""

    path: Path

    @property
    def library(self) -> Path:
        return self.path / "lib"

    @property
    def lock(self) -> Path:
        return self.path / "requirements.lock"

    @property
    def template(self) -> Path:
        return self.path / "report"

    def fill(self) -> None:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(
            REPOSITORY / "src" / "shardline", self.library / "shardline", ignore=ignored
        )
        shutil.copy(REPOSITORY / "requirements.lock", self.lock)
        shutil.copytree(report_folder(), self.template)
        for name, text in USER_FILES.items():
            self.write(name, text)
        rows = [("name", "dataset", "model"), *ROWS]
        self.write("config/runs.tsv", "".join("\t".join(row) + "\n" for row in rows))
        shipped = yaml.safe_load((REPOSITORY / "config" / "config.yaml").read_text())
        source = {"type": "mypkg.sources:Rings", "files": ["data/*.csv"], "options": {"width": 1}}
        shipped["datasets"]["rings"] = {"source": source, "shards": 2}
        self.write_config({**shipped, "lock": "requirements.lock"})

    def write(self, name: str, text: str) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def edit(self, name: str, change: Callable[[str], str]) -> None:
        before = (self.path / name).read_text()
        assert change(before) != before, f"{name} is not changed"
        self.write(name, change(before))

    def config(self) -> dict[str, Any]:
        return yaml.safe_load((self.path / "config" / "config.yaml").read_text())

    def write_config(self, config: dict[str, Any]) -> None:
        self.write("config/config.yaml", yaml.safe_dump(config, sort_keys=False))

    def set(self, dotted: str, value: Any) -> None:
        """Set one key of the config."""
        self.write_config(merge(self.config(), unflatten({dotted: value})))

    def stages(self) -> dict[str, str]:
        """The identity of every stage, by `stage name`."""
        loaded = load_project(workdir=self.path)
        found = {f"dataset {dataset.name}": dataset.id for dataset in loaded.datasets.values()}
        found |= {f"train {run.name}": run.id for run in loaded.runs.values()}
        found |= {f"evaluate {run.name}": run.evaluation_id for run in loaded.runs.values()}
        return found | {"report": str(loaded.report)}


@pytest.fixture(scope="module")
def template_place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("template"))
    place.fill()
    return place


parsed_once = functools.cache(code.parse_module)  # one text has one meaning


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Place], Place]:
    """Have the present process take the library and the template of a place."""

    def make(place: Place) -> Place:
        monkeypatch.setattr(code, "LIBRARY", place.library)
        monkeypatch.setattr(code, "parse_module", parsed_once)
        monkeypatch.setattr(project, "report_folder", lambda: place.template)
        return place

    return make


@pytest.fixture
def place(template_place: Place, tmp_path: Path, use: Callable[[Place], Place]) -> Place:
    """A project that a test may change."""
    shutil.copytree(template_place.path, tmp_path, dirs_exist_ok=True)
    return use(Place(tmp_path))


@pytest.fixture
def shared(template_place: Place, use: Callable[[Place], Place]) -> Iterator[Place]:
    """A project that a test changes and mends again; cheaper where it does so many times."""
    before = {path: path.read_text() for path in template_place.path.rglob("*") if path.is_file()}
    yield use(template_place)
    for path, text in before.items():
        path.write_text(text)


def stale(before: dict[str, str], after: dict[str, str]) -> set[str]:
    assert before.keys() == after.keys()
    return {stage for stage in before if before[stage] != after[stage]}


def test_this_process_and_another_python_agree(place: Place) -> None:
    program = (
        "from pathlib import Path; from shardline.config import load_project; "
        "p = load_project(workdir=Path('.')); "
        "print(*p.datasets, *p.runs, *(r.evaluation_id for r in p.runs.values()))"
    )
    schemas = place.library / "shardline" / "workflow" / "config" / "schemas"
    shutil.copytree(REPOSITORY / "config" / "schemas", schemas)
    found = subprocess.run(
        [sys.executable, "-c", program],
        cwd=place.path,
        env={**os.environ, "PYTHONPATH": str(place.library)},
        text=True,
        capture_output=True,
        check=True,
    )
    stages = place.stages()
    assert set(found.stdout.split()) == {v for k, v in stages.items() if k != "report"}


CHANGED_SETTINGS = {
    "nodes": 2,
    "devices": 1,
    "accelerator": "cpu",
    "strategy": "fsdp",
    "elastic": True,
    "precision": "bf16-mixed",
    "deterministic": False,
    "seed": 2,
    "global_batch": 32,
    "data.normalize": "none",
    "data.window_bytes": 1 << 20,
    "data.streams": 2,
    "data.epoch": "partition",
    "data.partition_shards": 2,
    "data.last_batch": "pad",
    "model_args": {"hidden": 8},
    "optim.name": "sgd",
    "optim.lr": 0.1,
    "optim.weight_decay": 0.1,
    "optim.momentum": 0.5,
    "optim.scale_lr": True,
    "schedule.name": "cosine",
    "schedule.warmup_steps": 5,
    "trainer.max_epochs": 7,
    "trainer.accumulate": 2,
    "trainer.gradient_clip": 1.0,
    "trainer.validate_every_epochs": 2,
    "early_stopping.monitor": "val_accuracy",
    "early_stopping.mode": "max",
    "early_stopping.patience": 9,
    "early_stopping.min_delta": 0.1,
    "early_stopping.stopping_threshold": 0.5,
    "checkpoint.monitor": "val_accuracy",
    "checkpoint.mode": "max",
    "divergence.policy": "skip",
    "divergence.max_loss": 9.0,
    "divergence.window_steps": 2,
    "divergence.factor": 0.1,
    "divergence.limit": 1,
    "evaluation.split": "validation",
    "evaluation.batch": 64,
}


def test_every_setting_is_tried() -> None:
    assert set(CHANGED_SETTINGS) == set(flatten(defaults_of(load_schema("settings"))))


@pytest.mark.parametrize("key", CHANGED_SETTINGS)
def test_setting(key: str, place: Place) -> None:
    before = place.stages()
    place.set(f"defaults.{key}", CHANGED_SETTINGS[key])
    expected = EVALUATES | REPORT
    if not key.startswith("evaluation."):
        expected = expected | TRAINS
    assert stale(before, place.stages()) == expected


def test_setting_of_one_row(place: Place) -> None:
    before = place.stages()
    place.edit("config/runs.tsv", lambda text: text.replace("model\n", "model\tseed\n"))
    assert stale(before, place.stages()) == set()
    place.edit("config/runs.tsv", lambda text: text.replace("\tmlp\n", "\tmlp\t7\n"))
    assert stale(before, place.stages()) == of_runs("mlp")


def test_swapped_values_are_another_run_and_going_back_is_the_old_one(place: Place) -> None:
    place.set("defaults.optim.lr", 0.1)
    place.set("defaults.optim.weight_decay", 0.2)
    before = place.stages()
    place.set("defaults.optim.lr", 0.2)
    place.set("defaults.optim.weight_decay", 0.1)
    assert stale(before, place.stages()) == TRAINS | EVALUATES | REPORT
    place.set("defaults.optim.lr", 0.1)
    place.set("defaults.optim.weight_decay", 0.2)
    assert place.stages() == before


@pytest.mark.parametrize(
    ("key", "value", "dataset"),
    [
        ("digits.shards", 5, "digits"),
        ("digits.splits.train", 0.7, "digits"),
        ("synthetic.source.rows_per_shard", 10, "synthetic"),
        ("synthetic.source.features", 10, "synthetic"),
        ("synthetic.source.seed", 10, "synthetic"),
        ("synthetic.source.signal", 10.0, "synthetic"),
        ("rings.source.options.width", 2, "rings"),
        ("rings.shards", 3, "rings"),
    ],
)
def test_setting_of_a_dataset(key: str, value: Any, dataset: str, place: Place) -> None:
    before = place.stages()
    place.set(f"datasets.{key}", value)
    if key.endswith("splits.train"):
        place.set("datasets.digits.splits.test", 0.2)
    assert stale(before, place.stages()) == of_dataset(dataset)


def library_closure(library: Path, entry: str) -> set[str]:
    """The library's modules behind an entry, as modulefinder reads them from bytecode."""
    finder = ModuleFinder(path=[str(library)])
    finder.import_hook(entry)
    return {name for name in finder.modules if name.partition(".")[0] == "shardline"}


def without_type_checking(library: Path, folder: Path) -> Path:
    """Copy a library so that Python's compiler drops what stands under `if TYPE_CHECKING`."""
    shutil.copytree(library, folder)
    for path in folder.rglob("*.py"):
        path.write_text(path.read_text().replace("if TYPE_CHECKING:", "if False:"))
    return folder


def stages_by_module(library: Path) -> dict[str, set[str]]:
    """Which stages each module of the library is expected to count in."""
    closure = functools.cache(functools.partial(library_closure, library))
    behind: dict[str, set[str]] = {
        "dataset digits": closure("shardline.shards") | closure("shardline.sources.digits"),
        "dataset synthetic": closure("shardline.shards") | closure("shardline.sources.synthetic"),
        "dataset rings": closure("shardline.shards"),
        "report": closure("shardline.report"),
    }
    for name, _, model in ROWS:
        own = closure(f"shardline.models.{model}") if ":" not in model else set()
        behind[f"train {name}"] = closure("shardline.train") | own
        behind[f"evaluate {name}"] = closure("shardline.evaluate") | own
    modules = list((library / "shardline").rglob("*.py"))
    names = [
        ".".join(path.relative_to(library).with_suffix("").parts).removesuffix(".__init__")
        for path in modules
    ]
    return {name: {stage for stage, found in behind.items() if name in found} for name in names}


def with_what_follows(stages: set[str]) -> set[str]:
    """Add the stages that read the results of those that are stale."""
    found = set(stages)
    for name, dataset, _ in ROWS:
        if f"dataset {dataset}" in found:
            found.add(f"train {name}")
        if f"train {name}" in found:
            found.add(f"evaluate {name}")
    return found | (REPORT if found & EVALUATES else set())


def test_statement_in_every_module_of_the_library(shared: Place, tmp_path: Path) -> None:
    before, expected, found = shared.stages(), {}, {}
    executed = without_type_checking(shared.library, tmp_path / "lib")
    for module, stages in stages_by_module(executed).items():
        path = shared.library.joinpath(*module.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        text = path.read_text()
        path.write_text(f"{text}\nMUTATION = 1\n")
        expected[module] = with_what_follows(stages)
        found[module] = stale(before, shared.stages())
        path.write_text(text)
    assert found == expected
    assert found["shardline.errors"] == EVERYTHING
    assert found["shardline.train"] == TRAINS | EVALUATES | REPORT
    assert found["shardline.models.mlp"] == of_runs("mlp")
    assert found["shardline.sources.digits"] == of_dataset("digits")
    assert found["shardline.charts"] == REPORT
    assert found["shardline.config.runs"] == set()
    assert shared.stages() == before


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("mypkg/__init__.py", of_dataset("rings")),
        ("mypkg/models.py", of_runs("own")),
        ("mypkg/helpers.py", of_runs("own")),
        ("mypkg/deep.py", of_runs("own")),  # two imports away from the model
        ("mypkg/sources.py", of_dataset("rings")),
        ("mypkg/unused.py", set()),
        ("report/page.html.j2", REPORT),
        ("report/page.js", REPORT),
        ("report/page.css", REPORT),
    ],
)
def test_edit_of_a_users_file(file: str, expected: set[str], place: Place) -> None:
    before = place.stages()
    place.edit(file, lambda text: f"{text}\nMUTATION = 1\n")
    assert stale(before, place.stages()) == expected


def test_edit_inside_a_method_two_imports_away(place: Place) -> None:
    before = place.stages()
    place.edit("mypkg/helpers.py", lambda text: text.replace("x * FACTOR", "x + FACTOR"))
    assert stale(before, place.stages()) == of_runs("own")


def test_source_byte(place: Place) -> None:
    before = place.stages()
    place.edit("data/rings.csv", lambda text: text.replace("4", "5"))
    assert stale(before, place.stages()) == of_dataset("rings")
    place.edit("data/rings.csv", lambda text: text.replace("5", "4"))
    assert place.stages() == before


def test_source_file_renamed(place: Place) -> None:
    before = place.stages()
    (place.path / "data" / "rings.csv").rename(place.path / "data" / "circles.csv")
    assert stale(before, place.stages()) == of_dataset("rings")


# What each stage imports, and what decides the rest: the packages' own metadata.
ARRAYS = {"blake3", "numpy", "safetensors"}
TORCH = {*ARRAYS, "torch", "pytorch-lightning"}
DIRECT = {
    "dataset digits": {"blake3", "numpy", "scikit-learn"},
    "dataset synthetic": {"blake3", "numpy"},
    "dataset rings": {"blake3", "numpy"},
    # what is masked is part of the page; the lock names pysocks behind urllib3, whatever extra asks for it
    "report": {"altair", "detect-secrets", "jinja2", "pysocks", "vl-convert-python"},
    **dict.fromkeys(TRAINS | EVALUATES, TORCH),
}


def needed(packages: set[str], known: set[str]) -> set[str]:
    """These packages and all that they need, by the metadata of what is installed."""
    found: set[tuple[str, str]] = set()
    pending = [(package, "") for package in packages]
    while pending:
        package, extra = pending.pop()
        if package not in known or (package, extra) in found:
            continue
        found.add((package, extra))
        for line in importlib.metadata.requires(package) or ():
            need = Requirement(line)
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                pending += [(canonicalize_name(need.name), e) for e in ("", *need.extras)]
    return {package for package, _ in found}


def test_every_entry_of_the_lock(shared: Place) -> None:
    before, text = shared.stages(), shared.lock.read_text()
    versions = environment.load_lock(shared.lock).versions
    behind = {stage: needed(packages, set(versions)) for stage, packages in DIRECT.items()}
    expected, found = {}, {}
    for name, version in versions.items():
        pin = next(p for p in text.splitlines() if canonicalize_name(p.partition("==")[0]) == name)
        shared.lock.write_text(text.replace(f"{pin}\n", f"{pin.partition('==')[0]}==1!{version}\n"))
        stages = {stage for stage, packages in behind.items() if name in packages}
        expected[name] = with_what_follows(stages)
        found[name] = stale(before, shared.stages())
    assert found == expected
    assert found["torch"] == TRAINS | EVALUATES | REPORT
    assert found["scikit-learn"] == of_dataset("digits")
    assert found["numpy"] >= DATASETS | TRAINS | EVALUATES
    assert found["altair"] == REPORT
    for tool in ("ruff", "snakemake", "typer", "pytest"):
        assert found[tool] == set(), tool


def test_a_scaling_study_adds_runs_and_makes_no_other_stale(place: Place) -> None:
    before = place.stages()
    place.set("scaling.ranks", {"run": "linear", "sizes": ["1x1", "1x2", "1x4"]})
    strong = place.stages()
    assert strong.keys() - before.keys() == {
        f"{stage} linear_nodes=1_devices={devices}"
        for stage in ("train", "evaluate")
        for devices in (1, 4)
    }
    assert stale(before, {key: strong[key] for key in before}) == REPORT
    place.set("scaling.ranks.mode", "weak")
    weak = place.stages()
    assert weak.keys() - strong.keys() == {
        f"{stage} linear_nodes=1_devices={devices}_global_batch={batch}"
        for stage in ("train", "evaluate")
        for devices, batch in ((2, 128), (4, 256))
    }
    assert stale(before, {key: weak[key] for key in before}) == REPORT


def add_comments(place: Place) -> None:
    for path in place.path.rglob("*.py"):
        path.write_text(f"# a comment\n{path.read_text()}\n# another\n")


def add_docstrings(place: Place) -> None:
    place.edit(
        "mypkg/models.py", lambda text: text.replace("(self, x):", '(self, x):\n        "Why."')
    )
    place.edit("mypkg/deep.py", lambda text: f'"""Module."""\n{text}"""About FACTOR."""\n')


def touch(place: Place) -> None:
    for path in place.path.rglob("*"):
        os.utime(path, ns=(1, 1))


def reverse_rows(place: Place) -> None:
    head, *rows = (place.path / "config" / "runs.tsv").read_text().splitlines()
    place.write("config/runs.tsv", "\n".join([head, *reversed(rows)]) + "\n")


def other_notation(place: Place) -> None:
    place.edit("config/config.yaml", lambda text: text.replace("lr: 0.001", "lr: 1e-3"))
    place.edit("config/config.yaml", lambda text: text.replace("signal: 3.0", "signal: 3"))


def repeat_a_default(place: Place) -> None:
    place.edit("config/runs.tsv", lambda text: text.replace("model\n", "model\toptim.lr\n"))
    place.edit("config/runs.tsv", lambda text: text.replace("\tmlp\n", "\tmlp\t[0.001]\n"))


@pytest.mark.parametrize(
    "change",
    [
        add_comments,
        add_docstrings,
        touch,
        reverse_rows,
        other_notation,
        repeat_a_default,
        lambda place: place.set("runtime.launcher", "none"),
        lambda place: place.set("runtime.launcher_args", ["--cpu-bind=cores"]),
        lambda place: place.set("runtime.hosts", ["n1", "n2"]),
        lambda place: place.set("runtime.remote_shell", "rsh"),
        lambda place: place.set("runtime.interface", "ib0"),
        lambda place: place.set("runtime.variables", {"NCCL_DEBUG": "INFO"}),
        lambda place: place.set("runtime.rendezvous_timeout_s", 60),
        lambda place: place.set("runtime.stop_grace_s", 60),
        lambda place: place.set("runtime.stop_margin_s", 60),
        lambda place: place.set("runtime.walltime_min", 60),
        lambda place: place.set("runtime.hang_timeout_s", 60),
        lambda place: place.set("runtime.verify", "always"),
        lambda place: place.set("runtime.ledger", True),
        lambda place: place.set("runtime.threads_per_rank", 3),
        lambda place: place.set("runtime.oversubscribe", True),
        lambda place: place.set("runtime.log_every_steps", 1),
        lambda place: place.set("runtime.checkpoint.every_steps", 7),
        lambda place: place.set("runtime.checkpoint.every_min", 0.5),
        lambda place: place.set("runtime.checkpoint.keep", 3),
        lambda place: place.set("runtime.checkpoint.keep_best", 2),
        lambda place: place.set("runtime.checkpoint.asynchronous", False),
        lambda place: place.set("runtime.tracking", ["csv", "mlflow", "tensorboard", "wandb"]),
        lambda place: place.set("runtime.environment", "conda"),
        lambda place: place.set("runtime.strict_env", "warn"),
        lambda place: place.set("runtime.environment", "image"),
        lambda place: place.set(
            "image", {"base": "python:3.12-slim", "push": "r/n", "run_args": ["--init"]}
        ),
        lambda place: place.set("azureml", {"register_data": True}),
        lambda place: place.set("conda", {"channels": ["file:///x"], "folder": "envs"}),
        lambda place: place.set("conda.names", {"numpy": "numpy-base"}),
        lambda place: place.set("conda.virtual_packages", {"__cuda": "12.8"}),
        lambda place: place.write("envs/train.yaml", "# a comment\n"),
        lambda place: place.set("datasets.digits.shards_per_job", 1),
        lambda place: place.set("datasets.unused", {"source": {"type": "digits"}, "shards": 1}),
        lambda place: place.write("profiles/slurm/profile.yaml", "slurm_partition: other\n"),
    ],
)
def test_what_changes_nothing(change: Callable[[Place], None], place: Place) -> None:
    before = place.stages()
    change(place)
    assert stale(before, place.stages()) == set()


def test_formatting_changes_nothing(place: Place) -> None:
    place.edit("mypkg/deep.py", lambda text: f"{text}A = B = u'x'\ndel (A, B)\n")
    before = place.stages()
    place.edit("mypkg/deep.py", lambda text: text.replace("(A, B)", "A, B"))  # as black writes it
    ruff = [sys.executable, "-m", "ruff", "format", "--isolated", "--quiet", "--line-length", "50"]
    subprocess.run([*ruff, str(place.path)], check=True)
    assert 'A = B = "x"' in (place.path / "mypkg" / "deep.py").read_text()
    assert stale(before, place.stages()) == set()


def test_fresh_clone_elsewhere_changes_nothing(
    place: Place, use: Callable[[Place], Place], tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = place.stages()
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(place.path)]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *arguments], check=True)
    clone = Place(tmp_path_factory.mktemp("elsewhere") / "clone")
    subprocess.run(["git", "clone", "-q", str(place.path), str(clone.path)], check=True)
    assert use(clone).stages() == before
