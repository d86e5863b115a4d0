"""What a terminal shows of the real Snakemake with the logger plugin: 80 x 24, 200 columns, and a file."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.screen import OnTerminal
from tests.support.workspace import REPOSITORY, SNAKEMAKE, Workspace

CAUSE = (
    'run "run3": optim.lr=1e30 made weight net.0.weight infinite at step 3; expected finite weights; lower optim.lr '
    "or set trainer.gradient_clip"
)
SNAKEFILE = """
RUNS = [f"run{number}" for number in range(6)]


def results():
    return [
        dict(title=run, done=Path(f"out/{run}.txt").exists(), headline="accuracy 0.9722", logs=[f"logs/{run}.log"])
        for run in RUNS + ["late"]
    ]


rule all:
    input: expand("out/{run}.txt", run=RUNS), "out/late.txt"

rule prepare:
    output: "data/{part}.txt"
    message: "Preparing {wildcards.part}"
    shell: "touch {output}"

rule train:
    input: expand("data/{part}.txt", part=range(12))
    output: "out/{run}.txt"
    wildcard_constraints: run="run."
    log: "logs/{run}.log"
    message: "Training {wildcards.run}"
    shell: "PYTHON job.py {wildcards.run} {output}"

rule follow:
    input: "out/run3.txt"
    output: "out/late.txt"
    shell: "touch {output}"

onerror: logger.info(None, extra=dict(results=results()))
onsuccess: logger.info(None, extra=dict(results=results()))
"""
JOB = """
import json, sys, time
from pathlib import Path

run, output = sys.argv[1:]
print("\\x1b[31mUserWarning:\\x1b[0m of " + run, file=sys.stderr)
fields = dict(title=run, step=3, steps=10, epoch=1, epochs=2, metrics=dict(train_loss=0.25, val_accuracy=0.875))
Path(f"logs/{run}.progress.json").write_text(json.dumps({**fields, "rate": 12.5, "left_s": 75}))
while not Path("go").exists():
    time.sleep(0.05)
if run == "run3" and Path("fail").exists():
    Path(f"logs/{run}.progress.json").write_text(json.dumps({**fields, "error": CAUSE}))
    sys.exit(6)
Path(output).touch()
"""
NOISE = (
    "RuleException",
    "CalledProcessError",
    "Job stats",
    "Select jobs",
    "At least one job",
    "Exiting because",
    "jobid",
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "Snakefile").write_text(
        "from pathlib import Path\n" + SNAKEFILE.replace("PYTHON", sys.executable)
    )
    (tmp_path / "job.py").write_text(f"CAUSE = {CAUSE!r}\n{JOB}")
    return tmp_path


COMMAND = [str(SNAKEMAKE), "--cores", "6", "--keep-going", "--logger", "shardline"]


def is_training(screen: list[str]) -> bool:
    return sum("step 3/10" in line for line in screen) == 6


def test_a_terminal_of_80_columns_shows_a_line_for_each_training_then_one_table(project):
    (project / "fail").touch()
    terminal = OnTerminal(COMMAND, project)
    screen = terminal.wait_for(is_training)
    lines = [line for line in screen if "step 3/10" in line]
    assert sorted(line.split()[0] for line in lines) == [f"run{number}" for number in range(6)], (
        "in place"
    )
    assert all("train_loss 0.25" in line and "0:01:15 left" in line for line in lines), screen
    assert max(map(len, screen)) < 80
    assert re.match(r"12 of 20 jobs done, ", screen[-1] or screen[-2]), screen
    (project / "go").touch()
    shown = terminal.end()
    assert terminal.process.returncode == 1
    assert max(map(len, shown.splitlines())) < 80
    assert set(CAUSE.split()) <= set(shown.split()), "no word is broken"
    assert " ".join(shown.split()).count(CAUSE) == 1
    assert shown.count("UserWarning: of run3") == 1, "what a job prints is not lost"
    assert "step 3/10" not in shown, "nothing that was redrawn stays"
    assert not [noise for noise in NOISE if noise in shown], shown
    table = shown[shown.index("run0  done") :].splitlines()
    assert table[0] == "run0  done     accuracy 0.9722"
    rows = {line.split()[0]: line.split()[1] for line in table if line.startswith(("run", "late"))}
    assert rows == {f"run{n}": "done" for n in range(6) if n != 3} | {
        "run3": "failed",
        "late": "skipped",
    }
    assert "    log: logs/run3.log" in table
    assert re.match(r"17 of 20 jobs done, 1 failed, 0:", table[-1]), table


def test_a_wide_terminal_has_place_for_all_columns_and_success_is_one_table(project):
    terminal = OnTerminal(COMMAND, project, columns=200)
    screen = terminal.wait_for(is_training)
    line = next(line for line in screen if line.startswith("run0  step 3/10"))
    assert (
        line
        == "run0  step 3/10  epoch 1/2  train_loss 0.25  val_accuracy 0.875  12.5 steps/s  0:01:15 left"
    )
    (project / "go").touch()
    shown = terminal.end()
    assert terminal.process.returncode == 0
    assert shown.count("accuracy 0.9722") == 7
    assert "failed" not in shown
    assert "20 of 20 jobs done" in shown


def test_a_file_gets_lines_and_a_second_start_says_that_nothing_is_to_be_done(project):
    for name in ("fail", "go"):
        (project / name).touch()
    done = subprocess.run(
        COMMAND, cwd=project, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert "\x1b[31mUserWarning" in done.stdout, "what jobs print goes where it would go without"
    assert done.stdout.count(CAUSE) == 1
    assert [line for line in lines if re.fullmatch(r"\d\d:\d\d:\d\d  prepare 12/12 done", line)]
    assert [line for line in lines if re.fullmatch(r"\d\d:\d\d:\d\d  Training run0", line)]
    assert [
        line
        for line in lines
        if re.fullmatch(r"..:..:..  Training run3: failed; log: logs/run3.log", line)
    ]
    assert not [noise for noise in NOISE if noise in done.stdout], done.stdout
    (project / "fail").unlink()
    assert subprocess.run(COMMAND, cwd=project, capture_output=True).returncode == 0
    again = subprocess.run(COMMAND, cwd=project, text=True, capture_output=True)
    assert "Nothing to be done" in again.stderr
    assert len(again.stderr.strip().splitlines()) == 1, again.stderr


@pytest.mark.slow
@pytest.mark.rotating
def test_the_real_pipeline_on_a_terminal_shows_a_training_and_the_headline(tiny):
    workspace: Workspace = tiny(
        {"name": "own", "dataset": "table", "model": "own:Own", "trainer.max_epochs": 2}
    )
    workspace.write(
        "own.py",
        "import time\nfrom pathlib import Path\n\nfrom shardline.training.models.mlp import MLP\n\n\nclass Own(MLP):\n"
        "    def training_step(self, batch, batch_idx):\n"
        "        while self.global_step > 3 and not Path('go').exists():\n            time.sleep(0.1)\n"
        "        time.sleep(0 if Path('go').exists() else 2.5)\n"
        "        return super().training_step(batch, batch_idx)\n",
    )
    terminal = OnTerminal(workspace.command(), workspace.path)
    screen = terminal.wait_for(lambda lines: any(line.startswith("own  step ") for line in lines))
    assert any(re.match(r"own  step \d+/\d+  epoch 1/2  train_loss ", line) for line in screen), (
        screen
    )
    workspace.write("go", "")
    shown = terminal.end()
    assert terminal.process.returncode == 0, shown
    assert re.search(r"^own  done     accuracy [\d.]+$", shown, re.MULTILINE), shown
    assert "Report: results/report/index.html" in shown
    document = json.loads(workspace.the("logs/train/*.progress.json").read_text())
    assert document["title"] == "own"
    _, ours = shown.split("command line arguments.")  # Snakemake itself names the profiles
    assert str(REPOSITORY) not in ours.replace(str(SNAKEMAKE), ""), shown
