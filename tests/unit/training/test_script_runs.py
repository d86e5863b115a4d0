"""A script as a rank's program: what it is given, how it may end, what it may leave."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from msgspec import convert
from safetensors import safe_open
from safetensors.torch import save_file

from shardline.config.resolved import RunSpec
from shardline.config.settings.run_settings import Evaluation, Headline, RunSettings
from shardline.core.world import World
from shardline.errors import ConfigError, DataError
from shardline.records.datasets import DatasetSchema
from shardline.records.trainings import ScriptEvaluation, Training
from shardline.supervision.watchdog import DUMP_SIGNAL
from shardline.training import script
from shardline.training.script_outputs import evaluation_of, read_evaluation
from tests.support.columns import bare_manifest
from tests.support.processes import wait_until

ALONE = World(
    rank=0, local_rank=0, world_size=1, local_world_size=1, master_addr="127.0.0.1", master_port=0,
    launcher="none",
)  # fmt: skip
# --- what it leaves -----------------------------------------------------------------------

SPEC = RunSpec(
    run="own",
    model_class="script: train.py --lr 0.1",
    identity="ab" * 32,
    settings=RunSettings(),
)
WEIGHTS = {
    "b": torch.arange(3, dtype=torch.float32),
    "a": torch.ones(2, dtype=torch.bfloat16),
    "n": torch.tensor(4),
}


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """An attempt's folder, as `prepare` makes it, with a model in it."""
    script.prepare(tmp_path)
    save_file(WEIGHTS, tmp_path / "output/model.safetensors", metadata={"format": "pt"})
    return tmp_path / "output"


def seal(output: Path) -> Training:
    return script.seal(SPEC, work=output.parent, results=output.parent / "results")


def test_model_metrics_and_figures_are_sealed(output: Path) -> None:
    (output / "metrics.jsonl").write_text(
        '{"step": 1, "train_loss": NaN}\n\n{"step": 2, "note": "x"}'
    )
    (output / "evaluation.json").write_text('{"metrics": {"accuracy": 1}, "num_samples": 5}')
    assert seal(output) == Training(
        script="train.py",
        arguments=["--lr", "0.1"],
        evaluation=ScriptEvaluation(metrics={"accuracy": 1}, num_samples=5),
    )
    results = output.parent / "results"
    assert (results / "metrics.jsonl").read_text() == (
        '{"step": 1, "train_loss": null}\n{"step": 2, "note": "x"}\n'
    )
    with safe_open(results / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt", "identity": SPEC.identity}
        assert {name: file.get_tensor(name).tolist() for name in file.keys()} == {  # noqa: SIM118
            name: weight.tolist() for name, weight in WEIGHTS.items()
        }
        assert file.get_tensor("a").dtype == torch.bfloat16
    script.prepare(output.parent)
    assert not list(output.iterdir()), "the next attempt finds its folder empty"


def test_a_model_is_enough(output: Path) -> None:
    assert seal(output).evaluation is None
    assert (output.parent / "results/metrics.jsonl").read_bytes() == b""


def weights(**tensors: torch.Tensor) -> Callable[[Path], None]:
    return lambda output: save_file(tensors, output / "model.safetensors")


def text(name: str, content: str) -> Callable[[Path], object]:
    return lambda output: (output / name).write_text(content)


NAN = torch.tensor([1.0, float("nan")])
FIGURES = "evaluation.json"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda output: (output / "model.safetensors").unlink(), "rank 0 wrote no .*model.safetensors; save"),
        (text("model.safetensors", "no"), "is not a complete safetensors file .*; write it with"),
        (weights(), "contains no weights; save the model's state_dict"),
        (weights(w=NAN), "weight w is NaN or infinite; lower the learning rate"),
        (weights(w=NAN.to(torch.bfloat16)), "weight w is NaN or infinite"),
        (weights(w=NAN.to(torch.float8_e4m3fn)), "weight w is NaN or infinite"),
        (text("metrics.jsonl", '{"step": 1}\n{"loss": 1}\n'), "metrics.jsonl line 2 is not a JSON object with an"),
        (text("metrics.jsonl", '{"step": true}\n'), "line 1 is not a JSON object with an integer step"),
        (text("metrics.jsonl", '{"step": 1}\n{"st'), "line 2 is not a JSON object"),
        (text(FIGURES, "{"), "is not valid JSON; write"),
        (text(FIGURES, "[]"), "is not a JSON object; write"),
        (
            text(FIGURES, '{"accuracy": 1}'),
            "accuracy is an unknown key, expected only headline, metrics, num_samples; remove the key",
        ),
        (text(FIGURES, '{"metrics": {}, "num_samples": 1}'), "metrics={} is not an object of numbers by name"),
        (text(FIGURES, '{"metrics": {"f1": NaN}, "num_samples": 1}'), "metrics.f1=nan is not a finite number"),
        (text(FIGURES, '{"metrics": {"f1": "1"}, "num_samples": 1}'), "metrics.f1=1 is not a finite number"),
        (text(FIGURES, '{"metrics": {"f1": 1}}'), "num_samples=None is not a positive integer"),
        (text(FIGURES, '{"metrics": {"f1": 1}, "num_samples": 0}'), "num_samples=0 is not a positive integer"),
        (
            text(FIGURES, '{"metrics": {"f1": 1}, "num_samples": 1, "headline": "f1"}'),
            "headline=f1 is not an object with metric and mode",
        ),
        (
            text(FIGURES, '{"metrics": {"f1": 1}, "num_samples": 1, "headline": {"metric": "f2", "mode": "max"}}'),
            r"headline.metric=f2 is not in metrics \(f1\); add its value to metrics",
        ),
    ],
)  # fmt: skip
def test_what_is_broken_is_refused_by_name_and_nothing_is_sealed(
    output: Path, change: Callable[[Path], object], message: str
) -> None:
    change(output)
    with pytest.raises(DataError, match=message):
        seal(output)
    assert not (output.parent / "results").exists()


F1 = {"metrics": {"f1": 0.5, "wibble": 2}, "num_samples": 40}
WIBBLE = Evaluation(headline=Headline(metric="wibble", mode="min"))


@pytest.mark.parametrize(
    ("task", "told", "wanted", "headline", "split"),
    [
        ("classification", None, Evaluation(), ("accuracy", None, "max"), "test"),
        (
            "classification",
            {"metrics": {"accuracy": 0.5}, "num_samples": 40},
            Evaluation(),
            ("accuracy", 0.5, "max"),
            "test",
        ),
        ("classification", F1, Evaluation(), ("accuracy", None, "max"), "test"),
        (
            "classification",
            {**F1, "num_samples": 9, "headline": {"metric": "f1", "mode": "max"}},
            Evaluation(),
            ("f1", 0.5, "max"),
            "own 9-sample",
        ),
        ("regression", F1, WIBBLE, ("wibble", 2, "min"), "test"),
        ("none", None, WIBBLE, ("loss", None, "min"), "test"),
        ("none", F1, Evaluation(), ("f1", 0.5, "max"), "test"),
    ],
)
def test_an_evaluation_is_what_the_script_told(
    task: str, told: Any, wanted: Evaluation, headline: Any, split: str
) -> None:
    manifest = bare_manifest(
        schema=DatasetSchema(task=task, classes=[], columns={}), splits={"test": 40}
    )
    made = evaluation_of(convert({"evaluation": told}, Training), manifest, wanted, "x")
    assert (made.headline.metric, made.headline.value, made.headline.mode) == headline
    assert made.split == split
    assert made.measured_by == "script"
    assert read_evaluation(Path("nothing here")) is None


def test_a_headline_that_the_script_did_not_write_is_refused() -> None:
    manifest = bare_manifest(splits={"test": 40})
    told = Training(evaluation=ScriptEvaluation(metrics={"f1": 0.5}, num_samples=40))
    with pytest.raises(ConfigError, match='run "x": the script gave f1, .*headline.metric=wibble'):
        evaluation_of(told, manifest, WIBBLE, "x")


# --- the process --------------------------------------------------------------------------------


@pytest.fixture
def rank(tmp_path: Path) -> Callable[[str], list[str]]:
    """Make the command line of a process that runs a script as a rank does."""
    script.prepare(tmp_path)

    def make(code: str) -> list[str]:
        (tmp_path / "train.py").write_text(code)
        program = (
            "import os, sys; from pathlib import Path; from shardline.training import script;"
            "from shardline.errors import ShardlineError; from shardline.core.world import World;"
            "from shardline.config.resolved import DatasetPlace\n"
            f"world = {ALONE!r}\n"
            f"work = Path({str(tmp_path)!r}); os.chdir(work)\n"
            "try: script.run_script('script: train.py 1', world, run_json=Path('run.json'),"
            " dataset=DatasetPlace(manifest=Path('manifest.json'), shards=Path('shards')), work=work)\n"
            "except ShardlineError as error: print('FAILED', error); sys.exit(9)\n"
        )
        return [sys.executable, "-c", program]

    return make


def test_a_script_finds_its_place_in_its_variables(
    rank: Callable[[str], list[str]], tmp_path: Path
) -> None:
    code = "import os, sys, json; print(json.dumps([sys.argv, os.getcwd(), sys.path, dict(os.environ)]))"
    done = subprocess.run(rank(code), capture_output=True, text=True, check=True)
    argv, folder, search, env = json.loads(done.stdout)
    assert argv == [str(tmp_path / "train.py"), "1"]
    assert folder == str(tmp_path)
    assert search[:2] == [str(tmp_path)] * 2
    names = {
        "RUN_JSON": "run.json", "MANIFEST": "manifest.json", "SHARDS": "shards",
        "WORK": "checkpoints", "OUTPUT": "output",
    }  # fmt: skip
    for name, file in names.items():
        assert env[f"SHARDLINE_{name}"] == str(tmp_path / file)
    assert (env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"]) == ("0", "1", "0")


def test_a_failures_last_frames_and_exception_are_told(rank: Callable[[str], list[str]]) -> None:
    code = (
        "import sys\n\ndef step(batch):\n    return 1 / batch\n\n"
        "print('a warning', file=sys.stderr)\n"
        "sys.excepthook = (lambda hook: lambda *args: (hook(*args),"
        " print('[W123 group not destroyed]', file=sys.stderr)))(sys.excepthook)\n"
        "step(0)\n"
    )
    done = subprocess.run(rank(code), capture_output=True, text=True, check=False)
    assert done.returncode == 9
    told = done.stdout.partition("FAILED ")[2]
    assert told.startswith("script train.py ended with code 1:\n")
    assert told.rstrip().endswith("ZeroDivisionError: division by zero")
    assert "line 4, in step" in told
    assert "warning" not in told
    assert "a warning" in done.stderr, "the log has all of it"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys; sys.exit('no rows left')", "script train.py ended with code 1:\n  no rows left"),
        ("import os; os._exit(7)", "ended with code 7 and wrote nothing to standard error"),
        ("import os; os.kill(os.getpid(), 9)", "was ended by SIGKILL"),
        (f"import os; os.kill(os.getpid(), {DUMP_SIGNAL})", "did not exit after its interpreter had ended"),
        (
            "import sys; sys.stderr.write('[rank1]: Traceback (most recent call last):\\n[rank1]:   File x\\n"
            "[rank1]: ValueError: bad\\n[rank1]:[W1 left]\\n'); sys.exit(3)",
            "ended with code 3:\n    File x\n  ValueError: bad$",
        ),
    ],
)  # fmt: skip
def test_other_ends_are_told_as_well(
    rank: Callable[[str], list[str]], code: str, message: str
) -> None:
    done = subprocess.run(rank(code), capture_output=True, text=True, check=False)
    assert done.returncode == 9
    assert re.search(message, done.stdout.strip()), done.stdout


WAITS = """
import os, signal, sys, time
from pathlib import Path
def end(number, frame):
    Path("terminated").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
Path("pid.tmp").write_text(str(os.getpid()))
os.replace("pid.tmp", "pid")
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_script_ends_with_its_rank(
    rank: Callable[[str], list[str]], tmp_path: Path, number: int
) -> None:
    parent = subprocess.Popen(rank(WAITS), text=True, stdout=subprocess.PIPE)
    wait_until((tmp_path / "pid").exists, parent)
    child = psutil.Process(int((tmp_path / "pid").read_text()))
    os.kill(parent.pid, number)
    output, _ = parent.communicate(timeout=300)
    assert "FAILED" not in output, "who is told to stop has not failed"
    _, alive = psutil.wait_procs([child], timeout=120)
    assert not alive
    is_told = number == signal.SIGTERM
    assert parent.returncode == (128 + number if is_told else -number)
    assert (tmp_path / "terminated").exists() == is_told
    assert not list((tmp_path / "ended").iterdir()), "it counts as stopped, whatever its code"


def test_what_a_script_leaves_running_ends_with_it(
    rank: Callable[[str], list[str]], tmp_path: Path
) -> None:
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "open('left', 'w').write(str(child.pid))\n"
    )
    done = subprocess.run(rank(code), stdout=subprocess.PIPE, text=True, timeout=300, check=False)
    assert done.returncode == 0
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int((tmp_path / "left").read_text())).wait(60)
    assert (tmp_path / "ended/rank-0.json").exists()
