"""Mistakes and accidents, each really made: one clear sentence, a non-zero exit, nothing lost."""

from pathlib import Path

import pytest

from tests.support.workspace import REPOSITORY, TINY_CONFIG


def sealed(folder: Path) -> list[Path]:
    """Return whatever was written below results/runs beside the resolved spec."""
    return [
        f for f in folder.glob("results/runs/*/*") if f.name not in ("run.json", "identity.json")
    ]


def test_more_devices_than_the_machine_has_is_refused_before_any_job(tiny):
    workspace = tiny(
        {"name": "wide", "dataset": "digits", "model": "linear", "devices": 64, "global_batch": 64}
    )
    done = workspace.snakemake()
    assert done.returncode != 0
    assert 'config/runs.tsv line 2 (run "wide"): devices=64, but this machine has' in done.stdout
    assert "Traceback" not in done.stdout
    assert not (workspace.path / "results").exists()


TINY_ROW = {"name": "run", "dataset": "digits", "model": "linear"}


def test_a_mistake_in_the_table_is_one_sentence_before_any_job(tiny):
    done = tiny({**TINY_ROW, "optim.lrr": 1}).snakemake()
    assert done.returncode != 0
    message = 'config/runs.tsv: column "optim.lrr" is not a known setting; did you mean "optim.lr"?'
    assert message in " ".join(done.stdout.split())
    assert "Traceback" not in done.stdout


def test_a_home_that_cannot_be_written_names_the_variable_that_helps(tiny, tmp_path_factory):
    workspace = tiny(TINY_ROW)
    home = {"HOME": "/dev/null/home", "XDG_CACHE_HOME": ""}
    done = workspace.snakemake("--dry-run", env=home)
    assert done.returncode != 0
    assert "set XDG_CACHE_HOME to a writable folder" in done.stdout
    assert "Traceback" not in done.stdout
    home["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    assert workspace.snakemake("--dry-run", env=home).returncode == 0


@pytest.mark.slow
def test_a_model_that_does_not_import_shows_the_users_own_traceback_only(tiny):
    workspace = tiny({"name": "own", "dataset": "table", "model": "mypkg.models:Net", "devices": 1})
    workspace.write("mypkg/__init__.py", "")
    workspace.write("mypkg/models.py", "from mypkg import helpers\n\nclass Net: ...\n")
    workspace.write("mypkg/helpers.py", "def rate():\n    return 1 / 0\n\nRATE = rate()\n")
    done = workspace.snakemake()
    assert done.returncode != 0
    assert 'run "own": model=mypkg.models:Net does not import: ZeroDivisionError' in done.stdout
    assert "helpers.py, line 2, in rate: return 1 / 0" in done.stdout
    assert "importlib" not in done.stdout
    assert not sealed(workspace.path)


@pytest.mark.slow
def test_a_model_that_fails_in_a_step_shows_the_users_own_frames_only(tiny):
    workspace = tiny({"name": "own", "dataset": "table", "model": "mypkg.models:Net", "devices": 1})
    page = (REPOSITORY / "docs/how-to/write-a-model.md").read_text()
    model = page.split("```python\n")[1].split("```")[0]
    workspace.write(
        "mypkg/models.py", model.replace("return self.net(features)", "return self.nett(features)")
    )
    done = workspace.snakemake()
    assert done.returncode != 0
    assert done.stdout.count("AttributeError: 'Net' object has no attribute 'nett'") == 1
    assert "mypkg/models.py, line 21, in forward: return self.nett(features)" in done.stdout
    assert "site-packages" not in done.stdout
    assert not workspace.matching("logs/train/*/attempt-2.log"), "a retry would end alike"
    log = workspace.the("logs/train/*.log").read_text()
    assert "site-packages" in log, "the log has all of it, after the retries too"


def test_a_store_that_cannot_be_written_to_is_one_sentence_before_any_job(tiny):
    workspace = tiny({"name": "run", "dataset": "digits", "model": "linear"})
    done = workspace.snakemake(env={"SHARDLINE_STORE": "/proc/self"})
    assert done.returncode != 0
    assert (
        "store /proc/self cannot be written to; fix its permissions or mount, or set SHARDLINE_STORE"
        in done.stdout
    )
    assert "Traceback" not in done.stdout
    assert "rule build_shards" not in done.stdout


@pytest.mark.slow
@pytest.mark.rotating
def test_final_errors_of_config_data_and_model_are_shown_once_whatever_the_retries(tiny):
    source = {"type": "csv", "files": ["t.csv"], "label": "y", "num_classes": 2}
    workspace = tiny(
        {"name": "data", "dataset": "broken", "model": "linear"},
        {"name": "model", "dataset": "table", "model": "own:Own"},
        {"name": "config", "dataset": "table", "model": "mlp", "model_args.wdth": 8},
        datasets={**TINY_CONFIG["datasets"], "broken": {"source": source, "shards": 1}},
    )
    workspace.write("t.csv", "a,b,y\n" + "1,2,0\n" * 40 + "1,2,3,1\n")
    workspace.write(
        "own.py",
        "from shardline.training.models.mlp import MLP\n\n\nclass Own(MLP):\n"
        "    def training_step(self, batch, batch_idx):\n        return batch['images']\n",
    )
    done = workspace.snakemake("--retries", "3")
    assert done.returncode == 1
    for sentence in (
        "t.csv, line 42: the number of fields is 4, expected 3",
        "own.py, line 6, in training_step: return batch['images']",
        ", but not wdth; ",
    ):
        assert done.stdout.count(sentence) == 1, done.stdout
    assert done.stdout.count(": failed; log: logs/") == 3, "the attempts that follow print nothing"
    assert ", attempt " not in done.stdout
    assert "Traceback" not in done.stdout
    assert not workspace.matching("logs/train/*/attempt-2.log"), "they leave before any rank starts"
