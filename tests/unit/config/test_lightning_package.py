"""Which package of Lightning a run loads, from its code, and what of it counts in identities."""

import subprocess
import sys

import pytest

from shardline.config.job_plan import read_plan, write_plan
from shardline.environments.specs import specs_of
from shardline.errors import ConfigError
from shardline.results.check import checked_models
from shardline.training.rank_task import read_task
from tests.support.fake_project import FakeProject

LOCK = """\
lightning=={0}
    # via
    #   forecasts
    #   shardline
pytorch-lightning=={0}
    # via
    #   bolts
    #   lightning
    #   shardline
torch==2.13.0
    # via
    #   lightning
    #   pytorch-lightning
forecasts==1
    # via shardline
bolts==1
    # via shardline
"""
NET = "{}\n\n\nclass Net({}):\n    pass\n"
NEW = NET.format("from lightning import LightningModule", "LightningModule")
OLD = NET.format("from pytorch_lightning import LightningModule", "LightningModule")
PL, L = "pytorch_lightning", "lightning"


def packages(fake: FakeProject, model: str, **files: str) -> tuple[str, ...]:
    for name, text in {"models": model, **files}.items():
        fake.workspace.write(f"mypkg/{name}.py", text)
    run = fake.run("net")
    assert run.spec.lightning == run.lightning
    return run.lightning


@pytest.fixture(autouse=True)
def lock(fake: FakeProject) -> None:
    fake.workspace.write("my.lock", LOCK.format("2.6.6"))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (NEW, (L,)),
        (NET.format("import lightning as L", "L.LightningModule"), (L,)),
        (NET.format("import lightning.pytorch as pl", "pl.LightningModule"), (L,)),
        (NET.format("from lightning.fabric import Fabric\nfrom mypkg.base import Base", "Base"), (L,)),
        (OLD, (PL,)),
        (NET.format("from lightning_fabric import Fabric\nfrom mypkg.base import Base", "Base"), (PL,)),
        (NET.format("from shardline.models import Classifier", "Classifier"), (PL,)),
        (NET.format("from shardline.models import Classifier\nimport lightning", "Classifier"), (L,)),
        (f"import lightning\n{OLD}", (PL, L)),
        (f"{NEW}\n    def f(self):\n        import pytorch_lightning\n", (PL, L)),
        (NET.format("from forecasts import Base", "Base"), (L,)),  # which needs `lightning`
        (NET.format("from bolts import Base", "Base"), (PL,)),
    ],
)  # fmt: skip
def test_the_package_is_the_one_that_the_models_code_imports(fake, model, expected):
    assert packages(fake, model, base="class Base:\n    pass\n") == expected


def test_other_code_of_the_run_is_told_too_and_the_models_package_is_loaded(fake):
    transform = (
        "import lightning\n\n\nclass T:\n    def __call__(self, sample):\n        return sample\n"
    )
    fake.rows[0]["data.transform"] = "mypkg.transforms:T"
    fake.rows[0]["dataset"] = "rows"
    assert packages(fake, OLD, transforms=transform) == (PL, L)
    fake.rows[0].pop("data.transform")
    data = "import pytorch_lightning\nfrom shardline.sources import Source\n\n\nclass Rows(Source):\n    pass\n"
    assert packages(fake, NEW, sources=data) == (L, PL)
    fake.rows[0]["model"] = "linear"
    assert packages(fake, NEW, sources=data.replace("pytorch_", "")) == (PL, L)


def test_a_script_loads_what_it_likes(fake):
    fake.workspace.write("train.py", "import lightning\n")
    fake.rows[0]["model"] = "script: train.py"
    run = fake.run("net")
    assert run.lightning == ()
    assert run.document["environment"]["packages"]["lightning"] == "2.6.6"


def test_the_package_and_its_version_count_where_the_model_imports_it(fake):
    packages(fake, NEW)
    first = fake.run("net")
    assert first.document["environment"]["packages"]["lightning"] == "2.6.6"
    fake.workspace.write(
        "my.lock", LOCK.replace("lightning=={0}", "lightning==2.6.7", 1).format("2.6.6")
    )
    assert fake.run("net").id != first.id
    assert "lightning" not in fake.run("flat").document["environment"]["packages"]


def test_a_plan_keeps_the_packages(fake):
    packages(fake, f"import lightning\n{OLD}")
    plan = read_plan(write_plan(fake.plan("net")))
    assert [run.spec.lightning for run in plan.runs.values()] == [(PL, L)]


@pytest.mark.parametrize(
    ("version", "message"),
    [("2.5.6", "expected 2.6 or newer"), ("2.6.2", "was withdrawn")],
)
def test_a_lock_with_another_version_is_rejected_by_name(fake, version, message):
    packages(fake, NEW)
    fake.workspace.write(
        "my.lock", LOCK.replace("lightning=={0}", f"lightning=={version}", 1).format("2.6.6")
    )
    with pytest.raises(ConfigError) as error:
        fake.load()
    assert f"lightning {version} is pinned by the lock of config/runs.tsv" in str(error.value)
    assert message in str(error.value)


def test_the_package_is_found_without_an_import(fake):
    packages(fake, NEW)
    program = (
        "import sys; from shardline.config.load import load_project; load_project(); "
        "print([name for name in ('lightning', 'pytorch_lightning', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout.strip() == "[]"


def test_conda_environments_contain_the_package_where_code_imports_it(fake):
    packages(fake, NEW, sources="import lightning\n\n\nclass Rows:\n    pass\n")
    fake.rows[0]["dataset"] = "rows"
    project = fake.load()
    for env in ("train", "data"):
        assert {"lightning ==2.6.6", "pytorch-lightning ==2.6.6"} <= set(specs_of(project, env))


def test_models_of_two_packages_are_checked_in_two_processes(fake, monkeypatch):
    started = []

    def start(project, python, tasks, limit_s, package):
        runs = [read_task(task).run for task in tasks]
        started.append({(run.model, run.lightning[:1]) for run in runs})
        return f"process {len(started)}"

    monkeypatch.setattr(checked_models, "_start", start)
    packages(fake, NEW)
    project = fake.load()
    checked = checked_models.check_models(project, project.runs)
    assert sorted(started, key=str) == [{("linear", (PL,))}, {("mypkg.models:Net", (L,))}]
    assert {one.sentence[-9:] for one in checked.findings} == {"process 1", "process 2"}
