"""Changes that leave every bit of every result: none makes anything stale."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.mutated_project import Place, stale

# Where and how the work is done.
ELSEWHERE: list[tuple[str, Any]] = [
    ("runtime.launcher", "none"),
    ("runtime.launcher_args", ["--cpu-bind=cores"]),
    ("runtime.hosts", ["n1", "n2"]),
    ("runtime.remote_shell", "rsh"),
    ("runtime.interface", "ib0"),
    ("runtime.variables", {"NCCL_DEBUG": "INFO"}),
    ("runtime.rendezvous_timeout_s", 60),
    ("runtime.stop_grace_s", 60),
    ("runtime.stop_margin_s", 60),
    ("runtime.walltime_min", 60),
    ("runtime.hang_timeout_s", 60),
    ("runtime.verify", "always"),
    ("runtime.ledger", True),
    ("runtime.threads_per_rank", 3),
    ("runtime.oversubscribe", True),
    ("runtime.log_every_steps", 1),
    ("runtime.checkpoint.every_steps", 7),
    ("runtime.checkpoint.every_min", 0.5),
    ("runtime.checkpoint.keep", 3),
    ("runtime.checkpoint.keep_best", 2),
    ("runtime.checkpoint.after_sealing", "none"),
    ("runtime.checkpoint.asynchronous", False),
    ("runtime.tracking", ["csv", "mlflow", "tensorboard", "wandb"]),
    ("runtime.environment", "conda"),
    ("runtime.strict_env", "warn"),
    ("runtime.watch_reads", "off"),
    ("runtime.watch_reads", "error"),
    ("defaults.uncounted_args", "cache_dir"),
    ("runtime.environment", "image"),
    ("azureml", {"register_data": True}),
    ("conda", {"channels": ["file:///x"], "folder": "envs"}),
    ("conda.names", {"numpy": "numpy-base"}),
    ("conda.virtual_packages", {"__cuda": "12.8"}),
    ("datasets.digits.shards_per_job", 1),
    ("datasets.unused", {"source": {"type": "digits"}, "shards": 1}),
    ("image", {"base": "python:3.12-slim", "push": "r/n", "run_args": ["--init"]}),
]


@pytest.mark.parametrize(("key", "value"), ELSEWHERE, ids=[key for key, _ in ELSEWHERE])
def test_key_that_changes_nothing(key: str, value: Any, place: Place) -> None:
    before = place.stages()
    place.set(key, value)
    assert stale(before, place.stages()) == set()


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
    place.edit("config/runs.tsv", lambda text: text.replace("strategy\n", "strategy\toptim.lr\n"))
    place.edit("config/runs.tsv", lambda text: text.replace("\tmlp\t\n", "\tmlp\t\t[0.001]\n"))


@pytest.mark.parametrize(
    "change",
    [
        add_comments,
        add_docstrings,
        touch,
        reverse_rows,
        other_notation,
        repeat_a_default,
        lambda place: place.write("envs/train.yaml", "# a comment\n"),
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
    options = ["--isolated", "--no-cache", "--quiet", "--line-length", "50"]
    subprocess.run([sys.executable, "-m", "ruff", "format", *options, str(place.path)], check=True)
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
